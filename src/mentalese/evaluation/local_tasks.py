"""Zero-shot sets of local files as tasks of lm-eval: `tasks/NAME.yaml` declares each one.

Thoughtbubbles (Table 1, appendix E) takes the choice whose whole text has the lowest perplexity; lm-eval takes the one
whose log-likelihood, summed over the choice, is the highest. These are different rankings, so both are reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from datasets import Dataset
from lm_eval.api.instance import Instance
from lm_eval.api.metrics import mean
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks.hellaswag.utils import preprocess

from mentalese.data.files import Row, open_text, read_json_lines, read_text_lines
from mentalese.data.plain_text import join_lines
from mentalese.errors import require
from mentalese.evaluation.harness import Score


@dataclass(frozen=True)
class SetFormat:
    """The columns of a set's files: `dataset_kwargs` of its YAML file.

    Attributes:
        files: pattern inside the folder of all sets; files may be gzipped.
        parts: number of files; the metrics are means over the files, each of which counts the same.
        texts: columns of text.
        may_be_empty: columns of text that may be empty.
        choices: column of a list of choices, or one column for each choice; the first one has the number `first`.
        label: column of the right choice's number, or the number itself.
        premise: column before a choice for its rank by perplexity; `None`: the context that lm-eval uses.
        read: function that yields the rows of a file, each with its place for messages.
    """

    files: str
    parts: int = 1
    texts: tuple[str, ...] = ()
    may_be_empty: tuple[str, ...] = ()
    choices: str | tuple[str, ...] = ()
    label: str | int | None = None
    first: int = 0
    premise: str | None = None
    read: Callable[[Path], Iterator[Row]] = read_json_lines

    def rows(self, path: Path, limit: int | None) -> list[dict[str, object]]:
        """Return the first rows of a file: its texts, `choices`, and the index of the right one as `gold`."""
        rows = [self._row(where, row) for where, row in islice(self.read(path), limit)]
        require(bool(rows), str(path), [], "it has no questions, download it again")
        return rows

    def _row(self, where: str, row: dict[str, object]) -> dict[str, object]:
        texts = {name: row.get(name) for name in (*self.texts, *self.may_be_empty)}
        choices = row.get(self.choices) if isinstance(self.choices, str) else [row.get(name) for name in self.choices]
        choices = choices if isinstance(choices, list) else [choices]
        own = "use the set's own files"
        for name, text in [*texts.items(), *(("a choice", choice) for choice in choices)]:
            valid = isinstance(text, str) and (name in self.may_be_empty or bool(text.strip()))
            require(valid, f"{where}: {name}", text, f"a text is missing, {own}")
        if self.label is None:
            return texts
        label = row.get(self.label) if isinstance(self.label, str) else self.label
        last = self.first + len(choices) - 1
        number = str(label).strip()
        valid = number.isdecimal() and self.first <= int(number) <= last
        require(valid, f"{where}: label", label, f"choices are {self.first} to {last}, {own}, of a split with labels")
        return texts | {"choices": choices, "gold": int(number) - self.first}


def lines(path: Path) -> Iterator[Row]:
    """Read one text per line."""
    return ((where, {"text": row["text"].rstrip()}) for where, row in read_text_lines(path))


def articles(path: Path) -> Iterator[Row]:
    """Read the articles of WikiText, which begin at level-one headings."""
    with open_text(path) as file:
        for i, document in enumerate(join_lines(file), 1):
            yield f"{path}, article {i}", {"page": document.text}


def hellaswag(path: Path) -> Iterator[Row]:
    """Read published rows and clean them as lm-eval does; rows without `ctx_a` are clean."""
    for where, row in read_json_lines(path):
        if "ctx_a" in row:
            context = preprocess(f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}")
            row = {"ctx": context, "endings": [preprocess(end) for end in row["endings"]], "label": row["label"]}
        yield where, row


def final_word(row: object, results: list[tuple[float, bool]]) -> dict[str, float]:
    """Return LAMBADA's metrics of one text."""
    ((log_likelihood, greedy),) = results
    return {"acc": float(greedy), "nll": -log_likelihood}


class LocalTask(ConfigurableTask):
    """A task whose rows are read from the file and up to the limit that `metadata` of its config names."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.format = SetFormat(**config["dataset_kwargs"])
        super().__init__(config={name: value for name, value in config.items() if name != "class"})

    def download(self, *args: object, **kwargs: object) -> None:
        metadata = self.config.metadata
        self.dataset = {"test": Dataset.from_list(self.format.rows(Path(metadata["file"]), metadata["limit"]))}


class ChoiceTask(LocalTask):
    """Questions with choices, also ranked by the perplexity of the whole text (`acc_perplexity`)."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self._aggregation_list["acc_perplexity"] = mean

    def construct_requests(self, doc: dict[str, object], ctx: str | list[str], **kwargs: object) -> list[Instance]:
        conditional = super().construct_requests(doc, ctx, **kwargs)
        whole = []
        for request in conditional:
            request.request_type = "scores"
            context, continuation = request.args
            text = (doc[self.format.premise] if self.format.premise else context) + continuation
            about = {"metadata": kwargs["metadata"], "idx": len(conditional) + request.idx}
            whole.append(Instance(request_type="scores", doc=doc, arguments=(None, text), **about))
        return [*conditional, *whole]

    def process_results(self, doc: dict[str, object], results: list[Score]) -> dict[str, float]:
        half = len(results) // 2
        likeliest = min(range(half), key=lambda i: results[half + i].nll / results[half + i].tokens)
        # Only `exact_match` reads whether the choice is greedy, and no set uses that.
        conditional = super().process_results(doc, [(-score.nll, False) for score in results[:half]])
        return {"acc_perplexity": float(likeliest == doc["gold"]), **conditional}

"""Code that several commands share."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mentalese.commands.options import ModelPath
from mentalese.errors import InputError, require
from mentalese.files import check_place, write_json
from mentalese.formatting import scored_as, unanswered
from mentalese.models.generate_options import config_fields
from mentalese.screen import print_table
from mentalese.values import Place, Positive, Texts, checked_dataclass

if TYPE_CHECKING:
    from mentalese.models.saved import Saved

Result = Mapping[str, Any]
"""The content of a file of results."""


@checked_dataclass("")
class ResultOptions:
    """Common options of the commands that measure a model.

    Attributes:
        model: the folder of a run or a model, hub:NAME or models:NAME.
        config: FIELD=VALUE ...: other values of the model's config, as far as the weights allow.
        fast_steps: gradient steps that infer thoughts, for models that infer them (T_fast of Latent Thought Models).
        out: a JSON file for the results.
        json: print the results as JSON.
    """

    model: ModelPath
    config: Texts = ()
    fast_steps: Positive | None = None
    out: Place | None = None
    json: bool = False

    def open(self) -> Saved:
        """Return the model of the command.

        Raises:
            InputError: errors of `load`, fast steps for a model without them, or a result that could not be written.
        """
        check_place(self.out, "--out")
        fields = config_fields(self.config)
        from mentalese.models.saved import load

        saved = load(self.model, config=fields)
        if self.fast_steps is not None:
            has_steps = "fast_steps" in {knob.name for knob in saved.model.knobs()}
            require(has_steps, "--fast-steps", self.fast_steps, "this model takes no fast steps, remove it")
            saved.model.config.fast_steps = self.fast_steps
        return saved

    def report(self, results: Result, header: Sequence[str], rows: Sequence[Sequence[str]], about: str = "") -> None:
        """Save the results, and print them as JSON, or the rows as a table and a line about it."""
        if self.out is not None:
            write_json(self.out, results)
        if self.json:
            print_json(results)
        else:
            print_table(header, rows)
            if about:
                print(f"\n{about}")


def text_read(result: Result) -> str:
    """Return text, windows and rule of a result: `scored: all of file:my.txt, 1 document, 57 tokens (prefix)`."""
    part = "all" if result["split"] == "all" else f"the {result['split']} split"
    what = ("questions",) if "questions" in result else ("documents", "tokens")
    counts = (f"{result[name]:,} {name[: len(name) - (result[name] == 1)]}" for name in what)
    rules = [scored_as(result[name]) for name in ("protocol", "reference_protocol") if name in result]
    rule = rules[0] if len(set(rules)) == 1 else " and OTHER".join(one or " (exact)" for one in rules)
    verb, cut = ("asked", unanswered(result)) if "questions" in result else ("scored", "")
    context = str(result.get("protocol", {}).get("context", "")).partition(",")[0]
    windows = f", in {context}" if "windows" in context else ""
    return f"{verb}: {part} of {result['source']}, {', '.join(counts)}{windows}{cut}{rule}"


def metric_rows(results: Result, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield all numbers in results with their names, `normal.margin.mean`, and their standard errors if they have some.

    Subsets are only in the file; of a protocol only the estimator is shown, unless it is `exact`.
    """
    for name, value in results.items():
        if name == "protocol" and value.get("estimator", "exact") != "exact":
            yield f"{prefix}estimator", value["estimator"]
        error = results.get(f"{name}_stderr")
        if isinstance(value, dict) and name not in ("protocol", "subsets"):
            yield from metric_rows(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and not name.endswith("_stderr"):
            text = f"{value:,.4f}" if isinstance(value, float) else f"{value:,}"
            yield prefix + name, text if error is None else f"{text} ± {error:,.4f}"


def read_text(path: Path) -> str:
    """Return the text of the file in `--file`."""
    try:
        return path.read_text(encoding="utf-8-sig")  # without the mark that some editors begin a text with
    except (FileNotFoundError, UnicodeDecodeError, IsADirectoryError) as error:
        raise InputError(f"--file is {str(path)!r}: use a UTF-8 text file ({error})") from None


def given_text(text: str | None, file: Path | None) -> str | None:
    """Return the text of `--text` or `--file`; `None` without either."""
    if text is not None and file is not None:
        raise InputError("--text and --file are both given: use one of them")
    return text if file is None else read_text(file)


def print_json(content: object) -> None:
    print(json.dumps(content, indent=2))


def only_result_on_stdout() -> contextlib.redirect_stdout[Any]:
    """Send all output of libraries to standard error while the block runs."""
    return contextlib.redirect_stdout(sys.stderr)

"""`mentalese eval`, `answer`, `ablate`, `sample` and `diff`: figures of a saved model, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from tyro.conf import Positional, arg

from mentalese.commands.options import ModelPath
from mentalese.evaluation.options import AblationOptions, AnswerOptions, EvaluationOptions, SampleOptions, TextOptions
from mentalese.files import check_place, write_json
from mentalese.formatting import scored_as, signed, unanswered
from mentalese.models.generate_options import config_fields
from mentalese.screen import only_result_on_stdout, print_json, print_table
from mentalese.values import Place, Texts, checked_dataclass

if TYPE_CHECKING:
    from mentalese.models.saved import Saved

Result = Mapping[str, Any]
"""The content of a file of results."""


class Measured(NamedTuple):
    """The results of a command, and the table and the line about it that a terminal shows."""

    results: Result
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    about: str = ""


@checked_dataclass("")
class Measurement:
    """Common options of the commands that measure a model.

    Attributes:
        model: the folder of a run or a model, hub:NAME, models:NAME or gguf:FILE.
        config: FIELD=VALUE ...: other values of the model's config, as far as the weights allow.
        out: a JSON file for the results.
        json: print the results as JSON.
    """

    model: ModelPath
    config: Texts = ()
    out: Place | None = None
    json: bool = False

    def measure(self) -> Measured:
        raise NotImplementedError(f"{type(self).__name__} needs measure")

    def open(self) -> Saved:
        """Return the model; raise `InputError` if it or a file of the results cannot be opened."""
        given = self.source if isinstance(self, TextOptions) else None
        for place in self.places():
            check_place(place, "--out", given)
        fields = config_fields(self.config)
        from mentalese.models.saved import load

        return load(self.model, config=fields)

    def places(self) -> Sequence[Path]:
        """Return the files that the results are written to."""
        return [] if self.out is None else [self.out]


def run(options: Measurement) -> None:
    """Measure, save the results, and print them as JSON, or as a table and a line about it."""
    with only_result_on_stdout():
        results, header, rows, about = options.measure()
    if options.out is not None and not isinstance(options, Answer):  # answers are written one by one
        write_json(options.out, results)
    if options.json:
        print_json(results)
        return
    print_table(header, rows)
    if about:
        print(f"\n{about}")


@checked_dataclass("")
class Eval(Measurement, EvaluationOptions):
    """Scores a saved model: perplexity in its own tokens, and tasks of lm-eval."""

    def measure(self) -> Measured:
        from mentalese.evaluation import measures

        questions = measures.read_tasks(self)
        results = measures.run(self.open(), self, questions, show=True)
        rows = [(task, *row) for task, result in results.items() for row in metric_rows(result)]
        scored = results.get("perplexity", {})
        about = text_read(*([scored] if "source" in scored else scored.values())) if scored else ""
        return Measured(results, ("task", "metric", "value"), rows, about)


@checked_dataclass("")
class Answer(Measurement, AnswerOptions):
    """Asks a saved model questions, and compares its answers with the right ones.

    Attributes:
        out: NAME.json for the results, beside which NAME.answers.jsonl has a line per question: the right answer, the
            text, the answer read from it, ..; or NAME.jsonl for these lines only.
    """

    def measure(self) -> Measured:
        from mentalese.evaluation import answers

        metrics = answers.run(self.open(), self, out=self.out, show=True)
        return Measured(metrics, ("metric", "value"), list(metric_rows(metrics)), text_read(metrics))

    def places(self) -> Sequence[Path]:
        from mentalese.evaluation import answers

        return [] if self.out is None else answers.places(self.out)


@checked_dataclass("")
class Ablate(Measurement, AblationOptions):
    """Scores a saved model with its own thoughts, without them, with another text's, and with noise on them.

    Of questions the last column has the share of answers that are right for the question whose thoughts were read.
    """

    def measure(self) -> Measured:
        from mentalese.evaluation import ablation

        result = ablation.run(self.open(), self, show=True)
        is_accuracy = result["unit"] == "accuracy"
        header: tuple[str, ...] = ("thoughts", result["unit"], "difference", "95% over documents")
        if is_accuracy:
            header = ("thoughts", "accuracy", "difference in points", "95% over questions", "other's answer")

        def change(value: float) -> str:
            return signed(100 * value, 1) if is_accuracy else signed(value, 4)

        rows = [
            (
                part["thoughts"],
                f"{part['score']:.1%}{unanswered(part)}" if is_accuracy else _four_digits(part["score"]),
                "" if part["difference"] is None else change(part["difference"]),
                "" if part["interval"] is None else " to ".join(map(change, part["interval"])),
                *(["" if part["others"] is None else f"{part['others']:.1%}"] if is_accuracy else []),
            )
            for part in result["ablations"]
        ]
        return Measured(result, header, rows, text_read(result))


@checked_dataclass("")
class Sample(Measurement, SampleOptions):
    """Samples text from a saved model: perplexity under a second model, entropy, speed, and MAUVE after prompts."""

    def measure(self) -> Measured:
        from mentalese.evaluation import samples

        judge = samples.open_judge(self)
        results = samples.run(self.open(), self, judge, show=True)
        rows = [(kind, *row) for kind, result in results.items() for row in metric_rows(result)]
        return Measured(results, ("kind", "metric", "value"), rows)


@checked_dataclass("")
class Diff(Measurement, TextOptions):
    """Scores the same tokens by two saved models: the mean difference, and that by position in the sentence.

    Attributes:
        other: the second model.
        config: FIELD=VALUE ...: other values of the first model's config, as far as the weights allow.
    """

    other: Annotated[Positional[str], arg(metavar="OTHER")]

    def measure(self) -> Measured:
        from mentalese.evaluation import paired
        from mentalese.models.saved import load

        result = paired.run(self.open(), load(self.other), self, show=True)
        labels = {None: "all", paired.POSITIONS: f"{paired.POSITIONS} and later"}
        rows = [
            (
                labels.get(part["position"], str(part["position"])),
                f"{part['tokens']:,}",
                signed(part["difference"], 4),
                "" if part["interval"] is None else " to ".join(signed(bound, 4) for bound in part["interval"]),
            )
            for part in (result["overall"], *result["by_position"])
        ]
        header = ("position in sentence", "tokens", "nats per token more than OTHER", "95% over documents")
        return Measured(result, header, rows, text_read(result | {"tokens": result["overall"]["tokens"]}))


def _four_digits(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def text_read(result: Result, *others: Result) -> str:
    """Return text, windows and rule of a result: `scored: all of file:my.txt, 1 document, 57 tokens (prefix)`.

    Args:
        others: results by other rules on the same text; tokens that differ are left out, and so are the rules.
    """
    part = "all" if result["split"] == "all" else f"the {result['split']} split"
    what = ["questions"] if "questions" in result else ["documents", "tokens"]
    what = [name for name in what if all(other[name] == result[name] for other in others)]
    counts = (f"{result[name]:,} {name[: len(name) - (result[name] == 1)]}" for name in what)
    verb, cut = ("asked", unanswered(result)) if "questions" in result else ("scored", "")
    protocols = [one[name] for one in (result, *others) for name in ("protocol", "reference_protocol") if name in one]
    rules = [] if others else [scored_as(protocol) for protocol in protocols]
    rule = rules[0] if len(set(rules)) == 1 else " and OTHER".join(one or " (exact)" for one in rules)
    contexts = {str(protocol.get("context", "")) for protocol in protocols}
    context = contexts.pop().partition(",")[0] if len(contexts) == 1 else ""  # of models that read alike
    windows = f", in {context}" if "windows" in context else ""
    return f"{verb}: {part} of {result['source']}, {', '.join(counts)}{windows}{cut}{rule}"


def metric_rows(results: Result, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the names of all numbers but subsets (`normal.margin.mean`), and the numbers with their standard errors."""
    for name, value in results.items():
        if name == "protocol" and value.get("estimator", "exact") != "exact":
            yield f"{prefix}estimator", value["estimator"]
        error = results.get(f"{name}_stderr")
        if isinstance(value, dict) and name not in ("protocol", "subsets"):
            yield from metric_rows(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and not name.endswith("_stderr"):
            text = f"{value:,.4f}" if isinstance(value, float) else f"{value:,}"
            yield prefix + name, text if error is None else f"{text} ± {error:,.4f}"

"""`mentalese eval`: scores a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from mentalese.commands.option import flag
from mentalese.commands.options import read_one
from mentalese.commands.shared import device, only_result_on_stdout, print_json
from mentalese.errors import InputError
from mentalese.models.generate_options import config_fields
from mentalese.recipe import Detokenizer


@dataclass(kw_only=True)
class Options:
    """Evaluates a saved model in its own tokens.

    Attributes:
        tasks: names joined by commas: perplexity, accuracy, reversal, unconditional, conditional, lambada_openai,
            lambada_standard, wikitext, hellaswag, blimp, piqa, arc_easy, arc_challenge, sciq, winogrande, or hub:NAME
            for any task of lm-eval's, such as hub:race.
        task_files: the folder of the questions of lambada_openai and all after it, except those from the hub.
        limit: ask only the first N questions of each file.
        estimators: the scoring rules of a model that has several, names joined by commas.
        joined: score all documents joined by their ends, in blocks, instead of each by itself.
        context_length: tokens per block, or per window, of a perplexity.
        documents: score only the first N documents.
        stage: read records at this stage instead of the one that the model was trained to.
        latents: number of latent tokens after the question (default: as in training).
        answer_tokens: the most new tokens of an answer.
        shots: number of training questions with their answers before each question.
        answer_samples: sample k answers per question and report pass@k.
        num_beams: use all beams of a search of this width as the answers instead.
        judge: the model, PATH or hub:NAME, that scores samples (unconditional, conditional).
        samples: number of sequences (default 64), or of prompts (default 1,000, or all there are).
        sample_tokens: new tokens per sample (default: as many as the model's context has room for, at most 1,024; after
            a prompt 50).
        prompt_tokens: tokens per prompt (default 50).
        draws: multinomial continuations of each prompt (default 5).
        decoding: of samples (default: both).
        temperature: of drawn answers and samples (default 1).
        seed: for shots, drawn answers and samples.
        config: FIELD=VALUE ...: other values of the model's config, as far as the weights allow.
        against: another model: both score the same tokens, and the mean difference is shown by place in the sentence.
        source: the text (default: what the model was trained on).
        text_column: the column of the text, if a file has several.
        detokenizer: read a tokenised set of this format as running text.
        split: of the text.
        out: a JSON file for the results.
        json: print the results as JSON.
    """

    RARE: ClassVar[tuple[str, ...]] = (
        *("estimators", "answer_tokens", "answer_samples", "num_beams", "prompt_tokens", "draws", "decoding"),
        *("config", "text_column", "detokenizer"),
    )

    tasks: str = "perplexity"
    task_files: Path | None = None
    limit: int | None = None
    estimators: str = ""
    joined: bool = False
    context_length: int | None = None
    documents: int | None = None
    stage: int | None = None
    latents: int | None = None
    answer_tokens: int | None = None
    shots: int | None = None
    answer_samples: int | None = None
    num_beams: int | None = None
    judge: str | None = None
    samples: int | None = None
    sample_tokens: int | None = None
    prompt_tokens: int | None = None
    draws: int | None = None
    decoding: Literal["greedy", "multinomial"] | None = None
    temperature: float | None = None
    seed: int | None = None
    config: tuple[str, ...] = ()
    against: str | None = None
    source: str | None = field(default=None, metadata={"flag": "--data"})
    text_column: str | None = None
    detokenizer: Detokenizer | None = None
    split: Literal["train", "validation", "test"] = "test"
    out: Path | None = None
    json: bool = False

    def given(self, *names: str) -> dict[str, Any]:
        """Those of these options that were given."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}


def run(words: list[str]) -> None:
    model, options = read_one(Options, words, "eval", "MODEL")
    if options.against is not None:
        return _against(model, options.against, options)
    from mentalese.screen import print_table

    with only_result_on_stdout():
        results = _evaluate(model, options)
    if options.json:
        return print_json(results)
    rows = [(task, *figure) for task, result in results.items() for figure in _figures(result)]
    return print_table(("task", "figure", "value"), rows)


def _evaluate(model: str, options: Options) -> dict[str, Any]:
    from mentalese.evaluation.answers import Asking
    from mentalese.evaluation.samples import Sampling
    from mentalese.evaluation.tasks import evaluate_model

    tasks = [task.strip() for task in options.tasks.split(",")]
    drawn, samples = options.given("temperature", "seed"), {"unconditional", "conditional"} & set(tasks)
    asking = options.given("shots", "answer_samples", "num_beams")
    sampling = options.given("judge", "samples", "sample_tokens", "prompt_tokens", "draws", "decoding")
    if drawn and not samples and "accuracy" not in tasks:
        raise InputError(f"--{next(iter(drawn))} is only of drawn answers and samples: leave it out")
    return evaluate_model(
        model,
        tasks=tasks,
        source=options.source,
        text_column=options.text_column,
        detokenizer=options.detokenizer,
        split=options.split,
        task_files=options.task_files,
        limit=options.limit,
        estimators=tuple(name.strip() for name in options.estimators.split(",") if name.strip()),
        joined=options.joined,
        context_length=options.context_length,
        documents=options.documents,
        stage=options.stage,
        latents=options.latents,
        answer_tokens=options.answer_tokens,
        asking=Asking(**asking, **(drawn if "accuracy" in tasks else {})),
        sampling=Sampling(**sampling, **(drawn if samples else {})),
        config=config_fields(options.config),
        out=options.out,
        device=device(),
    )


def _against(model: str, reference: str, options: Options) -> None:
    for option in dataclasses.fields(options):
        used = option.name in ("against", "source", "split", "out", "json")
        if not used and (value := getattr(options, option.name)) != option.default:
            raise InputError(
                f"{flag(option.name)} is {str(value)!r} with --against, which compares perplexities: leave it out"
            )
    from mentalese.evaluation.paired import compare_models
    from mentalese.files import check_place, write_json
    from mentalese.screen import print_table

    check_place(options.out, "--out")
    with only_result_on_stdout():
        paired = compare_models(model, reference, source=options.source, split=options.split, device=device())
    if options.out is not None:
        write_json(options.out, paired)
    if options.json:
        return print_json(paired)
    rows = [
        (
            "all" if part["position"] is None else f"{part['position']}",
            f"{part['tokens']:,}",
            f"{part['difference']:+.4f}",
            "" if part["interval"] is None else "{:+.4f} to {:+.4f}".format(*part["interval"]),
        )
        for part in (paired["overall"], *paired["by_position"])
    ]
    return print_table(("place in sentence", "tokens", "nats per token over the other's", "95% over documents"), rows)


def _figures(result: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """All numbers of a result with their names, `normal.margin.mean`, and their standard errors if they have some.

    Its subsets are for the file, and of its protocol only the estimator is shown, if there are several.
    """
    for name, value in result.items():
        if name == "protocol" and value.get("estimator", "exact") != "exact":
            yield f"{prefix}estimator", value["estimator"]
        error = result.get(f"{name}_stderr")
        if isinstance(value, dict) and name not in ("protocol", "subsets"):
            yield from _figures(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and not name.endswith("_stderr"):
            shown = f"{value:,.4f}" if isinstance(value, float) else f"{value:,}"
            yield prefix + name, shown if error is None else f"{shown} ± {error:,.4f}"

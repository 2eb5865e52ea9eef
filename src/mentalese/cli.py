"""The command line: `mentalese COMMAND ...`.

A recipe is found by its name first, then its own fields become options, so that help and spelling hints speak of this
recipe and nothing heavy is loaded before a command needs it. Whatever a user can mend ends in one sentence on
standard error and exit code 2.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import importlib.util
import inspect
import io
import json
import os
import shlex
import sys
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro

from mentalese.errors import InputError, nearest
from mentalese.recipe import AS_IT_IS, LENGTHS, Detokenizer, Recipe
from mentalese.registry import families, get_recipe, match_recipes, recipes
from mentalese.screen import print_table

T = TypeVar("T")


# -- options ---------------------------------------------------------------------------------------------------------


def _parse(options: type[T], args: Sequence[str], command: str) -> T:
    """The options of one command; whatever tyro refuses becomes an `InputError` of one sentence."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parsed, unknown = tyro.cli(
                options,
                args=args,
                prog=f"mentalese {command}",
                return_unknown_args=True,
                config=(tyro.conf.FlagCreatePairsOff,),
            )
    except SystemExit as stop:
        if stop.code:
            raise InputError(_sentence(said.getvalue())) from None
        raise
    if unknown:
        word = "option" if unknown[0].startswith("-") else "argument"
        name = unknown[0].partition("=")[0].replace("_", "-")
        hint = f"; did you mean '{_ELSEWHERE[name]}'?" if name in _ELSEWHERE else nearest(name, _flags(options))
        raise InputError(f"{unknown[0]}: `mentalese {command}` has no such {word}{hint}")
    return parsed


def _sentence(box: str) -> str:
    """What tyro's box says, without its frame, help text and line breaks."""
    lines = [line.strip("│╭╮╰╯ ") for line in box.splitlines()]
    rules = [i for i, line in enumerate(lines) if line.startswith("─")] or [len(lines)]
    text = " ".join(lines[1 : next((i for i in rules if i > 0), len(lines))]) or " ".join(lines)
    return text.removeprefix("Error parsing ").partition(" Got errors:")[0].strip(" .")


def _flags(options: type, prefix: str = "--") -> list[str]:
    """All option names, for spelling hints."""
    found = []
    hints = typing.get_type_hints(options, include_extras=True)
    for field in dataclasses.fields(options):
        annotations = getattr(hints[field.name], "__metadata__", ())
        name = next((a.name for a in annotations if getattr(a, "name", None)), field.name).replace("_", "-")
        found += [alias for a in annotations for alias in getattr(a, "aliases", None) or ()]
        plain = hints[field.name]
        found += _flags(plain, f"{prefix}{name}.") if dataclasses.is_dataclass(plain) else [prefix + name]  # type: ignore[arg-type]
    return found


def _positionals(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """What comes before the first option, and the rest."""
    first = next((i for i, arg in enumerate(args) if arg.startswith("-")), len(args))
    return list(args[:first]), list(args[first:])


# -- a recipe's fields as options ------------------------------------------------------------------------------------

_SECTIONS = ("data", "layout", "optimizer", "train", "evaluation")
_ELSEWHERE = {"--data.source": "--data", "--train.seed": "--seed"}


def _recipe_options(recipe: Recipe, own: type) -> type:
    """The dataclass of a command's own options and every field of the recipe, with the recipe's values as defaults."""
    sections = {"model": _dataclass("Model", _model_fields(recipe), f"The config of {recipe.model['model_type']}.")}
    for section in _SECTIONS:
        config = getattr(recipe, section)
        hints = typing.get_type_hints(type(config))
        fields = [
            (field.name, hints[field.name], getattr(config, field.name))
            for field in dataclasses.fields(config)
            if f"--{section}.{field.name}" not in _ELSEWHERE
        ]
        sections[section] = _dataclass(type(config).__name__, fields, type(config).__doc__)
    nested = [(name, cls, dataclasses.field(default_factory=cls)) for name, cls in sections.items()]
    return dataclasses.make_dataclass("Options", nested, bases=(own,), kw_only=True, namespace={"__doc__": own.__doc__})


def _dataclass(name: str, fields: list[tuple[str, Any, Any]], doc: str | None) -> type:
    """One without the checks of the real section: those run once all fields are known."""
    made = [(field, hint, dataclasses.field(default=default)) for field, hint, default in fields]
    return dataclasses.make_dataclass(name, made, frozen=True, namespace={"__doc__": doc})


def _model_fields(recipe: Recipe) -> list[tuple[str, Any, Any]]:
    """The fields of the model's Hugging Face config that are numbers, words or tuples of them."""
    from transformers import PreTrainedConfig

    from mentalese.models.build import config_class

    cls = config_class(recipe.model["model_type"])
    given = {cls.attribute_map.get(name, name): value for name, value in recipe.model.items()}
    standard = {own: name for name, own in cls.attribute_map.items()}
    fields = []
    for name, field in cls.__dataclass_fields__.items():
        default = given.get(name, field.default)
        filled = name in ("vocab_size", "use_cache") or name.endswith("_token_id")
        if filled or name in PreTrainedConfig.__dataclass_fields__:
            continue
        if default is dataclasses.MISSING or not _is_simple(hint := _hint(cls, name)):
            continue
        if name in standard:  # GPT-2 says n_embd where everybody says hidden_size
            alias = f"--model.{standard[name].replace('_', '-')}"
            hint = Annotated[hint, tyro.conf.arg(aliases=[alias])]
        fields.append((name, hint, tuple(default) if isinstance(default, list) else default))
    return fields


def _hint(cls: type, name: str) -> Any:
    owner = next(base for base in cls.__mro__ if name in inspect.get_annotations(base))
    return inspect.get_annotations(owner, eval_str=True)[name]


def _is_simple(hint: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType, tuple):
        return all(a is Ellipsis or _is_simple(a) for a in arguments)
    return origin is Literal or hint in (int, float, bool, str, type(None))


def _changed_recipe(recipe: Recipe, options: Any) -> Recipe:
    """The recipe with whatever differs from it in `options`."""
    changes: dict[str, dict[str, Any]] = {name: {} for name in ("model", *_SECTIONS)}
    for section, changed in changes.items():
        given = getattr(options, section)
        for field in dataclasses.fields(given):
            if getattr(given, field.name) != field.default:
                changed[field.name] = getattr(given, field.name)
    if options.source is not None:
        changes["data"] = AS_IT_IS | changes["data"] | {"source": options.source}
    if options.seed is not None:
        changes["train"]["seed"] = options.seed
    if any(name in changes["train"] for name in LENGTHS):  # one length replaces the other
        changes["train"] = dict.fromkeys(LENGTHS) | changes["train"]
    model = recipe.model
    if changed := changes.pop("model"):
        from mentalese.models.build import config_class

        own = config_class(model["model_type"]).attribute_map
        model = {name: value for name, value in model.items() if own.get(name, name) not in changed} | changed
    sections = {
        section: dataclasses.replace(getattr(recipe, section), **changed)
        for section, changed in changes.items()
        if changed
    }
    return dataclasses.replace(recipe, model=model, **sections)


Source = Annotated[
    str | None, tyro.conf.arg(name="data", help="builtin:NAME, file:PATH or hub:NAME[:CONFIG] instead of the recipe's")
]


# -- commands --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(kw_only=True)
class _Train:
    """Trains a recipe. Every field of the recipe is an option."""

    source: Source = None
    out: Path | None = None
    """The run's folder; runs/RECIPE unless given."""
    resume: bool = False
    """Go on with the run in the folder."""
    seed: int | None = None


def train(args: list[str]) -> None:
    names, rest = _positionals(args)
    recipe = get_recipe(_one(names, rest, "train", "RECIPE"))
    options: Any = _parse(_recipe_options(recipe, _Train), rest, f"train {recipe.name}")
    recipe = _changed_recipe(recipe, options)
    out = options.out or Path("runs") / recipe.name.replace("/", "-")

    from mentalese.training.loop import train as run
    from mentalese.training.parallel import is_main_process

    result = run(recipe, out, resume=options.resume)
    if is_main_process():
        print(
            f"{recipe.name}: {_score(result['test'])}; "
            f"{result['steps']:,} steps, {result['tokens']:,} tokens, {result['seconds']:.0f} s; see {out}"
        )


def _score(test: dict[str, Any]) -> str:
    from mentalese.evaluation.perplexity import label

    if "accuracy" in test:
        return f"test accuracy {test['accuracy']:.1%} of {test['questions']:,} questions"
    bits = test["bits_per_byte"]
    shown = f"test perplexity {test['perplexity']:.2f}{label(test['protocol'])}"
    return shown if bits is None else f"{shown}, {bits:.3f} bits a byte"


@dataclasses.dataclass(kw_only=True)
class _Compare:
    """Trains recipes on the same text and compares them. Fields given as options change every recipe."""

    source: Source = None
    match: Literal["params", "tokens", "flops"] | None = None
    """What all runs have in common: model size (checked), or the first run's budget."""
    seeds: int = 1
    """Runs a recipe."""
    out: Path = Path("runs/compare")
    seed: int | None = None
    """The first seed."""


def compare(args: list[str]) -> None:
    patterns, rest = _positionals(args)
    if not patterns:
        _one([], rest, "compare", "RECIPE")
    found = match_recipes(*patterns)
    if any(character in pattern for pattern in patterns for character in "*?["):
        twins = [get_recipe(recipe.baseline) for recipe in found if recipe.baseline]
        found = list({recipe.name: recipe for recipe in [*twins, *found]}.values())
    parsed: list[Any] = [_parse(_recipe_options(recipe, _Compare), rest, "compare") for recipe in found]
    changed = [_changed_recipe(recipe, options) for recipe, options in zip(found, parsed)]
    own = parsed[0]

    from mentalese.compare.compare import compare as run
    from mentalese.compare.compare import print_comparison
    from mentalese.training.parallel import is_main_process

    comparison = run(changed, own.out, match=own.match, seeds=own.seeds)
    if is_main_process():
        print_comparison(comparison)
        print(f"\n{own.out / 'report.html'} shows curves, costs and samples")


@dataclasses.dataclass(kw_only=True)
class _Eval:
    """Evaluates a saved model in its own tokens."""

    tasks: str = "perplexity"
    """Names joined by commas: perplexity, accuracy, reversal, unconditional, conditional, lambada_openai,
    lambada_standard, wikitext, hellaswag, blimp, piqa, arc_easy, arc_challenge, sciq, winogrande, or hub:NAME for any
    task of lm-eval's, such as hub:race."""
    task_files: Path | None = None
    """The folder of the questions of lambada_openai and all after it, but of those from the hub."""
    limit: int | None = None
    """Ask only the first so many questions of each file."""
    estimators: str = ""
    """How to find the likelihood, names joined by commas, for models that have several ways."""
    joined: bool = False
    """Find the perplexity of all documents joined by their ends, in blocks, instead of each by itself."""
    context_length: int | None = None
    """Tokens a block, or a window, of a perplexity."""
    documents: int | None = None
    """Find the perplexity, or the accuracy, of the first so many documents only."""
    stage: int | None = None
    """Read records at this stage instead of the one that the model was trained to."""
    latents: int | None = None
    """So many latents behind a question instead of those of the stage."""
    answer_tokens: int | None = None
    """The most new tokens of an answer."""
    shots: int | None = None
    """So many questions of the training split with their answers before each question."""
    answer_samples: int | None = None
    """Draw so many answers to each question: it is passed where any is right."""
    num_beams: int | None = None
    """In their place all beams of a search so wide."""
    judge: str | None = None
    """The model, PATH or hub:NAME, that scores samples (unconditional, conditional)."""
    samples: int | None = None
    """So many sequences (64 unless given), or prompts (1,000, or all there are)."""
    sample_tokens: int | None = None
    """New tokens a sample: as many as the model's context holds, at most 1,024; after a prompt 50."""
    prompt_tokens: int | None = None
    """Tokens of a prompt, 50 unless given."""
    draws: int | None = None
    """Multinomial continuations of each prompt, 5 unless given."""
    decoding: Literal["greedy", "multinomial"] | None = None
    """Of samples; both unless given."""
    temperature: float | None = None
    """Of drawn answers and samples, 1 unless given."""
    seed: int | None = None
    """Of shots, drawn answers and samples."""
    config: tuple[str, ...] = ()
    """FIELD=VALUE ...: fields of the model's config that are to have other values, as far as the weights allow."""
    against: str | None = None
    """Another model: both score the same tokens, and the mean difference is shown by place in the sentence."""
    source: Annotated[
        str | None, tyro.conf.arg(name="data", help="the text; what the model was trained on unless given")
    ] = None
    text_column: str | None = None
    """The column of the text, where a file has several."""
    detokenizer: Detokenizer | None = None
    """Read a tokenised set of this format as running text."""
    split: Literal["train", "validation", "test"] = "test"
    out: Path | None = None
    """A JSON file for the results."""

    def given(self, *names: str) -> dict[str, Any]:
        """Those of these options that were given."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}


def evaluate(args: list[str]) -> None:
    names, rest = _positionals(args)
    model = _one(names, rest, "eval", "MODEL", _Eval)
    options = _parse(_Eval, rest, "eval")
    if options.against is not None:
        return _against(model, options.against, options)
    from mentalese.evaluation.answers import Asking
    from mentalese.evaluation.samples import Sampling
    from mentalese.evaluation.tasks import evaluate_model

    tasks = [task.strip() for task in options.tasks.split(",")]
    drawn, samples = options.given("temperature", "seed"), {"unconditional", "conditional"} & set(tasks)
    asking = options.given("shots", "answer_samples", "num_beams")
    sampling = options.given("judge", "samples", "sample_tokens", "prompt_tokens", "draws", "decoding")
    if drawn and not samples and "accuracy" not in tasks:
        raise InputError(f"--{next(iter(drawn))} is only of drawn answers and samples: leave it out")
    results = evaluate_model(
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
        device=_device(),
    )
    rows = [(task, *figure) for task, result in results.items() for figure in _figures(result)]
    print_table(("task", "figure", "value"), rows)


def _against(model: str, reference: str, options: _Eval) -> None:
    for name in (field.name for field in dataclasses.fields(_Eval)):
        used = name in ("against", "source", "split", "out")
        if not used and (value := getattr(options, name)) != getattr(_Eval, name):
            flag = f"--{name.replace('_', '-')}"
            raise InputError(f"{flag} is {str(value)!r} with --against, which compares perplexities: leave it out")
    from mentalese.evaluation.paired import compare_models
    from mentalese.files import check_place, write_json

    check_place(options.out, "--out")
    paired = compare_models(model, reference, source=options.source, split=options.split, device=_device())
    if options.out is not None:
        write_json(options.out, paired)
    rows = [
        (
            "all" if part["position"] is None else f"{part['position']}",
            f"{part['tokens']:,}",
            f"{part['difference']:+.4f}",
            "" if part["interval"] is None else "{:+.4f} to {:+.4f}".format(*part["interval"]),
        )
        for part in (paired["overall"], *paired["by_position"])
    ]
    print_table(("place in sentence", "tokens", "nats a token over the other's", "95% over documents"), rows)


def _figures(result: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """All numbers of a result with their names, `normal.margin.mean`, and their standard errors where they have some.

    Its subsets are for the file, and of its protocol only how the likelihood was found, where there are several ways.
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


@dataclasses.dataclass(kw_only=True)
class Generate:
    """Text that a model goes on with. Streams on a terminal; many prompts run in batches."""

    prompt: tuple[str, ...] = ()
    """One or more texts to go on from; a model that fills in masks fills in each `<|mask|>`."""
    file: Path | None = None
    """A text file with one prompt a line."""
    max_new_tokens: int = 100
    """0 where masks are filled in and nothing else."""
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    num_beams: int = 1
    do_sample: bool = False
    """Draw tokens; implied by temperature, top-k and top-p."""
    greedy: bool = False
    """Take the likeliest token, whatever the model's own generation settings say."""
    config: tuple[str, ...] = ()
    """FIELD=VALUE ...: fields of the model's config that are to have other values, as far as the weights allow."""
    stage: int | None = None
    """Ask at this stage instead of the one that the model was trained to."""
    latents: int | None = None
    """So many latents behind a question instead of those of the stage."""
    fast_steps: int | None = None
    """Infer thoughts from the prompt in so many steps, for models that infer them."""
    infer_every: int | None = None
    """Infer them anew after so many new tokens."""
    posterior_seed: int | None = None
    """Of their inference; 0, or of --seed where tokens are drawn or the prompt is empty, unless given."""
    seed: int = 0

    def inference(self, generate: Callable[..., Any]) -> dict[str, Any]:
        """Keywords of a model's own `generate` where it infers thoughts, which takes a while: progress is shown."""
        takes = inspect.signature(generate).parameters
        names = ("fast_steps", "infer_every", "posterior_seed")
        kwargs = {name: value for name in names if (value := getattr(self, name)) is not None}
        for name, value in kwargs.items():
            if name not in takes:
                raise InputError(f"--{name.replace('_', '-')} is {value}: this model infers no thoughts, leave it out")
        return kwargs | ({"show_progress": True} if "show_progress" in takes else {})

    def generation(self) -> dict[str, Any]:
        """Hugging Face's own keywords, those that were given."""
        for name, value, right, remedy in (
            ("temperature", self.temperature, lambda v: v > 0, "give a positive number"),
            ("top-k", self.top_k, lambda v: v >= 1, "give at least 1"),
            ("top-p", self.top_p, lambda v: 0 < v <= 1, "give a number in (0, 1]"),
            ("num-beams", self.num_beams, lambda v: v >= 1, "give at least 1"),
        ):
            if value is not None and not right(value):
                raise InputError(f"--{name} is {value}: {remedy}")
        sampling = {
            name: value
            for name, value in (("temperature", self.temperature), ("top_k", self.top_k), ("top_p", self.top_p))
            if value is not None
        }
        if self.greedy and (sampling or self.do_sample):
            other = next(iter(sampling), "do_sample").replace("_", "-")
            raise InputError(f"--greedy and --{other} contradict each other: give one of them")
        kwargs: dict[str, Any] = dict(sampling)
        if self.do_sample or sampling:
            kwargs["do_sample"] = True
        if self.greedy:
            kwargs["do_sample"] = False
        if self.num_beams > 1:
            kwargs["num_beams"] = self.num_beams
        return kwargs


def generate(args: list[str]) -> None:
    names, rest = _positionals(args)
    path = _one(names, rest, "generate", "MODEL", Generate)
    options = _parse(Generate, rest, "generate")
    kwargs = options.generation()
    prompts = list(options.prompt) + (_lines(options.file) if options.file else [])
    if not prompts:
        raise InputError("there is no prompt: give --prompt TEXT or --file FILE")

    from mentalese.data.layouts import Packed
    from mentalese.models.adapter import hugging_face_model
    from mentalese.models.checkpoints import load_model, saved_recipe
    from mentalese.models.generation import generate_text, stream_text
    from mentalese.recipe import DataConfig

    model, tokenizer = load_model(path, _device(), fields=config_fields(options.config))
    kwargs |= options.inference(hugging_face_model(model).generate)
    recipe = saved_recipe(path)
    data, layout = (recipe.data, recipe.layout) if recipe else (DataConfig(), Packed())
    layout = layout.at(options.stage, options.latents)
    length: dict[str, Any] = {"max_new_tokens": options.max_new_tokens, "seed": options.seed}
    if len(prompts) == 1 and options.num_beams == 1 and model.causal and sys.stdout.isatty():
        pieces = stream_text(model, tokenizer, prompts[0], data, layout, **length, **kwargs)
        first = next(pieces, "")  # an error comes before anything is printed
        print(layout.prompt_text(prompts[0]) + first, end="", flush=True)
        for piece in pieces:
            print(piece, end="", flush=True)
        print()
        return
    print("\n\n".join(generate_text(model, tokenizer, prompts, data, layout, **length, **kwargs)))


def config_fields(given: Sequence[str]) -> dict[str, Any]:
    """`FIELD=VALUE` pairs; a value is JSON, or else a word."""
    fields: dict[str, Any] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InputError(f"--config is {pair!r}: give FIELD=VALUE")
        try:
            fields[name] = json.loads(value)
        except json.JSONDecodeError:
            fields[name] = value
    return fields


def _lines(path: Path) -> list[str]:
    return [line for line in _text(path).splitlines() if line.strip()]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"--file is {str(path)!r}: no such file") from None
    except (UnicodeDecodeError, IsADirectoryError):
        raise InputError(f"--file is {str(path)!r}: give a UTF-8 text file") from None


def _given_text(text: str | None, file: Path | None) -> str | None:
    """What `--text` or `--file` gives; `None` without either."""
    if text is not None and file is not None:
        raise InputError("--text and --file are both given: give one of them")
    return text if file is None else _text(file)


@dataclasses.dataclass(kw_only=True)
class _Think:
    """What a model thinks of a text, as a page that needs no network. A model of questions is asked the text."""

    text: str | None = None
    """What to think about."""
    file: Path | None = None
    """A text file in its place."""
    against: str | None = None
    """Another model beside it, as it is; what follows is of the first one."""
    out: Path = Path("think.html")
    """The page."""
    config: tuple[str, ...] = ()
    """FIELD=VALUE ...: fields of the model's config that are to have other values, as far as the weights allow."""
    stage: int | None = None
    """Ask at this stage instead of the one that the model was trained to."""
    latents: int | None = None
    """So many latents behind a question instead of those of the stage."""
    max_new_tokens: int | None = None
    """Of an answer; as the model's recipe has it unless given."""
    fast_steps: int | None = None
    """Infer thoughts in so many steps, for models that infer them."""


def think(args: list[str]) -> None:
    names, rest = _positionals(args)
    path = _one(names, rest, "think", "MODEL", _Think)
    options = _parse(_Think, rest, "think")
    text = _given_text(options.text, options.file)
    if text is None:
        raise InputError("--text and --file are missing: give one of them")
    if not text.strip():
        raise InputError(f"there is no text in --{'text' if options.file is None else 'file'}: give some")
    from mentalese.files import check_place, write_text

    check_place(options.out, "--out")
    from mentalese.viewer import think_page

    page = think_page(
        path,
        text,
        against=options.against,
        stage=options.stage,
        latents=options.latents,
        max_new_tokens=options.max_new_tokens,
        config=config_fields(options.config),
        device=_device(),
        command=shlex.join(["mentalese", "think", *args]),
        **({} if options.fast_steps is None else {"fast_steps": options.fast_steps}),
    )
    write_text(options.out, page)
    print(f"{options.out} shows what {path} thought")


@dataclasses.dataclass(kw_only=True)
class _Play:
    """A page on this machine to write with a model and see its thoughts; Ctrl+C ends it."""

    port: int = 7860
    host: str = "127.0.0.1"
    """An address of this machine; whoever can reach it can use the page."""


def play(args: list[str]) -> None:
    names, rest = _positionals(args)
    path = _one(names, rest, "play", "MODEL", _Play)
    options = _parse(_Play, rest, "play")
    if importlib.util.find_spec("gradio") is None:
        raise InputError("the page needs Gradio, which is not installed: pip install 'mentalese[play]'")
    from mentalese.viewer.play import play as serve

    serve(path, options.host, options.port, _device())


@dataclasses.dataclass(kw_only=True)
class _Grow:
    """Latent thought on a trained Hugging Face decoder: a checkpoint that trains on as the family does."""

    family: str | None = None
    """What to grow, needed; `mentalese list` names the families."""
    out: Path | None = None
    """The new model's folder, needed."""
    mode: str | None = None
    """The family's kind of thought, where it has several (coconut, agclr, pause)."""
    config: tuple[str, ...] = ()
    """FIELD=VALUE ...: other fields of the family's config."""
    seed: int = 0
    """Of the weights that the base does not have."""


def grow(args: list[str]) -> None:
    names, rest = _positionals(args)
    base = _one(names, rest, "grow", "BASE", _Grow)
    options = _parse(_Grow, rest, "grow")
    if options.family is None or options.out is None:
        missing = "--family NAME" if options.family is None else "--out DIR"
        raise InputError(f"`mentalese grow` needs {missing}")
    fields = config_fields(options.config) | ({} if options.mode is None else {"mode": options.mode})

    from mentalese.models import grow as growing

    growing.grow(base, options.family, options.out, seed=options.seed, **fields)
    print(f"{options.out} starts as {base}: train it with --train.init {options.out}")


@dataclasses.dataclass(kw_only=True)
class _List:
    """Families, recipes, built-in data and figures."""

    json: bool = False
    """As JSON."""


def list_everything(args: list[str]) -> None:
    options = _parse(_List, args, "list")
    from mentalese.analyses.figures import figures
    from mentalese.data.builtin import BUILTIN

    everything = {
        "families": {name: family.description for name, family in families().items()},
        "recipes": {name: recipe.description for name, recipe in recipes().items()},
        "data": {f"builtin:{name}": builtin.description for name, builtin in BUILTIN.items()},
        "figures": {name: f"{figure.description} ({figure.takes})" for name, figure in figures().items()},
    }
    if options.json:
        print(json.dumps(everything, indent=2))
        return
    for title, entries in everything.items():
        print(f"{title}:")
        width = max(len(name) for name in entries)
        for name, description in entries.items():
            print(f"  {name.ljust(width)}  {description}")
        print()


@dataclasses.dataclass(kw_only=True)
class _Figure:
    """Draws a figure of runs, results or models; `mentalese list` names all figures."""

    out: Path | None = None
    """The picture, .svg, .png or .pdf, needed; its numbers go beside it as .json."""
    text: str | None = None
    """For figures of what a model makes of a text."""
    file: Path | None = None
    """A text file in its place."""
    data: str | None = None
    """For figures of many texts or questions: others than the model's own."""
    documents: int | None = None
    """Read so many of them."""


def figure(args: list[str]) -> None:
    names, rest = _positionals(args)
    name = _one(names[:1], rest, "figure", "NAME", _Figure)
    options = _parse(_Figure, rest, "figure")
    if options.out is None:
        raise InputError("`mentalese figure` needs --out: give the picture's file, e.g. figure.svg")
    text = _given_text(options.text, options.file)
    from mentalese.analyses.figures import write_figure

    write_figure(name, names[1:], options.out, text, source=options.data, documents=options.documents)
    print(f"{options.out}, and its numbers in {options.out.with_suffix('.json')}")


@dataclasses.dataclass(kw_only=True)
class _Bench:
    """Speed, memory and cost of each named family's (or every family's) tiny recipe against its baseline."""

    out: Path | None = None
    """A JSON file for the figures."""


def bench(args: list[str]) -> None:
    names, rest = _positionals(args)
    options = _parse(_Bench, rest, "bench")
    from mentalese.compare.bench import HEADER, denominator, table
    from mentalese.compare.bench import bench as run

    result = run(names, options.out)
    print_table(HEADER, table(result))
    print(f"\n{denominator(result)}")


@dataclasses.dataclass(kw_only=True)
class _Prepare:
    """Makes a token store: a text's tokens, documents and sentences on disk."""

    out: Path | None = None
    """The store's folder; needed."""
    text_column: str | None = None
    detokenizer: Detokenizer | None = None
    """Read a tokenised set of this format as running text."""
    tokenizer: str = "bpe:4096"
    """bpe:SIZE, a folder, or hub:NAME."""
    sentences: str = "sentencex"
    """sentencex, syntok, sat, fixed:N or none."""
    min_sentence_tokens: int = 3
    max_sentence_tokens: int = 64


def data(args: list[str]) -> None:
    if args[:1] != ["prepare"]:
        if not set(args) & {"-h", "--help"}:
            raise InputError(f"`mentalese data` is followed by {args[:1]}: its only command is `prepare`")
        args = ["prepare", "--help"]
    names, rest = _positionals(args[1:])
    source = _one(names, rest, "data prepare", "SOURCE", _Prepare)
    options = _parse(_Prepare, rest, "data prepare")
    if options.out is None:
        raise InputError("`mentalese data prepare` needs --out: give the folder that the store is written to")
    from mentalese.recipe import DataConfig

    fields = {f.name: getattr(options, f.name) for f in dataclasses.fields(options) if f.name != "out"}
    config = DataConfig(source=source, **fields)
    from mentalese.data.store import prepare, report

    store, tokenizer = prepare(config, out=options.out)
    rows = [
        (name, f"{len(split.document_bytes):,}", f"{len(split.segments) - 1:,}", f"{len(split.tokens):,}")
        for name, split in store.splits.items()
    ]
    print_table(("split", "documents", "segments", "tokens"), rows)
    print("", *report(store, sentences=True), sep="\n")
    print(f"{len(tokenizer):,} tokens in the vocabulary; train on it with --data store:{options.out}")


# -- the rest --------------------------------------------------------------------------------------------------------

COMMANDS: dict[str, tuple[Callable[[list[str]], None], str, str]] = {
    "list": (list_everything, "[--json]", "families, recipes, built-in data and figures"),
    "train": (train, "RECIPE [--data SOURCE] [--out DIR] [--resume] [--seed N] [--FIELD VALUE ...]", "trains a recipe"),
    "eval": (
        evaluate,
        "MODEL [--tasks perplexity,accuracy,... [--task-files DIR]] [--against MODEL] [--data SOURCE] [--out FILE]",
        "scores a model",
    ),
    "generate": (generate, "MODEL --prompt TEXT ... | --file FILE [OPTIONS]", "goes on with a text"),
    "think": (
        think,
        "MODEL --text TEXT | --file FILE [--against MODEL] [--out page.html] [OPTIONS]",
        "shows what a model thinks of a text",
    ),
    "play": (play, "MODEL [--port N] [--host ADDRESS]", "a page on this machine to write with a model"),
    "compare": (
        compare,
        "RECIPE RECIPE ... [--data SOURCE] [--match params|tokens|flops] [--seeds N] [--out DIR]",
        "trains recipes on the same text and compares them",
    ),
    "figure": (figure, "NAME PATH ... --out FILE.svg [--text TEXT | --file FILE]", "draws runs, results and models"),
    "grow": (grow, "BASE --family NAME --out DIR [--mode M]", "latent thought on a trained Hugging Face model"),
    "bench": (bench, "[FAMILY ...] [--out FILE]", "speed, memory and cost against the baselines"),
    "data": (data, "prepare SOURCE --out DIR [OPTIONS]", "makes a token store"),
}


def _help() -> str:
    lines = ["usage: mentalese COMMAND ...", "", "Language models that think in latent space.", ""]
    width = max(map(len, COMMANDS))
    for name, (_, usage, does) in COMMANDS.items():
        lines += [f"  {name.ljust(width)}  {does}", f"  {' ' * width}    mentalese {name} {usage}"]
    lines += ["", "`mentalese COMMAND --help` shows all options (`mentalese train RECIPE --help`: those of a recipe)."]
    return "\n".join(lines)


def _one(names: list[str], rest: list[str], command: str, what: str, options: type | None = None) -> str:
    """The one positional argument of a command, which comes before its options; help where that was asked for."""
    if len(names) == 1:
        return names[0]
    if not names and {"-h", "--help"} & set(rest):
        print(f"usage: mentalese {command.split()[0]} {COMMANDS[command.split()[0]][1]}\n")
        if options is not None:
            _parse(options, ["--help"], command)
        raise SystemExit(0)
    given = f"{len(names)} were given ({', '.join(names)})" if names else "none was given"
    raise InputError(f"`mentalese {command}` takes a {what} before its options, and {given}: see its --help")


def _device() -> Any:
    from mentalese.training.parallel import setup

    return setup("auto").device


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code (2 for bad input, 128 + the signal's number when interrupted)."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        if not args or args[0] in ("-h", "--help"):
            print(_help())
        elif args[0] == "--version":
            from mentalese import __version__

            print(__version__)
        elif args[0] not in COMMANDS:
            raise InputError(f"there is no command {args[0]!r}{nearest(args[0], COMMANDS)} (`mentalese --help`)")
        else:
            COMMANDS[args[0]][0](args[1:])
    except SystemExit as stop:
        return int(stop.code or 0)
    except InputError as error:
        return _fail(error, 2)
    except FloatingPointError as error:
        return _fail(error, 1)
    except KeyboardInterrupt as stop:
        print(f"mentalese: {str(stop) or 'interrupted'}", file=sys.stderr)
        return getattr(stop, "exit_code", 130)
    except BrokenPipeError:  # `mentalese list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing more to say at exit either
        return 0
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
            raise
        return _fail(f"{error.filename or 'writing'}: {error.strerror}; make room or give another place", 2)
    return 0


def _fail(error: object, code: int) -> int:
    print(f"mentalese: error: {' '.join(str(error).splitlines())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())

"""Whatever is passed in, an `InputError` comes out or it works, and nothing half-written is left behind.

A few hundred cases in the gate, the same ones each time; `make nightly` runs ten thousand, drawn anew.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

import mentalese
from mentalese import InputError, Recipe, Saved, as_source, get_recipe, load, open_recipe, override
from mentalese.cli import main
from mentalese.data.row_formats import PUBLISHED
from mentalese.data.sources import open_source
from mentalese.evaluation.options import AnswerOptions, EvaluationOptions
from mentalese.model_fields import model_fields
from mentalese.models.build import build_config
from mentalese.recipe_files import sections
from support import keep_changes, saved, shrink, tiny_recipes

pytestmark = pytest.mark.slow

NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
NAMES = [*tiny_recipes(), "coconut/tiny-coconut", "latent_thought/tiny-vae", "conceptlm/tiny-mtp"]


def cases(share: float) -> Callable[[Any], Any]:
    """A share of the profile's number of cases; the shares of this file add up to a little more than 4."""
    return settings(
        max_examples=max(2, round(settings.default.max_examples * share)),
        derandomize=not NIGHTLY,
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def refused_or_done(work: Callable[[], Any]) -> Any:
    """What the work returns; `None` if it was refused in one sentence. Anything else is a fault."""
    try:
        return work()
    except InputError as error:
        message = str(error)
        assert message
        assert len(message) < 2000, message
        return None


# -- what people might pass --------------------------------------------------------------------------------------------

text = st.text(st.characters(), max_size=12) | st.sampled_from(
    [
        "",
        " ",
        "nan",
        "1e999",
        "none",
        "true",
        "\0",
        "\ud800",
        "../..",
        "bpe:",
        "file:",
        "hub:",
        "packed",
        "1,2",
        "[1",
        "{}",
    ]
)
number = (
    st.integers(-3, 70)
    | st.integers()
    | st.sampled_from([2**63, -(2**63) - 1, 10**400])
    | st.floats()
    | st.sampled_from([math.nan, math.inf, -math.inf, 0.5, -0.0])
)
scalar = st.none() | st.booleans() | number | text
data = st.recursive(
    scalar, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3), max_leaves=5
)
odd = st.sampled_from(
    [b"x", (), {1: 2}, object(), Path("there"), np.int64(3), np.float32(0.5), np.zeros(2), torch.tensor(1), int, set()]
)
anything = data | odd


@st.composite
def mutated(draw: Any, original: Any, values: Any = data) -> Any:
    """A copy of JSON data with one to three places replaced, removed or added to."""
    content = copy.deepcopy(original)
    for _ in range(draw(st.integers(1, 3))):
        place, key = content, None
        while isinstance(place, dict | list) and place and (key is None or draw(st.booleans())):
            parent, key = place, draw(st.sampled_from([*place] if isinstance(place, dict) else [*range(len(place))]))
            place = parent[key]
        if key is None:
            return draw(values)
        action = draw(st.sampled_from(["replace", "replace", "remove", "add"]))
        if action == "remove":
            del parent[key]
        elif action == "add" and isinstance(parent, dict):
            parent[draw(text)] = draw(values)
        else:
            parent[key] = draw(values)
    return content


# -- recipes -----------------------------------------------------------------------------------------------------------

recipe_names = st.sampled_from(NAMES)


@st.composite
def fields(draw: Any) -> tuple[str, str, str]:
    """A recipe, a section and a field of it."""
    name = draw(recipe_names)
    section = draw(st.sampled_from([*sections(get_recipe(name))]))
    field = draw(st.sampled_from(dataclasses.fields(sections(get_recipe(name))[section])))
    return name, section, field.name


def reads_back(recipe: Recipe) -> None:
    """A recipe that could be made can be written, read and named."""
    again = Recipe.from_dict(json.loads(json.dumps(recipe.to_dict())))
    assert again.fingerprint() == recipe.fingerprint()
    assert override(recipe).to_dict() == recipe.to_dict()


@given(fields(), anything)
@example(("gpt2/tiny", "optimizer", "schedule"), "x")
@example(("gpt2/tiny", "optimizer", "learning_rate"), math.inf)
@example(("gpt2/tiny", "optimizer", "learning_rate"), None)
@example(("gpt2/tiny", "optimizer", "learning_rate"), np.float32(0.5))
@example(("gpt2/tiny", "train", "steps"), 10**400)
@example(("gpt2/tiny", "layout", "batch_size"), torch.tensor(1))
@example(("gpt2/tiny", "data", "text_column"), "\ud800")
@cases(0.6)
def test_a_field_takes_a_value_or_refuses_it(place: tuple[str, str, str], value: Any) -> None:
    name, section, field = place
    recipe = get_recipe(name)

    def work() -> None:
        changed = dataclasses.replace(sections(recipe)[section], **{field: value})
        reads_back(dataclasses.replace(recipe, **{section: changed}))

    refused_or_done(work)


@given(recipe_names, st.sampled_from([field.name for field in dataclasses.fields(Recipe)]), anything)
@example("gpt2/tiny", "model", {"model_type": "gpt2", "n_embd": torch.tensor(1)})
@example("gpt2/tiny", "model", {"model_type": 3})
@example("gpt2/tiny", "layout", None)
@example("gpt2/tiny", "name", "..")
@cases(0.3)
def test_a_recipe_takes_a_section_or_refuses_it(name: str, field: str, value: Any) -> None:
    refused_or_done(lambda: reads_back(dataclasses.replace(get_recipe(name), **{field: value})))


@given(recipe_names.flatmap(lambda name: mutated(get_recipe(name).to_dict(), anything)))
@example(get_recipe("gpt2/tiny").to_dict() | {"data": {1: 2}})
@example({})
@example([])
@cases(0.4)
def test_saved_recipes_that_were_changed_are_read_or_refused(content: Any) -> None:
    recipe = refused_or_done(lambda: Recipe.from_dict(content))
    if recipe is not None:
        reads_back(recipe)


settings_of_fields = st.builds(lambda place, value: f"{place[1]}.{place[2]}={value}", fields(), scalar | text)


@given(recipe_names, st.lists(settings_of_fields | text | anything, max_size=2))
@example("gpt2/tiny", [None])
@example("gpt2/tiny", ["optimizer.learning_rate=1e999"])
@cases(0.4)
def test_settings_change_a_recipe_or_are_refused(name: str, settings: list[Any]) -> None:
    recipe = refused_or_done(lambda: override(get_recipe(name), *settings))
    if recipe is not None:
        reads_back(recipe)


@st.composite
def recipe_files(draw: Any) -> tuple[str, bytes]:
    """The suffix and the bytes of a file: of a recipe, of a changed one, or damaged."""
    suffix = draw(st.sampled_from([".json", ".yaml", ".yml", ".toml"]))
    base = {"base": draw(recipe_names), "train": {"steps": 3}, "optimizer": {"betas": [0.9, 0.99]}, "phases": []}
    content = draw(mutated(draw(st.sampled_from([base, get_recipe(base["base"]).to_dict()]))))
    if suffix == ".json":
        written = json.dumps(content)
    elif suffix == ".toml":
        pairs = content.items() if isinstance(content, dict) else ()
        written = "".join(f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in pairs)
    else:
        written = yaml.safe_dump(content, allow_unicode=draw(st.booleans()))
    raw = written.encode("utf-8", "surrogatepass")
    if draw(st.booleans()):
        at = draw(st.integers(0, len(raw)))
        raw = raw[:at] + draw(st.binary(max_size=3)) + raw[at + draw(st.integers(0, 9)) :]
    return suffix, raw


@given(recipe_files() | st.tuples(st.sampled_from([".json", ".yaml", ".toml"]), st.binary(max_size=30)))
@example((".yaml", b"train: {steps: 2024-13-45}"))
@example((".yaml", b"1: 2"))
@example((".json", b"[" * 100_000))
@cases(0.5)
def test_files_of_recipes_are_read_or_refused(tmp_path: Path, file: tuple[str, bytes]) -> None:
    path = tmp_path / f"mine{file[0]}"
    path.write_bytes(file[1])
    recipe = refused_or_done(lambda: open_recipe(path))
    if recipe is not None:
        reads_back(recipe)


# -- configs of models -------------------------------------------------------------------------------------------------


@given(st.data())
@cases(0.3)
def test_a_config_takes_a_value_or_refuses_it(tokenizer: Any, drawn: st.DataObject) -> None:
    model = drawn.draw(mutated(get_recipe(drawn.draw(recipe_names)).model))
    if isinstance(model, dict) and drawn.draw(st.booleans()):
        known = [*model_fields("coconut"), *model_fields("gpt2")]
        model[drawn.draw(st.sampled_from(known))] = drawn.draw(data)

    def work() -> None:
        recipe = dataclasses.replace(get_recipe("gpt2/tiny"), model=model)
        build_config(recipe.model, tokenizer)

    refused_or_done(work)


# -- texts -------------------------------------------------------------------------------------------------------------

suffixes = st.sampled_from([".txt", ".jsonl", ".json", ".jsonl.gz", ".parquet", ".csv", ".tsv", ".txt.gz", ""])
_COLUMNS = ["text", "question", "steps", "answer", "x", "cot", "prompt", "completion", "messages", "conversations"]
_COLUMNS += ["Body", "Question", "Answer", "sQuestion", "lSolutions", "final_ans", "input", "target", "query", "target"]
_COLUMNS += ["context", "supporting_facts", "options", "choices", "answerKey", "chain_of_thought", "story"]
chats = st.lists(st.fixed_dictionaries({"role": data | st.just("user"), "content": data | st.just("How many?")}))
rows = st.lists(st.dictionaries(st.sampled_from(_COLUMNS), data | chats | st.just("12.0"), max_size=6), max_size=4)
sets = st.sampled_from(["file", "file", *PUBLISHED])


@st.composite
def text_files(draw: Any) -> bytes:
    kind = draw(st.integers(0, 3))
    if kind == 0:
        return draw(st.binary(max_size=40))
    if kind == 1:
        return draw(st.text(max_size=40)).encode("utf-8", "surrogatepass")
    content = draw(rows)
    if kind == 2:
        return json.dumps(content).encode()
    return "".join(json.dumps(row) + "\n" for row in content).encode()


@given(sets, suffixes, text_files(), st.booleans())
@cases(0.4)
def test_files_of_texts_are_read_or_refused(
    tmp_path: Path, kind: str, suffix: str, content: bytes, whole: bool
) -> None:
    path = tmp_path / f"mine{suffix}"
    path.write_bytes(content)

    def work() -> None:
        source = open_source(f"{kind}:{path}", whole=whole)
        for split in source.splits:
            for document in source.documents(split):
                document.text.encode()

    refused_or_done(work)
    path.unlink()


kinds = st.sampled_from(["", "file:", "builtin:", *(f"{name}:" for name in PUBLISHED), "python:", "store:", "x:"])


@given(st.builds(str.__add__, kinds, text), anything)
@example("clutrr:\0", None)
@example("clutrr:\ud800", None)
@cases(0.2)
def test_names_of_sources_are_opened_or_refused(spec: str, column: Any) -> None:
    assume(spec not in {f"builtin:{name}" for name in ("stdlib", "families")})
    with contextlib.redirect_stderr(io.StringIO()):
        refused_or_done(lambda: open_source(spec))
        refused_or_done(lambda: mentalese.DataConfig(source=spec, text_column=column))


@given(anything | st.lists(anything, max_size=3) | st.dictionaries(text, st.lists(anything, max_size=2), max_size=2))
@example([{1: 2}])
@example(torch.tensor(1))
@example(int)
@cases(0.3)
def test_texts_from_python_are_named_or_refused(texts: Any) -> None:
    name = refused_or_done(lambda: as_source(texts))
    if name is not None and name.startswith("python:"):
        refused_or_done(lambda: open_source(name))


# -- trained models ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Saved]:
    names = ("gpt2/tiny", "thought_gestalt/tiny", "coconut/tiny", "mdlm/tiny", "latent_thought/tiny")
    folder = tmp_path_factory.mktemp("models")
    recipes = {name: shrink(get_recipe(name), corpus) for name in names}
    return {
        name: load(saved(folder / name.replace("/", "-"), recipe), device="cpu") for name, recipe in recipes.items()
    }


prompts = st.text(max_size=60) | st.text("aA .!?\n\t<|>eosmask", max_size=60) | anything


@given(st.data())
@cases(0.3)
def test_a_prompt_is_read_or_refused(models: dict[str, Saved], drawn: st.DataObject) -> None:
    model = models[drawn.draw(st.sampled_from([*models]))]
    prompt = drawn.draw(prompts | st.lists(prompts, max_size=3))
    work = drawn.draw(st.sampled_from(["encode", "generate", "score", "think"]))
    options = {"max_new_tokens": drawn.draw(st.integers(-1, 2) | anything)} if work == "generate" else {}
    assume(not (isinstance(options.get("max_new_tokens"), int) and options["max_new_tokens"] > 50))
    refused_or_done(lambda: getattr(model, work)(prompt, **options))


@given(st.data())
@cases(0.2)
def test_a_saved_model_that_was_changed_is_opened_or_refused(
    models: dict[str, Saved], tmp_path_factory: pytest.TempPathFactory, drawn: st.DataObject
) -> None:
    run = Path(models[drawn.draw(st.sampled_from(["gpt2/tiny", "thought_gestalt/tiny"]))].path)
    name = drawn.draw(st.sampled_from(["config.json", "mentalese.json", "tokenizer_config.json"]))
    folder = tmp_path_factory.mktemp("changed")
    for file in (run / "model").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    keep_changes(folder / "mentalese.json")  # else every change is found by its hash
    before = (folder / name).read_text()
    if drawn.draw(st.booleans()):
        at = drawn.draw(st.integers(0, len(before)))
        after = before[:at] + drawn.draw(st.text(max_size=2)) + before[at + drawn.draw(st.integers(0, 9)) :]
    else:
        small = st.none() | st.booleans() | st.integers(-2, 70) | st.floats(-2, 70) | text | st.just([]) | st.just({})
        after = json.dumps(drawn.draw(mutated(json.loads(before), small)))
    (folder / name).write_bytes(after.encode("utf-8", "surrogatepass"))
    with contextlib.redirect_stderr(io.StringIO()):
        refused_or_done(lambda: load(folder, device="cpu"))


option_values = (
    st.integers(-2, 9) | st.floats(-1, 2) | text | st.none() | st.booleans() | odd | st.lists(text, max_size=2)
)


@given(st.data())
@example(None)
@cases(0.1)
def test_options_of_an_evaluation_are_followed_or_refused(
    models: dict[str, Saved], tmp_path: Path, drawn: st.DataObject | None
) -> None:
    model = models["gpt2/tiny"]
    if drawn is None:
        assert refused_or_done(lambda: mentalese.evaluate(model, tasks=None, show=False)) is None
        return
    work, kind = drawn.draw(
        st.sampled_from([(mentalese.evaluate, EvaluationOptions), (mentalese.answer, AnswerOptions)])
    )
    names = [field.name for field in dataclasses.fields(kind) if field.name != "source"]
    options = {drawn.draw(st.sampled_from([*names, "out", "stray"])): drawn.draw(option_values)}
    assume(not isinstance(options.get("out"), str | Path | bytes))
    refused_or_done(lambda: work(model, show=False, **options))


@given(fields(), st.integers(-2, 9) | st.floats(-1, 2) | text | st.none() | st.booleans())
@cases(0.05)
def test_a_run_that_is_refused_leaves_nothing(
    corpus: Path, tmp_path_factory: pytest.TempPathFactory, place: tuple[str, str, str], value: Any
) -> None:
    _, section, field = place
    assume(
        (section, field) not in {("train", "steps"), ("train", "epochs"), ("train", "tokens"), ("train", "trackers")}
    )
    recipe = shrink(get_recipe("gpt2/tiny"), corpus, steps=1)
    out = tmp_path_factory.mktemp("runs") / "run"

    def work() -> bool:
        changed = dataclasses.replace(sections(recipe)[section], **{field: value})
        mentalese.train(dataclasses.replace(recipe, **{section: changed}), out=out, show=False)
        return True

    assume(field in {known.name for known in dataclasses.fields(sections(recipe)[section])})
    with contextlib.redirect_stderr(io.StringIO()):
        done = refused_or_done(work)
    assert done or not out.exists()


# -- the command line --------------------------------------------------------------------------------------------------

COMMANDS = [
    "list",
    "show",
    "think",
    "generate",
    "eval",
    "answer",
    "sample",
    "diff",
    "figure",
    "grow",
    "push",
    "data",
    "nope",
]
OPTIONS = [
    "--json",
    "--help",
    "--out",
    "--data",
    "--text",
    "--seed",
    "--tasks",
    "--model.n_layer",
    "--train.steps",
    "--x",
]
words = st.sampled_from([*OPTIONS, "gpt2/tiny", "runs/none", "train.steps=3", "optimizer.betas=1", "-1"]) | text


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@given(st.sampled_from(COMMANDS) | text, st.lists(words, max_size=4))
@cases(0.4)
def test_words_of_a_command_are_understood_or_refused(tmp_path: Path, command: str, rest: list[str]) -> None:
    assume(command not in ("train", "compare", "bench", "check", "play", "new"))
    assume(command != "data" or not {"gpt2/tiny", "builtin:stdlib"} & {*rest})
    out, err = io.StringIO(), io.StringIO()
    with inside(tmp_path), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([command, *rest])
    assert code in (0, 2), err.getvalue()
    if code == 2:
        message = err.getvalue()  # one sentence, or a box that tyro draws around what is missing
        assert message.count("\n") == 1 or "For full helptext, run" in message, message
        assert "Traceback" not in message
    left = [path.name for path in tmp_path.iterdir()]
    assert not left or code == 0, left
    for path in tmp_path.iterdir():
        path.unlink()

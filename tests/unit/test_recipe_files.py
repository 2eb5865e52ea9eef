"""A recipe from a file says what one in Python does; whatever is wrong names the file and the field."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import yaml

from mentalese import InputError, Phase, get_recipe, open_recipe, override, recipes
from mentalese.data.layouts import Packed

WHOLE = {
    "model": {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2},
    "data": {"tokenizer": "bpe:512"},
    "train": {"steps": 3},
}


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["gpt2/tiny", "coconut/tiny", "thought_gestalt/tiny", "latent_thought/tiny-vae"])
@pytest.mark.parametrize("suffix", [".json", ".yaml"])
def test_a_recipe_written_down_reads_back_as_itself(name: str, suffix: str, tmp_path: Path) -> None:
    recipe = get_recipe(name)
    dump = json.dumps if suffix == ".json" else yaml.safe_dump
    path = write(tmp_path / f"recipe{suffix}", dump(recipe.to_dict()))
    again = open_recipe(path)
    assert again.fingerprint() == recipe.fingerprint()
    assert again.to_dict() == recipe.to_dict()


def test_every_recipe_reads_back_as_itself(tmp_path: Path) -> None:
    for recipe in recipes().values():
        path = write(tmp_path / "recipe.json", json.dumps(recipe.to_dict()))
        assert open_recipe(path).fingerprint() == recipe.fingerprint(), recipe.name


def test_replace_changes_only_the_named_fields_of_a_part() -> None:
    tiny = get_recipe("gpt2/tiny")
    changed = tiny.replace(name="a/b", model={"n_embd": 32}, train={"tokens": 5}, layout=Packed())
    assert changed.model == tiny.model | {"n_embd": 32}
    assert (changed.train.tokens, changed.train.eval_every) == (5, tiny.train.eval_every)
    assert (changed.name, changed.layout, changed.optimizer) == ("a/b", Packed(), tiny.optimizer)


def test_a_file_without_a_base_needs_a_model_and_a_length(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.json", json.dumps(WHOLE))
    recipe = open_recipe(path)
    assert (recipe.name, recipe.train.steps, recipe.data.tokenizer) == ("mine", 3, "bpe:512")
    assert recipe.model == WHOLE["model"]
    assert recipe.optimizer == type(recipe.optimizer)()


def test_a_file_with_a_base_says_what_differs(tmp_path: Path) -> None:
    text = """
base: gpt2/tiny
description: wider
model: {hidden_size: 128}
optimizer: {learning_rate: 3e-4, betas: [0.9, 0.99]}
train: {steps: 5}
"""
    recipe, base = open_recipe(write(tmp_path / "wide.yaml", text)), get_recipe("gpt2/tiny")
    assert (recipe.name, recipe.description) == ("wide", "wider")
    assert recipe.model == base.model | {"n_embd": 128}
    assert (recipe.optimizer.learning_rate, recipe.optimizer.betas) == (3e-4, (0.9, 0.99))
    assert recipe.optimizer.warmup == base.optimizer.warmup
    assert (recipe.train.steps, recipe.train.tokens) == (5, None), "one length replaces the other"
    assert recipe.data == base.data


def test_a_model_inside_the_model_changes_field_by_field(tmp_path: Path) -> None:
    text = "base: coconut/tiny\nmodel: {backbone: {num_hidden_layers: 3}}\n"
    recipe, base = open_recipe(write(tmp_path / "deep.yaml", text)), get_recipe("coconut/tiny")
    assert recipe.model == base.model | {"backbone": base.model["backbone"] | {"num_hidden_layers": 3}}
    assert override(base, "model.backbone.num_hidden_layers=3").model == recipe.model


def test_another_type_of_model_replaces_it(tmp_path: Path) -> None:
    path = write(tmp_path / "a.toml", 'base = "gpt2/tiny"\n[model]\nmodel_type = "llama"\nhidden_size = 32\n')
    assert open_recipe(path).model == {"model_type": "llama", "hidden_size": 32}


def test_a_curriculum_comes_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "stages.toml"
    write(path, 'base = "coconut/tiny"\n[[phases]]\nstart = 1\nclock = "epochs"\n[phases.layout]\nstage = 2\n')
    assert open_recipe(path).phases == (Phase(start=1, clock="epochs", layout={"stage": 2}),)
    assert open_recipe(write(tmp_path / "none.yaml", "base: coconut/tiny\nphases: []\n")).phases == ()
    text = "base: gpt2/tiny\ntrain: {tokens: 1e6}\noptimizer: {warmup: 1e-1}"
    short = open_recipe(write(tmp_path / "short.yaml", text))
    assert (short.train.tokens, short.optimizer.warmup) == (1_000_000, 0.1)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.ini", "", "use a file that ends in .json, .yaml"),
        ("a.json", "{", "cannot be read"),
        ("a.yaml", "train: [", "cannot be read"),
        ("a.toml", "train = ", "cannot be read"),
        ("a.yaml", "- 1", "contains list"),
        ("a.yaml", "base: gpt2/tyni", "did you mean 'gpt2/tiny'"),
        ("a.yaml", "base: 3", "base is 3: it should be a valid string"),
        ("a.yaml", "base: gpt2/tiny\noptimiser: {}", "optimiser: no such field; did you mean 'optimizer'"),
        ("a.yaml", "base: gpt2/tiny\ntrain: {step: 1}", "train.step: no such field; did you mean 'steps'"),
        ("a.yaml", "base: gpt2/tiny\ntrain: {steps: ten}", "train.steps is 'ten': it should be a valid integer"),
        ("a.yaml", "base: gpt2/tiny\ntrain: {steps: 1.5}", "train.steps is 1.5: it should be a valid integer"),
        ("a.yaml", "base: gpt2/tiny\ntrain: {compile: 3}", "train.compile is 3: it should be a valid boolean"),
        (
            "a.yaml",
            "base: gpt2/tiny\ntrain: {log_every: null}",
            "train.log_every is None: it should be a valid integer",
        ),
        ("a.yaml", "base: gpt2/tiny\ntrain: 3", "train is 3: it should be a dictionary"),
        ("a.yaml", "base: gpt2/tiny\nlayout: {batch_size: 0}", "layout.batch_size is 0"),
        ("a.yaml", "base: gpt2/tiny\noptimizer: {betas: [0.9]}", "optimizer.betas[1] is missing"),
        ("a.yaml", "base: gpt2/tiny\nmodel: {n_layers: 3}", "gpt2 has no such field; did you mean 'n_layer'"),
        ("a.yaml", "base: gpt2/tiny\nmodel: {n_layer: x}", "model.n_layer is 'x': it should be a valid integer"),
        ("a.yaml", "base: gpt2/tiny\nmodel: {model_type: gtp2}", "no such type; did you mean 'gpt2'"),
        ("a.yaml", "base: gpt2/tiny\nphases: [{strat: 1}]", "phases[0].strat: no such field; did you mean 'start'"),
        ("a.yaml", "base: gpt2/tiny\nphases: [{layout: {stag: 1}}]", "phases.layout is 'stag': only "),
        ("a.yaml", "base: gpt2/tiny\nphases: [{clock: days}]", "phases[0].clock is 'days': it should be 'steps'"),
        ("a.yaml", "base: gpt2/tiny\ntrain: {steps: 7}\ntrain: {seed: 3}", "train is there twice in one section"),
        ("a.yaml", "base: gpt2/tiny\nphases: [{start: 1, start: 2}]", "start is there twice in one section"),
        ("a.json", '{"base": "gpt2/tiny", "train": {"steps": 7}, "train": {"seed": 3}}', "train is there twice"),
        ("a.yaml", "base: gpt2/tiny\nmodel: {n_layer: 2, num_hidden_layers: 3}", "n_layer are one field of gpt2"),
        ("a.yaml", "train: {steps: 3}", "name its model_type"),
        ("a.yaml", "model: {model_type: gpt2}", "train is missing"),
    ],
)
def test_what_is_wrong_in_a_file_is_one_sentence(name: str, text: str, says: str, tmp_path: Path) -> None:
    path = write(tmp_path / name, text)
    with pytest.raises(InputError) as refused:
        open_recipe(path)
    assert str(path) in str(refused.value)
    assert says in str(refused.value)


def test_a_yaml_file_may_merge_sections_and_change_them(tmp_path: Path) -> None:
    """`<<` may be there for several sections, and what is merged may be overridden: neither is a name twice."""
    text = "base: gpt2/tiny\nphases:\n- &a {start: 1, clock: epochs}\n- &b {<<: *a, start: 2}\n- {<<: *b, start: 3}\n"
    phases = open_recipe(write(tmp_path / "a.yaml", text)).phases
    assert [(phase.start, phase.clock) for phase in phases] == [(1, "epochs"), (2, "epochs"), (3, "epochs")]


def test_fields_are_overridden_by_their_type() -> None:
    recipe = override(
        get_recipe("gpt2/tiny"),
        "optimizer.learning-rate=1e-3",
        "optimizer.betas=0.8,0.9",
        "optimizer.max_grad_norm=none",
        "train.tokens=1e9",
        "train.compile=true",
        "train.precision=bf16",
        "model.hidden_size=32",
        "data.sentences=none",
        'evaluation.sample_prompts=["One, two", "three"]',
    )
    assert (recipe.optimizer.learning_rate, recipe.optimizer.betas) == (1e-3, (0.8, 0.9))
    assert recipe.optimizer.max_grad_norm is None
    assert (recipe.train.tokens, recipe.train.compile, recipe.train.precision) == (10**9, True, "bf16")
    assert recipe.model["n_embd"] == 32
    assert recipe.data.sentences == "none", "text where none is no value"
    assert recipe.evaluation.sample_prompts == ("One, two", "three")
    assert override(get_recipe("gpt2/tiny")) == get_recipe("gpt2/tiny")


def test_another_source_is_read_as_it_is() -> None:
    recipe = override(get_recipe("gpt2/tiny"), "data.text_column=body")
    assert override(recipe, "data.source=file:a.txt").data.text_column is None
    assert override(recipe, "data.source=file:a.txt", "data.text_column=text").data.text_column == "text"
    assert override(recipe, "data.source=file:a.jsonl", "data.text_column=body").data.text_column == "body"


def test_another_source_is_read_whole() -> None:
    recipe = get_recipe("coconut/tiny")
    assert recipe.data.train_tokens == 40_000
    assert override(recipe, "data.source=file:a.jsonl").data.train_tokens is None
    assert override(recipe, "data.source=file:a.jsonl", "data.train_tokens=40000").data.train_tokens == 40_000
    assert override(recipe, f"data.source={recipe.data.source}").data.train_tokens == 40_000


def test_a_store_has_its_own_tokenizer() -> None:
    recipe = get_recipe("gpt2/tiny")
    assert override(recipe, "data.source=store:here").data.source == "store:here"
    with pytest.raises(InputError, match=r"data\.tokenizer is 'bpe:999': store:here has its own tokenizer; leave it"):
        override(recipe, "data.source=store:here", "data.tokenizer=bpe:999")


def test_two_lengths_are_refused_though_one_is_the_recipes_own() -> None:
    recipe = get_recipe("gpt2/tiny")
    assert override(recipe, "train.epochs=2").train.tokens is None
    with pytest.raises(InputError, match="set exactly one of the three"):
        override(recipe, f"train.tokens={recipe.train.tokens}", "train.epochs=2")


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("train.steps", "use section.field=value"),
        ("steps=3", "use section.field=value"),
        ("trian.steps=3", "no section 'trian'; did you mean 'train'"),
        ("train.stesp=3", "train.stesp: no such field; did you mean 'steps'"),
        ("optimizer.lr=3", "optimizer.lr: no such field (`mentalese show RECIPE` lists all fields)"),
        ("train.steps=ten", "train.steps is 'ten': it should be a valid integer"),
        ("train.seed=-1", "train.seed is -1: it should be greater than or equal to 0"),
        ("train.steps=0", "train.steps is 0: it should be greater than or equal to 1"),
        ("train.precision=fp8", "it should be 'fp32' or 'bf16'"),
        ("train.compile=maybe", "train.compile is 'maybe': it should be a valid boolean"),
        ("optimizer.betas=0.9", "optimizer.betas is missing"),
        ("optimizer.betas=[0.8", "optimizer.betas is '[0.8': it should be a valid tuple"),
        ("optimizer.learning_rate=none", "it should be a valid number"),
        ("model.n_layers=3", "model.n_layers: no such field; did you mean 'n_layer'"),
        ("model.n_layer.x=1", "model.n_layer.x: no such field; did you mean 'n_layer'"),
        ("model.n_layer=3.5", "model.n_layer is 3.5: it should be a valid integer"),
        ("layout.latents=2", "layout.latents: no such field"),
        ("layout.kind=pages", "layout.kind"),
    ],
)
def test_what_is_wrong_in_a_setting_is_one_sentence(setting: str, says: str) -> None:
    with pytest.raises(InputError) as refused:
        override(get_recipe("gpt2/tiny"), setting)
    assert says in str(refused.value)


def test_settings_may_name_fields_of_another_kind() -> None:
    for settings in itertools.permutations(("layout.kind=qa_compressed", "layout.batch_size=2", "layout.latents=2")):
        layout = override(get_recipe("gpt2/tiny"), *settings).layout
        assert (layout.kind, vars(layout)["batch_size"], vars(layout)["latents"]) == ("qa_compressed", 2, 2)
    changed = override(get_recipe("gpt2/tiny"), "model.backprop_turns=2", "model.model_type=looped")
    assert changed.model == {"model_type": "looped", "backprop_turns": 2}


def test_a_whole_number_of_a_model_may_be_written_as_a_float(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("base: gpt2/tiny\nmodel: {n_positions: 1e3, n_layer: 2.0, attn_pdrop: 0.5}")
    model = open_recipe(path).model
    assert [model[name] for name in ("n_positions", "n_layer", "attn_pdrop")] == [1000, 2, 0.5]
    assert isinstance(model["n_layer"], int)

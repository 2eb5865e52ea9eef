"""Families are found by folder and by entry point, and transformers' Auto classes know their models."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

from mentalese import Family, InputError, Recipe, TrainConfig, get_recipe, match_recipes, recipes, registry
from mentalese.registry import families
from support import run_in_forks


def test_built_in_families_are_found_by_their_folders() -> None:
    assert {"baselines", "thought_gestalt"} <= set(families())


def test_a_family_of_another_package_joins_by_its_entry_point(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("package")
    (folder / "foreign_family.py").write_text(
        "from mentalese import Family, Recipe, TrainConfig\n"
        "RECIPES = [Recipe(name='foreign/tiny', description='', model={'model_type': 'gpt2'}, "
        "train=TrainConfig(steps=1))]\n"
        "FAMILY = Family(name='foreign', description='', recipes='foreign_family:RECIPES', classes={})\n"
    )
    monkeypatch.syspath_prepend(folder)
    point = EntryPoint(name="foreign", value="foreign_family", group=registry.ENTRY_POINTS)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    for cached in (registry.families, registry.recipes):
        cached.cache_clear()
    try:
        assert "foreign" in families()
        assert get_recipe("foreign/tiny").model["model_type"] == "gpt2"
    finally:
        monkeypatch.undo()
        for cached in (registry.families, registry.recipes):
            cached.cache_clear()
    assert "foreign" not in families()


def test_a_family_whose_package_is_gone_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint(name="gone", value="no_such_package.family", group=registry.ENTRY_POINTS)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    with pytest.warns(UserWarning, match="declares the family 'gone' in no_such_package.family, which does not exist"):
        modules = registry.import_families()
    assert len(modules) == len(families())


def test_an_error_inside_a_family_is_not_hidden(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("broken")
    (folder / "broken_family.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(folder)
    point = EntryPoint(name="broken", value="broken_family", group=registry.ENTRY_POINTS)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        registry.import_families()


def test_an_unknown_recipe_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(InputError, match="did you mean 'gpt2/tiny'"):
        get_recipe("gpt2/tinny")


def test_patterns_match_recipes_once_each() -> None:
    names = [recipe.name for recipe in match_recipes("*/tiny", "gpt2/tiny")]
    assert len(names) == len(set(names)) >= 2
    with pytest.raises(InputError, match="no recipe matches"):
        match_recipes("nothing/*")


def test_every_family_says_what_it_is() -> None:
    for family in families().values():
        assert isinstance(family, Family)
        assert family.description


@pytest.mark.parametrize("size", ["hidden_size", "num_hidden_layers", "num_attention_heads", "initializer_range"])
@pytest.mark.parametrize("kind", sorted(registry.MODELS.keys() - {"gpt2_gist"}))  # fields of transformers' GPT-2
def test_a_size_below_1_is_refused_by_every_config(kind: str, size: str) -> None:
    for value in (0, -1) if size != "initializer_range" else (-0.02,):  # initial weights may be 0
        with pytest.raises(InputError, match=size):
            AutoConfig.for_model(kind, **{size: value})


def test_auto_classes_know_the_model_of_every_family() -> None:
    for family in families().values():
        for model_type, (_, model) in family.classes.items():
            assert MODEL_FOR_CAUSAL_LM_MAPPING[type(AutoConfig.for_model(model_type))] is registry.load(model)


FOREIGN = """
import sys
sys.path.insert(0, {folder!r})
import {first}
import mentalese
from transformers import AutoConfig, AutoModelForCausalLM
model = AutoModelForCausalLM.from_config(AutoConfig.for_model("foreign"))
assert type(model).__module__ == "foreign_family.model", type(model)
assert "foreign" in mentalese.registry.families()
"""


@pytest.mark.slow
@pytest.mark.parametrize("first", ["mentalese", "foreign_family", "transformers", "foreign_family.model"])
def test_auto_classes_know_a_family_of_another_package(first: str, tmp_path: Path) -> None:
    """A package that is imported first imports `mentalese`, which imports it again before it is complete."""
    package, info = tmp_path / "foreign_family", tmp_path / "foreign-1.dist-info"
    package.mkdir()
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[mentalese.families]\nforeign = foreign_family\n")
    (package / "__init__.py").write_text(
        "from mentalese import Family\n"
        "CLASSES = ('foreign_family.config:ForeignConfig', 'foreign_family.model:ForeignModel')\n"
        "FAMILY = Family(name='foreign', description='', recipes='', classes={'foreign': CLASSES})\n"
    )
    (package / "config.py").write_text(
        "from mentalese import LatentThoughtConfig\n"
        "class ForeignConfig(LatentThoughtConfig):\n    model_type = 'foreign'\n"
    )
    (package / "model.py").write_text(
        "from mentalese import LatentThoughtModel\n"
        "from foreign_family.config import ForeignConfig\n"
        "class ForeignModel(LatentThoughtModel):\n    config_class = ForeignConfig\n"
    )
    code = FOREIGN.format(folder=str(tmp_path), first=first)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


ORDERS = [
    "import mentalese; from transformers import GPT2LMHeadModel",
    "import mentalese; from transformers import LlamaForCausalLM, BertModel",
    "import mentalese; from transformers import Trainer, pipeline",
    "from transformers import GPT2LMHeadModel; import mentalese",
    "import mentalese.families.baselines.gist",
    "import mentalese.families.coconut.model",
    "import mentalese.families.coconut.config",
    "import mentalese.models.config",
    "from transformers.models.gpt2.modeling_gpt2 import GPT2Model; import mentalese.families.conceptlm.model",
]
KNOWN = """
import mentalese
from transformers import AutoConfig, AutoModelForCausalLM
assert AutoConfig.for_model("gpt2_gist").model_type == "gpt2_gist"
sizes = {"vocab_size": 9, "n_embd": 4, "n_head": 1, "n_layer": 1}
model = AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt2_gist", **sizes))
assert type(model).__name__ == "GPT2GistLMHeadModel"
"""


@pytest.mark.slow
def test_every_order_of_imports_works() -> None:
    """Families import transformers' classes, and transformers' mappings know families: neither waits for the other."""
    # transformers' own classes are imported by a fork, if it asks for them.
    done = run_in_forks("import torch, transformers", [f"{order}\n{KNOWN}" for order in ORDERS])
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_recipes_are_plain_data() -> None:
    for recipe in recipes().values():
        assert Recipe.from_dict(recipe.to_dict()) == recipe
        assert Recipe.from_dict(recipe.to_dict()).fingerprint() == recipe.fingerprint()


def test_fingerprint_follows_the_result_not_the_logging() -> None:
    import dataclasses

    recipe = get_recipe("gpt2/tiny")
    watched = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, log_every=7, checkpoint_every=3))
    other = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, seed=1))
    assert watched.fingerprint() == recipe.fingerprint() != other.fingerprint()


def test_fingerprint_does_not_depend_on_how_a_number_is_written() -> None:
    recipe = get_recipe("gpt2/tiny")
    one, other = (recipe.replace(optimizer={"warmup": steps}).fingerprint() for steps in (2, 2.0))
    assert one == other != recipe.fingerprint()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"train": {"steps": 1, "epochs": 1}}, "exactly one"),
        ({"train": {"steps": 0}}, "train.steps is 0"),
        ({"train": {"steps": 1}, "layout": {"kind": "packed", "batch_size": 0}}, "layout.batch_size is 0"),
        ({"train": {"steps": 1}, "optimizer": {"learning_rate": -1.0}}, "optimizer.learning_rate is -1.0"),
        ({"train": {"stepz": 1}}, "did you mean 'steps'"),
        (
            {
                "train": {"steps": 1},
                "layout": {"kind": "sentence_streams"},
                "phases": [{"layout": {"max_sentence": 3}}],
            },
            "did you mean 'max_sentences'",
        ),
        ({"train": {"steps": 1}, "layout": {"kind": "pack"}}, "layout.kind is 'pack': .* did you mean 'packed'"),
    ],
)
def test_a_bad_field_is_named_with_its_remedy(fields: dict, message: str) -> None:
    data = {"name": "x/y", "description": "", "model": {"model_type": "gpt2"}} | fields
    with pytest.raises(InputError, match=message):
        Recipe.from_dict(data)


def test_one_length_is_enough() -> None:
    assert TrainConfig(tokens=5).tokens == 5


def test_a_recipe_and_its_baseline_can_be_compared() -> None:
    for recipe in recipes().values():
        if recipe.baseline is not None:
            twin = get_recipe(recipe.baseline)
            names = ["source", "tokenizer", "train_tokens"]
            if not recipe.data.sentences.startswith("fixed:"):  # spans are what such a recipe is about
                names.append("sentences")
            for name in names:
                assert getattr(recipe.data, name) == getattr(twin.data, name), (recipe.name, name)
            assert (recipe.train.tokens, recipe.train.epochs) == (twin.train.tokens, twin.train.epochs), recipe.name

"""Private and changing parts of transformers are used in one module only, and both names of a cache work."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest
import torch
import transformers
from torch import nn

from mentalese.data.store import prepare
from mentalese.errors import InputError
from mentalese.models.build import build_model
from mentalese.models.cache import ThoughtCache
from mentalese.models.transformers_seam import CACHE, LogitsOutput, one_cache
from mentalese.registry import get_recipe

SOURCE = Path(__file__).parents[2] / "src" / "mentalese"
SEAM = {"models/transformers_seam.py", "models/text_tokenizer.py"}
BASES = (
    transformers.PreTrainedModel,
    transformers.GenerationMixin,
    transformers.PreTrainedConfig,
    transformers.PreTrainedTokenizerFast,
    transformers.GenerationConfig,
    transformers.Cache,
    transformers.DynamicLayer,
    transformers.TrainingArguments,
    transformers.Trainer,
)
SET_ON_MODULES = {"_attn_implementation", "_gradient_checkpointing_func", "_is_hf_initialized"}


def _private_names() -> set[str]:
    """Return the names of transformers' private attributes, without those that torch has too."""
    names = {name for base in BASES for name in dir(base) if name.startswith("_") and not name.startswith("__")}
    return (names | SET_ON_MODULES) - set(dir(nn.Module)) - set(dir(object))


def _used(tree: ast.Module) -> dict[str, int]:
    """Return the names that a module reads as attributes, defines or assigns in a class, with a line of each."""
    names: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            names[node.attr] = node.lineno
        elif isinstance(node, ast.FunctionDef):
            names[node.name] = node.lineno
        elif isinstance(node, ast.ClassDef):
            for line in node.body:
                targets = line.targets if isinstance(line, ast.Assign) else [getattr(line, "target", None)]
                names |= {target.id: line.lineno for target in targets if isinstance(target, ast.Name)}
    return names


def _imported(tree: ast.Module) -> list[str]:
    """Return the modules that a module imports, and `transformers.NAME` for each name of transformers."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module] if node.module != "transformers" else [f"transformers:{a.name}" for a in node.names]
    return found


def _elsewhere() -> list[tuple[str, ast.Module]]:
    files = {path.relative_to(SOURCE).as_posix(): path for path in sorted(SOURCE.rglob("*.py"))}
    assert set(files) >= SEAM
    return [(name, ast.parse(path.read_text("utf-8"))) for name, path in files.items() if name not in SEAM]


def test_private_names_of_transformers_stay_in_the_seam() -> None:
    private = _private_names()
    assert private >= {"_prepare_cache_for_generation", "_init_weights", "_wrap_model"}
    uses = [(name, used, line) for name, tree in _elsewhere() for used, line in _used(tree).items()]
    found = [f"{name}:{line} {used}" for name, used, line in uses if used in private]
    assert not found


def test_submodules_of_transformers_stay_in_the_seam() -> None:
    found = [
        f"{name} {module}"
        for name, tree in _elsewhere()
        for module in _imported(tree)
        if module.startswith("transformers.") or (":" in module and module.partition(":")[2].startswith("_"))
    ]
    assert not found


def test_a_use_outside_the_seam_is_found() -> None:
    """The two tests above can fail."""
    tree = ast.parse(
        "from transformers.cache_utils import Cache\nclass A:\n    _is_stateful = True\nx._init_weights(y)"
    )
    assert _used(tree).keys() >= {"_is_stateful", "_init_weights"}
    assert _imported(tree) == ["transformers.cache_utils"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2-gist/tiny", "coconut/tiny", "looped/tiny"])
def test_both_names_of_a_cache_are_read(name: str) -> None:
    model, ids = _model(name), torch.arange(5, 13)[None]
    parameters = inspect.signature(model.forward).parameters
    assert {"cache", "past_key_values"} <= set(parameters)
    output = model(ids, use_cache=True)
    assert isinstance(output.cache, ThoughtCache)
    assert output.past_key_values is output.cache
    assert output["past_key_values"] is output["cache"] is output.get("cache") is output.get("past_key_values")
    with pytest.raises(InputError, match="cache and past_key_values are both set"):
        model(ids[:, -1:], cache=output.cache, past_key_values=output.cache)
    off = model(ids, use_cache=False)
    assert off.cache is off.past_key_values is None
    assert "cache" not in off
    assert "past_key_values" not in off


@pytest.mark.parametrize("spelling", ["cache", "past_key_values"])
@pytest.mark.parametrize("name", ["gpt2-gist/tiny", "coconut/tiny", "looped/tiny", "latent_thought/tiny"])
@pytest.mark.filterwarnings("ignore:.*past_key_values.* is deprecated")
def test_generate_continues_from_a_cache_of_either_name(name: str, spelling: str) -> None:
    model, ids = _model(name), torch.arange(5, 13)[None]
    options = {"do_sample": False, "return_dict_in_generate": True, "pad_token_id": 0, "eos_token_id": None}
    first = model.generate(ids, max_new_tokens=3, **options)
    cache = first[CACHE]
    seen = cache.seen_tokens
    second = model.generate(first.sequences, max_new_tokens=3, **{spelling: cache}, **options)
    assert second[CACHE] is cache
    assert cache.seen_tokens == seen + 3


def test_one_cache_is_either() -> None:
    cache = ThoughtCache()
    assert one_cache(cache, None) is one_cache(None, cache) is cache
    assert one_cache(None, None) is None


def test_an_output_without_a_cache_has_neither_name() -> None:
    output = LogitsOutput(logits=torch.zeros(1, 1, 2))
    assert output.get("cache", 3) == output.get("past_key_values", 3) == 3


def _model(name: str) -> transformers.PreTrainedModel:
    recipe = get_recipe(name)
    _, tokenizer = prepare(recipe.data, recipe.layout, show=False)
    return build_model(recipe.model, tokenizer, seed=0).eval()

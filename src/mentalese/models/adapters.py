"""Models of which only the adapters are kept, a few MB: their base is added when they are first opened."""

from __future__ import annotations

from pathlib import Path

from mentalese.data.tokenizers import add_markers, load_pretrained_tokenizer
from mentalese.errors import require
from mentalese.files import RECORD, check_files, read_json, sha256
from mentalese.gguf import cached_models
from mentalese.models.build import build_model
from mentalese.models.checkpoints import model_to_save, save_model
from mentalese.models.grow import start_from
from mentalese.models.lora import WEIGHTS, add_adapters, load_adapter, merged_weights
from mentalese.recipe import Recipe


def whole_model(folder: Path) -> Path:
    """Return the folder, in the cache, of the model that adapters and their base make together.

    Args:
        folder: adapters as `save_adapter` writes them, with a `mentalese.json` that has the recipe.

    Raises:
        InputError: files have changed, or the base cannot be opened.
    """
    check_files(folder)
    out = cached_models() / f"{folder.name}-{sha256(folder / WEIGHTS)[:16]}"
    if not out.exists():
        about = read_json(folder / RECORD)
        recipe = Recipe.from_dict(about["recipe"])
        base = recipe.train.init or ""
        require(bool(base), "train.init", base, f"the recipe in {folder} names no base; copy the folder again")
        tokenizer = add_markers(load_pretrained_tokenizer(base), latents=recipe.layout.questions)
        model = build_model(recipe.model, tokenizer, recipe.train.seed)
        start_from(model, tokenizer, base)
        add_adapters(model, tokenizer, recipe.train)
        load_adapter(folder, model)
        merged = model_to_save(model.config, merged_weights(model))
        facts = {name: about[name] for name in ("recipe", "step", "source_fingerprint")}
        save_model(out, merged, tokenizer, adapted=model, **facts)
    return out

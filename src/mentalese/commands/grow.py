"""`mentalese grow`: adds latent thought to a trained Hugging Face decoder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mentalese.commands.options import read_one
from mentalese.errors import InputError, require
from mentalese.models.generate_options import config_fields


@dataclass(kw_only=True)
class Options:
    """Adds latent thought to a trained Hugging Face decoder: writes a model of the family, and a recipe to train it.

    Attributes:
        family: what to grow, required: coconut, conceptlm, looped, or another family that grows.
        out: the new model's folder, required.
        mode: the family's kind of thought, if it has several (coconut, agclr, pause).
        silent_start: new parts add nothing at first, so that the model predicts what its base does (conceptlm).
        config: FIELD=VALUE ...: other fields of the family's config; for conceptlm also token_layers=N, the base itself
            with N more layers.
        seed: for the weights that the base does not have.
    """

    family: str | None = None
    out: Path | None = None
    mode: str | None = None
    silent_start: bool = False
    config: tuple[str, ...] = ()
    seed: int = 0


def run(words: list[str]) -> None:
    base, options = read_one(Options, words, "grow", "BASE")
    if options.family is None or options.out is None:
        missing = "--family NAME" if options.family is None else "--out DIR"
        raise InputError(f"`mentalese grow` needs {missing}")
    require(options.seed >= 0, "--seed", options.seed, "set at least 0")
    fields = config_fields(options.config) | ({} if options.mode is None else {"mode": options.mode})
    fields |= {"silent_start": True} if options.silent_start else {}

    from mentalese.models import grow

    grow.grow(base, options.family, options.out, seed=options.seed, **fields)
    print(
        f"{options.out} starts as {base}: train it with `mentalese train {options.out / grow.RECIPE} --data SOURCE`,\n"
        f"or with another recipe of the same model and --train.init {options.out}"
    )

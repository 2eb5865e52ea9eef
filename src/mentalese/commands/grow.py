"""`mentalese grow`: adds latent thought to a trained Hugging Face decoder."""

from __future__ import annotations

import shlex
from typing import Annotated

from tyro.conf import Positional, arg

from mentalese.errors import require
from mentalese.models.generate_options import config_fields
from mentalese.values import NonNegative, Place, Texts, checked_dataclass


@checked_dataclass("")
class Options:
    """Adds latent thought to a trained Hugging Face decoder: writes a model of the family, and a recipe to train it.

    Attributes:
        base: the decoder, a folder, hub:NAME or gguf:FILE.
        family: what to grow: colar, coconut, codi, conceptlm, looped, or another family that grows.
        out: the new model's folder.
        mode: the family's kind of thought, if it has several (coconut, agclr, pause).
        config: FIELD=VALUE ...: other fields of the family's config; for conceptlm also token_layers=N, the base itself
            with N more layers.
        seed: for the weights that the base does not have.
    """

    base: Annotated[Positional[str], arg(metavar="BASE")]
    family: str
    out: Place
    mode: str | None = None
    config: Texts = ()
    seed: NonNegative = 0


def run(options: Options) -> None:
    fields = config_fields(options.config)
    require(options.mode is None or "mode" not in fields, "--mode", options.mode, "--config has it too, keep one")
    fields |= {} if options.mode is None else {"mode": options.mode}

    from mentalese.models import grow

    grow.grow(options.base, options.family, options.out, seed=options.seed, **fields)
    nats = grow.difference(options.base, options.out)
    print(f"{options.out} starts as {options.base} (at most {nats:.4f} nats apart on an English text): train it with")
    print(f"`mentalese train {shlex.quote(str(options.out / grow.RECIPE))} --data SOURCE`,")
    print(f"or with another recipe of the same model and --train.init {shlex.quote(str(options.out))}")

"""Which of a trained decoder's layers a looped model takes. Recipes read it, so nothing here imports torch."""

from __future__ import annotations

from typing import Any

from mentalese.errors import InputError

PUBLISHED = {16: (4, 6, 4), 22: (4, 8, 4)}
"""Layers of a trained decoder -> prelude, block and coda that McLeish et al. (arXiv 2511.07384) make of them: of
Llama-3.2-1B and OLMo-2-1B, and of TinyLlama."""


def shape_of(layers: int) -> tuple[int, int, int]:
    """Prelude, block and coda for a trained decoder of this many layers: the published ones, or a quarter, half, and a
    quarter."""
    ends = layers // 4
    return PUBLISHED.get(layers, (ends, layers - 2 * ends, ends))


def grown(backbone: dict[str, Any], block_layers: int | None = None, **fields: Any) -> dict[str, Any]:
    """The `model` of a recipe whose layers are some of this decoder's: its first, and its last ones.

    Args:
        block_layers: l_R; layers between the prelude and the block are dropped. `None`: see `shape_of`, or what the
            other two leave.

    Raises:
        InputError: more layers than the decoder has.
    """
    layers = backbone["num_hidden_layers"]
    prelude, block, coda = shape_of(layers)
    shape = {"prelude_layers": prelude, "coda_layers": coda} | {
        name: fields.pop(name) for name in ("prelude_layers", "coda_layers") if name in fields
    }
    ends = sum(shape.values())
    if block_layers is None:
        block_layers = block if ends == prelude + coda else layers - ends
    if block_layers < 1 or ends + block_layers > layers:
        raise InputError(
            f"block_layers is {block_layers}, with a prelude of {shape['prelude_layers']} and a coda of "
            f"{shape['coda_layers']}: the decoder has {layers} layers; set prelude_layers, block_layers and "
            "coda_layers that it has"
        )
    cut = backbone | {"num_hidden_layers": ends + block_layers}
    cut |= {
        name: [value[i] for i in kept_layers(layers, ends + block_layers, shape["prelude_layers"])]
        for name, value in backbone.items()
        if name == "layer_types" and value is not None
    }
    return {"model_type": "looped", "backbone": cut, "norms": "own", **shape} | fields


def kept_layers(base: int, layers: int, prelude: int) -> list[int]:
    """Which layers of a decoder of `base` a looped model of `layers` takes: the first for its prelude, and the last."""
    return [*range(prelude), *range(base - (layers - prelude), base)]

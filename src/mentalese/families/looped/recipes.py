"""Recipes of recurrent depth and the models that it is compared with, on the same text.

`variants(recipe)` adds to a looped recipe

    -once       the same layers without the loop: one turn
    -unrolled   equal FLOPs without sharing: every turn has its own layers
    -swapped    equal FLOPs with sharing: a turn reads the state of a token of another text

`gated(recipe)` is the same model with a gate that lets tokens exit.
"""

from __future__ import annotations

from mentalese.data.layouts import Packed
from mentalese.errors import require
from mentalese.families.baselines.recipes import SMALL as GPT2_SMALL
from mentalese.families.baselines.recipes import TINY as GPT2_TINY
from mentalese.families.baselines.recipes import llama, twin
from mentalese.families.looped.config import BACKBONES
from mentalese.recipe import DataConfig, EvaluationConfig, Fields, OptimizerConfig, Phase, Recipe, TrainConfig

PUBLISHED = {16: (4, 6, 4), 22: (4, 8, 4)}
"""Layers of a trained decoder -> prelude, block and coda that McLeish et al. (arXiv 2511.07384) make of them: of
Llama-3.2-1B and OLMo-2-1B, and of TinyLlama."""
TITLES = {
    "once": "the same layers without the loop",
    "unrolled": "each turn has layers of its own",
    "swapped": "each turn reads the state of another text",
}


def looped(backbone: Fields, turns: int, **fields: object) -> Fields:
    """Return a looped model of these layers with initial weights of variance 2 / 5d (section 4.1)."""
    std = round((0.4 / backbone["hidden_size"]) ** 0.5, 3)
    return {"model_type": "looped", "backbone": backbone | {"initializer_range": std}, "turns": turns, **fields}


def changed(model: Fields, name: str) -> Fields:
    """Return a looped model as one of `TITLES`."""
    if name == "swapped":
        return model | {"thought_control": name}
    backbone, ends = model["backbone"], model.get("prelude_layers", 1) + model.get("coda_layers", 1)
    if name == "unrolled":
        block = backbone["num_hidden_layers"] - ends
        backbone = backbone | {"num_hidden_layers": ends + model["turns"] * block}
    return model | {"backbone": backbone, "turns": 1}


def shape_of(layers: int) -> tuple[int, int, int]:
    """Return the sizes of prelude, block and coda for a trained decoder of this many layers.

    Without a published choice they are a quarter, half and a quarter.
    """
    ends = layers // 4
    return PUBLISHED.get(layers, (ends, layers - 2 * ends, ends))


def grown(
    backbone: Fields,
    block_layers: int | None = None,
    prelude_layers: int | None = None,
    coda_layers: int | None = None,
    **fields: object,
) -> Fields:
    """Return a recipe with the first and the last layers of this decoder; raise `InputError` if it has too few.

    `block_layers` is l_R; layers between the prelude and the block are dropped. `None`: see `shape_of`, or what the
    other two leave.
    """
    kind = backbone["model_type"]
    require(kind in BACKBONES, "looped.backbone.model_type", kind, f"use one of {', '.join(BACKBONES)}")
    layers = backbone["num_hidden_layers"]
    prelude, block, coda = shape_of(layers)
    first = prelude if prelude_layers is None else prelude_layers
    last = coda if coda_layers is None else coda_layers
    if block_layers is None:
        block_layers = block if first + last == prelude + coda else layers - first - last
    total = first + block_layers + last
    remedy = f"the decoder has {layers} layers, a prelude of {first} and a coda of {last}; set fewer"
    require(block_layers >= 1 and total <= layers, "block_layers", block_layers, remedy)
    cut = backbone | {"num_hidden_layers": total}
    if (kinds := backbone.get("layer_types")) is not None:
        cut["layer_types"] = [*kinds[:first], *kinds[first + layers - total :]]
    shape = {"prelude_layers": first, "coda_layers": last}
    return {"model": {"model_type": "looped", "backbone": cut, "norms": "own", **shape} | fields}


def variants(recipe: Recipe) -> list[Recipe]:
    """Return the recipe and its twins on the same tokens."""
    twins = [
        recipe.replace(
            name=f"{recipe.name}-{name}",
            description=f"a twin of {recipe.name}: {title}",
            model=changed(recipe.model, name),
        )
        for name, title in TITLES.items()
    ]
    return [recipe.replace(baseline=twins[0].name), *twins]


def gated(recipe: Recipe) -> Recipe:
    """Return the recipe with a gate; beta as in most of Ouro's training (arXiv 2510.25741, Table 1)."""
    description = f"{recipe.name} with a gate that lets tokens exit"
    name = f"{recipe.name}-exit"
    return recipe.replace(name=name, description=description, model={"exit_entropy": 0.05}, baseline=recipe.name)


TINY = twin(
    GPT2_TINY,
    "looped/tiny",
    "1 + 2 + 1 layers of width 64, the middle ones 4 times: 10 deep; 100,000 tokens",
    looped(
        llama(64, 4, layers=4, mlp=192, key_value_heads=4, tied=True, context=256, theta=10_000.0), 4, backprop_turns=4
    ),
)

SMALL = twin(
    GPT2_SMALL,
    "looped/small",
    "1 + 4 + 1 layers of width 384, the middle ones 8 times; 500M tokens of WikiText-103",
    looped(llama(384, 6, layers=6, mlp=1024, key_value_heads=6, tied=True, context=1024, theta=50_000.0), 8),
)

PRODUCTS = Recipe(
    name="looped/products",
    description="a layer with one head, 4 times, on products of permutations and their steps: two looks back",
    model=looped(
        llama(64, 1, layers=1, mlp=192, key_value_heads=1, tied=True, context=256, theta=10_000.0),
        4,
        prelude_layers=0,
        coda_layers=0,
    ),
    data=DataConfig(source="builtin:composition:length=3-4,count=12000", tokenizer="bpe:512"),
    layout=Packed(sequence_length=128, batch_size=16),
    optimizer=OptimizerConfig(learning_rate=0.01, warmup=0.1),
    train=TrainConfig(tokens=800_000),
    evaluation=EvaluationConfig(max_documents=200, max_test_documents=200),
)

GATE = gated(PRODUCTS).replace(
    name="looped/products-gate",
    description="Ouro's second stage, the gate of a trained looped/products-exit: set train.init to that run",
    baseline=None,
    train={"tokens": 150_000},  # less than an epoch: the frozen model's validations tie, and the first would be kept
    phases=(Phase(model={"gate_only": 1}),),
)

RECIPES = [*variants(TINY), gated(TINY), *variants(SMALL), PRODUCTS, gated(PRODUCTS), GATE]

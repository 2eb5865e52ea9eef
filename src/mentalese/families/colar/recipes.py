"""Recipes of CoLaR and of what it is compared with, on the same questions.

`variants(recipe)` turns a decoder's recipe into

    (none)      CoLaR
    -removed    the same without the contents of latents: a constant is read in the place of each
    -cot        the decoder, the steps written out
    -no-cot     the decoder, only the answer
"""

from __future__ import annotations

import dataclasses

from mentalese.data.layouts import QuestionAnswer
from mentalese.families.baselines.recipes import initial_weights, llama
from mentalese.families.coconut.questions import sized
from mentalese.families.coconut.recipes import named_for
from mentalese.families.codi.recipes import TINY as CODI_TINY
from mentalese.families.colar.layout import CompressedSteps
from mentalese.recipe import DataConfig, EvaluationConfig, Fields, OptimizerConfig, Recipe, TrainConfig

TITLES = {
    "": "CoLaR",
    "removed": "CoLaR with a constant in the place of its latents",
    "cot": "the steps written out",
    "no-cot": "the answer without steps",
}


def method(recipe: Recipe, name: str, **fields: object) -> Recipe:
    """Return the recipe, whose model is a decoder, as one of `TITLES`; `fields` are fields of `ColarConfig`."""
    model, layout = recipe.model, recipe.layout
    assert isinstance(layout, QuestionAnswer)
    if name == "no-cot":
        layout = dataclasses.replace(layout, stage=1)
    elif name != "cot":
        control: Fields = {"thought_control": "removed"} if name == "removed" else {}
        model = {"model_type": "colar", "backbone": model, **fields, **control}
        layout = sized(CompressedSteps, layout)
    return named_for(recipe, name, TITLES[name], model=model, layout=layout)


def variants(recipe: Recipe, **fields: object) -> list[Recipe]:
    """Return the recipe as all of `TITLES`."""
    return [method(recipe, name, **fields) for name in TITLES]


TINY = CODI_TINY.replace(name="colar/tiny")

COMPOSITION = Recipe(
    name="colar/composition",
    description="2 layers of width 64 on products of permutations, 12 epochs",
    model=llama(64, 4, layers=2, mlp=192, key_value_heads=4, tied=True, context=128, theta=10_000.0)
    | {"initializer_range": initial_weights(64)},
    data=DataConfig(source="builtin:composition:length=4-5,count=12000", tokenizer="bpe:512"),
    layout=QuestionAnswer(sequence_length=128, batch_size=64),
    optimizer=OptimizerConfig(learning_rate=2.5e-3, weight_decay=0.01, warmup=0.1),
    train=TrainConfig(epochs=12, log_every=20),
    evaluation=EvaluationConfig(metric="accuracy", max_documents=200, answer_tokens=30, batch_size=100),
)
"""The suite's questions, decoder and epochs, on which Coconut and CODI are compared."""

RECIPES = [
    *variants(TINY, factor=5, max_latents=6),
    *variants(COMPOSITION, factor=2, max_factor=4, max_latents=16),
]

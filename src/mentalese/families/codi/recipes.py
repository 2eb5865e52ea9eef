"""Recipes of CODI and the methods that it is compared with, on the same questions.

`variants(recipe)` turns a decoder's recipe into

    (none)             CODI
    -no-distillation   the same two tasks, without the distance between states (gamma 0)
    -pause             learned tokens in place of thoughts at equal cost, to measure what feedback adds
    -sim-cot           a second decoder predicts each step from its latent in training (SIM-CoT, Wei et al.)
    -cot               only the decoder, the steps written out: the teacher's task
    -no-cot            only the decoder, the answer without steps or latents
"""

from __future__ import annotations

import dataclasses

from mentalese.data.layouts import QuestionAnswer
from mentalese.families.baselines.recipes import GPT2_TOKENS, llama, llama3_rotary
from mentalese.families.coconut.questions import sized
from mentalese.families.coconut.recipes import GPT2, layers, named_for
from mentalese.families.coconut.recipes import SMALL as GRAPHS_SMALL
from mentalese.families.coconut.recipes import TINY as GRAPHS_TINY
from mentalese.families.codi.layout import QuestionPairs
from mentalese.recipe import DataConfig, EvaluationConfig, Fields, OptimizerConfig, Recipe, TrainConfig

TITLES = {
    "": "CODI",
    "no-distillation": "CODI without distillation",
    "pause": "CODI with learned tokens in the place of its thoughts",
    "sim-cot": "SIM-CoT on CODI",
    "cot": "the steps written out",
    "no-cot": "the answer alone",
}


def method(recipe: Recipe, name: str, latents: int = 6, **fields: object) -> Recipe:
    """Return the recipe, whose model is a decoder, as one of `TITLES`; `fields` are fields of `CodiConfig`."""
    model, layout = recipe.model, recipe.layout
    assert isinstance(layout, QuestionAnswer)
    if name == "no-cot":
        layout = dataclasses.replace(layout, stage=1)
    elif name != "cot":
        changes: dict[str, Fields] = {
            "no-distillation": {"distillation_weight": 0.0},
            "pause": {"thought_control": "removed"},
            "sim-cot": {"step_decoder_layers": layers(model)},
        }
        model = {"model_type": "codi", "backbone": model, **fields, **changes.get(name, {})}
        layout = sized(QuestionPairs, layout, latents=latents)
    return named_for(recipe, name, TITLES[name], model=model, layout=layout)


def variants(recipe: Recipe, latents: int = 6, **fields: object) -> list[Recipe]:
    """Return the recipe as all of `TITLES`."""
    return [method(recipe, name, latents, **fields) for name in TITLES]


# Coconut's recipes on word problems, whose answers are numbers.
TINY, SMALL = (
    recipe.replace(
        name=recipe.name.replace("coconut", "codi"),
        description=description,
        data={"source": "builtin:arithmetic"},
        layout={"sequence_length": 256},
    )
    for recipe, description in (
        (GRAPHS_TINY, "4 layers of width 64 on word problems, 40,000 tokens"),
        (GRAPHS_SMALL, "8 layers of width 256 on word problems, 40 epochs"),
    )
)


def gsm8k(name: str, description: str, model: Fields, init: str, *, learning_rate: float, epochs: int) -> Recipe:
    """Return CODI on GSM8K-Aug as in appendix A: LoRA of rank 128, 128 questions per step, cosine, 3% warm-up."""
    return Recipe(
        name=name,
        description=description,
        model=model,
        data=DataConfig(source="gsm8k-aug:data/gsm8k", tokenizer=init),
        layout=QuestionAnswer(batch_size=128, sequence_length=512, too_long="skip"),
        optimizer=OptimizerConfig(
            learning_rate=learning_rate,
            betas=(0.9, 0.999),
            weight_decay=0.1,
            warmup=0.03,
            min_learning_rate_ratio=0.0,
            max_grad_norm=2.0,
        ),
        train=TrainConfig(
            epochs=epochs,
            init=init,
            lora_rank=128,
            lora_alpha=32,
            gradient_accumulation_steps=4,
            precision="bf16",
            checkpoint_every=500,
        ),
        evaluation=EvaluationConfig(metric="accuracy", answer_tokens=96, batch_size=64, max_documents=500),
    )


LLAMA_HUB = "hub:meta-llama/Llama-3.2-1B-Instruct"
LLAMA = llama(2048, 32, layers=16, mlp=8192, key_value_heads=8, tied=True, context=131072, theta=500_000.0) | {
    "rope_parameters": llama3_rotary(32.0)
}

RECIPES = [
    *variants(TINY, latents=3),
    *variants(SMALL),
    *variants(gsm8k("codi/gsm8k-gpt2", "GPT-2 on GSM8K-Aug", GPT2, GPT2_TOKENS, learning_rate=3e-3, epochs=40)),
    *variants(
        gsm8k("codi/gsm8k-llama", "Llama 3.2 1B on GSM8K-Aug", LLAMA, LLAMA_HUB, learning_rate=8e-4, epochs=10),
        distillation_weight=20.0,
    ),
]

"""All methods of latent reasoning on SmolLM2-135M-Instruct, each within a few hours of one CPU core.

`smollm2/DATA-METHOD` learns English word problems: `arithmetic` has one to four steps with numbers up to 200
(`builtin:arithmetic`), `words` two to four with numbers up to 20 (`builtin:word-problems`). Adapters of rank 16 are
trained, 16 questions a step. An epoch has about 4,500 questions, always the same.

`cot` has one epoch. Most others go on with its adapters for five more: curricula have no stage of written steps, and
each of their stages is one epoch, the last one two. `no-cot` and `looped` answer at once; they have six epochs.
"""

from __future__ import annotations

import dataclasses

from mentalese.data.layouts import QuestionAnswer
from mentalese.families.baselines.recipes import llama
from mentalese.families.coconut.recipes import Curriculum
from mentalese.families.coconut.recipes import method as latent
from mentalese.families.codi.recipes import method as distilled
from mentalese.families.looped.recipes import grown
from mentalese.recipe import DataConfig, EvaluationConfig, OptimizerConfig, Recipe, TrainConfig

BASE = "models:smollm2"
SMOLLM2 = llama(576, 9, layers=30, mlp=1536, key_value_heads=3, tied=True, context=8192, theta=100_000.0)

WORDS = Recipe(
    name="smollm2/words",
    description="SmolLM2-135M-Instruct on English word problems",
    model=SMOLLM2,
    data=DataConfig(source="builtin:word-problems", tokenizer=BASE, train_tokens=410_000),
    layout=QuestionAnswer(batch_size=16, sequence_length=512),
    optimizer=OptimizerConfig(learning_rate=1e-3, betas=(0.9, 0.999), weight_decay=0.01, warmup=0.03),
    train=TrainConfig(epochs=1, init=BASE, lora_rank=16, precision="bf16", checkpoint_every=50),
    evaluation=EvaluationConfig(metric="accuracy", answer_tokens=96, max_documents=100),
)
ARITHMETIC = WORDS.replace(
    name="smollm2/arithmetic",
    description="SmolLM2-135M-Instruct on word problems with larger numbers",
    data={"source": "builtin:arithmetic", "train_tokens": 470_000},
)
STAGES = Curriculum(stages=4, latents_per_step=1, epochs=1, removed_tokens=8, step_tokens=31)
LONGER_STEPS = dataclasses.replace(STAGES, removed_tokens=13, step_tokens=50)
STEP_DECODER_LAYERS = 6  # SIM-CoT's has all; its cost would be the model's once more


def curriculum(recipe: Recipe, name: str, stages: Curriculum) -> Recipe:
    """Return the recipe as a method whose first epoch leaves out a step, after the written steps of `cot`."""
    made = latent(recipe, name, stages)
    first, *rest = made.phases
    phases = tuple(dataclasses.replace(phase, start=phase.start - 1) for phase in rest)
    return continued(made.replace(layout=first.layout, phases=phases, train={"epochs": len(made.phases) + 1}))


def continued(recipe: Recipe) -> Recipe:
    """Return the recipe with the adapters of written steps as its start."""
    task = recipe.name.partition("/")[2].partition("-")[0]
    return recipe.replace(train={"adapter": f"models:smollm2-{task}-cot"})


def methods(recipe: Recipe, stages: Curriculum) -> list[Recipe]:
    """Return the recipe, whose model is a decoder, as all methods."""
    no_cot = latent(recipe, "no-cot", stages).replace(train={"epochs": 6})
    looped = dataclasses.replace(
        no_cot,
        name=f"{recipe.name}-looped",
        description=f"{recipe.description}: only the answer, the middle layers twice",
        model=grown(recipe.model, turns=2)["model"],
    )
    sim = curriculum(recipe, "sim-cot", stages).replace(model={"step_decoder_layers": STEP_DECODER_LAYERS})
    codi = continued(distilled(recipe, "", stages.stages * stages.latents_per_step)).replace(
        name=f"{recipe.name}-codi", train={"epochs": 5}
    )
    made = [
        latent(recipe, "cot", stages),
        no_cot,
        *(curriculum(recipe, name, stages) for name in ("icot", "no-thoughts", "pause-curriculum", "coconut", "agclr")),
        sim,
        codi,
        looped,
    ]
    return [dataclasses.replace(method, baseline=None) for method in made]


RECIPES = [*methods(ARITHMETIC, LONGER_STEPS), *methods(WORDS, STAGES)]

"""All methods of latent reasoning on SmolLM2-135M-Instruct, each within two hours of one CPU core.

`smollm2/METHOD` learns English word problems of two to four steps (`builtin:word-problems`). Adapters of rank 16 are
trained, 16 questions a step. An epoch is half of the problems, and the same half each time: a stage of a curriculum is
one epoch of it. Curricula have no stage of written steps: they go on with the adapters of `smollm2/cot`.
"""

from __future__ import annotations

import dataclasses

from mentalese.data.layouts import QuestionAnswer
from mentalese.families.baselines.recipes import llama
from mentalese.families.coconut.recipes import Curriculum
from mentalese.families.coconut.recipes import method as latent
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
STAGES = Curriculum(stages=4, latents_per_step=1, epochs=1, removed_tokens=9, step_tokens=36)


RECIPES = [latent(WORDS, "cot", STAGES), latent(WORDS, "no-cot", STAGES).replace(train={"epochs": 2})]

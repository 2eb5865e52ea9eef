"""Recipes of Latent Thought Models: small ones for any computer, and the paper's tables and figures.

`*-ar` is the same decoder without thoughts. `table1-*` are the three models of Table 1 and its autoregressive rows:
`table1-ar` has as many parameters as Large (the paper's AR-Retrained), `table1-ar-110m` is the model of Sahoo et
al., `table1-large-ar` has Large's blocks.
Figures 1 and 4 vary T_fast and N_z, `figure1-SIZE-tT-zN`; Table 4 compares ways to infer thoughts.

The weight decay of `optimizer` is the release's, the rest is the paper's (appendix A.2). The paper only gives training
lengths for Table 1. Likelihoods are of non-overlapping blocks of the joined documents (A.1).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from mentalese.data.layouts import Packed
from mentalese.families.baselines.recipes import GPT2_TOKENS, OPENWEBTEXT, WIKITEXT, initial_weights, sizes
from mentalese.recipe import DataConfig, EvaluationConfig, Fields, OptimizerConfig, Phase, Recipe, TrainConfig

LAYERS = {"small": 3, "medium": 6, "large": 12}
ALGORITHM_1: Fields = {
    "noise": "resampled",
    "fast_optimizer": "adam",
    "fast_learning_rate": 0.3,
    "fast_schedule": "constant",
    "slow_grad": "final",
    "initial_log_variance": -5.0,
}
"""Settings of inference in the paper; the last is the release's, as the paper does not state it. Every recipe with
thoughts has all of these fields, so that a run does not depend on defaults."""
ANNEALED = (Phase(model={"kl_weight": [0.0, 1.0]}),)
RISING = (Phase(model={"fast_learning_rate": [0.3, 0.34]}),)


def model(width: int, heads: int, layers: int, length: int, window: int, latents: int, **fields: Any) -> Fields:
    """Return a decoder trained on blocks of `length`, with `latents` thoughts in all."""
    rows = {"max_position_embeddings": length, "window_size": window, "num_latents": latents}
    return sizes("ltm", width, heads, layers, **rows) | (ALGORITHM_1 if latents else {}) | fields


def own(width: int, *others: int, **fields: Any) -> Fields:
    """Return a small model. At small widths, it uses thoughts only if initial weights follow the width (README)."""
    return model(width, *others, initializer_range=initial_weights(width), **fields)


def blocks(length: int, **fields: Any) -> EvaluationConfig:
    """Return non-overlapping blocks (section 3.3), each scored given the last token of the previous block."""
    return EvaluationConfig(context_length=length, stride=length - 1, **fields)


def without_thoughts(recipe: Recipe) -> Recipe:
    """Return `-ar`, the same blocks without cross-attention and inference."""
    inference = ("fast_", "langevin_", "encoder_", "inference", "initial_", "noise", "slow_grad")
    plain = {k: v for k, v in recipe.model.items() if not k.startswith(inference)}
    description = f"the baseline of {recipe.name}: the same blocks without thoughts"
    recipe = dataclasses.replace(recipe, model=plain | {"num_latents": 0})
    return recipe.replace(name=f"{recipe.name}-ar", description=description, phases=(), baseline=None)


def with_baseline(recipe: Recipe) -> list[Recipe]:
    """Return the recipe and its `-ar`."""
    baseline = without_thoughts(recipe)
    return [recipe.replace(baseline=baseline.name), baseline]


# Adam moves a log variance, which starts at -5, by about the learning rate per step: few steps need a large rate.
TINY = Recipe(
    name="latent_thought/tiny",
    description="3 layers of width 64, one thought per layer, 8 fast steps, 50,000 tokens: seconds on two CPU cores",
    model=own(64, 4, 3, 256, 64, 3, fast_steps=8, fast_learning_rate=0.6),
    layout=Packed(batch_size=4),
    optimizer=OptimizerConfig(learning_rate=3e-3, warmup=0.1),
    train=TrainConfig(tokens=50_000, eval_every=20),
    evaluation=blocks(256, max_documents=4),
)

TINY_LANGEVIN = TINY.replace(
    name="latent_thought/tiny-langevin",
    description="latent_thought/tiny by Langevin sampling",
    model={"inference": "langevin", "langevin_step_size": 0.02},
    baseline="latent_thought/tiny-ar",
)
TINY_VAE = dataclasses.replace(
    TINY,
    name="latent_thought/tiny-vae",
    description="latent_thought/tiny as a VAE: an encoder of 3 layers instead of fast steps, the KL annealed",
    model=own(64, 4, 3, 256, 64, 3, inference="amortised", encoder_layers=3),
    phases=ANNEALED,
    baseline="latent_thought/tiny-ar",
)

SMALL = Recipe(
    name="latent_thought/small",
    description="6 layers of width 384, 4 thoughts per layer, 16 fast steps, 100M tokens of WikiText-103",
    model=own(384, 6, 6, 512, 128, 24),
    data=DataConfig(source=WIKITEXT, tokenizer="bpe:16384"),
    layout=Packed(sequence_length=512, batch_size=64),
    optimizer=OptimizerConfig(learning_rate=1e-3),
    train=TrainConfig(tokens=100_000_000, precision="bf16", eval_every=500, checkpoint_every=500),
    evaluation=blocks(512),
    phases=RISING,
)


def openstax() -> list[Recipe]:
    """Return small models for textbooks on a CPU: 3 layers of width 64 with a window of 32, 500,000 tokens.

    The learning rate lets the fast steps, few or many, move a log variance from -5 to about the prior's; for many steps
    it decays (section 3.2).
    """

    def thoughts(steps: int, rate: float, schedule: str, name: str = "", **fields: Any) -> Recipe:
        fast = {"fast_steps": steps, "fast_learning_rate": rate, "fast_schedule": schedule, **fields}
        return Recipe(
            name=f"latent_thought/openstax-t{steps}{name}",
            description=f"3 layers of width 64, 2 thoughts per layer, {steps} fast steps, 500,000 tokens of OpenStax",
            model=own(64, 4, 3, 256, 32, 6, **fast),
            data=DataConfig(source="file:../shared/data/corpora/openstax", tokenizer="bpe:4096"),
            layout=Packed(sequence_length=256, batch_size=4),
            optimizer=OptimizerConfig(learning_rate=3e-3, warmup=0.02),
            train=TrainConfig(tokens=500_000, eval_every=100),
            evaluation=blocks(256, max_documents=8),
            baseline="latent_thought/openstax-ar",
        )

    recipes = [thoughts(8, 0.6, "constant"), thoughts(16, 0.3, "constant"), thoughts(32, 0.3, "cosine")]
    accumulated = thoughts(16, 0.3, "constant", "-accumulate", slow_grad="accumulate").replace(
        description="latent_thought/openstax-t16 whose weights also get the gradients of all fast steps"
    )
    plain = without_thoughts(recipes[0]).replace(name="latent_thought/openstax-ar")
    return [*recipes, accumulated, plain]


LONGEST = 3_000_000_000
"""Tokens of the longest run that the paper states, LTM-Large's (section 3.3)."""


def paper(name: str, text: str, layers: int, steps: int, latents: int, tokens: int = LONGEST, **fields: Any) -> Recipe:
    """Return width 512 on OpenWebText (sections 3.1 and A); large T_fast decays its learning rate (section 3.2).

    The paper scores all of its 100,000 held-out documents. Here one validation scores 1,000 of them and the test
    10,000, drawn with a seed: less than 2% of the training cost of each row of Table 1.
    """
    schedule = {"fast_schedule": "cosine"} if steps > 16 else {}
    return Recipe(
        name=f"latent_thought/{name}",
        description=text,
        model=model(512, 8, layers, 1024, 256, latents, fast_steps=steps, **schedule, **fields),
        data=DataConfig(source=OPENWEBTEXT, tokenizer=GPT2_TOKENS, held_out=100_000),
        layout=Packed(sequence_length=1024, batch_size=512),
        optimizer=OptimizerConfig(learning_rate=4e-4, warmup=1000),
        train=TrainConfig(
            tokens=tokens, precision="bf16", gradient_accumulation_steps=8, eval_every=500, checkpoint_every=500
        ),
        evaluation=blocks(1024, joined=True, max_documents=1000, max_test_documents=10_000, documents_seed=0),
        phases=RISING,
        paper=text.split(":")[0],
    )


def table1() -> list[Recipe]:
    """Return the rows of Table 1, "evaluated at checkpoints with equivalent total training compute".

    Small and Medium have a schedule over the tokens in the table. Large is the first 0.9B tokens of its run of
    3B (section 3.3), "far from convergence".
    """
    small, medium, large = (
        paper(f"table1-{size}", f"Table 1: {size}, T_fast {steps}, N_z 24", LAYERS[size], steps, 24, tokens)
        for size, steps, tokens in (
            ("small", 16, 7_000_000_000),
            ("medium", 16, 5_200_000_000),
            ("large", 64, 900_000_000),
        )
    )
    large = large.replace(
        description=f"{large.description}: the first 0.9B of 3B tokens",
        train={"schedule_share": 900_000_000 / LONGEST},
    )
    matched = without_thoughts(large).replace(
        name="latent_thought/table1-ar",
        description="Table 1: AR-Retrained, 16 layers of width 512 without thoughts, 76M, 105B tokens",
        model={"num_hidden_layers": 16},
        train={"tokens": 105_000_000_000, "schedule_share": 1.0},
    )
    published = {"learning_rate": 3e-4, "betas": (0.9, 0.999), "weight_decay": 0.0}
    copied = matched.replace(
        name="latent_thought/table1-ar-110m",
        description="Table 1: AR of Sahoo et al., 12 layers of width 768, full attention, 1M steps (524B tokens)",
        model=model(768, 12, 12, 1024, 1024, 0),
        optimizer=published | {"schedule": "constant", "warmup": 2500},
        train={"tokens": None, "steps": 1_000_000},
    )
    return [*with_baseline(small), *with_baseline(medium), *with_baseline(large), matched, copied]


FIGURE1 = [
    paper(
        f"figure1-{size}-t{steps}-z{latents}",
        f"Figures 1 and 4: {size}, T_fast {steps}, N_z {latents}",
        layers,
        steps,
        latents,
    )
    for size, layers in LAYERS.items()
    for steps in (16, 32, 64, 128)
    for latents in (24, 48, 96, 192)
]

VAE = dataclasses.replace(
    paper("table4-vae", "Table 4: a VAE, large's decoder and an encoder of 12 layers", 12, 1, 24),
    model=model(512, 8, 12, 1024, 256, 24, inference="amortised", encoder_layers=12),
    phases=ANNEALED,
)
LANGEVIN = paper("table4-langevin", "Table 4: large, Langevin sampling", 12, 64, 24, inference="langevin")
SHARED = paper("shared", "Section 2.1: large, one set of thoughts for all layers", 12, 64, 24, shared_latents=True)

RECIPES = [
    *with_baseline(TINY),
    TINY_LANGEVIN,
    TINY_VAE,
    *with_baseline(SMALL),
    *openstax(),
    *table1(),
    *FIGURE1,
    VAE,
    LANGEVIN.replace(phases=()),
    SHARED,
]

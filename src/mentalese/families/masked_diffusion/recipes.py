"""Masked diffusion, the non-autoregressive baselines of Latent Thought Models: `mdlm/`, `md4/`, `sedd/`."""

from __future__ import annotations

import dataclasses

from mentalese.families.baselines.recipes import GPT2_PUBLISHED
from mentalese.families.latent_thought.recipes import RECIPES as LATENT_THOUGHT
from mentalese.recipe import OptimizerConfig, Recipe


def masked_diffusion(objective: str, twin: str, name: str, description: str, **fields: object) -> Recipe:
    """Return the masked diffusion twin of an autoregressive baseline of Latent Thought Models.

    The published models have 128 channels for the time, which would be half the weights of a narrow model; here
    narrower models have 1/6 of their width.
    """
    recipe = next(recipe for recipe in LATENT_THOUGHT if recipe.name == twin)
    size_names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
    sizes = {name: recipe.model[name] for name in size_names if name in recipe.model}
    if objective != "mdlm":
        sizes["conditioning_size"] = min(128, recipe.model["hidden_size"] // 6)
    return dataclasses.replace(
        recipe,
        name=f"{objective}/{name}",
        description=f"{MASKED_DIFFUSION[objective]}, {description}",
        model={"model_type": "masked_diffusion", "objective": objective, **sizes, **fields},
        baseline=twin,
    )


def diffusion_table1(objective: str, size: str, steps: int, optimizer: OptimizerConfig) -> Recipe:
    """Return a masked diffusion model of Table 1 in the paper on Latent Thought Models."""
    width, heads, layers, _ = GPT2_PUBLISHED[size]
    sizes = {"hidden_size": width, "num_attention_heads": heads, "num_hidden_layers": layers}
    if objective != "mdlm":
        sizes["conditioning_size"] = 128
    suffix = "-110m" if (objective, size) == ("sedd", "124m") else ""
    name = f"table1{suffix}"
    paper = "Latent Thought Models, Table 1"
    description = f"{layers} layers of width {width}, {steps:,} steps of OpenWebText"
    recipe = masked_diffusion(objective, "latent_thought/table1-ar", name, description, **sizes)
    train = {"tokens": None, "steps": steps}
    return recipe.replace(optimizer=optimizer, train=train, baseline=None, paper=paper)


MASKED_DIFFUSION = {
    "mdlm": "Masked diffusion that does not see the time",
    "md4": "Masked diffusion that sees the time",
    "sedd": "Masked diffusion by score entropy",
}

CONSTANT = OptimizerConfig(learning_rate=3e-4, betas=(0.9, 0.999), weight_decay=0.0, schedule="constant", warmup=2500)
"""MDLM's and SEDD's own."""

COSINE = OptimizerConfig(learning_rate=3e-4, betas=(0.9, 0.999), weight_decay=0.03, warmup=2000)
"""MD4's own."""

RECIPES = [
    *(
        masked_diffusion(objective, f"latent_thought/{size}-ar", size, description, score_times=8)
        for size, description in (
            ("tiny", "3 layers of width 64, 50,000 tokens: seconds on two CPU cores"),
            ("openstax", "3 layers of width 64, 500,000 tokens of OpenStax"),
        )
        for objective in MASKED_DIFFUSION
    ),
    masked_diffusion(
        "md4",
        "latent_thought/openstax-ar",
        "openstax-cosine",
        "as md4/openstax, by the cosine schedule",
        noise_schedule="cosine",
        score_times=8,
    ),
    diffusion_table1("mdlm", "124m", 1_000_000, CONSTANT),
    diffusion_table1("sedd", "124m", 1_000_000, CONSTANT),
    diffusion_table1("sedd", "355m", 1_300_000, CONSTANT),
    diffusion_table1("md4", "355m", 1_000_000, COSINE),
]

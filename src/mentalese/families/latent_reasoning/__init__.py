"""Recipes of several families: every way of latent reasoning in one setting."""

from mentalese.registry import Family

FAMILY = Family(
    name="latent_reasoning",
    description="every way of latent reasoning on GSM8K-Aug in one setting, for GPT-2 and Llama 3.2 1B",
    recipes="mentalese.families.latent_reasoning.recipes:RECIPES",
    classes={},
)

"""What the families are compared with: transformers' own GPT-2, GPT-NeoX and Llama, as recipes."""

from mentalese.registry import Family

FAMILY = Family(
    name="baselines",
    description="transformers' own GPT-2, GPT-2 with rotary positions, GPT-NeoX and Llama",
    recipes="mentalese.models.baselines.recipes:RECIPES",
    classes={},
)

"""Baselines of the families: transformers' GPT-2, GPT-NeoX and Llama, and GPT-2 with a gist mask."""

from mentalese.registry import Family

FAMILY = Family(
    name="baselines",
    description="transformers' GPT-2 (also with rotary positions, sentence markers, a gist mask), GPT-NeoX and Llama",
    recipes="mentalese.families.baselines.recipes:RECIPES",
    classes={
        "gpt2_gist": (
            "mentalese.families.baselines.config:GPT2GistConfig",
            "mentalese.families.baselines.gist:GPT2GistLMHeadModel",
        ),
    },
)

"""What the families are compared with: transformers' own GPT-2, GPT-NeoX and Llama, and GPT-2 with a gist mask."""

from mentalese.registry import Family

FAMILY = Family(
    name="baselines",
    description="transformers' GPT-2 (also with rotary positions, sentence markers, a gist mask), GPT-NeoX and Llama",
    recipes="mentalese.models.baselines.recipes:RECIPES",
    classes={
        "gpt2_gist": (
            "mentalese.models.baselines.gist:GPT2GistConfig",
            "mentalese.models.baselines.gist:GPT2GistLMHeadModel",
        )
    },
)

"""What the families are compared with: transformers' GPT-2, GPT-NeoX and Llama, a gist mask, masked diffusion."""

from mentalese.registry import Family

FAMILY = Family(
    name="baselines",
    description="transformers' GPT-2 (also with rotary positions, sentence markers, a gist mask), GPT-NeoX and Llama; "
    "masked diffusion",
    recipes="mentalese.models.baselines.recipes:RECIPES",
    classes={
        "gpt2_gist": (
            "mentalese.models.baselines.gist:GPT2GistConfig",
            "mentalese.models.baselines.gist:GPT2GistLMHeadModel",
        ),
        "masked_diffusion": (
            "mentalese.models.baselines.masked_diffusion:MaskedDiffusionConfig",
            "mentalese.models.baselines.masked_diffusion:MaskedDiffusionLM",
        ),
    },
)

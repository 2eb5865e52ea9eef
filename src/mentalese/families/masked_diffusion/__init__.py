"""Masked diffusion language models (MDLM, MD4, SEDD): one bidirectional transformer under three choices."""

from mentalese.registry import Family

FAMILY = Family(
    name="masked_diffusion",
    description="MDLM, MD4 and SEDD: a bidirectional transformer that fills in masks",
    recipes="mentalese.families.masked_diffusion.recipes:RECIPES",
    classes={
        "masked_diffusion": (
            "mentalese.families.masked_diffusion.config:MaskedDiffusionConfig",
            "mentalese.families.masked_diffusion.model:MaskedDiffusionLM",
        ),
    },
    idle_options={"masked_diffusion": {"conditioning_size": {"objective": "md4"}}},
)

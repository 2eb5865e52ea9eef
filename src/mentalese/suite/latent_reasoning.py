"""All methods of latent reasoning on GSM8K-Aug in one setting, for GPT-2 and Llama 3.2 1B; needs a GPU and the weights.

`latent_reasoning/MODEL-METHOD`; `mentalese compare 'latent_reasoning/gpt2-*'` trains all of them. The setting is CODI's
(appendix A): adapters of rank 128, 128 questions a step, and equal epochs for all. Additions to the decoder, such as
SIM-CoT's second decoder, are trained in full at the same rate. Papers train each method in another setting, so no row
repeats a paper; `codi/gsm8k-*` and `coconut/table1-gsm8k-*` do. Only Llama has loops, over 14 of its 16 layers.
"""

from __future__ import annotations

import dataclasses

from mentalese.families.baselines.recipes import GPT2_TOKENS
from mentalese.families.coconut.recipes import GPT2, WORD_PROBLEMS, Curriculum
from mentalese.families.coconut.recipes import method as latent
from mentalese.families.codi.recipes import LLAMA, LLAMA_HUB, gsm8k
from mentalese.families.codi.recipes import method as distilled
from mentalese.families.looped.recipes import TITLES, grown
from mentalese.recipe import Recipe


def codi(recipe: Recipe, name: str, latents: int, **fields: object) -> Recipe:
    """Return the recipe, whose model is a decoder, as a method of CODI, `RECIPE-codi-NAME`."""
    made = distilled(recipe, name, latents, **fields)
    return made.replace(name=made.name.replace(recipe.name, f"{recipe.name}-codi"))


def looped(recipe: Recipe, name: str, turns: int, title: str, curriculum: Curriculum) -> Recipe:
    """Return the recipe, whose model is a decoder, with only the answer and some turns of the middle layers."""
    return dataclasses.replace(
        latent(recipe, "no-cot", curriculum),
        name=f"{recipe.name}-{name}",
        description=f"{recipe.description}: only the answer, {title}",
        model=grown(recipe.model, turns=turns)["model"],
    )


def ways(recipe: Recipe, **fields: object) -> list[Recipe]:
    """Return the recipe, whose model is a decoder, with written, removed, continuous or no steps.

    `fields` are fields of `CodiConfig`.
    """
    names = ("cot", "no-cot", "icot", "pause", "pause-curriculum", "coconut", "agclr", "sim-cot")
    codis, latents = ("", "no-distillation", "pause", "sim-cot"), WORD_PROBLEMS.stages * WORD_PROBLEMS.latents_per_step
    return [
        *(latent(recipe, name, WORD_PROBLEMS) for name in names),
        *(codi(recipe, name, latents, **fields) for name in codis),
    ]


ON_GPT2 = gsm8k("latent_reasoning/gpt2", "GPT-2 on GSM8K-Aug", GPT2, GPT2_TOKENS, learning_rate=3e-3, epochs=15)
ON_LLAMA = gsm8k("latent_reasoning/llama", "Llama 3.2 1B on GSM8K-Aug", LLAMA, LLAMA_HUB, learning_rate=8e-4, epochs=15)
RECIPES = [
    *ways(ON_GPT2, distillation_weight=1.0),
    *ways(ON_LLAMA, distillation_weight=20.0),
    looped(ON_LLAMA, "looped", 4, "the middle layers four times", WORD_PROBLEMS),
    looped(ON_LLAMA, "looped-once", 1, TITLES["once"], WORD_PROBLEMS),
]

"""All methods of latent reasoning on GSM8K-Aug in one setting, for GPT-2 and Llama 3.2 1B; needs a GPU and the weights.

`latent_reasoning/MODEL-METHOD`; `mentalese compare 'latent_reasoning/gpt2-*'` trains all of them. The setting is CODI's
(appendix A): adapters of rank 128, 128 questions a step, and equal epochs for all. Additions to the decoder, such as
SIM-CoT's second decoder, are trained in full at the same rate. Papers train each method in another setting, so no row
repeats a paper; `codi/gsm8k-*` and `coconut/table1-gsm8k-*` do. Only Llama has loops, over 14 of its 16 layers.
"""

from __future__ import annotations

import dataclasses

from mentalese.families.coconut.recipes import GPT2, GPT2_HUB, WORD_PROBLEMS
from mentalese.families.coconut.recipes import method as latent
from mentalese.families.codi.recipes import LLAMA, LLAMA_HUB, gsm8k
from mentalese.families.codi.recipes import method as distilled
from mentalese.families.looped.recipes import TITLES, grown
from mentalese.recipe import Recipe

LATENTS = WORD_PROBLEMS.stages * WORD_PROBLEMS.latents_per_step


def ways(recipe: Recipe, distillation_weight: float) -> list[Recipe]:
    """Return the recipe, whose model is a decoder, with written, removed, continuous or no steps."""
    names = ("cot", "no-cot", "icot", "pause", "pause-curriculum", "coconut", "agclr", "sim-cot")
    recipes = [latent(recipe, name, WORD_PROBLEMS) for name in names]
    for name in ("", "no-distillation", "pause", "sim-cot"):
        codi = distilled(recipe, name, LATENTS, distillation_weight=distillation_weight)
        recipes.append(dataclasses.replace(codi, name=codi.name.replace(recipe.name, f"{recipe.name}-codi")))
    return recipes


def loops(recipe: Recipe) -> list[Recipe]:
    """Return recipes of only the answer, after four passes of the middle layers, and after one."""
    answer_only = latent(recipe, "no-cot", WORD_PROBLEMS)
    titles = {"looped": (4, "the middle layers four times"), "looped-once": (1, TITLES["once"])}
    return [
        dataclasses.replace(
            answer_only,
            name=f"{recipe.name}-{name}",
            description=f"{recipe.description}: the answer alone, {title}",
            model=grown(recipe.model, turns=turns)["model"],
        )
        for name, (turns, title) in titles.items()
    ]


def settings() -> list[Recipe]:
    gpt2 = gsm8k("gpt2", "GPT-2 on GSM8K-Aug", GPT2, GPT2_HUB, learning_rate=3e-3, epochs=15)
    llama = gsm8k("llama", "Llama 3.2 1B on GSM8K-Aug", LLAMA, LLAMA_HUB, learning_rate=8e-4, epochs=15)
    gpt2, llama = (
        dataclasses.replace(recipe, name=recipe.name.replace("codi/", "latent_reasoning/")) for recipe in (gpt2, llama)
    )
    return [*ways(gpt2, 1.0), *ways(llama, 20.0), *loops(llama)]


RECIPES = settings()

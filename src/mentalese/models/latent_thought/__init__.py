"""Latent Thought Models: thoughts of a whole text, inferred anew for each by gradient steps (Kong et al.)."""

from mentalese.registry import Family

_HERE = "mentalese.models.latent_thought"

FAMILY = Family(
    name="latent_thought",
    description="Latent Thought Models: thoughts of a whole text, inferred by gradient steps, to which layers attend",
    recipes=f"{_HERE}.recipes:RECIPES",
    classes={"ltm": (f"{_HERE}.configuration:LTMConfig", f"{_HERE}.modeling:LTMForCausalLM")},
    figures=f"{_HERE}.figures:FIGURES",
)

"""Thoughtbubbles: residual streams that fork where a token needs more computation (Liu et al.)."""

from mentalese.registry import Family

_HERE = "mentalese.models.thoughtbubbles"

FAMILY = Family(
    name="thoughtbubbles",
    description="Thoughtbubbles: a token's residual stream forks inside the network, within a budget of streams",
    recipes=f"{_HERE}.recipes:RECIPES",
    classes={
        "thoughtbubbles": (
            f"{_HERE}.configuration:ThoughtbubblesConfig",
            f"{_HERE}.modeling:ThoughtbubblesForCausalLM",
        )
    },
    figures=f"{_HERE}.figures:FIGURES",
)

"""Thoughtbubbles: residual streams that fork if a token needs more computation (Liu et al.)."""

from mentalese.registry import Family

_HERE = "mentalese.families.thoughtbubbles"

FAMILY = Family(
    name="thoughtbubbles",
    description="Thoughtbubbles: a token's residual stream forks inside the network, within a budget of streams",
    recipes=f"{_HERE}.recipes:RECIPES",
    classes={"thoughtbubbles": (f"{_HERE}.config:ThoughtbubblesConfig", f"{_HERE}.model:ThoughtbubblesForCausalLM")},
    figures=f"{_HERE}.figures:FIGURES",
    signs={"thoughtbubbles": {"fork_share": 0.05, "streams_per_token": None}},
    tested={"thoughtbubbles/tiny": {"causal": {"selection": "causal"}}},
)

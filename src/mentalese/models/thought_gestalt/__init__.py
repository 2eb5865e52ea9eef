"""Thought Gestalt: language as a sequence of sentence-level thoughts (Borazjanizadeh and McClelland)."""

from mentalese.registry import Family

_HERE = "mentalese.models.thought_gestalt"

FAMILY = Family(
    name="thought_gestalt",
    description="Thought Gestalt: one vector a sentence, kept in a memory that later sentences read",
    recipes=f"{_HERE}.recipes:RECIPES",
    classes={
        "thought_gestalt": (
            f"{_HERE}.configuration:ThoughtGestaltConfig",
            f"{_HERE}.modeling:ThoughtGestaltForCausalLM",
        )
    },
    figures=f"{_HERE}.figures:FIGURES",
)

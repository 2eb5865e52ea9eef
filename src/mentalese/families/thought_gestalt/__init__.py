"""Thought Gestalt: language as a sequence of sentence-level thoughts (Borazjanizadeh and McClelland)."""

from mentalese.registry import Family

_HERE = "mentalese.families.thought_gestalt"

FAMILY = Family(
    name="thought_gestalt",
    description="Thought Gestalt: one vector per sentence, kept in a memory that later sentences read",
    recipes=f"{_HERE}.recipes:RECIPES",
    classes={"thought_gestalt": (f"{_HERE}.config:ThoughtGestaltConfig", f"{_HERE}.model:ThoughtGestaltForCausalLM")},
    figures=f"{_HERE}.figures:FIGURES",
    signs={"thought_gestalt": {"memory_gate": None, "next_vector_r2": None}},
    idle_options={
        "thought_gestalt": {"memory_size": {"memory_size": 2}}  # streams are shorter than the memory
    },
)

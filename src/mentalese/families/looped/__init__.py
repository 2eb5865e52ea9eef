"""Recurrent depth (Geiping et al., Zhu et al., McLeish et al.): layers that a token goes through several times."""

from mentalese.registry import Family

_HERE = "mentalese.families.looped"

FAMILY = Family(
    name="looped",
    description="Recurrent depth: a block of layers that every token goes through several times, at test any number",
    recipes=f"{_HERE}.recipes:RECIPES",
    classes={"looped": (f"{_HERE}.config:LoopedConfig", f"{_HERE}.model:LoopedForCausalLM")},
    grow=f"{_HERE}.recipes:grown",
    figures=f"{_HERE}.figures:FIGURES",
    idle_options={
        "looped": {
            "backprop_turns": {"backprop_turns": 1},
            "exit_distance": {"exit_distance": 2.0},
            "exit_probability": {"exit_entropy": 0.05},
            "cache_turns": "what generation keeps; a pass over a whole text keeps nothing",
        }
    },
    tested={"looped/tiny": {"steady": {"turns": 1}}, "looped/tiny-exit": {}},
)

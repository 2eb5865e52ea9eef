"""Latent Thought Models: thoughts of a text, inferred by gradient steps (Kong et al.)."""

from mentalese.registry import Family

_HERE = "mentalese.families.latent_thought"

FAMILY = Family(
    name="latent_thought",
    description="Latent Thought Models: thoughts of a whole text, inferred by gradient steps, to which layers attend",
    recipes=f"{_HERE}.recipes:RECIPES",
    classes={"ltm": (f"{_HERE}.config:LTMConfig", f"{_HERE}.model:LTMForCausalLM")},
    figures=f"{_HERE}.figures:FIGURES",
    signs={"ltm": {"active_units": 0.05, "kl": None, "nll": None, "elbo": None}},
    idle_options={
        "ltm": {
            "window_size": {"window_size": 16},  # rows are shorter than the window
            "encoder_layers": {"inference": "amortised"},
            "langevin_step_size": {"inference": "langevin"},
        }
    },
    tested={"latent_thought/tiny-langevin": {}, "latent_thought/tiny-vae": {}},
)

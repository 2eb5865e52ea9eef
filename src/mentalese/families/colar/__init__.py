"""CoLaR (Tan et al.): written steps merged into fewer vectors, which the model learns to think in."""

from mentalese.registry import Family

_HERE = "mentalese.families.colar"
_MADE = "of latents that the model makes; rows with written steps have none"

FAMILY = Family(
    name="colar",
    description="CoLaR: thoughts that each stand for several tokens of written steps, as many as asked for",
    recipes=f"{_HERE}.recipes:RECIPES",
    grow=f"{_HERE}.config:grown",
    figures=f"{_HERE}.figures:FIGURES",
    classes={"colar": (f"{_HERE}.config:ColarConfig", f"{_HERE}.model:ColarForCausalLM")},
    signs={"colar": {"latent": None}},
    layouts={"qa_compressed": f"{_HERE}.layout:CompressedSteps"},
    idle_options={"colar": {"latent_temperature": _MADE, "max_latents": _MADE}},
    tested={"colar/tiny": {"steady": {"factor": 1, "max_factor": 1}}},
)

"""CODI (Shen et al.): latents that learn from the same model's written steps, by distillation at one token."""

from mentalese.registry import Family

_HERE = "mentalese.families.codi"

FAMILY = Family(
    name="codi",
    description="CODI: continuous thoughts that learn from the steps that the same model writes",
    recipes=f"{_HERE}.recipes:RECIPES",
    grow=f"{_HERE}.config:grown",
    classes={"codi": (f"{_HERE}.config:CodiConfig", f"{_HERE}.model:CodiForCausalLM")},
    signs={"codi": {"distillation": None}},
    layouts={"qa_pairs": f"{_HERE}.layout:QuestionPairs"},
)

"""Coconut (Hao et al.) and AGCLR: continuous thoughts, with a gated memory, on any Hugging Face decoder."""

from mentalese.registry import Family

_HERE = "mentalese.families.coconut"

FAMILY = Family(
    name="coconut",
    description="Coconut and AGCLR: hidden states fed back as input embeddings, with a gated memory across the passes",
    recipes=f"{_HERE}.recipes:RECIPES",
    classes={"coconut": (f"{_HERE}.config:CoconutConfig", f"{_HERE}.model:CoconutForCausalLM")},
    layouts={"qa_steps": f"{_HERE}.questions:QuestionSteps"},
    grow=f"{_HERE}.recipes:grown",
    figures=f"{_HERE}.figures:FIGURES",
    idle_options={
        "coconut": {
            "write_passes": "the small recipes have two latents, and what the second one writes is never read",
        }
    },
    tested={"coconut/tiny-coconut": {}, "coconut/tiny-pause": {}},
)

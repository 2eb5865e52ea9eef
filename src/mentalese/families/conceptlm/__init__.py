"""ConceptLM: next-concept prediction beside next-token prediction on any Hugging Face decoder; ContextLM and MTP."""

from mentalese.registry import Family

_HERE = "mentalese.families.conceptlm"

FAMILY = Family(
    name="conceptlm",
    description="ConceptLM, ContextLM and MTP: a decoder that predicts the next concept, a vector for several tokens",
    recipes=f"{_HERE}.recipes:RECIPES",
    classes={
        "conceptlm": (f"{_HERE}.config:ConceptLMConfig", f"{_HERE}.model:ConceptLMForCausalLM"),
        "mtp": (f"{_HERE}.config:MTPConfig", f"{_HERE}.mtp:MTPForCausalLM"),
    },
    grow=f"{_HERE}.config:grown",
    figures=f"{_HERE}.figures:FIGURES",
    signs={
        "conceptlm": {
            "concept_r2": None,
            "concept_r2_rescaled": 0.05,
            "codebook_utilisation": 0.1,
            "code_accuracy": None,
            "codebook_perplexity": None,
        }
    },
    tested={
        "conceptlm/tiny": {},
        "conceptlm/tiny-l1": {},
        "conceptlm/tiny-context": {},
        # At 3e-3 and without a warm-up, three layers after the last make some seeds stop at the tokens' frequencies.
        "conceptlm/tiny-mtp": {"learning_rate": 1e-3},
        "conceptlm/tiny-neox": {},
        "conceptlm/tiny-llama": {},
    },
)

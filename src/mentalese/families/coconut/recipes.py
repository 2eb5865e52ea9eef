"""Recipes of Coconut, AGCLR and the methods that they are compared with, on the same questions.

`method(recipe, name)` turns a recipe of questions into one way to learn them:

    cot                 the steps are written out
    no-cot              only the answer
    icot                tokens of the steps are left out from the left, more each epoch (Deng et al., 2024)
    no-thoughts         Coconut's curriculum with nothing in place of the steps
    pause               the answer after learned pause tokens (Goyal et al., 2023)
    pause-curriculum    pause under Coconut's curriculum, to measure what feedback adds (ours)
    coconut             hidden states are fed back
    agclr               Coconut with the concept stream
    sim-cot             Coconut; a second decoder predicts the steps from latents in training (Wei et al., 2025)

Table 1 is `table1-DATA-METHOD`, Tables 2 and 3 and Figure 5 are `table2-*`, `table3-*` and `figure5-*`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from mentalese.data.layouts import QuestionAnswer
from mentalese.families.baselines.recipes import GPT2_TOKENS, llama
from mentalese.families.coconut.config import GATES
from mentalese.families.coconut.questions import QuestionSteps
from mentalese.recipe import DataConfig, EvaluationConfig, Fields, OptimizerConfig, Phase, Recipe, TrainConfig

TITLES = {
    "cot": "the steps written out",
    "no-cot": "the answer alone",
    "icot": "the steps' tokens removed from the left, a few more each epoch",
    "no-thoughts": "Coconut's curriculum with nothing in the steps' place",
    "pause": "the answer after learned tokens",
    "pause-curriculum": "learned tokens under Coconut's curriculum",
    "coconut": "Coconut",
    "agclr": "AGCLR",
    "sim-cot": "SIM-CoT on Coconut",
}
METHODS = tuple(name for name in TITLES if name != "sim-cot")
"""AGCLR and what it is compared with."""
PROSQA_BIASES = [-0.28, -1.5, -0.28]
"""Of the read, forget and write gate: sigmoid gives .43, .18, .43 (Table 3)."""


@dataclasses.dataclass(frozen=True)
class Curriculum:
    """A curriculum in which latents replace steps.

    Attributes:
        stages: the last stage that may leave steps; the stage after it leaves none.
        latents_per_step: c.
        epochs: epochs of each stage before the last one.
        removed_tokens: further tokens that iCoT leaves out each epoch.
        step_tokens: for iCoT, the maximum number of tokens in the steps of a record.
    """

    stages: int
    latents_per_step: int
    epochs: int
    removed_tokens: int
    step_tokens: int

    def phases(self, implicit: bool = False) -> tuple[Phase, ...]:
        """Return Coconut's phases, stage by stage until latents replace all steps, or iCoT's, which go by epoch."""
        if implicit:
            stages = [*range(self.removed_tokens, self.step_tokens, self.removed_tokens), self.step_tokens + 1]
        else:
            stages = [*range(1, self.stages), self.stages + 1]
        epochs = 1 if implicit else self.epochs
        return tuple(
            Phase(start=number * epochs, clock="epochs", layout={"stage": stage}, reset_optimizer=True)
            for number, stage in enumerate(stages, 1)
        )


def method(recipe: Recipe, name: str, curriculum: Curriculum, **fields: object) -> Recipe:
    """Return the recipe, whose model is a decoder, as one of `TITLES`; `fields` are fields of `CoconutConfig`."""
    stages, per_step = curriculum.stages, curriculum.latents_per_step
    changes: dict[str, Fields] = {
        "cot": {},
        "no-cot": {"stage": 1},
        "icot": {"removal": "tokens", "removal_smoothing": 4.0, "stages": curriculum.step_tokens},
        "no-thoughts": {"stages": stages},
        "pause": {"stage": 1, "latents": stages * per_step},
    }
    layout = dataclasses.replace(recipe.layout, **changes.get(name, {"stages": stages, "latents_per_step": per_step}))
    model = recipe.model
    if name in ("pause", "pause-curriculum", "coconut", "agclr", "sim-cot"):
        mode = {"pause-curriculum": "pause", "sim-cot": "coconut"}.get(name, name)
        model = {"model_type": "coconut", "mode": mode, "backbone": model, **fields}
    if name == "sim-cot":
        model["step_decoder_layers"] = layers(recipe.model)
        layout = QuestionSteps(**{field.name: getattr(layout, field.name) for field in dataclasses.fields(layout)})
    phases = () if name in ("cot", "no-cot", "pause") else curriculum.phases(implicit=name == "icot")
    return named_for(recipe, name, TITLES[name], model=model, layout=layout, phases=phases)


def named_for(recipe: Recipe, method: str, title: str, **changes: Any) -> Recipe:
    """Return the recipe with these fields under the name of a method, to be compared with `cot`."""
    return dataclasses.replace(
        recipe,
        name=f"{recipe.name}-{method}" if method else recipe.name,
        description=f"{recipe.description}: {title}",
        baseline=None if method == "cot" else f"{recipe.name}-cot",
        **changes,
    )


def layers(model: Fields) -> int:
    """Return the number of a decoder's layers; GPT-2's default is 12."""
    return int(model.get("num_hidden_layers") or model.get("n_layer", 12))


def compared(recipe: Recipe, curriculum: Curriculum, **fields: object) -> list[Recipe]:
    """Return the recipe as all of `METHODS`; the fields apply to AGCLR."""
    return [method(recipe, name, curriculum, **(fields if name == "agclr" else {})) for name in METHODS]


def without_curriculum(recipe: Recipe) -> Recipe:
    """Return the recipe with all latents and without steps from the first epoch (Coconut's "w/o curriculum")."""
    assert isinstance(recipe.layout, QuestionAnswer)
    return recipe.replace(
        name=f"{recipe.name}-no-curriculum",
        description=f"{recipe.description}, all latent from the first epoch on",
        layout={"stage": recipe.layout.stages + 1},
        phases=(),
    )


# -------------------------------------------------------------------------------------------------------- small ones

# Rotary positions and narrow layers learn to look up edges several times faster than GPT-2's learned positions; they
# also fit the longer published questions.
DECODER = llama(64, 4, layers=4, mlp=192, key_value_heads=4, tied=True, context=512, theta=10_000.0)

TINY = Recipe(
    name="coconut/tiny",
    description="4 layers of width 64 on small graphs, 40,000 tokens",
    model=DECODER,
    data=DataConfig(source="builtin:prosqa-small", tokenizer="bpe:400", train_tokens=40_000),
    layout=QuestionAnswer(sequence_length=512),
    optimizer=OptimizerConfig(learning_rate=3e-3, weight_decay=0.01, schedule="constant"),
    train=TrainConfig(epochs=8),
    evaluation=EvaluationConfig(metric="accuracy", max_documents=50, answer_tokens=40, batch_size=100),
)
SMALL_GRAPHS = Curriculum(stages=2, latents_per_step=1, epochs=3, removed_tokens=6, step_tokens=22)


SMALL = Recipe(
    name="coconut/small",
    description="8 layers of width 256 on graphs as large as ProsQA's, 40 epochs",
    model=llama(256, 8, layers=8, mlp=704, key_value_heads=8, tied=True, context=512, theta=10_000.0),
    data=DataConfig(source="builtin:prosqa", tokenizer="bpe:400"),
    layout=QuestionAnswer(batch_size=64, sequence_length=512),
    optimizer=OptimizerConfig(learning_rate=1e-3, weight_decay=0.01, schedule="constant"),
    train=TrainConfig(epochs=40, precision="bf16", checkpoint_every=1000),
    evaluation=EvaluationConfig(metric="accuracy", max_documents=300, answer_tokens=64, batch_size=100),
)
GRAPHS = Curriculum(stages=6, latents_per_step=1, epochs=5, removed_tokens=2, step_tokens=44)


def named(recipe: Recipe, curriculum: Curriculum) -> list[Recipe]:
    """Return the recipe as all methods; AGCLR keeps the recipe's name."""
    *others, agclr = compared(recipe, curriculum)
    return [agclr.replace(name=recipe.name, baseline=f"{recipe.name}-coconut"), *others]


def graphs() -> list[Recipe]:
    """Return the recipes of `results/`: from scratch, minutes on a CPU; a narrower MLP offsets AGCLR's gates."""
    recipe = TINY.replace(
        name="coconut/graphs",
        description="4 layers of width 64 from scratch on small graphs, 14 epochs",
        data={"train_tokens": None},
        train={"epochs": 14, "log_every": 100},
        evaluation={"max_documents": 200, "batch_size": 50},
    )
    curriculum = Curriculum(stages=2, latents_per_step=1, epochs=5, removed_tokens=2, step_tokens=22)
    paid = recipe.replace(model={"intermediate_size": 175})
    return [*compared(recipe, curriculum)[:-1], method(paid, "agclr", curriculum, gate_biases=PROSQA_BIASES)]


# ---------------------------------------------------------------------------------------------------- the paper's own

GPT2 = {"model_type": "gpt2", "activation_function": "gelu_pytorch_tanh"}


def paper(name: str, source: str, description: str, epochs: int, answer_tokens: int) -> Recipe:
    """Return a recipe of section 4.2 on GPT-2.

    AdamW at a constant 1e-4 (B.1: 5e-5), weight decay 0.01, 128 questions per step, no clipping.
    """
    return Recipe(
        name=f"coconut/{name}",
        description=description,
        model=GPT2,
        data=DataConfig(source=source, tokenizer=GPT2_TOKENS),
        layout=QuestionAnswer(batch_size=128, sequence_length=1024),
        optimizer=OptimizerConfig(
            learning_rate=1e-4,
            betas=(0.9, 0.999),
            weight_decay=0.01,
            schedule="constant",
            warmup=0,
            max_grad_norm=None,
        ),
        train=TrainConfig(
            epochs=epochs,
            init=GPT2_TOKENS,
            gradient_accumulation_steps=4,
            precision="bf16",
            checkpoint_every=500,
        ),
        evaluation=EvaluationConfig(metric="accuracy", answer_tokens=answer_tokens, batch_size=64, max_documents=500),
    )


def hotpotqa() -> Recipe:
    """Return GPT-2 on HotpotQA. Validation has 500 questions drawn at random, as in appendix B.

    With two paragraphs per question, a few records are longer than GPT-2's 1,024 positions less an answer's 256.
    """
    recipe = paper("table1-hotpotqa", "hotpotqa:data/hotpotqa", "GPT-2 on HotpotQA", 15, 256)
    return recipe.replace(layout={"sequence_length": 768, "too_long": "skip"}, evaluation={"documents_seed": 0})


WORD_PROBLEMS = Curriculum(stages=3, latents_per_step=2, epochs=3, removed_tokens=16, step_tokens=128)


def grown(backbone: Fields, **fields: object) -> Fields:
    """Return a recipe whose backbone is this decoder, with Coconut's curriculum on GSM8K: an epoch per stage.

    With a step decoder (SIM-CoT) the layout also has the steps that latents replace.
    """
    curriculum = dataclasses.replace(WORD_PROBLEMS, epochs=1)
    kind = "qa_steps" if fields.get("step_decoder_layers") else "qa"
    return {
        "model": {"model_type": "coconut", "backbone": backbone} | fields,
        "layout": {"kind": kind, "stages": curriculum.stages, "latents_per_step": curriculum.latents_per_step},
        "train": {"epochs": 1 + len(curriculum.phases())},
        "phases": [dataclasses.asdict(phase) for phase in curriculum.phases()],
        "evaluation": {"metric": "accuracy"},
    }


def gsm8k(name: str) -> Recipe:
    """Return GPT-2 on GSM8K-Aug."""
    return paper(name, "gsm8k-aug:data/gsm8k", "GPT-2 on GSM8K-Aug", 15, 96)


def table1() -> list[Recipe]:
    """Return every method on each data set under the paper's plan.

    The plan for ProsQA is ours, because the paper's plan does not fit into its 20 epochs.
    """
    prosqa = paper("table1-prosqa", "file:data/prosqa", "GPT-2 on ProsQA", 20, 128)
    longer = prosqa.replace(
        name="coconut/table1-prosqa-long",
        description=f"{prosqa.description}, 5 epochs a stage",
        train={"epochs": 50},
    )
    stages = Curriculum(stages=6, latents_per_step=1, epochs=3, removed_tokens=8, step_tokens=96)
    sets = [
        compared(gsm8k("table1-gsm8k"), WORD_PROBLEMS),
        compared(hotpotqa(), WORD_PROBLEMS),
        compared(prosqa, stages, gate_biases=PROSQA_BIASES),
    ]
    recipes = [recipe for methods in sets for recipe in (*methods, *map(without_curriculum, methods[-2:]))]
    recipes += compared(longer, dataclasses.replace(stages, epochs=5), gate_biases=PROSQA_BIASES)
    return [recipe.replace(paper="Table 1") for recipe in recipes]


def ablations() -> list[Recipe]:
    """Return the ablations of AGCLR on HotpotQA.

    They lack one gate (Table 2), freeze the memory after pass 2 (Figure 5), or start with other gates (Table 3).
    """
    full = method(hotpotqa(), "agclr", WORD_PROBLEMS)
    changes: dict[str, tuple[str, str, Fields]] = {
        f"table2-no-{gate}": (f"without the {gate} gate", "Table 2", {"gates": [g for g in GATES if g != gate]})
        for gate in GATES
    }
    changes["figure5-freeze"] = "the memory frozen after pass 2", "Figure 5", {"write_passes": 2}
    changes["table3-prosqa"] = "ProsQA's gates at the start", "Table 3", {"gate_biases": PROSQA_BIASES}
    return [
        full.replace(
            name=f"coconut/{name}",
            description=f"{full.description}, {text}",
            model=fields,
            baseline=full.name,
            paper=where,
        )
        for name, (text, where, fields) in changes.items()
    ]


RECIPES: list[Recipe] = [
    *named(TINY, SMALL_GRAPHS),
    *named(SMALL, GRAPHS),
    *graphs(),
    *table1(),
    *ablations(),
    method(TINY, "sim-cot", SMALL_GRAPHS).replace(baseline="coconut/tiny-coconut"),
    method(gsm8k("gsm8k"), "sim-cot", WORD_PROBLEMS).replace(baseline="coconut/table1-gsm8k-coconut"),
]

"""Recipes of Thoughtbubbles: small ones for any computer, for `results/`, and for the paper's tables and figures.

`*-regular` is the same transformer without forks, `*-copy3` and `*-copy5` have 3 and 5 streams per token from the
first block on (section 3.3). Table 1 and Figure 3 are `table1-*`, Table 4 is `table4-*`; Figures 4 to 7 show those
models.
"""

from __future__ import annotations

from mentalese.data.layouts import Packed, QuestionAnswer
from mentalese.families.baselines.recipes import GPT2_TOKENS, OPENWEBTEXT, sizes, twin
from mentalese.families.baselines.recipes import SMALL as GPT2_SMALL
from mentalese.families.baselines.recipes import TINY as GPT2_TINY
from mentalese.recipe import DataConfig, EvaluationConfig, Fields, OptimizerConfig, Recipe, TrainConfig

CORPORA = {"openwebtext": OPENWEBTEXT, "pes2o": "hub:allenai/olmo-mix-1124:pes2o"}
"""peS2o's own page is a script, which `datasets` no longer runs: this is the copy in the data of OLMo 2."""


def model(width: int, heads: int, layers: int, length: int, forks: tuple[int, ...], **fields: object) -> Fields:
    """Return a model trained on blocks of `length`, forking before these blocks."""
    rows = {"max_position_embeddings": length, "fork_layers": list(forks)}  # as JSON has it
    return sizes("thoughtbubbles", width, heads, layers, **rows) | fields


def copied(model: Fields, count: int) -> Fields:
    """Return a model without forks with `count` streams per token from the first block on."""
    return model | {"copies": count, "readout": "rightmost"}


def variants(recipe: Recipe, copies: tuple[int, ...] = (3, 5)) -> list[Recipe]:
    """Return the recipe and its baselines on the same tokens: `-regular`, and `-copyK`, with K streams per token."""
    stem, about = recipe.name.removesuffix("-2l"), f"the baseline of {recipe.name}"
    regular = recipe.replace(name=f"{stem}-regular", description=f"{about}: without forks", model={"fork_layers": []})
    baselines = [regular] + [
        regular.replace(
            name=f"{stem}-copy{count}",
            description=f"{about}: {count} copies of every token",
            model=copied(regular.model, count),
        )
        for count in copies
    ]
    return [recipe.replace(baseline=regular.name), *baselines]


def controls(recipe: Recipe) -> list[Recipe]:
    """Return controls: scores without forks (`-1l`), and a constant in place of each score (`-constant`)."""
    forkless = recipe.replace(
        name=f"{recipe.name}-1l",
        description=f"a control of {recipe.name}: scores without forks",
        model={"budget": 1.0},
        baseline=f"{recipe.name}-regular",
    )
    constant = forkless.replace(
        name=f"{recipe.name}-constant",
        description=f"a control of {recipe.name}: no forks, and the scores of an untrained model",
        model={"thought_control": "removed"},
    )
    return [forkless, constant]


def wider(recipe: Recipe) -> Recipe:
    """Return the recipe with kappa 4L."""
    return recipe.replace(
        name=recipe.name.replace("2l", "4l"),
        description=recipe.description.replace("2L", "4L"),
        model={"budget": 4.0},
    )


TINY = twin(
    GPT2_TINY,
    "thoughtbubbles/tiny",
    "12 layers of width 64, forks before 3, 7 and 11, 100,000 tokens: seconds on two CPU cores",
    model(64, 4, 12, 256, (3, 7, 11), activation="gelu_tanh"),
    baseline=None,
)

SMALL = twin(
    GPT2_SMALL,
    "thoughtbubbles/small",
    "12 layers of width 384, forks before 3, 7 and 11, 500M tokens of WikiText-103",
    model(384, 6, 12, 512, (3, 7, 11)),
    layout={"sequence_length": 512},
    baseline=None,
)


def openstax() -> list[Recipe]:
    """Return small models for textbooks on a CPU: 6 layers of width 128, forks before 1, 2 and 3, 2M tokens."""
    recipe = Recipe(
        name="thoughtbubbles/openstax-2l",
        description="6 layers of width 128, forks before 1, 2 and 3, kappa 2L, 2M tokens of OpenStax",
        model=model(128, 4, 6, 256, (1, 2, 3), activation="gelu_tanh"),
        data=DataConfig(source="file:../shared/data/corpora/openstax", tokenizer="bpe:4096"),
        layout=Packed(sequence_length=256, batch_size=8),
        optimizer=OptimizerConfig(learning_rate=2e-3, warmup=0.02),
        train=TrainConfig(tokens=2_000_000, eval_every=200),
        evaluation=EvaluationConfig(max_documents=16),
    )
    two, regular, copy3 = variants(recipe, copies=(3,))
    one = two.replace(
        name="thoughtbubbles/openstax-1l",
        description=two.description.replace("kappa 2L", "kappa L: scores without forks"),
        model={"budget": 1.0},
    )
    return [two, wider(two), one, regular, copy3]


NANOGPT = EvaluationConfig(joined=True, max_documents=740, max_test_documents=4007, documents_seed=2357)
"""The paper holds out a part that it does not describe; nanoGPT, its base (section 3.3), 0.05% of OpenWebText's
documents, 4,007 with the seed 2357, whose text is joined. One of its evaluations has 200 batches: with 8 rows of 512
tokens (Table 3) these are 819,200 tokens, 740 documents."""


def table1() -> list[Recipe]:
    """Return Table 1 and Figure 3: three sizes, two corpora, kappa 2L and 4L, regular and copies (sections 3, A)."""
    recipes = []
    for corpus, source in CORPORA.items():
        for size, (layers, heads, width, batch) in {
            "150m": (16, 12, 768, 8),
            "319m": (24, 16, 1024, 4),
            "772m": (36, 20, 1280, 2),
        }.items():
            recipe = Recipe(
                name=f"thoughtbubbles/table1-{corpus}-{size}-2l",
                description=f"Table 1: {size.upper()} on {corpus}, kappa 2L, 2.5B tokens",
                paper="Table 1",
                model=model(width, heads, layers, 512, (3, 7, 11), vocab_size=50_304),
                data=DataConfig(source=source, tokenizer=GPT2_TOKENS, held_out=0.001),
                layout=Packed(sequence_length=512, batch_size=64),
                optimizer=OptimizerConfig(learning_rate=2.5e-4, warmup=0.01),
                train=TrainConfig(
                    steps=75_000,
                    precision="bf16",
                    gradient_accumulation_steps=64 // batch,
                    eval_every=1000,
                    checkpoint_every=1000,
                ),
                evaluation=NANOGPT,
            )
            two, *baselines = variants(recipe)
            recipes += [two, wider(two), *baselines]
    return recipes


def table4() -> list[Recipe]:
    """Return Table 4: 772M, 25,000 steps of OpenWebText, forks before 3, 7, 11 or every fourth block from 3 on."""
    paper = next(recipe for recipe in TABLE1 if recipe.name == "thoughtbubbles/table1-openwebtext-772m-2l")
    return [
        paper.replace(
            name=f"thoughtbubbles/table4-{name}",
            description=f"Table 4: 772M, 25,000 steps, forks before {text}",
            model={"fork_layers": list(forks)},
            train={"steps": 25_000},
            baseline=None,
            paper="Table 4",
        )
        for name, text, forks in (
            ("ours", "3, 7 and 11", (3, 7, 11)),
            ("extended", "every fourth block from 3 on", tuple(range(3, 36, 4))),
        )
    ]


def clutrr() -> list[Recipe]:
    """Return kinship questions (Figure 7): 2 and 3 relations, in test up to 10; only answers have a loss."""
    recipe = Recipe(
        name="thoughtbubbles/clutrr",
        description="8 layers of width 128, forks before 2, 4 and 6, kappa 2L, 10 epochs of CLUTRR",
        model=model(128, 4, 8, 512, (2, 4, 6), activation="gelu_tanh"),
        data=DataConfig(source="clutrr:data/clutrr", tokenizer="bpe:1024"),
        layout=QuestionAnswer(sequence_length=512, batch_size=32, stage=1),
        optimizer=OptimizerConfig(learning_rate=1e-3, warmup=0.05),
        train=TrainConfig(epochs=10),
    )
    return variants(recipe, copies=())


TABLE1 = table1()
RECIPES = [
    *variants(TINY, copies=(3,)),
    *variants(SMALL, copies=(3,)),
    *controls(SMALL),
    *openstax(),
    *clutrr(),
    *TABLE1,
    *table4(),
]

"""Thought Gestalt's recipes: two for any computer, two for `results/`, and the paper's tables.

Tables 3 and 5 compare `table2-20m`, `-30m` and `-50m` with `gpt2-boundaries/table3-*` and `gpt2-gist/table5-*`.
"""

from __future__ import annotations

from typing import Any

from mentalese.data.layouts import SentenceStreams
from mentalese.families.baselines.recipes import GPT2_SIZES, sizes, table2, twin
from mentalese.families.baselines.recipes import SMALL as GPT2_SMALL
from mentalese.families.baselines.recipes import openstax as gpt2_openstax
from mentalese.recipe import Clock, DataConfig, EvaluationConfig, Fields, OptimizerConfig, Phase, Recipe, TrainConfig

RELEASED_HEAD = {"sentence_head": "normalized"}
"""The release's vectors of length 1, which most published results have; recipes of the tables have the paper's head."""


def dropout_phases(
    token: float, sentence: float, half: int, full: int, clock: Clock = "sentence_steps"
) -> tuple[Phase, ...]:
    """Return phases of token and sentence dropout (B.2): half from sentence step `half`, all from `full`."""
    rates = {half: (token / 2, sentence / 2), full: (token, sentence)}
    return tuple(
        Phase(start=start, clock=clock, model={"token_dropout": tokens, "sentence_dropout": sentences})
        for start, (tokens, sentences) in rates.items()
    )


# Section 2.3: ends of sentences have weight 1 for one epoch, then 0.05; streams grow by 12 sentences every 5 epochs.
EOS_PHASE = Phase(start=1, clock="epochs", model={"eos_weight": 0.05})
CURRICULUM = tuple(Phase(start=5 * i, clock="epochs", layout={"max_sentences": 30 + 12 * i}) for i in range(1, 10))


def model(width: int, heads: int, **fields: Any) -> Fields:
    """Return a model of 12 layers."""
    return sizes("thought_gestalt", width, heads, 12, **fields)


TINY = Recipe(
    name="thought_gestalt/tiny",
    description="12 layers of width 64, 100,000 tokens: seconds on two CPU cores",
    model=model(64, 4, memory_size=12, attention_dropout=0.0, **RELEASED_HEAD),
    data=DataConfig(source="builtin:stdlib", tokenizer="bpe:4096", max_sentence_tokens=32),
    layout=SentenceStreams(max_sentences=12, tokens_per_batch=1024),
    optimizer=OptimizerConfig(learning_rate=3e-3, warmup=0.1),
    train=TrainConfig(tokens=100_000, eval_every=20),
    evaluation=EvaluationConfig(batch_size=8, max_documents=4),
    phases=(
        Phase(start=50_000, clock="tokens", model={"eos_weight": 0.05}),
        *dropout_phases(0.05, 0.05, half=400, full=800),
    ),
    baseline="gpt2/tiny",
)

SMALL = twin(
    GPT2_SMALL,
    "thought_gestalt/small",
    "12 layers of width 384, 500M tokens of WikiText-103",
    model(384, 6, attention_dropout=0.1, **RELEASED_HEAD),
    layout=SentenceStreams(tokens_per_batch=65_536),
    evaluation=EvaluationConfig(batch_size=8),
    phases=(
        Phase(start=50_000_000, clock="tokens", model={"eos_weight": 0.05}),
        *dropout_phases(0.15, 0.15, half=2_000, full=7_000),
    ),
)


def paper_recipe(
    suffix: str, description: str, width: int, heads: int, *, millions: int = 50, token_dropout: float = 0.15
) -> Recipe:
    """Return one row of Table 2, with its GPT-2 twin as baseline."""
    return twin(
        table2(suffix, width, heads, millions),
        f"thought_gestalt/table2-{suffix}",
        description,
        model(width, heads, residual_dropout=0.1, embedding_dropout=0.1),  # not in the paper: the release's
        layout=SentenceStreams(max_sentences=30, tokens_per_batch=20_000),
        optimizer={"warmup": 0.02},
        evaluation=EvaluationConfig(batch_size=8),
        phases=(EOS_PHASE, *CURRICULUM, *dropout_phases(token_dropout, 0.15, half=2_000, full=7_000)),
    )


def by_data(millions: int) -> Recipe:
    """Return the paper's largest model on this many tokens."""
    description = f"the paper's 85M model on {millions} million tokens of WikiText-103"
    return paper_recipe(f"{millions}m", description, 768, 12, millions=millions)


def by_size(label: str, width: int, heads: int, token_dropout: float = 0.15) -> Recipe:
    """Return a smaller model, on the largest subset."""
    description = f"width {width}, the paper's {label.upper()} model on 50 million tokens of WikiText-103"
    return paper_recipe(label, description, width, heads, token_dropout=token_dropout)


RELEASE = by_data(50).replace(
    name="thought_gestalt/release-50m",
    description="as the authors' release: unit vectors, SwiGLU, dropout by optimiser steps, 50 million tokens",
    model=RELEASED_HEAD | {"activation": "swiglu", "layer_norm_eps": 1e-6},
    layout={"bucket_width": 1},  # about a sentence: there it is 20 tokens
    optimizer={"warmup": 0.004},
    train={"early_stopping_patience": None},
    phases=(EOS_PHASE, *CURRICULUM, *dropout_phases(0.15, 0.15, half=2_000, full=7_000, clock="steps")),
    paper=None,
)
"""The release's settings that differ from the paper and can be expressed (README)."""


def openstax(size: str) -> Recipe:
    """Return a run that `results/` publishes next to its GPT-2 twin; `--data` sets the corpus.

    Two epochs of text do not overfit such models, so neither twin has dropout.
    """
    width, heads, _ = GPT2_SIZES[size]
    return twin(
        gpt2_openstax(size),
        f"thought_gestalt/openstax-{size}",
        f"width {width}, {size.upper()} non-embedding parameters, 20M tokens of textbooks (set --data)",
        model(width, heads, attention_dropout=0.0, **RELEASED_HEAD),
        layout=SentenceStreams(tokens_per_batch=8192),
        evaluation={"batch_size": 8},
        phases=(EOS_PHASE,),
    )


def spans(length: int, millions: int) -> Recipe:
    """Return a run on fixed spans of tokens instead of sentences; nothing else changes (Table 4).

    The release also switches context seeding off (`model.context_seeding=false`), which the paper does not mention. A
    document is then encoded as a whole, not sentence by sentence: a token at the seam of two sentences may differ.
    """
    recipe = by_data(millions)
    longest = max(length, recipe.data.max_sentence_tokens)
    return recipe.replace(
        name=f"thought_gestalt/table4-span{length}-{millions}m",
        description=f"spans of {length} tokens instead of sentences, {millions} million tokens of WikiText-103",
        model={"max_sentence_tokens": length},
        data={"sentences": f"fixed:{length}", "max_sentence_tokens": longest},
        paper="Table 4, Figure 4",
    )


def ablation(name: str, description: str, *, paper: str | None = "Table 1", **changes: Any) -> Recipe:
    """Return the model of 30 million tokens with other fields."""
    name = f"thought_gestalt/ablation-{name}"
    return by_data(30).replace(name=name, description=description, paper=paper, **changes)


DROPOUTS = dropout_phases(0.15, 0.15, half=2_000, full=7_000)
CROSS_SELF = {"attention_layout": "cross_self"}
SHORT = {"max_sentence_tokens": 32}
ABLATIONS = [
    ablation("self-cross", "self- then cross-attention in each block", model={"attention_layout": "self_cross"}),
    ablation("parallel", "self- and cross-attention at once in each block", model={"attention_layout": "parallel"}),
    ablation("cross-self", "cross- then self-attention in each block (not in the paper)", model=CROSS_SELF, paper=None),
    ablation("no-memory", "no memory: one sentence of context", model={"memory": "none"}),
    ablation("detach", "no gradient into the memory", model={"memory_gradient_window": 0}),
    ablation("in-context", "the memory as a prefix of the sentence", model={"memory": "prefix"}),
    ablation("last-layer", "sentence vectors from the last layer", model={"sentence_layer": 11}),
    ablation("static-bos", "sentences start from BOS", model={"context_seeding": False}),
    ablation("eos-weight", "ends of sentences count in full", phases=(*CURRICULUM, *DROPOUTS)),
    ablation(
        "fixed-streams",
        "streams of 40 sentences from the start",
        layout={"max_sentences": 40},
        phases=(EOS_PHASE, *DROPOUTS),
    ),
    ablation("short-sentences", "sentences of at most 32 tokens", model=SHORT, data=SHORT),
]

RECIPES = [
    TINY,
    SMALL,
    openstax("340k"),
    openstax("1.3m"),
    *(by_data(millions) for millions in (12, 20, 30, 50)),
    by_size("340k", 48, 3, token_dropout=0.0),
    by_size("1.3m", 96, 6, token_dropout=0.0),
    by_size("5.4m", 192, 6),
    by_size("21m", 384, 6),
    RELEASE,
    *ABLATIONS,
    *(spans(length, millions) for length in (25, 50, 75) for millions in (20, 30, 50)),
]

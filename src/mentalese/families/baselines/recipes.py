"""Baselines by size: `gpt2/`, `gpt2-rope/`, `neox/`, `llama/` are transformers' own classes.

`gpt2-boundaries/` is GPT-2 on text with its sentences between markers, `gpt2-gist/` the same under a gist mask.

Sizes are non-embedding parameters for the small ones (as scaling laws count) and totals where a published model is
known by its total. `builtin:stdlib` is small: the recipes "for any text" are meant for `--data`, and run without it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from mentalese.data.layouts import Marked, Packed
from mentalese.recipe import DataConfig, EvaluationConfig, Fields, OptimizerConfig, Recipe, TrainConfig

WIKITEXT = "hub:Salesforce/wikitext:wikitext-103-raw-v1"
FINEWEB = "hub:HuggingFaceFW/fineweb-edu:sample-10BT"
OPENWEBTEXT = "hub:Skylion007/openwebtext@refs/convert/parquet"
"""The hub's own conversion to parquet: the main branch is a script, which `datasets` no longer runs."""
GPT2_TOKENS = "hub:openai-community/gpt2"


def initial_weights(width: int) -> float:
    """Return their standard deviation for a width; the usual 0.02 fits 768 channels and is too small for fewer."""
    return round(0.02 * (768 / width) ** 0.5, 3)


def gpt2(width: int, heads: int, *, layers: int = 12, context: int = 1024) -> Fields:
    """Return GPT-2 (Radford et al., 2019): learned positions, pre-norm, biases, GELU, tied embeddings.

    `gelu_pytorch_tanh` is GPT-2's own approximation of GELU as one fused operation; the config's default spells it out
    in eight and costs a quarter of a training step on a CPU.
    """
    sizes = {"n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": context}
    dropouts = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return {"model_type": "gpt2", "activation_function": "gelu_pytorch_tanh", **sizes, **dropouts}


def gpt2_rope(width: int, heads: int, *, layers: int = 12, context: int = 1024) -> Fields:
    """Return GPT-2 with rotary positions (Su et al., 2021) in place of the position table.

    The class is transformers' GPT-NeoX: serial instead of parallel residuals, rotary over the whole head and tied
    embeddings make it GPT-2 but for the positions (and the exact GELU instead of its tanh approximation).
    """
    return neox(width, heads, layers=layers, context=context) | {
        "use_parallel_residual": False,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
    }


def neox(width: int, heads: int, *, layers: int, context: int = 2048) -> Fields:
    """Return GPT-NeoX as Pythia has it (Biderman et al., 2023): parallel residuals, partial rotary (1/4), untied."""
    return {
        "model_type": "gpt_neox",
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": context,
        "use_parallel_residual": True,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
    }


def llama(
    width: int, heads: int, *, layers: int, mlp: int, key_value_heads: int, tied: bool, context: int, theta: float
) -> Fields:
    """Return Llama (Touvron et al., 2023): RMSNorm, SwiGLU, rotary positions, grouped key-value heads, no biases."""
    return {
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_value_heads,
        "max_position_embeddings": context,
        "tie_word_embeddings": tied,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
    }


def llama3_rotary(factor: float) -> Fields:
    """Return the rotary positions of Llama 3.1 and later, stretched by this factor."""
    return {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


def sizes(model_type: str, width: int, heads: int, layers: int, **fields: Any) -> Fields:
    """Return the `model` section of a recipe for a family's own config."""
    model = {"model_type": model_type, "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    return model | fields


def twin(recipe: Recipe, name: str, description: str, model: Fields, **changes: Any) -> Recipe:
    """Return another model in the place of a baseline's, on the same text; `changes` as in `Recipe.replace`."""
    other = dataclasses.replace(recipe, name=name, description=description, model=model, baseline=recipe.name)
    return other.replace(**changes)


TINY = Recipe(
    name="gpt2/tiny",
    description="GPT-2, 12 layers of width 64, 100,000 tokens: seconds on two CPU cores",
    model=gpt2(64, 4, context=256),
    layout=Packed(batch_size=4),  # small steps, many of them: the text is short
    optimizer=OptimizerConfig(learning_rate=3e-3, warmup=0.1),
    train=TrainConfig(tokens=100_000, eval_every=20),
    evaluation=EvaluationConfig(max_documents=4),
)
"""The baseline of `tiny` recipes: as deep as the papers' models, narrow, half a minute on two CPU cores."""


def small(name: str, model: Fields, description: str) -> Recipe:
    """Return a baseline for about an hour on one GPU."""
    return Recipe(
        name=name,
        description=f"{description}, 500M tokens of WikiText-103",
        model=model,
        data=DataConfig(source=WIKITEXT, tokenizer="bpe:16384"),
        layout=Packed(sequence_length=1024, batch_size=64),
        optimizer=OptimizerConfig(learning_rate=1e-3, weight_decay=0.01),
        train=TrainConfig(tokens=500_000_000, precision="bf16", eval_every=500, checkpoint_every=500),
    )


SMALL = small("gpt2/small", gpt2(384, 6), "GPT-2 with 21M non-embedding parameters")


def table2(suffix: str, width: int, heads: int, millions: int = 50) -> Recipe:
    """Return GPT-2 as Thought Gestalt's paper trains it for comparison (table 2, figure 2).

    The paper does not state its dropout. It equals the twin's dropout: 0.2 in attention (B.2), 0.1 elsewhere (the
    release).
    """
    return Recipe(
        name=f"gpt2/table2-{suffix}",
        description=f"GPT-2, the twin of thought_gestalt/table2-{suffix}",
        model=gpt2(width, heads) | {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.2},
        data=DataConfig(source=WIKITEXT, tokenizer=GPT2_TOKENS, sentences="sat", train_tokens=millions * 1_000_000),
        layout=Packed(sequence_length=1024, batch_size=20),
        optimizer=OptimizerConfig(learning_rate=2.5e-4, betas=(0.9, 0.999), weight_decay=0.01),
        train=TrainConfig(epochs=50, early_stopping_patience=3, early_stopping_min_delta=0.1, checkpoint_every=1000),
        paper="Table 2, Figure 2",
    )


def by_size(name: str, model: Fields, description: str, learning_rate: float) -> Recipe:
    """Return a small model for any text (`--data`), 10M tokens."""
    return Recipe(
        name=name,
        description=f"{description}, for any text",
        model=model,
        data=DataConfig(tokenizer="bpe:8192"),
        layout=Packed(sequence_length=512),
        optimizer=OptimizerConfig(learning_rate=learning_rate),
        train=TrainConfig(tokens=10_000_000, eval_every=100),
    )


def published(
    name: str, model: Fields, description: str, learning_rate: float, *, tokenizer: str, context: int = 1024
) -> Recipe:
    """Return a published model trained on 10B tokens in batches of half a million (Brown et al., 2020)."""
    return Recipe(
        name=name,
        description=f"{description}, 10B tokens of FineWeb-Edu",
        model=model,
        data=DataConfig(source=FINEWEB, tokenizer=tokenizer),
        layout=Packed(sequence_length=context, batch_size=2**19 // context),
        optimizer=OptimizerConfig(learning_rate=learning_rate),
        train=TrainConfig(
            tokens=10_000_000_000,
            precision="bf16",
            gradient_accumulation_steps=32,
            eval_every=1000,
            checkpoint_every=1000,
        ),
        # All of 5% and 5% of the documents would cost a third of the training, with its 19 validations.
        evaluation=EvaluationConfig(max_documents=10_000, max_test_documents=100_000, documents_seed=0),
    )


def openstax(size: str) -> Recipe:
    """Return the runs that `results/` publishes: their corpus is given by `--data`."""
    width, heads, learning_rate = GPT2_SIZES[size]
    return Recipe(
        name=f"gpt2/openstax-{size}",
        description=f"GPT-2 with {size.upper()} non-embedding parameters on 20M tokens of textbooks (set --data)",
        model=gpt2(width, heads),
        data=DataConfig(tokenizer="bpe:8192"),
        layout=Packed(sequence_length=1024, batch_size=8),
        optimizer=OptimizerConfig(learning_rate=learning_rate),
        train=TrainConfig(  # about 2,440 steps of 8,192 tokens: 20 validations, each beside a checkpoint
            tokens=20_000_000, precision="bf16", eval_every=122, checkpoint_every=122, keep_checkpoints=25
        ),
        evaluation=EvaluationConfig(max_documents=8),
    )


def with_markers(name: str, title: str, table: int, **fields: str) -> list[Recipe]:
    """Return GPT-2 on sentences between markers; `fields` are fields of its model."""
    sources: list[tuple[Recipe, str, str, str | None]] = [(TINY, "tiny", "as gpt2/tiny", None)]
    for millions in (20, 30, 50):
        text, paper = f"{millions} million tokens of WikiText-103", f"Table {table}, Figure 4"
        sources.append((table2(f"{millions}m", 768, 12, millions), f"table{table}-{millions}m", text, paper))
    return [
        recipe.replace(
            name=f"{name}/{suffix}",
            description=f"{title}, {text}",
            model=fields,
            layout=Marked(**vars(recipe.layout)),
            baseline=recipe.name,
            paper=paper,
        )
        for recipe, suffix, text, paper in sources
    ]


GPT2_SIZES = {"340k": (48, 3, 4e-3), "1.3m": (96, 6, 2e-3), "5.4m": (192, 6, 1.5e-3), "21m": (384, 6, 1e-3)}
"""Non-embedding parameters -> width, heads, learning rate; 12 layers."""

GPT2_PUBLISHED = {
    "124m": (768, 12, 12, 6e-4),
    "355m": (1024, 16, 24, 3e-4),
    "774m": (1280, 20, 36, 2.5e-4),
    "1.5b": (1600, 25, 48, 2e-4),
}
"""Total parameters -> width, heads, layers, learning rate (as of GPT-3's model of the size)."""

PYTHIA = {"70m": (512, 8, 6, 1e-3), "160m": (768, 12, 12, 6e-4), "410m": (1024, 16, 24, 3e-4)}
"""Total parameters -> width, heads, layers, learning rate (Biderman et al., 2023, table 1)."""

GIST = "GPT-2 that reads earlier sentences through their ends alone"

RECIPES = [
    TINY,
    SMALL,
    *(
        by_size(f"gpt2/{size}", gpt2(width, heads), f"GPT-2 with {size.upper()} non-embedding parameters", rate)
        for size, (width, heads, rate) in GPT2_SIZES.items()
    ),
    *(table2(f"{millions}m", 768, 12, millions) for millions in (12, 20, 30, 50)),
    *(table2(size, width, heads) for size, (width, heads, _) in GPT2_SIZES.items()),
    *(openstax(size) for size in ("340k", "1.3m")),
    *(
        published(
            f"gpt2/{size}",
            gpt2(width, heads, layers=layers),
            f"GPT-2 with {size.upper()} parameters",
            rate,
            tokenizer=GPT2_TOKENS,
        )
        for size, (width, heads, layers, rate) in GPT2_PUBLISHED.items()
    ),
    *with_markers("gpt2-boundaries", "GPT-2 on sentences between markers", 3),
    *with_markers("gpt2-gist", GIST, 5, model_type="gpt2_gist"),
    small("gpt2-rope/small", gpt2_rope(384, 6), "GPT-2 with rotary positions and 21M non-embedding parameters"),
    *(
        by_size(
            f"gpt2-rope/{size}",
            gpt2_rope(width, heads),
            f"GPT-2 with rotary positions and {size.upper()} non-embedding parameters",
            rate,
        )
        for size, (width, heads, rate) in GPT2_SIZES.items()
    ),
    *(
        published(
            f"neox/{size}",
            neox(width, heads, layers=layers),
            f"GPT-NeoX, Pythia's {size.upper()}",
            rate,
            tokenizer="hub:EleutherAI/pythia-70m",
            context=2048,
        )
        for size, (width, heads, layers, rate) in PYTHIA.items()
    ),
    small(
        "llama/small",
        llama(384, 6, layers=12, mlp=1024, key_value_heads=6, tied=True, context=1024, theta=10000.0),
        "Llama's blocks with 21M non-embedding parameters",
    ),
    published(
        "llama/1b",
        llama(2048, 32, layers=16, mlp=8192, key_value_heads=8, tied=True, context=8192, theta=500000.0),
        "Llama 3.2's 1B shape",
        3e-4,
        tokenizer="hub:meta-llama/Llama-3.2-1B",
        context=8192,
    ),
    published(
        "llama/8b",
        llama(4096, 32, layers=32, mlp=14336, key_value_heads=8, tied=False, context=8192, theta=500000.0),
        "Llama 3's 8B shape",
        3e-4,
        tokenizer="hub:meta-llama/Meta-Llama-3-8B",
        context=8192,
    ),
]

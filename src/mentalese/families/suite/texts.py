"""Tasks of the suite that are texts, scored in nats per token or bits per byte."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from mentalese.data.layouts import Packed, PerDocument, SentenceStreams
from mentalese.families.baselines.recipes import gpt2, gpt2_rope
from mentalese.families.conceptlm.recipes import deeper
from mentalese.families.looped.recipes import looped
from mentalese.families.suite.methods import (
    Further,
    Method,
    Role,
    SuiteTask,
    decoder,
    loops,
    removed,
    rotary,
    scaled,
    swapped,
    width,
)
from mentalese.families.thought_gestalt.recipes import RELEASED_HEAD
from mentalese.recipe import DataConfig, EvaluationConfig, OptimizerConfig, Recipe, TrainConfig

INFERENCE: dict[str, Any] = {
    "fast_steps": 8,
    "fast_learning_rate": 0.34,
    "fast_optimizer": "adamw",
    "fast_schedule": "cosine",
    "noise": "fixed",
    "slow_grad": "final",
    "initial_log_variance": 0.0,
}
"""How Latent Thought Models infer thoughts: the release's settings, from the prior's variance.

With `noise=fixed` thoughts fit one draw. Prefix scores use that draw, but a bound takes another: on `topics` it is
worse than a uniform guess, and on `text`, whose scores are bounds, about 0.19 bits per byte are this. Algorithm 1 draws
noise at each step.
"""


def documents(name: str, spec: str, description: str, model: dict[str, Any], tokens: int, **fields: Any) -> Recipe:
    """A method on a task of texts; one document per row."""
    defaults: dict[str, Any] = {
        "data": DataConfig(source=f"builtin:{spec}", tokenizer="bpe:512"),
        "layout": PerDocument(sequence_length=128, batch_size=32),
        "optimizer": OptimizerConfig(learning_rate=2.5e-3, warmup=0.1),
        "train": TrainConfig(tokens=tokens, eval_every=100),
        "evaluation": EvaluationConfig(context_length=128, stride=127, max_documents=100),
    }
    return Recipe(name=name, description=description, model=scaled(model), **defaults | fields)


def topics(size: float) -> SuiteTask:
    """A window of one token: what the document is about can only come from thoughts, or from a wider view.

    Thoughts are inferred from a document's first half, and the second half is scored.
    """
    spec = "topics:table=unigram"
    plain = {
        "model_type": "ltm",
        "hidden_size": width(size / 2),
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 128,
        "window_size": 1,
        "num_latents": 0,
    }
    thinking = plain | {"num_latents": 4} | INFERENCE
    tokens = int(500_000 * size)
    halves = {"evaluation": EvaluationConfig(context_length=128, stride=127, max_documents=100, estimator="prefix")}

    def made(method: str, description: str, model: dict[str, Any], **fields: Any) -> Recipe:
        return documents(f"topics/{method}", spec, description, model, tokens, **fields)

    return SuiteTask(
        "topics",
        spec,
        (
            Method(
                made("latent_thought", "two layers that see one token, and thoughts", thinking, **halves),
                "mechanism",
                "latent_thought",
            ),
            Method(
                made("latent_thought-twin", "the same layers without thoughts", plain, **halves),
                "twin",
                "latent_thought",
            ),
            Method(
                made(
                    "latent_thought-swapped",
                    "thoughts of another text",
                    swapped(thinking),
                    **halves,
                ),
                "control",
                "latent_thought",
            ),
            Method(
                made("gpt2-rope", "a decoder that sees the whole document", decoder(size / 2, 4, 128)),
                "other",
                "gpt2-rope",
            ),
        ),
        "flops",
        "second half",
    )


RECALL = "recall:key_words=1,distance=2,keys=2"
"""A binding is asked for two sentences later. At four, Thought Gestalt learns nothing in 3M tokens (2.78 nats per
answer, chance 2.77) unless it has a curriculum: 1M tokens at two and 1M at four suffice (0.506)."""


def gestalt(size: float) -> dict[str, Any]:
    """Four layers, of which the first two make a sentence's vector.

    Vectors in the memory have length 1. A gate that starts at the square root of the width makes their channels as
    large as those of other activations: it repairs the release's sentence head at a small width. The paper's own
    head, a linear map with a gate of 1, learns `recall` without it.
    """
    return {
        "model_type": "thought_gestalt",
        "hidden_size": width(size),
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "max_sentence_tokens": 16,
        "memory_size": 32,
        "sentence_layer": 1,
        **RELEASED_HEAD,
        "gate_init": width(size) ** 0.5,
        "attention_dropout": 0.0,
        "embedding_dropout": 0.0,
    }


def forgetful(model: dict[str, Any]) -> dict[str, Any]:
    """Thought Gestalt without its memory."""
    read = ("memory_size", "gate_init", *RELEASED_HEAD)
    return {name: value for name, value in model.items() if name not in read} | {"memory": "none"}


def sentences(name: str, size: float, description: str, model: dict[str, Any]) -> Recipe:
    """A method that reads the texts of `RECALL` sentence by sentence."""
    return documents(
        name,
        RECALL,
        description,
        model,
        int(3_000_000 * size),
        data=DataConfig(source=f"builtin:{RECALL}", tokenizer="bpe:512", max_sentence_tokens=16),
        layout=SentenceStreams(max_sentences=32, tokens_per_batch=2048),
        evaluation=EvaluationConfig(batch_size=32, max_documents=100),
    )


def recall(size: float) -> SuiteTask:
    """Sentences are read one by one: what a key was bound to can only come from a memory, or from a wider view."""
    model = gestalt(size)

    def made(method: str, description: str, model: dict[str, Any]) -> Recipe:
        return sentences(f"recall/{method}", size, description, model)

    wide = documents(
        "recall/gpt2-rope",
        RECALL,
        "a decoder that sees the whole document",
        decoder(size, 4, 128),
        int(3_000_000 * size),
    )
    return SuiteTask(
        "recall",
        RECALL,
        (
            Method(
                made("thought_gestalt", "sentence by sentence, with a memory", model), "mechanism", "thought_gestalt"
            ),
            Method(
                made("thought_gestalt-twin", "sentence by sentence, without a memory", forgetful(model)),
                "twin",
                "thought_gestalt",
            ),
            Method(
                made("thought_gestalt-swapped", "the memory of another text", swapped(model)),
                "control",
                "thought_gestalt",
            ),
            Method(wide, "other", "gpt2-rope"),
        ),
        "flops",
        "answers",
    )


TURNS = {"layers_per_turn": 2}
"""A looped decoder: two layers, used again and again."""


def composed(size: float) -> SuiteTask:
    """Two ideas at once on `RECALL`: a memory on a looped decoder, and a memory whose next vector is predicted."""
    model = gestalt(size)
    turning = model | TURNS

    def made(method: str, description: str, model: dict[str, Any]) -> Recipe:
        return sentences(f"composed/{method}", size, description, model)

    return SuiteTask(
        "composed",
        RECALL,
        (
            Method(made("looped", "two layers twice, with a memory", turning), "mechanism", "looped memory"),
            Method(made("looped-twin", "two layers twice", forgetful(turning)), "twin", "looped memory"),
            Method(made("looped-swapped", "the memory of another text", swapped(turning)), "control", "looped memory"),
            Method(
                made("next-vector", "a memory that predicts the next vector", model | {"next_vector_weight": 0.1}),
                "mechanism",
                "next vector",
            ),
            Method(made("next-vector-twin", "four layers, with a memory", model), "twin", "next vector"),
        ),
        "flops",
        "answers",
    )


def conceptlm(backbone: dict[str, Any]) -> dict[str, Any]:
    """Concepts of 4 tokens, read from the embeddings and added after the final norm of both, as in the authors' GPT-2.

    Without the norm, concepts of other layers diverge on `text` at the rates that suit the decoder, and those of the
    embeddings drown them on `phrases`. With the paper's weights of its losses, 1, or with 100 for its codes, they
    outweigh the tokens' in small models at first: on `phrases` nothing is learned in the first 0.2M tokens, since the
    prediction starts ten times as large as the concepts.
    """
    sizes = {"insert_depth": 0, "fusion": "norm_sum", "chunk_size": 4, "num_segments": 4}
    return {"model_type": "conceptlm", "backbone": backbone, **sizes, "ncp_weight": 0.1, "vq_weight": 1.0}


def without_concepts(model: dict[str, Any]) -> dict[str, Any]:
    """That ConceptLM without concepts, at their cost: what the norm of the embeddings does alone."""
    return removed(model) | {"ncp_weight": 0.0, "vq_weight": 0.0}


def phrases(size: float) -> SuiteTask:
    """Phrases fill the chunks of ConceptLM, so that hidden concepts could be predicted from those before.

    The task cannot show ConceptLM's gain: its concepts are means of embeddings, of which even a reader that knows the
    hidden concept and the chain explains 4.4% of the variance, worth 0.003 nats at most.
    With 16 ways to write each of 16 concepts nothing is learned in 0.7M tokens.
    """
    spec = "phrases:lead=3,concepts=8,phrases=8"
    plain = decoder(size, 4, 128)
    concept = conceptlm(plain)
    tokens = int(600_000 * size)

    def method(role: Role, family: str, name: str, description: str, model: dict[str, Any]) -> Method:
        return Method(documents(f"phrases/{name}", spec, description, model, tokens), role, family)

    return SuiteTask(
        "phrases",
        spec,
        (
            method("mechanism", "conceptlm", "conceptlm", "a decoder that predicts the next concept", concept),
            method("twin", "conceptlm", "conceptlm-twin", "two more token layers", deeper(plain, 2)),
            method("control", "conceptlm", "conceptlm-swapped", "another text's concepts", swapped(concept)),
            method("control", "conceptlm", "conceptlm-removed", "normed embeddings alone", without_concepts(concept)),
            method("other", "mtp", "mtp", "multi-token prediction", {"model_type": "mtp", "backbone": plain}),
            method("other", "gpt2-rope", "gpt2-rope", "the decoder itself", plain),
        ),
        "flops",
    )


def memory_and_turns(model: dict[str, Any], alone: dict[str, Any], made: Callable[..., Method]) -> tuple[Method, ...]:
    """Thought Gestalt's memory on a looped decoder, and a memory whose next vector is predicted."""
    name, ahead = "thought_gestalt-looped", model | {"next_vector_weight": 0.1}
    looping = "two layers three times"
    return (
        made("mechanism", "looped memory", name, f"{looping}, with a memory", model | TURNS),
        made("twin", "looped memory", f"{name}-twin", looping, alone | TURNS),
        made("control", "looped memory", f"{name}-swapped", "the memory of another text", swapped(model | TURNS)),
        made("other", "next vector", "thought_gestalt-next-vector", "predicts the next sentence's vector", ahead),
    )


def forks_and_turns(model: dict[str, Any], regular: dict[str, Any], made: Callable[..., Method]) -> tuple[Method, ...]:
    """Forks inside a looped decoder: one in the second turn, and one in the third."""
    name, looping = "thoughtbubbles-looped", "two layers three times"
    return (
        made("mechanism", "looped forks", name, f"{looping}, with forks", model | TURNS),
        made("twin", "looped forks", f"{name}-twin", looping, regular | TURNS),
        made("control", "looped forks", f"{name}-constant", "constant scores", removed(model | TURNS)),
    )


UNSEEN = (
    Further(
        "novels, bits per byte",
        {"tasks": ("perplexity",), "source": "file:../shared/data/corpora/eltec", "documents": 8},
    ),
    Further("BLiMP, accuracy", {"tasks": ("blimp",), "task_files": Path("../shared/data/evaluation"), "limit": 100}),
)


def text(size: float) -> SuiteTask:
    """Textbooks at the cost of GPT-2, in bits per byte in which ends of sentences are paid for."""
    corpus = "file:../shared/data/corpora/openstax"
    channels, layers, context, tokens = width(2 * size), 6, 256, int(10_000_000 * size)
    rope = gpt2_rope(channels, 4, layers=layers, context=context)
    shape = {"hidden_size": channels, "num_hidden_layers": layers, "num_attention_heads": 4}
    gestalt = {
        "model_type": "thought_gestalt",
        **shape,
        **RELEASED_HEAD,
        "gate_init": channels**0.5,
        "attention_dropout": 0.0,
        "embedding_dropout": 0.0,
    }
    bubbles = {
        "model_type": "thoughtbubbles",
        **shape,
        "max_position_embeddings": context,
        "fork_layers": [2, 4],
        "selection": "causal",
    }
    concept = conceptlm(rope)
    plain = {
        "model_type": "ltm",
        **shape,
        "max_position_embeddings": context,
        "window_size": 64,
        "num_latents": 0,
    }
    thinking = plain | {"num_latents": 2 * layers} | INFERENCE
    sentences: dict[str, Any] = {
        "layout": SentenceStreams(tokens_per_batch=4096),
        "evaluation": EvaluationConfig(batch_size=32, max_documents=8),
    }

    def without(model: dict[str, Any], *prefixes: str, **changes: Any) -> dict[str, Any]:
        return {name: value for name, value in model.items() if not name.startswith(prefixes)} | changes

    def method(role: Role, family: str, name: str, description: str, model: dict[str, Any], **fields: Any) -> Method:
        defaults: dict[str, Any] = {
            "data": DataConfig(source=corpus, tokenizer="bpe:4096"),
            "layout": Packed(sequence_length=context, batch_size=16),
            "evaluation": EvaluationConfig(context_length=context, stride=context - 1, max_documents=8),
        }
        recipe = documents(f"text/{name}", "text", description, model, tokens, **defaults | fields)
        return Method(recipe, role, family)

    def read(name: str, description: str, model: dict[str, Any]) -> Recipe:
        return method("other", name, name, description, model).recipe

    alone = without(gestalt, "gate_", *RELEASED_HEAD, memory="none")
    regular = without(bubbles, "selection", fork_layers=[])
    return SuiteTask(
        "text",
        corpus,
        (
            method("other", "gpt2", "gpt2", "learned positions", gpt2(channels, 4, layers=layers, context=context)),
            method("other", "gpt2-rope", "gpt2-rope", "rotary positions", rope),
            method("mechanism", "thought_gestalt", "thought_gestalt", "sentence by sentence", gestalt, **sentences),
            method("twin", "thought_gestalt", "thought_gestalt-twin", "without a memory", alone, **sentences),
            method(
                "control", "thought_gestalt", "thought_gestalt-swapped", "another text's", swapped(gestalt), **sentences
            ),
            method("mechanism", "thoughtbubbles", "thoughtbubbles", "forks before layers 2 and 4", bubbles),
            method("twin", "thoughtbubbles", "thoughtbubbles-twin", "the same layers without forks", regular),
            method("control", "thoughtbubbles", "thoughtbubbles-constant", "constant scores", removed(bubbles)),
            method("mechanism", "conceptlm", "conceptlm", "predicts the next concept", concept),
            method("twin", "conceptlm", "conceptlm-twin", "two more token layers", deeper(rope, 2)),
            method("control", "conceptlm", "conceptlm-swapped", "another text's concepts", swapped(concept)),
            method("control", "conceptlm", "conceptlm-removed", "normed embeddings alone", without_concepts(concept)),
            method("mechanism", "latent_thought", "latent_thought", "a window of 64, and thoughts", thinking),
            method("twin", "latent_thought", "latent_thought-twin", "the window alone", plain),
            method("control", "latent_thought", "latent_thought-swapped", "another text's thoughts", swapped(thinking)),
            *loops(looped(rotary(channels, layers, context), 4), read),
            *memory_and_turns(gestalt, alone, partial(method, **sentences)),
            *forks_and_turns(bubbles, regular, method),
        ),
        "flops",
        further=UNSEEN,
    )

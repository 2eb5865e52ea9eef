"""The mechanism suite: for each task the families that it is for, their twins without the mechanism, and controls.

`TASK/METHOD` is a method on a task, e.g. `recall/thought_gestalt`. Methods of a task share text, tokens, rows and
length; text is compared at the training FLOPs of the first method, questions at equal epochs. Learning rates are where
tuning begins (`mentalese suite`).

    mechanism   the family with its thoughts
    twin        the same layers without them
    control     thoughts at the same cost, without their content (`thought_control`, pause tokens)
    other       models that are good at the task for another reason, such as all of the text in view
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mentalese.data.layouts import Packed, PerDocument, QuestionAnswer, SentenceStreams
from mentalese.families.baselines.recipes import gpt2, gpt2_rope, initial_weights, llama
from mentalese.families.coconut.recipes import Curriculum
from mentalese.families.coconut.recipes import method as questions_method
from mentalese.families.codi.recipes import method as codi_method
from mentalese.families.conceptlm.recipes import deeper
from mentalese.families.looped.recipes import TITLES, looped
from mentalese.families.looped.recipes import changed as changed_loop
from mentalese.recipe import DataConfig, EvaluationConfig, OptimizerConfig, Recipe, TrainConfig

Role = Literal["mechanism", "twin", "control", "other"]


@dataclass(frozen=True)
class Method:
    """One recipe of a task.

    Attributes:
        family: whose mechanism, twin or control it is; for `other` its own name.
        shares: another family whose twin and controls are a mechanism's too.
    """

    recipe: Recipe
    role: Role
    family: str
    shares: str | None = None


@dataclass(frozen=True)
class Further:
    """A second score of every run, on what no model was trained on; it has no part in the share of the gap.

    Attributes:
        name: the column's title.
        options: of `mentalese.evaluation.options.EvaluationOptions`, one task among them.
    """

    name: str
    options: dict[str, Any]


@dataclass(frozen=True)
class SuiteTask:
    """A task with everything that is compared on it.

    Attributes:
        spec: of `mentalese.data.suite.task`; or of a corpus, `file:..`, whose optimum nobody knows: then the first
            method's mean is the floor, and 0 bits per byte the optimum.
        methods: the first one's FLOPs are the budget of the others, if `match` says so.
        match: see `mentalese.compare.compare`.
        scored: what of a test document counts: `all`, the `answers` in a text, or the `second half` of its tokens,
            which thoughts are not inferred from.
        further: other scores of the same runs.
    """

    name: str
    spec: str
    methods: tuple[Method, ...]
    match: Literal["flops"] | None
    scored: Literal["all", "answers", "second half"] = "all"
    further: tuple[Further, ...] = ()


INFERENCE: dict[str, Any] = {
    "fast_steps": 8,
    "fast_learning_rate": 0.34,
    "fast_optimizer": "adamw",
    "fast_schedule": "cosine",
    "noise": "fixed",
    "initial_log_variance": 0.0,
}
"""How Latent Thought Models infer thoughts: the release's settings, from the prior's variance."""


def width(size: float) -> int:
    """64 channels at size 1, in steps of 16."""
    return max(16, round(64 * size / 16) * 16)


def decoder(size: float, layers: int, context: int) -> dict[str, Any]:
    """A plain decoder with rotary positions."""
    return gpt2_rope(width(size), 4, layers=layers, context=context)


def rotary(channels: int, layers: int, context: int) -> dict[str, Any]:
    """A small Llama."""
    mlp, theta = 3 * channels, 10_000.0
    return llama(channels, 4, layers=layers, mlp=mlp, key_value_heads=4, tied=True, context=context, theta=theta)


def swapped(model: dict[str, Any]) -> dict[str, Any]:
    """The control of most mechanisms: thoughts of another text."""
    return model | {"thought_control": "swapped"}


def removed(model: dict[str, Any]) -> dict[str, Any]:
    """No thoughts, at their cost."""
    return model | {"thought_control": "removed"}


def scaled(model: dict[str, Any]) -> dict[str, Any]:
    """The model with initial weights that follow its width."""
    if "backbone" in model:
        return model | {"backbone": scaled(model["backbone"])}
    return model | {"initializer_range": initial_weights(model.get("hidden_size") or model["n_embd"])}


def loops(model: dict[str, Any], made: Callable[[str, str, dict[str, Any]], Recipe]) -> tuple[Method, ...]:
    """A looped model and its twins: without the loop, with the states of another text, and unrolled."""
    roles: dict[str, Role] = {"once": "twin", "swapped": "control", "unrolled": "other"}
    return (
        Method(made("looped", "the middle layers four times", model), "mechanism", "looped"),
        *(
            Method(
                made(f"looped-{name}", TITLES[name], changed_loop(model, name)),
                role,
                "looped-unrolled" if name == "unrolled" else "looped",
            )
            for name, role in roles.items()
        ),
    )


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


# -- text --------------------------------------------------------------------------------------------------------------


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
"""A binding is asked for two sentences later: at four, Thought Gestalt learns nothing in 3M tokens (2.78 nats per
answer, chance 2.77)."""


def gestalt(size: float) -> dict[str, Any]:
    """Four layers, of which the first two make a sentence's vector.

    Vectors in the memory have length 1. A gate that starts at the square root of the width makes their channels as
    large as those of other activations.
    """
    return {
        "model_type": "thought_gestalt",
        "hidden_size": width(size),
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "max_sentence_tokens": 16,
        "memory_size": 32,
        "sentence_layer": 1,
        "gate_init": width(size) ** 0.5,
        "attention_dropout": 0.0,
        "embedding_dropout": 0.0,
    }


def forgetful(model: dict[str, Any]) -> dict[str, Any]:
    """Thought Gestalt without its memory."""
    return {name: value for name, value in model.items() if name not in ("memory_size", "gate_init")} | {
        "memory": "none"
    }


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


def composed(size: float) -> SuiteTask:
    """Two ideas at once on `RECALL`: a memory on a looped decoder, and a memory whose next vector is predicted."""
    model = gestalt(size)
    turning = model | {"layers_per_turn": 2}

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
    outweigh the tokens' in small models: on `phrases` nothing is learned in the first 0.2M tokens.
    """
    sizes = {"insert_depth": 0, "fusion": "norm_sum", "chunk_size": 4, "num_segments": 4}
    return {"model_type": "conceptlm", "backbone": backbone, **sizes, "ncp_weight": 0.1, "vq_weight": 1.0}


def without_concepts(model: dict[str, Any]) -> dict[str, Any]:
    """That ConceptLM without concepts, at their cost: what the norm of the embeddings does alone."""
    return removed(model) | {"ncp_weight": 0.0, "vq_weight": 0.0}


def phrases(size: float) -> SuiteTask:
    """Phrases fill the chunks of ConceptLM, so a concept can be predicted from concepts.

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

    alone = without(gestalt, "gate_", memory="none")
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
        ),
        "flops",
        further=UNSEEN,
    )


# -- questions ---------------------------------------------------------------------------------------------------------


def questions(name: str, spec: str, model: dict[str, Any], epochs: float, answer_tokens: int, length: int) -> Recipe:
    return Recipe(
        name=name,
        description=f"questions of {spec.partition(':')[0]}",
        model=scaled(model),
        data=DataConfig(source=f"builtin:{spec}", tokenizer="bpe:512"),
        layout=QuestionAnswer(sequence_length=length, batch_size=32),
        optimizer=OptimizerConfig(learning_rate=2.5e-3, weight_decay=0.01, warmup=0.1),
        train=TrainConfig(epochs=epochs, log_every=20),
        evaluation=EvaluationConfig(
            metric="accuracy", max_documents=200, answer_tokens=answer_tokens, batch_size=100, sample_tokens=8
        ),
    )


def reasoning(recipe: Recipe, curriculum: Curriculum) -> tuple[Method, ...]:
    """Ways to learn the steps of questions, for a decoder too shallow to do without; and loops of its layers."""
    task = recipe.name

    def made(method: str) -> Recipe:
        named = questions_method(dataclasses.replace(recipe, name=f"{task}/x"), method, curriculum)
        return dataclasses.replace(named, name=f"{task}/{method}", baseline=None)

    def way(method: str, role: Role, family: str, shares: str | None = None) -> Method:
        return Method(made(method), role, family, shares)

    def distilled(method: str, role: Role) -> Method:
        named = codi_method(recipe, method, latents=curriculum.stages * curriculum.latents_per_step)
        name = f"{task}/codi-{method}" if method else f"{task}/codi"
        return Method(dataclasses.replace(named, name=name, baseline=None), role, "codi", "coconut")

    def read(name: str, description: str, model: dict[str, Any]) -> Recipe:
        return dataclasses.replace(made("no-cot"), name=f"{task}/{name}", description=description, model=scaled(model))

    # The layers are the block: with layers before and after it, a looped model would have more than the others.
    turning, once, *_ = loops(looped(recipe.model, 4, prelude_layers=0, coda_layers=0), read)
    return (
        way("coconut", "mechanism", "coconut"),
        way("agclr", "mechanism", "agclr", shares="coconut"),
        way("sim-cot", "mechanism", "sim-cot", shares="coconut"),
        distilled("", "mechanism"),
        distilled("no-distillation", "control"),
        way("no-cot", "twin", "coconut"),
        way("pause-curriculum", "control", "coconut"),
        way("cot", "other", "cot"),
        way("icot", "other", "icot"),
        turning,
        once,
    )


def shallow(size: float, context: int) -> dict[str, Any]:
    """Two layers: what a task needs beyond them has to come from steps, written or latent, or from turns."""
    return rotary(width(size), 2, context)


def reachability(size: float) -> SuiteTask:
    """Search in a graph of three steps, whose written steps are the search.

    Steps are not a path, whose first edge cannot be known before the search that finds it. Facts are pairs of words:
    two layers learn to look them up in about 1,000 steps, and sentences not in 1,900. The rate stays above 30% of its
    height, since the last stage of the curriculum is the hardest to learn.
    """
    spec = f"reachability:hops=3,nodes=11,steps=frontier,facts=pairs,count={int(40_000 * size)}"
    recipe = questions("reachability", spec, shallow(size, 256), 12, 56, 144)
    optimizer = dataclasses.replace(recipe.optimizer, min_learning_rate_ratio=0.3)
    recipe = dataclasses.replace(recipe, optimizer=optimizer, layout=QuestionAnswer(sequence_length=144, batch_size=64))
    curriculum = Curriculum(stages=3, latents_per_step=1, epochs=3, removed_tokens=8, step_tokens=48)
    return SuiteTask("reachability", spec, reasoning(recipe, curriculum), None)


def composition(size: float) -> SuiteTask:
    """Products of four or five permutations, whose steps are the products so far.

    There are 9,072 such sequences, too many to learn by heart. With the 1,512 of three or four, written steps
    themselves end between 86% and 100% over seeds.
    """
    spec = f"composition:length=4-5,count={int(12_000 * size)}"
    recipe = questions("composition", spec, shallow(size, 128), 12, 30, 128)
    recipe = dataclasses.replace(recipe, layout=QuestionAnswer(sequence_length=128, batch_size=64))
    curriculum = Curriculum(stages=4, latents_per_step=1, epochs=1, removed_tokens=4, step_tokens=30)
    return SuiteTask("composition", spec, reasoning(recipe, curriculum), None)


def expressions(size: float) -> SuiteTask:
    """Arithmetic without written steps, in which forks and turns can add computation at few tokens.

    With written steps at this depth, layers without forks or loops answer every question.
    """
    spec = f"expressions:depth=1-2,steps=0,count={int(12_000 * size)}"
    layers = 4
    bubbles = {
        "model_type": "thoughtbubbles",
        "hidden_size": width(size),
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "max_position_embeddings": 128,
        "fork_layers": [1, 2],
        "selection": "causal",
    }
    regular = {key: value for key, value in bubbles.items() if key != "selection"} | {"fork_layers": []}
    shared = {"layers_per_turn": layers // 2}
    turning = bubbles | shared | {"fork_layers": [2, 3]}

    def made(method: str, description: str, model: dict[str, Any]) -> Recipe:
        recipe = questions(f"expressions/{method}", spec, model, 10, 4, 128)
        return dataclasses.replace(recipe, description=description)

    return SuiteTask(
        "expressions",
        spec,
        (
            Method(made("thoughtbubbles", "forks before layers 1 and 2", bubbles), "mechanism", "thoughtbubbles"),
            Method(made("thoughtbubbles-twin", "the same layers without forks", regular), "twin", "thoughtbubbles"),
            Method(made("thoughtbubbles-constant", "constant scores", removed(bubbles)), "control", "thoughtbubbles"),
            Method(
                made("thoughtbubbles-swapped", "scores of another text", swapped(bubbles)), "control", "thoughtbubbles"
            ),
            Method(
                made("thoughtbubbles-looped", "two layers twice, with forks in the second turn", turning),
                "mechanism",
                "looped forks",
            ),
            Method(made("thoughtbubbles-looped-twin", "two layers twice", regular | shared), "twin", "looped forks"),
            *loops(looped(rotary(width(size), layers, 128), 4), made),
        ),
        None,
    )


SUITE: dict[str, Callable[[float], SuiteTask]] = {
    made.__name__: made for made in (topics, recall, phrases, reachability, expressions, composition, composed, text)
}
"""By task; the argument is the size, 1 by default: it scales width, text and questions."""

DEFAULT = tuple(name for name in SUITE if name != "text")
"""Tasks that run if none is named: text takes days on a CPU."""

RECIPES = [method.recipe for make in SUITE.values() for method in make(1.0).methods]

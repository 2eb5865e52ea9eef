"""Tasks of the suite that are questions, scored in accuracy."""

from __future__ import annotations

from dataclasses import replace

from mentalese.data.layouts import QuestionAnswer
from mentalese.families.coconut.recipes import PROSQA_BIASES, Curriculum
from mentalese.families.coconut.recipes import method as questions_method
from mentalese.families.codi.recipes import method as codi_method
from mentalese.families.conceptlm.recipes import deeper
from mentalese.families.looped.recipes import TITLES, looped
from mentalese.families.looped.recipes import changed as changed_loop
from mentalese.families.thoughtbubbles.recipes import copied
from mentalese.families.thoughtbubbles.recipes import model as thoughtbubbles
from mentalese.recipe import DataConfig, EvaluationConfig, OptimizerConfig, Recipe, TrainConfig
from mentalese.suite.methods import (
    Method,
    Model,
    Role,
    SuiteTask,
    compared,
    other,
    removed,
    rotary,
    scaled,
    swapped,
    width,
)


def questions(name: str, spec: str, model: Model, epochs: float, answer_tokens: int, length: int) -> Recipe:
    """Return the recipe that methods on a task of questions share, at a constant rate, as Coconut's release has it.

    Under a cosine the rate has fallen by the last stages of a curriculum, which are the hardest to learn.
    """
    return Recipe(
        name=name,
        description=f"questions of {spec.partition(':')[0]}",
        model=scaled(model),
        data=DataConfig(source=f"builtin:{spec}", tokenizer="bpe:512"),
        layout=QuestionAnswer(sequence_length=length, batch_size=64),
        optimizer=OptimizerConfig(learning_rate=2.5e-3, weight_decay=0.01, warmup=0.1, schedule="constant"),
        train=TrainConfig(epochs=epochs, log_every=20),
        evaluation=EvaluationConfig(
            metric="accuracy", max_documents=200, answer_tokens=answer_tokens, batch_size=100, sample_tokens=8
        ),
    )


def reasoning(recipe: Recipe, curriculum: Curriculum, loop_delay: int = 0) -> tuple[Method, ...]:
    """Return ways to learn the steps of questions, for a decoder too shallow to do without; and loops of its layers.

    Loops learn written steps later than other decoders: their curriculum leaves all steps for `loop_delay` more epochs.
    """
    task = recipe.name

    def made(method: str, recipe: Recipe = recipe, **fields: object) -> Recipe:
        return replace(questions_method(recipe, method, curriculum, **fields), name=f"{task}/{method}", baseline=None)

    def way(method: str, role: Role, family: str) -> Method:
        return Method(made(method), role, family)

    channels, mlps = recipe.model["hidden_size"], 3 * recipe.model["num_hidden_layers"]  # MLPs have three matrices

    def narrower(extra: float) -> Recipe:
        """Return the recipe with MLPs that have fewer weights, by this multiple of the width."""
        return recipe.replace(model={"intermediate_size": recipe.model["intermediate_size"] - round(extra / mlps)})

    def distilled(method: str, role: Role) -> Method:
        latents = curriculum.stages * curriculum.latents_per_step
        method_recipe = codi_method(narrower(2 * channels + 4), method, latents=latents)  # its projection's weights
        name = f"{task}/codi-{method}" if method else f"{task}/codi"
        schedule = {"schedule": "cosine"}  # the paper's
        return Method(method_recipe.replace(name=name, baseline=None, optimizer=schedule), role, "codi", "coconut")

    # Latents are fed another question's state, and explain their own steps all the same: this tests the feedback, and
    # not the loss of steps.
    other_latents = replace(
        made("sim-cot", thought_control="swapped"),
        name=f"{task}/sim-cot-swapped",
        description="SIM-CoT whose latents are fed another question's states",
    )
    agclr = made("agclr", narrower(3 * channels), gate_biases=PROSQA_BIASES)  # three gates
    # The layers are the block: with layers before and after it, a looped model would have more than the others.
    # Steps are removed one by one for them too: from only the answers they learn a constant.
    answering = replace(made("no-thoughts"), name=task)
    delayed = tuple(replace(phase, start=phase.start + loop_delay) for phase in answering.phases)
    looping = looped(recipe.model, 4, prelude_layers=0, coda_layers=0)
    turns = {
        "": ("the layers four times", looping),
        "twin": (TITLES["once"], changed_loop(looping, "once")),
        "swapped": (TITLES["swapped"], swapped(looping)),
    }
    return (
        way("coconut", "mechanism", "coconut"),
        Method(agclr, "mechanism", "agclr", shares="coconut", extends=True),
        Method(made("sim-cot"), "mechanism", "sim-cot", shares="coconut", extends=True),
        Method(other_latents, "control", "sim-cot"),
        distilled("", "mechanism"),
        distilled("no-distillation", "control"),
        distilled("pause", "control"),
        way("no-cot", "twin", "coconut"),
        way("pause-curriculum", "control", "coconut"),
        way("no-thoughts", "control", "coconut"),
        way("cot", "other", "cot"),
        way("icot", "other", "icot"),
        *compared(replace(answering, phases=delayed), "looped", turns),
    )


def reachability(size: float) -> SuiteTask:
    """Return the task of search in a graph of three steps, whose written steps are the search.

    Steps are not a path, because its first edge is unknown until the search ends. A fact is one word, and one token of
    this vocabulary: as three words, a look-up must be learned before the search, and a run takes four times as long.
    A stage has four epochs: with two, written steps are not learned before the first latent, and Coconut guesses.
    """
    spec = f"reachability:hops=3,nodes=11,steps=frontier,facts=words,count={int(60_000 * size)}"
    recipe = questions("reachability", spec, rotary(width(size), 2, 128), 16, 30, 80)
    recipe = recipe.replace(data={"tokenizer": "bpe:640"})
    curriculum = Curriculum(stages=3, latents_per_step=1, epochs=4, removed_tokens=2, step_tokens=21)
    methods = reasoning(recipe, curriculum)
    return SuiteTask("reachability", spec, methods, solved=0.7)  # written steps close 0.86 to 0.93


def composition(size: float) -> SuiteTask:
    """Return the task of products of four or five permutations, whose steps are the products so far.

    There are 9,072 such sequences, too many to learn by heart. With the 1,512 of three or four, written steps
    themselves end between 86% and 100% over seeds. The curriculum's first stage ends before they are learned, which is
    not what decides: with four epochs of it, or of two for each later stage too, Coconut gains nothing (docs/tasks.md).
    """
    spec = f"composition:length=4-5,count={int(12_000 * size)}"
    recipe = questions("composition", spec, rotary(width(size), 2, 128), 12, 30, 128)
    curriculum = Curriculum(stages=4, latents_per_step=1, epochs=1, removed_tokens=4, step_tokens=30)
    return SuiteTask("composition", spec, reasoning(recipe, curriculum))


def expressions(size: float) -> SuiteTask:
    """Return the task of two nested brackets, whose steps are the value of each bracket.

    Models of two layers learn the written steps in two epochs. From only the answers they learn little more than the
    outermost bracket reveals, and deeper models learn no more than that. So forks are tested under Coconut's curriculum
    with no tokens in place of the steps: where pause tokens add streams, forks may. They have four layers, fork after
    the first and the second, and are selected causally; in the paper streams are selected in a block.
    """
    spec = f"expressions:depth=2,count={int(12_000 * size)}"
    recipe = questions("expressions", spec, rotary(width(size), 2, 128), 12, 30, 64)
    curriculum = Curriculum(stages=3, latents_per_step=1, epochs=2, removed_tokens=6, step_tokens=24)
    bubbles = thoughtbubbles(width(size), 4, 4, 128, (1, 2), selection="causal")
    regular = thoughtbubbles(width(size), 4, 4, 128, ())
    turns = {"layers_per_turn": 2}

    thoughtless = questions_method(recipe, "no-thoughts", curriculum)
    thoughtless = replace(thoughtless, name="expressions", baseline=None)
    forks = {
        "": ("four layers, forks before the second and the third", bubbles),
        "twin": ("four layers without forks", regular),
        "constant": ("constant scores", removed(bubbles)),
        "1l": ("scores without forks", bubbles | {"budget": 1.0}),
        "copy2": ("two copies of every token, for the cost of forks", copied(regular, 2)),
    }
    turning = bubbles | turns | {"fork_layers": [2, 3]}
    looped_forks = {
        "": ("two layers twice, with forks in the second turn", turning),
        "twin": ("two layers twice", regular | turns),
        "constant": ("constant scores", removed(turning)),
    }
    methods = (
        *reasoning(recipe, curriculum, loop_delay=2),
        *compared(thoughtless, "thoughtbubbles", forks),
        other(thoughtless, "thoughtbubbles-copy3", "three copies of every token", copied(regular, 3)),
        other(thoughtless, "thoughtbubbles-deeper", "six layers", deeper(regular, 2)),
        *compared(thoughtless, "thoughtbubbles-looped", looped_forks, "looped forks"),
    )
    return SuiteTask("expressions", spec, methods)

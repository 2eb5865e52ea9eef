"""The models of `mentalese demo`: mechanisms of the suite, at settings that learn their task within two minutes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mentalese.families.thought_gestalt.recipes import RELEASED_HEAD
from mentalese.recipe import Recipe
from mentalese.suite.methods import SuiteTask
from mentalese.suite.questions import questions
from mentalese.suite.recipes import SUITE
from mentalese.suite.texts import NEAR


@dataclass(frozen=True)
class DemoModel:
    """A model of the demo.

    Attributes:
        task: the task that scores it.
        title: a sentence about the model.
        about: a description of its texts, and advice on the page.
    """

    task: SuiteTask
    recipe: Recipe
    title: str
    about: str


def _mechanism(task: SuiteTask, name: str, tokens: int, learning_rate: float) -> Recipe:
    """Return the first method of a task, trained on fewer tokens."""
    optimizer = {"learning_rate": learning_rate}
    return task.methods[0].recipe.replace(name=f"demo/{name}", train={"tokens": tokens}, optimizer=optimizer)


TOPICS, COMPOSITION = SUITE["topics"](1.0), SUITE["composition"](1.0)
RECALL = replace(SUITE["recall"](1.0), spec=NEAR)
PHRASES = replace(SUITE["phrases"](1.0), spec="phrases:lead=3,concepts=8,phrases=8,words=32")
EXPRESSIONS = SUITE["expressions"](1.0)
EXPRESSIONS = replace(
    EXPRESSIONS,
    spec="expressions:depth=1-2,count=6000",
    methods=tuple(method for method in EXPRESSIONS.methods if method.family == "thoughtbubbles"),
)

DEMO = {
    "memory": DemoModel(
        RECALL,
        # The release's head, whose vectors have one length, learns the shorter distance in the time of a demo.
        _mechanism(RECALL, "memory", 2_000_000, 1e-3).replace(
            data={"source": f"builtin:{NEAR}"}, model=RELEASED_HEAD | {"gate_init": 8.0}
        ),
        "Thought Gestalt remembers sentences",
        "The model reads one sentence at a time. What an animal owns was said in an earlier sentence, so the "
        "answer can only come from the memory, which contains one vector per sentence.",
    ),
    "composition": DemoModel(
        COMPOSITION,
        # The curriculum replaces one written step after the other by a latent.
        COMPOSITION.methods[0].recipe.replace(name="demo/steps"),
        "Coconut computes in its own hidden states",
        "Four or five permutations of a, b and c are applied one after the other: what do they make of abc? Between "
        "question and answer the model reads its last hidden state four times, instead of writing steps.",
    ),
    "topic": DemoModel(
        TOPICS,
        _mechanism(TOPICS, "topic", 500_000, 0.016),
        "A Latent Thought Model infers what a text is about",
        "Each text is drawn from one of eight hidden tables of words. The model sees a single token, and thoughts that "
        "it inferred from the first half of the text. The second half is scored.",
    ),
    "forks": DemoModel(
        EXPRESSIONS,
        questions("demo/forks", EXPRESSIONS.spec, EXPRESSIONS.methods[0].recipe.model, 5, 40, 128).replace(
            description="forks before layers 1 and 2", layout={"batch_size": 32}, optimizer={"schedule": "cosine"}
        ),
        "Thoughtbubbles forks at the numbers",
        "Arithmetic modulo 10, with the value of each bracket written down. The model may spend two streams per token "
        "on average and learns where: a dot below a token is a stream that it ends with.",
    ),
    "concepts": DemoModel(
        PHRASES,
        # The losses' weights suit small models.
        _mechanism(PHRASES, "concepts", 600_000, 5e-3).replace(
            data={"source": f"builtin:{PHRASES.spec}"}, model={"ncp_weight": 1.0, "vq_weight": 100.0}
        ),
        "ConceptLM predicts the next four words as one concept",
        "Each phrase of four words is one of eight ways to say one of eight concepts. The model predicts a concept "
        "before it writes the words. Compare what it loses without any with what it loses with another text's.",
    ),
}
"""By name, in the order in which they are shown."""

RECIPES = [shown.recipe for shown in DEMO.values()]

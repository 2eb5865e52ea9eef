"""All methods of latent reasoning on SmolLM2-135M-Instruct, each in hours of a CPU.

`smollm2/DATA-METHOD` learns questions whose steps are written out:

    arithmetic  word problems of one to four steps with numbers up to 200 (`builtin:arithmetic`)
    words       of two to four steps with numbers up to 20 (`builtin:word-problems`)
    gsm8k       GSM8K with equations as steps (`icot_train.txt` and the like in `data/gsm8k`)
    clutrr      kinship of two or three relations, in test up to ten (the zip of the task in `data/clutrr`)

Adapters of rank 16 are trained, 8 questions a step, which takes 4 to 20 seconds of one core. An epoch has about 2,300
questions, others than the epoch before: eight epochs of the same ones learn them by heart (`words-no-cot`: 0.03 nats
in training, 0.2 in validation, 76.6% of 500 test questions; with other questions 0.1 nats and 89.6%, where written
steps have 100.0%). `cot` has three epochs. Most others go on with its adapters: curricula have no stage of written
steps, and each of their stages is one epoch, the last one two. Curricula have 0.4 of its learning rate: at all of it
`arithmetic-coconut` answers 16% of 100 validation questions after its first stage, and 76% before. `colar` learns from
written steps in every epoch, at the rate of `cot`, with one or two tokens a latent: up to five, the paper's number, it
answers 92.6% of `words`, up to two 99.8%. `no-cot` answers at once; it has as many epochs as `cot` and a curriculum
together. `codi` reads each question twice, and `looped` reads its middle layers twice: both have fewer epochs, so that
on `words` they cost about as many FLOPs as `no-cot` (1.0e15 to 1.2e15), beside `cot` for `codi`. CODI's gamma is 1, as
the paper's for GPT-2, which is as large. `looped` has 0.4 of the rate too: its map of states is trained in full, and at
all of the rate 40 steps of two questions end at 1.0 nats, with a fixed map at 0.6.
"""

from __future__ import annotations

import dataclasses

from mentalese.data.layouts import QuestionAnswer
from mentalese.families.baselines.recipes import llama
from mentalese.families.coconut.recipes import Curriculum
from mentalese.families.coconut.recipes import method as latent
from mentalese.families.colar.recipes import method as compressed
from mentalese.recipe import DataConfig, EvaluationConfig, OptimizerConfig, Recipe, TrainConfig
from mentalese.suite.latent_reasoning import codi, looped

BASE = "models:smollm2"
SMOLLM2 = llama(576, 9, layers=30, mlp=1536, key_value_heads=3, tied=True, context=8192, theta=100_000.0)
CODI_SHARE, LOOPED_SHARE = 0.6, 0.75  # of a curriculum's and of `no-cot`'s epochs
STEP_DECODER_LAYERS = 6  # SIM-CoT's has all; its cost would be the model's once more

ARITHMETIC = Recipe(
    name="smollm2/arithmetic",
    description="SmolLM2-135M-Instruct on word problems",
    model=SMOLLM2,
    data=DataConfig(source="builtin:arithmetic", tokenizer=BASE),
    layout=QuestionAnswer(batch_size=8, sequence_length=512),
    optimizer=OptimizerConfig(learning_rate=1e-3, betas=(0.9, 0.999), weight_decay=0.01, warmup=0.03),
    train=TrainConfig(epochs=3, epoch_documents=2300, init=BASE, lora_rank=16, precision="bf16", checkpoint_every=100),
    evaluation=EvaluationConfig(metric="accuracy", answer_tokens=96, max_documents=100, max_test_documents=500),
)
WORDS = ARITHMETIC.replace(
    name="smollm2/words",
    description="SmolLM2-135M-Instruct on word problems with small numbers",
    data={"source": "builtin:word-problems"},
)
GSM8K = ARITHMETIC.replace(
    name="smollm2/gsm8k",
    description="SmolLM2-135M-Instruct on GSM8K",
    data={"source": "gsm8k-aug:data/gsm8k"},
    evaluation={"answer_tokens": 192},
)
CLUTRR = ARITHMETIC.replace(
    name="smollm2/clutrr",
    description="SmolLM2-135M-Instruct on CLUTRR",
    data={"source": "clutrr:data/clutrr"},
    evaluation={"answer_tokens": 192, "documents_seed": 0},
)
STAGES = Curriculum(stages=4, latents_per_step=1, epochs=1, removed_tokens=8, step_tokens=31)
LONGER_STEPS = dataclasses.replace(STAGES, removed_tokens=13, step_tokens=50)
EQUATIONS = Curriculum(stages=3, latents_per_step=2, epochs=1, removed_tokens=53, step_tokens=158)
RULES = Curriculum(stages=2, latents_per_step=2, epochs=1, removed_tokens=77, step_tokens=154)


def methods(recipe: Recipe, stages: Curriculum) -> list[Recipe]:
    """Return the recipe, whose model is a decoder, as all methods; the curriculum has no stage of written steps."""
    written, length = recipe.train.epochs or 0.0, len(stages.phases()) + 1.0
    slower = {"learning_rate": 0.4 * recipe.optimizer.learning_rate}
    adapters = f"models:{recipe.name.replace('/', '-')}-cot"

    def continued(made: Recipe, epochs: float = length) -> Recipe:
        return made.replace(train={"epochs": epochs, "adapter": adapters})

    def curriculum(name: str) -> Recipe:
        """Return a method whose first epoch leaves out a step."""
        made = latent(recipe, name, stages)
        first, *rest = made.phases
        phases = tuple(dataclasses.replace(phase, start=phase.start - 1) for phase in rest)
        return continued(made.replace(layout=first.layout, phases=phases, optimizer=slower))

    named = recipe.replace(name=f"{recipe.name}-colar")
    colar = compressed(named, "", factor=2, max_factor=2, max_latents=stages.step_tokens)
    at_once = recipe.replace(train={"epochs": written + length})
    twice = at_once.replace(train={"epochs": LOOPED_SHARE * (written + length)}, optimizer=slower)
    pairs = codi(recipe, "", stages.stages * stages.latents_per_step)
    made = [
        latent(recipe, "cot", stages),
        latent(at_once, "no-cot", stages),
        *(curriculum(name) for name in ("icot", "no-thoughts", "pause-curriculum", "coconut", "agclr")),
        curriculum("sim-cot").replace(model={"step_decoder_layers": STEP_DECODER_LAYERS}),
        continued(pairs, CODI_SHARE * length),
        continued(colar),
        looped(twice, "looped", 2, "the middle layers twice", stages),
    ]
    return [dataclasses.replace(method, baseline=None) for method in made]


RECIPES = [
    *methods(ARITHMETIC, LONGER_STEPS),
    *methods(WORDS, STAGES),
    *methods(GSM8K, EQUATIONS),
    *methods(CLUTRR, RULES),
]

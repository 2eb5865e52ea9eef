"""Its recipe."""

from mentalese import OptimizerConfig, Recipe, TrainConfig
from mentalese.families.baselines.recipes import gpt2
from sentence_rows.layout import SentenceRows

RECIPES = [
    Recipe(
        name="sentence_rows/tiny",
        description="GPT-2 of width 64 on single sentences",
        model=gpt2(64, 4, layers=2, context=64),
        layout=SentenceRows(sequence_length=64),
        optimizer=OptimizerConfig(learning_rate=3e-3, warmup=0.1),
        train=TrainConfig(tokens=100_000, eval_every=20),
        baseline="gpt2/tiny",
    )
]

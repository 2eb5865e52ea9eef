"""Its recipes."""

from mentalese import OptimizerConfig, Recipe, TrainConfig

RECIPES = [
    Recipe(
        name="running_mean/tiny",
        description="width 64, 100,000 tokens: seconds on two CPU cores",
        model={"model_type": "running_mean", "hidden_size": 64, "initializer_range": 0.1},
        optimizer=OptimizerConfig(learning_rate=3e-3, warmup=0.1),
        train=TrainConfig(tokens=100_000, eval_every=20),
        baseline="gpt2/tiny",
    )
]

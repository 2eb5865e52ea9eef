"""The smallest family: one folder, and an entry point in the package's `pyproject.toml`."""

from mentalese import Family

FAMILY = Family(
    name="running_mean",
    description="A model whose thought is the mean of all tokens so far",
    recipes="running_mean.recipes:RECIPES",
    classes={"running_mean": ("running_mean.config:RunningMeanConfig", "running_mean.model:RunningMeanForCausalLM")},
    idle_options={
        "running_mean": {"num_hidden_layers": "it has one layer", "num_attention_heads": "it has no attention"},
    },
)

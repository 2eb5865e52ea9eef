"""The recipes of the mechanism suite, by task, whose tasks are in `mentalese.data.suite`.

And those that compare all ways of latent reasoning on GSM8K-Aug.
"""

from mentalese.registry import Family

FAMILY = Family(
    name="suite",
    description="families on tasks with a known optimum, with twins and controls; latent reasoning on GSM8K-Aug",
    recipes="mentalese.families.suite.demo:RECIPES",
    classes={},
)

"""The recipes of the mechanism suite, by task, whose tasks are in `mentalese.data.suite`.

And those that compare all ways of latent reasoning on GSM8K-Aug.
"""

from mentalese.registry import Family

FAMILY = Family(
    name="suite",
    description="every family on tasks with a known optimum, each beside its twin without thoughts and its control",
    recipes="mentalese.families.suite.demo:RECIPES",
    classes={},
)

"""The recipes of the mechanism suite, by task; the tasks themselves are in `mentalese.data.suite`."""

from mentalese.registry import Family

FAMILY = Family(
    name="suite",
    description="every family on tasks with a known optimum, each beside its twin without thoughts and its control",
    recipes="mentalese.families.suite.demo:RECIPES",
    classes={},
)

"""The contract tests, for a family in any package.

A test file of a family is two lines; pytest collects the tests by their names:

    from mentalese.testing import *

    RECIPES = ["my_family/tiny"]

Every test runs on a small version of every recipe of `RECIPES`. `mentalese check FAMILY` runs the same tests. They need
pytest, and neither a GPU nor the network; with `MENTALESE_TEST_DEVICE=cuda` models run on a GPU.
"""

import pytest

_PARTS = ("forward", "generation", "losses", "options", "runs", "saving", "tracing", "training")
# Before they are imported: a bare `assert` then shows the values that it compared.
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in _PARTS))

from mentalese.testing.cases import (  # noqa: E402 (see above)
    MODES,
    Case,
    case,
    causal,
    contract_cache,
    corpus,
    family,
    pytest_generate_tests,
    recipe,
)
from mentalese.testing.forward import *  # noqa: E402, F403
from mentalese.testing.generation import *  # noqa: E402, F403
from mentalese.testing.losses import *  # noqa: E402, F403
from mentalese.testing.options import *  # noqa: E402, F403
from mentalese.testing.saving import *  # noqa: E402, F403
from mentalese.testing.saving import opener  # noqa: E402
from mentalese.testing.tracing import *  # noqa: E402, F403
from mentalese.testing.training import *  # noqa: E402, F403

# Only tests and their fixtures: the parts import much more, which a family's test file must not get.
__all__ = [
    "MODES",
    "Case",
    "case",
    "causal",
    "contract_cache",
    "corpus",
    "family",
    "opener",
    "pytest_generate_tests",
    "recipe",
    *(name for name in dir() if name.startswith("test_")),
]

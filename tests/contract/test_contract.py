"""What every model promises, whatever it thinks in between. Runs on every `tiny` recipe that discovery finds.

The tests are those of `mentalese.testing`: a family in another package runs the same ones.
"""

from mentalese.testing import MODES, case, causal, contract_cache, pytest_generate_tests  # noqa: F401 (pytest's)
from mentalese.testing.causality import *  # noqa: F403
from mentalese.testing.forward import *  # noqa: F403
from mentalese.testing.generation import *  # noqa: F403
from mentalese.testing.learning import *  # noqa: F403
from mentalese.testing.options import *  # noqa: F403
from mentalese.testing.saving import *  # noqa: F403
from mentalese.testing.sections import *  # noqa: F403
from mentalese.testing.tracing import *  # noqa: F403
from support import tiny_recipes

RECIPES = [*tiny_recipes(), *MODES]

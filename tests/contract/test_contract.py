"""What every model promises, whatever it thinks in between. Runs on every `tiny` recipe that discovery finds.

The tests are those of `mentalese.testing`: a family in another package runs the same ones.
"""

import pytest

from mentalese.testing import MODES, case, causal, contract_cache, family, pytest_generate_tests  # noqa: F401 (pytest's)
from mentalese.testing.forward import *  # noqa: F403
from mentalese.testing.generation import *  # noqa: F403
from mentalese.testing.losses import *  # noqa: F403
from mentalese.testing.losses import test_a_small_batch_is_learnt_by_heart as of_learning
from mentalese.testing.options import *  # noqa: F403
from mentalese.testing.options import test_every_option_of_the_layout_changes_something_or_is_refused as of_the_layout
from mentalese.testing.options import test_every_option_of_the_model_changes_something_or_is_refused as of_the_model
from mentalese.testing.saving import *  # noqa: F403
from mentalese.testing.tracing import *  # noqa: F403
from support import tiny_recipes

RECIPES = [*tiny_recipes(), *MODES]
pytest.mark.slow(of_learning)
pytest.mark.slow(of_the_model)
pytest.mark.slow(of_the_layout)

"""What training promises for every model: resuming changes nothing, and two processes equal one."""

import pytest

from mentalese.testing import contract_cache, pytest_generate_tests, recipe  # noqa: F401 (pytest's)
from mentalese.testing.training import *  # noqa: F403
from mentalese.testing.training import test_an_interrupted_run_resumes_bit_for_bit, test_two_processes_equal_one
from support import tiny_recipes

RECIPES = tiny_recipes()
for test in (test_an_interrupted_run_resumes_bit_for_bit, test_two_processes_equal_one):
    pytest.mark.slow(test)
del test

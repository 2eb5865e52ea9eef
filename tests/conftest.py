"""Shared by all tests: a small corpus, tiny versions of every `tiny` recipe, and no network."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# Properties are about what holds, not how fast: a busy machine must not fail them.
settings.register_profile("any_machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("nightly", settings.get_profile("any_machine"), max_examples=2500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "any_machine"))

from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: E402 (the environment comes first)
from transformers import PreTrainedTokenizerFast  # noqa: E402

from mentalese.data.tokenizers import add_markers  # noqa: E402
from mentalese.testing import corpus  # noqa: E402, F401 (a fixture)

SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Stores and tokenizers that tests prepare never touch the user's cache; all processes of the run share them."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    os.environ["MENTALESE_CACHE"] = str(folder / "cache")


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, and the four markers."""
    vocabulary = {byte: i for i, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return add_markers(PreTrainedTokenizerFast(tokenizer_object=backend))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real corpora beside the repository; the test is skipped where they are missing."""
    if not SHARED_DATA.is_dir():
        pytest.skip("needs the real corpora in ../shared/data")
    return SHARED_DATA

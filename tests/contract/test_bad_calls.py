"""A call that a model cannot answer is one sentence that names the argument, in eval and in training mode alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mentalese import InputError
from mentalese.testing import Case, case, contract_cache, family, pytest_generate_tests  # noqa: F401 (pytest's)
from support import tiny_recipes

RECIPES = [*tiny_recipes(), "coconut/tiny-coconut", "conceptlm/tiny-mtp", "latent_thought/tiny-vae"]


def with_token(ids: Tensor, value: int) -> Tensor:
    ids = ids.clone()
    ids[-1, -2] = value
    return ids


def bad_calls(ids: Tensor, vocabulary: int) -> dict[str, dict[str, Any]]:
    """Arguments that no model can take, by what is wrong and the argument that the message must name."""
    rows, length = ids.shape
    ones = torch.ones_like(ids)
    tokens = {
        "no rows": ids[:0],
        "no columns": ids[:, :0],
        "one row without its dimension": ids[0],
        "a dimension too many": ids[None],
        "float": ids.float(),
        "bool": ids.bool(),
        "a list": ids.tolist(),
        "a text": "She had a son.",
        "an id above the vocabulary": with_token(ids, vocabulary + 1),
        "an id below zero": with_token(ids, -1),
    }
    masks = {
        "narrow": ones[:, 1:],
        "wide": torch.ones(rows, length + 1, dtype=torch.long),
        "one dimension": ones[0],
        "four dimensions": torch.ones(rows, 1, length, length, dtype=torch.long),
        "more rows": torch.ones(rows + 1, length, dtype=torch.long),
        "added to scores": torch.zeros(rows, length),
        "numbers of documents": 2 * ones,
        "a list": ones.tolist(),
    }
    labels = {
        "narrow": ids[:, 1:],
        "float": ids.float(),
        "above the vocabulary": torch.full_like(ids, vocabulary + 1),
        "below zero": torch.full_like(ids, -1),
        "a list": ids.tolist(),
    }
    kept = {"text": "1", "negative": -1, "out of range": torch.tensor([length]), "float": 1.0}
    calls: dict[str, dict[str, Any]] = {f"input_ids: {name}": {"input_ids": value} for name, value in tokens.items()}
    for argument, values in {"attention_mask": masks, "labels": labels, "logits_to_keep": kept}.items():
        calls |= {f"{argument}: {name}": {"input_ids": ids, argument: value} for name, value in values.items()}
    return calls


@pytest.mark.parametrize("training", [False, True])
def test_a_bad_call_is_refused_by_name(family: Case, training: bool) -> None:  # noqa: F811
    model = family.model.train(training)
    ids = family.prompts(["She had a son. He was"])["input_ids"].repeat(2, 1)
    for name, arguments in bad_calls(ids, model.config.vocab_size).items():
        with pytest.raises(InputError, match=name.partition(":")[0]):
            model(**({"labels": arguments["input_ids"]} | arguments if training else arguments))
    if model.limits.token_states is None and not training:
        with pytest.raises(InputError, match="attention_mask has"):
            model.base_model(ids, attention_mask=torch.ones_like(ids)[:, 1:])


def test_a_bad_prompt_is_refused_by_name(family: Case) -> None:  # noqa: F811
    model = family.model
    ids = family.prompts(["She had a son. He was"])["input_ids"].repeat(2, 1)
    calls = bad_calls(ids, model.config.vocab_size)
    for name in ("no rows", "no columns", "one row without its dimension", "float", "an id above the vocabulary"):
        with pytest.raises(InputError, match="input_ids"):
            model.generate(calls[f"input_ids: {name}"]["input_ids"], max_new_tokens=2)


def test_small_integers_are_tokens_too(family: Case) -> None:  # noqa: F811
    model = family.model
    ids = family.prompts(["She had a son. He was"])["input_ids"]
    torch.testing.assert_close(model(ids.int()).logits, model(ids).logits, rtol=0, atol=0)

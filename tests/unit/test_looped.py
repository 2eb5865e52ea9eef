"""Recurrent depth: the fast model is the plain one, turn by turn, with and without a cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mentalese.families.looped import plain
from mentalese.families.looped.config import LoopedConfig
from mentalese.families.looped.model import LoopedForCausalLM

BACKBONE = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "tie_word_embeddings": True,
}
IDS = torch.tensor([3, 7, 7, 1, 9, 4, 0, 5])


def made(**fields: Any) -> LoopedForCausalLM:
    torch.manual_seed(0)
    backbone = BACKBONE | fields.pop("backbone", {})
    model = LoopedForCausalLM(LoopedConfig(backbone=backbone, vocab_size=11, **fields))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(6)
    return model.double().eval()


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"norms": "own", "turns": 3},
        {"turns": 5, "backprop_turns": 2},
        {"turns": 1},
        {"prelude_layers": 0, "coda_layers": 0, "state_std": 0.0},
        {"turns": 6, "exit_distance": 0.4},
    ],
    ids=["sandwich", "own", "truncated", "once", "block-alone", "exit"],
)
def test_the_model_is_the_plain_one(fields: dict[str, Any]) -> None:
    model = made(**fields)
    row = plain.read(model, IDS, model.config.turns)
    encoded = model.encode(IDS[None], trace=True)
    torch.testing.assert_close(encoded.hidden[0], torch.stack(row.hidden), atol=1e-6, rtol=1e-6)
    assert encoded.taken.tolist() == [[len(states) - 1 for states in row.states]]
    for t, state in enumerate(encoded.states, 1):
        for i, states in enumerate(row.states):
            torch.testing.assert_close(state[0, i], states[min(t, len(states) - 1)], atol=1e-6, rtol=1e-6)
    if "exit_distance" in fields:
        assert len(set(encoded.taken.flatten().tolist())) > 1, "the test shows nothing if all tokens stop together"


def gradients(model: LoopedForCausalLM, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    named = dict(model.named_parameters())
    return dict(zip(named, torch.autograd.grad(loss, list(named.values()))))


@pytest.mark.parametrize("fields", [{}, {"turns": 5, "backprop_turns": 2}, {"norms": "own"}])
def test_gradients_are_those_of_the_plain_one(fields: dict[str, Any]) -> None:
    model = made(**fields)
    batch = {"input_ids": IDS[None], "labels": IDS[None]}
    own = gradients(model, model.training_loss(batch).loss)
    expected = gradients(model, plain.loss(model, IDS, model.config.turns))
    for name, gradient in expected.items():
        torch.testing.assert_close(own[name], gradient, atol=1e-6, rtol=1e-6, msg=name)


@pytest.mark.parametrize(
    "fields", [{"cache_turns": 2}, {"cache_turns": 3, "exit_distance": 0.4}, {"exit_distance": 0.4}]
)
def test_one_token_after_the_other_is_the_plain_one(fields: dict[str, Any]) -> None:
    """With fewer slots than turns, a token reads what later turns of earlier tokens have left (section 6.2)."""
    model = made(turns=6, **fields)
    cache, hidden = model.new_cache(), []
    with torch.no_grad():
        for token in IDS:
            hidden.append(model.encode(token.view(1, 1), cache=cache).hidden[0, 0])
        expected = plain.read(model, IDS, 6).hidden
    torch.testing.assert_close(torch.stack(hidden), torch.stack(expected), atol=1e-6, rtol=1e-6)

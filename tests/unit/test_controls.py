"""A control takes the content of thoughts away, keeps their cost, and is refused where there are none.

Of one thought: batches equal a plain loop, own thoughts change nothing, and earlier tokens stay as they are.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mentalese import get_recipe
from mentalese.data.store import prepare
from mentalese.errors import InputError
from mentalese.families.coconut.plain import Coconut
from mentalese.models.build import build_model
from mentalese.models.influence import influence, thoughts_of
from mentalese.nn.controls import CONTROLS, OneThought, controlled
from mentalese.training.plan import Plan
from mentalese.values import temporarily
from support import shrink

WITH_THOUGHTS = [
    "coconut/tiny", "coconut/tiny-coconut", "codi/tiny", "conceptlm/tiny", "conceptlm/tiny-context",
    "latent_thought/tiny", "latent_thought/tiny-vae", "looped/tiny", "thought_gestalt/tiny", "thoughtbubbles/tiny",
]  # fmt: skip
WITHOUT = [
    "coconut/tiny-pause", "conceptlm/tiny-mtp", "latent_thought/tiny-ar", "looped/tiny-once", "mdlm/tiny",
    "thoughtbubbles/tiny-regular",
]  # fmt: skip


def made(name: str, corpus: Path, control: str | None) -> tuple[Any, Any]:
    recipe = shrink(get_recipe(name), corpus)
    fields = {} if control is None else {"thought_control": control}
    recipe = dataclasses.replace(recipe, model=recipe.model | fields)
    store, tokenizer = prepare(recipe.data, recipe.layout, show=False)
    model = build_model(recipe.model, tokenizer, seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(3)
    layouts = recipe.layouts() if recipe.layout.questions else [recipe.layout]
    recipe = dataclasses.replace(recipe, layout=layouts[-1], phases=())  # questions with all their latents
    return model, Plan(store.splits["train"], recipe, tokenizer).batch(0)


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_THOUGHTS)
def test_controls_change_training_and_scores_but_not_cost(name: str, corpus: Path) -> None:
    losses, scores, costs = [], [], []
    for control in (None, *CONTROLS):
        model, batch = made(name, corpus, control)
        torch.manual_seed(0)
        losses.append(float(model.train().training_loss(batch).loss.detach()))
        torch.manual_seed(0)
        scores.append(float(model.eval().token_nll(batch).sum()))
        costs.append((model.training_flops(batch), sum(p.numel() for p in model.parameters())))
    assert len(set(costs)) == 1
    assert all(torch.tensor(values).isfinite().all() for values in (losses, scores))
    assert len({round(value, 4) for value in losses}) == len(losses), losses
    assert len({round(value, 2) for value in scores}) == len(scores), scores


@pytest.mark.slow
@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("name", WITH_THOUGHTS)
def test_every_weight_has_a_gradient_under_every_control(name: str, control: str, corpus: Path) -> None:
    """Processes that share a model wait for all gradients."""
    model, batch = made(name, corpus, None)
    model.train().training_loss(batch).loss.backward()
    own = {n for n, p in model.named_parameters() if p.grad is not None}
    model, batch = made(name, corpus, control)
    model.train().training_loss(batch).loss.backward()
    assert {n for n, p in model.named_parameters() if p.grad is not None} >= own


@pytest.mark.slow
@pytest.mark.parametrize("control", ["removed", "swapped"])
@pytest.mark.parametrize("name", WITH_THOUGHTS)
def test_answers_under_a_control_need_no_cache(name: str, control: str, corpus: Path) -> None:
    """Rows end chunks and sentences at different tokens, so that one row's thought may come before another's."""
    model, batch = made(name, corpus, control)
    ids = batch["input_ids"][:2, :18]
    mask = torch.ones_like(ids)
    ids[1], mask[1, :5] = ids[1].roll(5), 0
    read = {"input_ids": ids.masked_fill(mask == 0, model.config.pad_token_id), "attention_mask": mask}
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    with_cache, without = (model.eval().generate(**read, **options, use_cache=cached) for cached in (True, False))
    assert torch.equal(with_cache, without)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in WITH_THOUGHTS if not name.startswith("thought_gestalt")])
def test_a_row_reads_no_thought_of_padding(name: str, corpus: Path) -> None:
    """A stream of Thought Gestalt ends with a sentence, after which nothing is read."""
    model, batch = made(name, corpus, "swapped")
    ids = batch["input_ids"][:2].clone()
    mask = torch.ones_like(ids)
    mask[0, ids.shape[1] // 2 :] = 0
    found = []
    for padding in (3, 5):
        read = ids.masked_fill(mask == 0, padding)
        found.append(model.eval()(read, attention_mask=mask).logits[1])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("name", WITHOUT)
def test_a_model_without_thoughts_refuses_a_control(name: str, corpus: Path) -> None:
    with pytest.raises(InputError, match=r"thought_control is 'swapped': a model with this config has no thoughts"):
        made(name, corpus, "swapped")


def test_what_each_control_makes_of_thoughts() -> None:
    thoughts = torch.arange(6.0).view(3, 2) + 1
    assert controlled(thoughts, None) is thoughts
    assert controlled(thoughts, "removed").tolist() == [[0, 0]] * 3
    assert controlled(thoughts, "removed", torch.tensor([7.0, 8.0])).tolist() == [[7, 8]] * 3
    assert controlled(thoughts, "swapped").tolist() == [[5, 6], [1, 2], [3, 4]]
    assert controlled(thoughts[:1], "swapped", 9.0).tolist() == [[9, 9]]  # no other row
    own = torch.tensor([True, False, True])
    assert controlled(thoughts, "swapped", 9.0, own=own).tolist() == [[5, 6], [1, 2], [9, 9]]
    noisy = torch.stack([controlled(thoughts, "noisy") for _ in range(2000)]) - thoughts
    rms = float(thoughts.square().mean().sqrt())
    assert abs(float(noisy.std()) / rms - 1) < 0.05
    assert abs(float(noisy.mean())) < 0.1 * rms


def text_of(name: str, corpus: Path) -> tuple[Any, Tensor]:
    """Return a model and one of its texts [length]."""
    model, batch = made(name, corpus, None)
    latent = getattr(model.config, "latent_token_id", None)
    ids = batch["input_ids"]
    chosen = 0 if latent is None else int(ids.eq(latent).sum(1).argmax())
    mask = batch.get("attention_mask", torch.ones_like(ids))
    return model.eval(), ids[chosen][mask[chosen].bool()]


@pytest.mark.parametrize("name", WITH_THOUGHTS)
def test_one_thought_at_a_time_equals_a_batch(name: str, corpus: Path) -> None:
    model, row = text_of(name, corpus)
    nats = influence(model, row)
    assert nats.shape[1] == len(row)
    with torch.no_grad(), temporarily(model.config, thought_control=OneThought(-1)):
        own = model.surprisal_of_copies(row[None])[0]
        count = model.config.thought_control.count
    assert len(nats) == count > 0
    for number in range(min(count, 5)):
        with torch.no_grad(), temporarily(model.config, thought_control=OneThought(number)):
            alone = model.surprisal_of_copies(row[None])[0] - own
        torch.testing.assert_close(nats[number], alone, equal_nan=True, rtol=1e-4, atol=2e-5)
    assert nats.nan_to_num().abs().max() > 1e-3


@pytest.mark.parametrize("name", sorted({*WITH_THOUGHTS} - {"thoughtbubbles/tiny"}))
def test_own_thoughts_in_their_place_change_nothing(name: str, corpus: Path) -> None:
    model, row = text_of(name, corpus)
    same = influence(model, row, thoughts_of(model, row))
    assert same.nan_to_num().abs().max() < 1e-5
    others = [thought.roll(1, -1) for thought in thoughts_of(model, row)]
    changed = influence(model, row, others[:1])
    assert len(changed) == 1
    assert changed.nan_to_num().abs().max() > 1e-3


def test_a_latent_changes_only_what_follows_it(corpus: Path) -> None:
    model, row = text_of("coconut/tiny-coconut", corpus)
    nats, latents = influence(model, row), row.eq(model.config.latent_token_id).nonzero()[:, 0]
    assert len(nats) == len(latents) > 1
    for number, place in enumerate(latents.tolist()):
        assert nats[number, : place + 1].nan_to_num().abs().max() < 1e-5
        assert nats[number, place + 1 :].nan_to_num().abs().max() > 1e-3


def test_a_replaced_latent_equals_the_plain_form(corpus: Path) -> None:
    model, row = text_of("coconut/tiny-coconut", corpus)

    class Replaced(Coconut):
        number = -1

        def read_vectors(self, row: Tensor) -> list[Tensor]:
            inputs: list[Tensor] = []
            embed, latents = self.backbone.get_input_embeddings(), 0
            for token in row:
                if token != self.latent:
                    inputs.append(embed(token))
                    continue
                inputs.append(embed(token) if latents == self.number else self._read(inputs)[-1])
                latents += 1
            return inputs

    plain = Replaced(model.config).eval()
    plain.load_state_dict(model.state_dict())
    nats = influence(model, row)

    def surprisal() -> Tensor:
        with torch.no_grad():
            return -plain(row)[:-1].log_softmax(-1).gather(-1, row[1:, None])[:, 0]

    own = surprisal()
    for plain.number in range(len(nats)):
        scored = nats[plain.number, 1:].isfinite()
        torch.testing.assert_close(nats[plain.number, 1:][scored], (surprisal() - own)[scored], rtol=1e-4, atol=2e-5)


def test_numbers_choose_the_thought_of_each_row() -> None:
    thoughts = torch.arange(1.0, 7).view(2, 3)  # two rows of three thoughts
    one = OneThought(torch.tensor([2, -1]))
    assert controlled(thoughts, one, numbers="columns").tolist() == [[1, 2, 0], [4, 5, 6]]
    assert {number: made.tolist() for number, made in one.made.items()} == {0: [1, 4], 1: [2, 5], 2: [3, 6]}
    each = OneThought(torch.tensor([0, 1]), values=torch.tensor([8.0, 9.0]))
    assert [controlled(column, each).tolist() for column in thoughts.T] == [[8, 4], [2, 9], [3, 6]]
    places = OneThought(torch.tensor([5, 4]))
    assert controlled(thoughts, places, numbers=torch.tensor([[5, 5, 4], [3, 4, 5]])).tolist() == [[0, 0, 3], [4, 0, 6]]


@pytest.mark.parametrize("name", WITHOUT)
def test_models_without_thoughts_are_refused(name: str, corpus: Path) -> None:
    model, row = text_of(name, corpus)
    message = f"model is '{model.config.model_type}': the model has no thoughts of its own"
    for read in (influence, thoughts_of):
        with pytest.raises(InputError, match=message):
            read(model, row)


def test_thoughts_under_a_control_are_refused(corpus: Path) -> None:
    model, _ = made("looped/tiny", corpus, "removed")
    with pytest.raises(InputError, match="model is 'looped': the model has no thoughts of its own"):
        influence(model, torch.tensor([1, 2, 3]))


def test_states_of_another_length_are_refused(corpus: Path) -> None:
    model, row = text_of("looped/tiny", corpus)
    with pytest.raises(InputError, match="use another text of that length"):
        influence(model, row, thoughts_of(model, row[:-1]))

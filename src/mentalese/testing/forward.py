"""The outputs of a call: logits, losses, scores and costs."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from mentalese.data.config import EvaluationConfig
from mentalese.data.store import prepare
from mentalese.data.tokenizers import special_token_ids
from mentalese.errors import InputError
from mentalese.models.hf import LatentThoughtModel
from mentalese.models.saved import Saved
from mentalese.models.transformers_seam import CACHE
from mentalese.nn.loss import IGNORED
from mentalese.testing.cases import TOLERANCE, Case
from mentalese.testing.runs import rotary_flops
from mentalese.values import temporarily


def test_logits_are_aligned_with_the_tokens(case: Case) -> None:
    batch = case.batch()
    assert case.logits(batch).shape == (*batch["input_ids"].shape, len(case.tokenizer))


def test_a_token_never_changes_what_was_predicted_before_it(causal: Case) -> None:
    batch = causal.batch()
    special = set(special_token_ids(causal.tokenizer).values())
    row = batch["input_ids"][0].tolist()
    changed_at = max(t for t in range(len(row) // 2 + 4) if row[t] not in special)
    changed = batch["input_ids"].clone()
    changed[0, changed_at] = next(t for t in range(len(causal.tokenizer)) if t not in special | {row[changed_at]})
    before, after = causal.logits(batch)[0], causal.logits(batch | {"input_ids": changed})[0]
    torch.testing.assert_close(before[:changed_at], after[:changed_at], **TOLERANCE)
    assert not torch.allclose(before[changed_at], after[changed_at], atol=1e-3)


def test_scores_are_the_log_likelihood_of_the_logits(case: Case) -> None:
    if case.model.estimators[0].endswith("-bound"):
        pytest.skip("a bound is not a likelihood of these logits")
    batch = case.batch()
    expected = torch.zeros(batch["labels"].shape, device=batch["labels"].device)
    log_probabilities = case.logits(batch)[:, :-1].log_softmax(-1)
    labels = batch["labels"][:, 1:]
    chosen = log_probabilities.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    expected[:, 1:] = torch.where(labels >= 0, -chosen, 0.0)
    torch.testing.assert_close(case.model.token_nll(batch), expected, **TOLERANCE)


def test_no_cache_is_returned_if_none_is_wanted_or_possible(case: Case) -> None:
    ids, model = case.batch()["input_ids"], case.model
    assert CACHE not in model(ids, use_cache=False)
    if not isinstance(model, LatentThoughtModel) or model.limits.cache is None:
        model.config.use_cache = False
        assert CACHE not in model(ids)
    else:
        assert CACHE not in model(ids)
        with pytest.raises(InputError, match=r"use_cache is True: .*use_cache=False"):
            model(ids, use_cache=True)


def test_further_outputs_are_what_they_say_or_a_clear_error(family: Case) -> None:
    ids, model = family.batch()["input_ids"], family.model
    with pytest.raises(InputError, match="output_attentions is True"):
        model(ids, output_attentions=True)
    with pytest.raises(InputError, match="pass only input_ids"):
        model(inputs_embeds=model.get_input_embeddings()(ids))
    with pytest.raises(InputError, match="position_ids begin again within a row"):
        model(ids, position_ids=torch.arange(ids.shape[1]).remainder(2)[None])
    with pytest.raises(InputError, match="no_such_argument"):
        model(ids, no_such_argument=1)
    as_tuple = model(ids, return_dict=False, use_cache=False)
    assert isinstance(as_tuple, tuple)
    assert torch.equal(as_tuple[0], model(ids, use_cache=False).logits)
    with temporarily(model.config, return_dict=False):
        assert isinstance(model(ids, use_cache=False), tuple)
    if model.limits.hidden_states is not None:
        with pytest.raises(InputError, match="output_hidden_states is True"):
            model(ids, output_hidden_states=True)
        refused = pytest.raises(InputError, match="output_hidden_states is True")
        with temporarily(model.config, output_hidden_states=True), refused:
            model(ids)
        return
    states = model(ids, output_hidden_states=True).hidden_states
    assert len(states) == model.config.num_hidden_layers + 1
    assert all(state.shape[:2] == ids.shape for state in states)
    torch.testing.assert_close(states[-1], model.encode(ids).hidden)
    with temporarily(model.config, output_hidden_states=True):
        assert len(model(ids).hidden_states) == len(states)


def test_a_call_in_training_mode_has_the_familys_own_loss(family: Case) -> None:
    """`transformers.Trainer` trains the same as the library's own loop."""
    batch, model = family.batch(), family.model.train()
    torch.manual_seed(3)
    expected = model.training_loss(batch).loss
    torch.manual_seed(3)
    read = {name: batch[name] for name in ("input_ids", "attention_mask", "labels") if name in batch}
    output = family.model(**read)
    torch.testing.assert_close(output.loss, expected)
    assert output.logits.shape == (*batch["input_ids"].shape, len(family.tokenizer))
    parameters = list(model.parameters())
    torch.testing.assert_close(
        *(torch.autograd.grad(loss, parameters, allow_unused=True) for loss in (expected, output.loss))
    )
    assert model.accepts_loss_kwargs is False  # or `Trainer` would not divide the loss, a mean, by its micro-batches


@torch.no_grad()
def test_the_loss_is_the_same_with_padding_on_either_side(family: Case) -> None:
    """The first token of a row follows padding, or nothing: neither predicts it."""
    batch, losses = family.batch(), []
    ids = batch["input_ids"]
    real = batch.get("attention_mask", torch.ones_like(ids)).bool()
    for sides in ((0, 0), (3, 0), (0, 3)):
        mask = torch.nn.functional.pad(real, sides)
        padded = torch.nn.functional.pad(ids, sides, value=family.tokenizer.pad_token_id)
        labels = padded.masked_fill(~mask, IGNORED)
        losses.append(family.model.eval()(padded, attention_mask=mask.long(), labels=labels).loss)
    for loss in losses[1:]:
        torch.testing.assert_close(loss, losses[0], equal_nan=True)  # masked diffusion has no target without masks


@pytest.mark.parametrize("step", [0, 1])
def test_the_flops_formula_is_what_pytorch_counts(case: Case, step: int) -> None:
    batch = case.batch(step)
    # The counter knows matrix products but not the CPU's fused attention: count the unfused form.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        case.logits(batch)
    assert case.model.forward_flops(batch) == counter.get_total_flops() - rotary_flops(counter)


def test_a_perplexity_does_not_depend_on_the_batch_size(case: Case) -> None:
    store, tokenizer = prepare(case.recipe.data, case.recipe.layout, show=False)
    data, layout = case.recipe.data, case.recipe.layout
    figures = []
    for batch_size in (1, 3):
        evaluation = EvaluationConfig(batch_size=batch_size, max_documents=4)
        saved = Saved(path="", model=case.model, tokenizer=tokenizer, data=data, layout=layout, evaluation=evaluation)
        figures.append(saved.perplexity(store.splits["train"]))
    assert len({figure.tokens for figure in figures}) == 1
    for figure in figures[1:]:
        assert figure.nll == pytest.approx(figures[0].nll, abs=1e-5)

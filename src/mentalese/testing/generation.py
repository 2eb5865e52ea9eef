"""Continuations of texts: with and without a cache, padded, by beams and by hand."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from mentalese.data.batch import Batch
from mentalese.errors import InputError
from mentalese.models.hf import LatentThoughtModel
from mentalese.models.transformers_seam import CACHE
from mentalese.testing.cases import PROMPTS, TOLERANCE, Case


def _generate(case: Case, texts: list[str], **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return new tokens [rows, 12] and their logits [rows, 12, vocabulary]."""
    inputs = case.prompts(texts)
    output = case.model.generate(
        **inputs,
        max_new_tokens=12,
        min_new_tokens=12,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        pad_token_id=case.tokenizer.pad_token_id,
        **options,
    )
    return output.sequences[:, inputs["input_ids"].shape[1] :], torch.stack(output.logits, dim=1)


def test_cached_generation_equals_uncached_generation(causal: Case) -> None:
    tokens, logits = _generate(causal, PROMPTS, use_cache=True)
    tokens_uncached, logits_uncached = _generate(causal, PROMPTS, use_cache=False)
    assert torch.equal(tokens, tokens_uncached)
    torch.testing.assert_close(logits, logits_uncached, **TOLERANCE)
    assert len(tokens.unique()) > 2, "a model that repeats itself proves nothing"


def test_a_left_padded_batch_equals_its_rows_alone(causal: Case) -> None:
    tokens, logits = _generate(causal, PROMPTS)
    for row, prompt in enumerate(PROMPTS):
        tokens_alone, logits_alone = _generate(causal, [prompt])
        assert torch.equal(tokens[row], tokens_alone[0])
        torch.testing.assert_close(logits[row], logits_alone[0], **TOLERANCE)


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_decoding_by_hand_equals_generate(causal: Case, name: str) -> None:
    """The textbook loop: a plain call, then one token at a time with the cache that it returned, under either name."""
    inputs, model = causal.prompts(PROMPTS), causal.model
    if name != CACHE and not (hasattr(model, "cache_for_generation") or CACHE == "cache"):
        pytest.skip(f"another project's model, which knows {CACHE} only")
    tokens, logits = _generate(causal, PROMPTS)
    mask = inputs["attention_mask"]
    with torch.no_grad():
        # Thoughts that `generate` infers from the prompt are an argument of a plain call.
        thoughts = _inferred(causal, inputs)
        output = model(inputs["input_ids"], attention_mask=mask, position_ids=_positions(mask), **thoughts)
        for step in range(tokens.shape[1]):
            torch.testing.assert_close(output.logits[:, -1], logits[:, step], **TOLERANCE)
            assert name in output
            assert output[name] is output.get(name) is getattr(output, name)
            mask = torch.nn.functional.pad(mask, (0, 1), value=1)
            new = tokens[:, step : step + 1]
            cache = {name: output[name]}
            output = model(new, attention_mask=mask, position_ids=_positions(mask)[:, -1:], **cache)


def test_decoding_by_hand_equals_one_call_on_the_whole_text(causal: Case) -> None:
    """Independent of `generate`: a model that ignores the cache that it gets back predicts something else."""
    inputs, model = causal.prompts(PROMPTS), causal.model
    tokens, _ = _generate(causal, PROMPTS, use_cache=False)
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    whole = torch.cat((ids, tokens), dim=1)
    whole_mask = torch.nn.functional.pad(mask, (0, tokens.shape[1]), value=1)
    with torch.no_grad():
        thoughts = _inferred(causal, inputs)
        at_once = model(
            whole, attention_mask=whole_mask, position_ids=_positions(whole_mask), use_cache=False, **thoughts
        ).logits
        output = model(ids, attention_mask=mask, position_ids=_positions(mask), **thoughts)
        for column in range(ids.shape[1], whole.shape[1]):
            torch.testing.assert_close(output.logits[:, -1], at_once[:, column - 1], **TOLERANCE)
            mask = whole_mask[:, : column + 1]
            output = model(
                whole[:, column : column + 1],
                attention_mask=mask,
                position_ids=_positions(mask)[:, -1:],
                **{CACHE: output[CACHE]},
            )


def _positions(mask: torch.Tensor) -> torch.Tensor:
    """Return positions, which transformers' own models need if rows are padded."""
    return (mask.cumsum(1) - 1).clamp(min=0)


def _inferred(case: Case, inputs: Batch) -> dict[str, torch.Tensor]:
    if "z" not in getattr(case.model, "forward_options", ()) or not case.model.config.num_latents:
        return {}
    from mentalese.families.latent_thought.inference import infer, prompt_batch

    batch = prompt_batch(inputs["input_ids"], inputs["attention_mask"])
    return {"z": infer(case.model, batch, seed=torch.zeros(len(batch["input_ids"]), dtype=torch.long)).sample()}


def test_beam_search_carries_the_whole_state_with_each_beam(causal: Case) -> None:
    inputs = causal.prompts(PROMPTS)
    options = {"max_new_tokens": 10, "num_beams": 3, "do_sample": False, "pad_token_id": causal.tokenizer.pad_token_id}
    assert torch.equal(*(causal.model.generate(**inputs, **options, use_cache=cached) for cached in (True, False)))


def test_a_cache_of_fixed_size_continues_as_one_that_grows_or_is_refused(causal: Case) -> None:
    model, inputs = causal.model, causal.prompts(PROMPTS)
    if not isinstance(model, LatentThoughtModel):
        pytest.skip("it is another project's model")
    if (why := model.limits.static_cache) is not None:
        says = f"'static': {type(model).__name__} has no such cache ({why}), so remove it"
        with pytest.raises(InputError, match=re.escape(says)):
            _generate(causal, PROMPTS, cache_implementation="static")
        return
    (tokens, logits), (tokens_grown, logits_grown) = (
        _generate(causal, PROMPTS, cache_implementation=kind) for kind in ("static", None)
    )
    assert torch.equal(tokens, tokens_grown)
    torch.testing.assert_close(logits, logits_grown, **TOLERANCE)
    for options in ({"num_beams": 3, "do_sample": False}, {"do_sample": True, "num_return_sequences": 2}):
        outputs = []
        for kind in ("static", None):
            torch.manual_seed(0)
            fixed = {"max_new_tokens": 10, "pad_token_id": causal.tokenizer.pad_token_id, "cache_implementation": kind}
            outputs.append(model.generate(**inputs, **fixed, **options))
        assert torch.equal(*outputs), options

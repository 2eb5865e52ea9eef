"""GPT-2 with a gist mask: what a token sees, and that caches and padding do not change it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel

from mentalese import InputError
from mentalese.families.baselines.gist import GPT2GistConfig, GPT2GistLMHeadModel, gist_mask
from mentalese.models.base import count_parameters
from mentalese.models.cache import ThoughtCache

PAD, BOS, EOS, EOD = 0, 1, 2, 3
SIZES = {"vocab_size": 40, "n_positions": 64, "n_embd": 32, "n_head": 4, "initializer_range": 0.2}
SIZES |= {"bos_token_id": EOD, "eos_token_id": EOD, "pad_token_id": PAD}
IDS = torch.tensor([[BOS, 10, 11, EOS, BOS, 12, EOS, BOS, 13, 14, 15]])


def build(layers: int = 2, **options: object) -> GPT2GistLMHeadModel:
    torch.manual_seed(0)
    config = GPT2GistConfig(n_layer=layers, sentence_end_token_id=EOS, **SIZES, **options)
    return GPT2GistLMHeadModel(config).eval()


def random_streams(rows: int, length: int) -> Tensor:
    """Tokens of which every fourth or so ends a sentence."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(10, 40, (rows, length), generator=generator)
    return ids.masked_fill(torch.rand(rows, length, generator=generator) < 0.25, EOS)


def test_a_token_sees_its_sentence_and_the_ends_of_earlier_ones() -> None:
    ends = torch.tensor([[False, False, True, False, True, False, False, False]])
    padding = torch.tensor([[0, 1, 1, 1, 1, 1, 1, 1]])
    seen = [
        "x.......",  # padding sees itself alone
        ".x......",
        ".xx.....",  # an end sees its sentence
        "..xx....",
        "..xxx...",
        "..x.xx..",
        "..x.xxx.",
        "..x.xxxx",
    ]
    expected = torch.tensor([[mark == "x" for mark in row] for row in seen])
    assert torch.equal(gist_mask(ends, padding, 8)[0, 0], expected)
    assert torch.equal(gist_mask(ends, padding, 3)[0, 0], expected[-3:])
    assert torch.equal(gist_mask(ends, None, 8)[0, 0, 2:, 1:], expected[2:, 1:])


def test_one_layer_carries_nothing_between_sentences() -> None:
    """The first layer's keys and values at an EOS are the marker's own; from the second on they hold its sentence."""
    changed = IDS.clone()
    changed[0, 1] = 20
    for layers in (1, 2):
        model = build(layers)
        before, after = model(IDS).logits[0], model(changed).logits[0]
        assert torch.equal(before[0], after[0])
        assert not torch.allclose(before[1:4], after[1:4], atol=1e-2)
        assert torch.equal(before[4:], after[4:]) == (layers == 1)


def test_earlier_sentences_act_only_through_their_end_states() -> None:
    model = build(layers=3)
    changed = IDS.clone()
    changed[0, 2] = 20
    states: list[Tensor] = []
    hooks = [
        block.register_forward_hook(lambda _, inputs, output: states.append(output)) for block in model.transformer.h
    ]
    before = model(IDS).logits[0]
    for hook in hooks:
        hook.remove()

    def hold(layer: int) -> None:
        def put(_: object, inputs: object, output: Tensor) -> Tensor:
            return output.index_copy(1, torch.tensor([3]), states[layer][:, [3]])

        model.transformer.h[layer].register_forward_hook(put)

    assert not torch.allclose(before[4:], model(changed).logits[0, 4:], atol=1e-3)
    for layer in range(3):
        hold(layer)
    assert torch.equal(before[4:], model(changed).logits[0, 4:])


def test_within_one_sentence_it_is_gpt2() -> None:
    model = build()
    plain = GPT2LMHeadModel(GPT2Config(n_layer=2, **SIZES)).eval()
    plain.load_state_dict(model.state_dict())
    assert count_parameters(plain) == count_parameters(model)
    ids = random_streams(3, 20)
    torch.testing.assert_close(model(ids).logits[:, :1], plain(ids).logits[:, :1])
    assert not torch.allclose(model(ids).logits, plain(ids).logits, atol=1e-2)
    ids[ids == EOS] = 10
    torch.testing.assert_close(model(ids).logits, plain(ids).logits)


@pytest.mark.parametrize("sizes", [[1] * 24, [9, 1, 8, 6], [23, 1]], ids=str)
def test_a_stream_read_in_parts_is_the_stream_read_at_once(sizes: list[int]) -> None:
    """Left-padded rows whose sentences end at different times."""
    model, ids = build(), random_streams(4, 24)
    mask = torch.ones_like(ids)
    for row, padding in enumerate((0, 3, 8, 5)):
        ids[row, :padding], mask[row, :padding] = PAD, 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    whole = model(ids, attention_mask=mask, position_ids=positions).logits
    cache, parts, start = ThoughtCache(2), [], 0
    for size in sizes:
        end = start + size
        part = model(
            ids[:, start:end], attention_mask=mask[:, :end], position_ids=positions[:, start:end], past_key_values=cache
        )
        parts.append(part.logits)
        start = end
    assert cache.get_seq_length() == 24
    real = mask.bool()
    torch.testing.assert_close(torch.cat(parts, dim=1)[real], whole[real], atol=1e-5, rtol=1e-5)
    for row in range(4):
        alone = model(ids[row, real[row]][None]).logits[0]
        torch.testing.assert_close(whole[row, real[row]], alone, atol=1e-5, rtol=1e-5)


def test_a_call_that_makes_its_own_cache_can_be_gone_on_from() -> None:
    model, ids = build(), random_streams(2, 12)
    first = model(ids[:, :7], use_cache=True)
    second = model(ids[:, 7:], past_key_values=first.past_key_values)
    torch.testing.assert_close(second.logits, model(ids).logits[:, 7:], atol=1e-5, rtol=1e-5)


def test_eager_attention_is_masked_too() -> None:
    model, ids = build(), random_streams(3, 20)
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    torch.testing.assert_close(eager(ids).logits, model(ids).logits, atol=1e-5, rtol=1e-5)


def test_what_cannot_be_masked_is_refused() -> None:
    model = build()
    with pytest.raises(InputError, match="input_ids is None"):
        model(inputs_embeds=torch.zeros(1, 2, 32))
    with pytest.raises(InputError, match="position_ids begin again within a row"):
        model(IDS, position_ids=torch.arange(IDS.shape[1]).remainder(2)[None])
    with pytest.raises(InputError, match=r"(cache|past_key_values) is a DynamicCache: .* needs a ThoughtCache"):
        model(IDS, past_key_values=DynamicCache())
    with pytest.raises(InputError, match=r"^cache_implementation is 'static': GPT2GistLMHeadModel has no such cache"):
        model.generate(IDS, max_new_tokens=2, cache_implementation="static")
    for unmasked in ("flex_attention", "flash_attention_2"):
        with pytest.raises(ValueError, match="does not support"):
            model.set_attn_implementation(unmasked)

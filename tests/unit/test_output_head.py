"""Logits of transformers' decoders that cap, scale or shift them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoConfig, AutoModelForCausalLM

from mentalese.errors import InputError
from mentalese.models.backbone import output_head_of
from mentalese.models.base import as_model

SIZES = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
NO_ENDS = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
PLAIN: dict[str, dict[str, Any]] = {"gpt2": {}, "llama": {}, "opt": {"ffn_dim": 32} | NO_ENDS}
CHANGED: dict[str, dict[str, Any]] = {
    "cohere": {"logit_scale": 3.0} | NO_ENDS,
    "gemma2": {"head_dim": 4, "final_logit_softcapping": 0.1},
    "granite": {"logits_scaling": 0.2},
    "gptj": {"rotary_dim": 4},
}


def decoder(kind: str) -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **SIZES | (PLAIN | CHANGED)[kind])
    model = AutoModelForCausalLM.from_config(config).eval()
    if kind == "gptj":
        torch.nn.init.normal_(model.lm_head.bias)
    return model


@pytest.mark.parametrize("kind", [*PLAIN, *CHANGED])
def test_loss_and_gradients_are_those_of_own_logits(kind: str) -> None:
    plain, model, ids = decoder(kind), decoder(kind), torch.arange(2, 26).view(2, 12)
    logits = plain(ids).logits
    expected = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    expected.backward()
    batch = {"input_ids": ids, "labels": ids}
    loss = as_model(model).training_loss(batch).loss
    loss.backward()
    torch.testing.assert_close(loss, expected)
    for name, weights in plain.named_parameters():
        torch.testing.assert_close(model.get_parameter(name).grad, weights.grad)
    torch.testing.assert_close(model.output_head()(model.final_hidden_states(batch)), logits)
    surprisal = model.traces(batch)[1].scores["surprisal"]
    torch.testing.assert_close(surprisal[1:], model.token_nll(batch)[1, 1:])


@pytest.mark.parametrize("kind", [*PLAIN, *CHANGED])
def test_only_changed_logits_need_a_call_of_the_decoder(kind: str) -> None:
    model = decoder(kind)
    own = output_head_of(model) is not model.get_output_embeddings()
    assert own == (kind in CHANGED and kind != "gptj")
    assert not own or not list(output_head_of(model).parameters()), "weights have one name"


def test_a_decoder_with_a_head_elsewhere_is_refused() -> None:
    config = AutoConfig.for_model("bert", is_decoder=True, intermediate_size=16, **SIZES)
    with pytest.raises(InputError, match="BertLMHeadModel has no output embedding next to its layers"):
        as_model(AutoModelForCausalLM.from_config(config))


@pytest.mark.parametrize("kind", ["electra", "xlnet", "xlm", "gemma3_text"])
def test_a_model_that_reads_later_tokens_is_refused(kind: str) -> None:
    fields = {"use_bidirectional_attention": True} if kind == "gemma3_text" else {}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **fields))
    with pytest.raises(InputError, match=r"reads later tokens, so that its scores are not likelihoods"):
        as_model(model)


@pytest.mark.parametrize("kind", ["rwkv", "xlstm", "bart", "marian"])
def test_a_model_that_reads_padding_is_refused(kind: str) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind))
    with pytest.raises(InputError, match=r"ForCausalLM reads padding"):
        as_model(model)


def test_a_decoder_without_heads_has_a_cost() -> None:
    with torch.device("meta"):
        model = as_model(AutoModelForCausalLM.from_config(AutoConfig.for_model("mamba", num_hidden_layers=2)))
    assert model.forward_flops({"input_ids": torch.ones(1, 8)}) > 16 * model.output_weight().numel()


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_old_fields_of_a_decoder_do_not_make_it_an_encoder(kind: str) -> None:
    config = AutoConfig.for_model(kind, is_decoder=False, add_cross_attention=False, intermediate_size=16, **SIZES)
    assert as_model(AutoModelForCausalLM.from_config(config)).estimators[0] == "exact"

"""Text comes from Hugging Face's `generate`, the same for many prompts as for one, in full or piece by piece."""

from __future__ import annotations

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from mentalese import cli
from mentalese.data.tokenizers import special_token_ids
from mentalese.errors import InputError
from mentalese.models.base import LanguageModel, as_model
from mentalese.models.generation import generate_text, stream_text
from support import metaspace_tokenizer, opened

PROMPTS = ["A dog", "Once upon a time there was", "x", "The function returns a list"]


@pytest.fixture(scope="module")
def model(tokenizer: PreTrainedTokenizerFast) -> LanguageModel:
    """Untied and with large weights: a tied random model would repeat one token, whatever the prompt."""
    torch.manual_seed(0)
    special = special_token_ids(tokenizer)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=64, n_embd=32, n_layer=2, n_head=4, initializer_range=0.3,
        tie_word_embeddings=False, **{name: special[name] for name in ("pad_token_id", "bos_token_id", "eos_token_id")},
    )  # fmt: skip
    return as_model(GPT2LMHeadModel(config)).eval()


def test_many_prompts_give_what_each_gives_alone(model: LanguageModel, tokenizer: PreTrainedTokenizerFast) -> None:
    together = generate_text(opened(model, tokenizer), PROMPTS, max_new_tokens=20)
    alone = [generate_text(opened(model, tokenizer), [prompt], max_new_tokens=20)[0] for prompt in PROMPTS]
    in_batches = generate_text(opened(model, tokenizer), PROMPTS, max_new_tokens=20, batch_size=3)
    assert together == alone == in_batches
    for prompt, text in zip(PROMPTS, together):
        assert text.startswith(prompt)
        assert len(text) > len(prompt)
    assert len(set(together)) == len(PROMPTS)


def test_sampling_is_seeded_and_keeps_global_randomness(
    model: LanguageModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    def sample(seed: int) -> list[str]:
        return generate_text(opened(model, tokenizer), PROMPTS, max_new_tokens=12, seed=seed, do_sample=True)

    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    assert sample(1) == sample(1)
    assert torch.equal(torch.rand(3), expected)
    assert sample(1) != sample(2)


def test_hugging_faces_own_options_pass_through(model: LanguageModel, tokenizer: PreTrainedTokenizerFast) -> None:
    options = {"max_new_tokens": 8, "num_beams": 3, "num_return_sequences": 2}
    texts = generate_text(opened(model, tokenizer), PROMPTS[:2], **options)
    assert len(texts) == 4
    assert [text.startswith(PROMPTS[i // 2]) for i, text in enumerate(texts)] == [True] * 4


def test_the_model_generates_in_eval_mode_and_gets_its_mode_back(
    model: LanguageModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    expected = generate_text(opened(model, tokenizer), PROMPTS, max_new_tokens=8)
    model.train()
    assert generate_text(opened(model, tokenizer), PROMPTS, max_new_tokens=8) == expected  # no dropout
    assert model.training
    model.eval()


def test_no_prompts_give_no_texts(model: LanguageModel, tokenizer: PreTrainedTokenizerFast) -> None:
    assert generate_text(opened(model, tokenizer), []) == []


@pytest.mark.parametrize("make", [generate_text, lambda saved, prompts, **k: stream_text(saved, prompts[0], **k)])
def test_a_prompt_longer_than_the_context_is_refused(make, model, tokenizer) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=r"has 61 tokens and max_new_tokens is 4: the model's context is 64"):
        make(opened(model, tokenizer), ["y" * 60], max_new_tokens=4)
    make(opened(model, tokenizer), ["y" * 59], max_new_tokens=4)


def test_an_empty_prompt_is_refused_by_its_place(model: LanguageModel, tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(InputError, match=r"prompts\[2\] is ' '"):
        generate_text(opened(model, tokenizer), ["a", "b", " "], batch_size=1)


def test_no_new_tokens_are_refused(model: LanguageModel, tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(InputError, match="max_new_tokens is 0"):
        generate_text(opened(model, tokenizer), ["a"], max_new_tokens=0)


def test_pieces_of_a_stream_make_the_whole_text(model: LanguageModel, tokenizer: PreTrainedTokenizerFast) -> None:
    allowed = set(tokenizer("abcdef ")["input_ids"])  # words: a piece ends at a space
    banned = [i for i in range(len(tokenizer)) if i not in allowed]
    options = {"max_new_tokens": 40, "seed": 3, "do_sample": True, "suppress_tokens": banned}
    pieces = list(stream_text(opened(model, tokenizer), PROMPTS[0], **options))
    assert PROMPTS[0] + "".join(pieces) == generate_text(opened(model, tokenizer), PROMPTS[:1], **options)[0]
    assert len(pieces) > 1


def test_space_after_a_prompt_survives_the_tokenizer() -> None:
    tokenizer = metaspace_tokenizer()
    plain = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_layer=1, n_head=2, n_positions=64))
    only = {
        "suppress_tokens": [
            number for number in range(len(tokenizer)) if number != tokenizer.convert_tokens_to_ids("▁of")
        ]
    }
    (text,) = generate_text(opened(plain, tokenizer), ["the son"], max_new_tokens=2, **only)
    assert text == "the son of of"
    pieces = stream_text(opened(plain, tokenizer), "the son", max_new_tokens=2, **only)
    assert "".join(pieces) == " of of"


def test_checkpoints_beams_are_used_until_switched_off(
    model: LanguageModel,
    tokenizer: PreTrainedTokenizerFast,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    saved = opened(model, tokenizer)
    one, several = (generate_text(saved, ["A dog"], max_new_tokens=8, num_beams=beams)[0] for beams in (1, 3))
    assert one != several
    monkeypatch.setattr(model.generation_config, "num_beams", 3)
    monkeypatch.setattr("mentalese.models.saved.load", lambda *_, **__: saved)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for options, text in (([], several), (["--num-beams", "1"], one)):
        assert cli.main(["generate", "model", "--prompt", "A dog", "--max-new-tokens", "8", *options]) == 0
        assert capsys.readouterr().out == f"{text}\n"


def test_an_error_while_streaming_reaches_the_reader(model: LanguageModel, tokenizer: PreTrainedTokenizerFast) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("broken on purpose")

    handle = model.transformer.h[0].register_forward_hook(fail)
    try:
        with pytest.raises(RuntimeError, match="broken on purpose"):
            list(stream_text(opened(model, tokenizer), "A dog"))
    finally:
        handle.remove()


def test_a_reader_that_leaves_stops_the_model(model: LanguageModel, tokenizer: PreTrainedTokenizerFast) -> None:
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1

    handle = model.transformer.h[0].register_forward_hook(count)
    try:
        pieces = stream_text(opened(model, tokenizer), "A dog", max_new_tokens=50)
        next(pieces)
        pieces.close()
        seen = steps
        assert generate_text(opened(model, tokenizer), ["A dog"], max_new_tokens=2)  # nobody else is generating
        assert steps == seen + 2
    finally:
        handle.remove()

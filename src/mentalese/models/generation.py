"""Generation of text by Hugging Face's `generate`: many prompts at once, or one prompt piece by piece."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from transformers import GenerationConfig, PreTrainedTokenizerBase, TextIteratorStreamer

from mentalese.data.batch import Batch
from mentalese.data.tokenizers import (
    LONGEST_CHARACTER,
    MASK,
    decode,
    decode_after,
    last_character,
    special_ids,
    special_token_ids,
)
from mentalese.errors import InputError, require
from mentalese.models.base import LanguageModel, evaluation_mode
from mentalese.models.build import context_length
from mentalese.models.text_tokenizer import mask_token_id
from mentalese.values import NonNegative, NonNegativeNumber, Positive, checked, shown, temporarily

if TYPE_CHECKING:
    from mentalese.models.saved import Saved


def generate_text(saved: Saved, prompts: Sequence[str], *, max_new_tokens: int = 40, **options: Any) -> list[str]:
    """Return each prompt with its continuation, see `Saved.generate`."""
    texts, fills = [], mask_token_id(saved.model) is not None
    for number, ids, length in continuations(saved, prompts, max_new_tokens=max_new_tokens, **options):
        prompt = prompts[number]
        filled = fills and MASK in prompt
        begins = decode(ids[:length], saved.tokenizer) if filled else saved.prompt_text(prompt)
        texts.append(begins + decode_after(ids, length, saved.tokenizer))
    return texts


def continuations(
    saved: Saved,
    prompts: Sequence[str],
    *,
    max_new_tokens: int,
    seed: int = 0,
    batch_size: int = 32,
    cut: bool = False,
    **options: Any,
) -> Iterator[tuple[int, torch.Tensor, int]]:
    """Yield the rows that `generate_text` decodes: prompt number, tokens [length], place of the first new token.

    With `cut`, prompts that leave no room for the new tokens lose their first ones, and are not refused.
    """
    if not prompts:
        return
    check_settings(max_new_tokens=max_new_tokens, seed=seed, batch_size=batch_size, **options)
    model = saved.model
    everything = _encode(saved, prompts, max_new_tokens, cut=cut)
    options = _options(saved, max_new_tokens, options)
    with seeded(model, seed):
        for start in range(0, len(prompts), batch_size):
            rows = {name: tensor[start : start + batch_size] for name, tensor in everything.items()}
            length = int(rows["attention_mask"].sum(1).max())
            rows = {name: tensor[:, -length:].to(model.device) for name, tensor in rows.items()}
            with _refusals():
                output = model.generate(**rows, **options)
            each = len(output) // len(rows["input_ids"])
            for i, ids in enumerate(output):
                yield start + i // each, ids, length


def stream_text(
    saved: Saved, prompt: str, *, max_new_tokens: int = 40, seed: int = 0, **options: Any
) -> Generator[str, None, None]:
    """Yield the new text after `prompt`, see `Saved.stream`; errors of generation come at the piece that they break."""
    remedy = "the pieces are returned here, remove it, or call generate instead"
    require("streamer" not in options, "streamer", options.get("streamer"), remedy)
    check_settings(max_new_tokens=max_new_tokens, seed=seed, **options)
    batch = _encode(saved, [prompt], max_new_tokens)
    return _stream(saved, batch, seed, _options(saved, max_new_tokens, options))


class _Streamer(TextIteratorStreamer):
    """A streamer that decodes new text after the character before it, as `decode_after`.

    transformers decodes each line by itself.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.markers = special_ids(tokenizer)
        self.recent: list[int] = []

    def put(self, value: torch.Tensor) -> None:
        """Receive the prompt first, then the new tokens."""
        new = [i for i in value.flatten().tolist() if i not in self.markers]
        self.recent = [*self.recent, *new][-LONGEST_CHARACTER:]
        super().put(value)
        if not self.token_cache:
            self.token_cache = last_character(self.recent, self.tokenizer)
            self.print_len = len(decode(self.token_cache, self.tokenizer))


def _stream(saved: Saved, batch: Batch, seed: int, options: dict[str, Any]) -> Generator[str, None, None]:
    model, tokenizer = saved.model, saved.tokenizer
    streamer = _Streamer(tokenizer)
    closed = threading.Event()
    errors: list[BaseException] = []

    def stop(input_ids: torch.Tensor, scores: object, **kwargs: object) -> torch.Tensor:
        return torch.full((input_ids.shape[0],), closed.is_set(), device=input_ids.device)

    def run() -> None:
        try:
            with seeded(model, seed), _refusals():
                rows = {name: tensor.to(model.device) for name, tensor in batch.items()}
                model.generate(**rows, **options, streamer=streamer)
        except BaseException as error:
            errors.append(error)
        finally:
            streamer.text_queue.put(streamer.stop_signal)  # otherwise the reader would wait forever after an error

    options["stopping_criteria"] = [*options.get("stopping_criteria", ()), stop]
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield from streamer
    finally:
        closed.set()
        thread.join()
    if errors:
        raise errors[0]


def _encode(saved: Saved, prompts: Sequence[str], max_new_tokens: int, *, cut: bool = False) -> Batch:
    """Return left-padded prompts that fit the context with `max_new_tokens` to come, or are `cut` to."""
    mask = mask_token_id(saved.model)
    filled = mask is not None and all(MASK in prompt for prompt in prompts)
    least = 0 if filled else 1
    require(max_new_tokens >= least, "max_new_tokens", max_new_tokens, f"set at least {least}")
    batch = saved.encode_prompts(prompts)
    context = context_length(saved.model.config)
    lengths = batch["attention_mask"].sum(1)
    longest = int(lengths.argmax())
    if context is not None and int(lengths[longest]) + max_new_tokens > context:
        if cut and max_new_tokens < context:
            return {name: tensor[:, max_new_tokens - context :] for name, tensor in batch.items()}
        raise InputError(
            f"the prompt {shown(prompts[longest])} has {int(lengths[longest])} tokens and max_new_tokens is "
            f"{max_new_tokens}: the model's context is {context}, shorten the prompt or set fewer tokens"
        )
    return batch


def _options(saved: Saved, max_new_tokens: int, asked: dict[str, object]) -> dict[str, Any]:
    model, tokenizer = saved.model, saved.tokenizer
    special = special_token_ids(tokenizer, sentences=False)
    words = asked.get("stop_strings") or model.generation_config.stop_strings
    return {
        "max_new_tokens": max_new_tokens,
        "return_dict_in_generate": False,  # whatever the model's own generation settings are
        **stops(model, special),
        **({"tokenizer": tokenizer} if words else {}),
        **asked,
    }


def stops(model: LanguageModel, special: Mapping[str, int]) -> dict[str, object]:
    """Return keywords of `generate`: the padding, and `stop_tokens`."""
    return {"pad_token_id": special["pad_token_id"], "eos_token_id": stop_tokens(model, special)}


def stop_tokens(model: LanguageModel, special: Mapping[str, int]) -> list[int]:
    """Return every token at which generation stops: ends of a text in the model and in `Layout.special_ids`."""
    return sorted({*ends(model), special["eos_token_id"]})


def ends(model: LanguageModel) -> list[int]:
    """Return the tokens at which the model's end settings end a text."""
    end = model.generation_config.eos_token_id
    return [] if end is None else end if isinstance(end, list) else [end]


def plainly(model: LanguageModel) -> AbstractContextManager[None]:
    """Leave out a checkpoint's own generation settings (a repetition penalty, cuts, beams) while the block runs.

    Tokens that the model never writes stay so.
    """
    own = model.generation_config
    return temporarily(model, generation_config=GenerationConfig(suppress_tokens=own.suppress_tokens))


_SETTINGS = {
    "max_new_tokens": NonNegative,
    "batch_size": Positive,
    "seed": NonNegative,
    "num_beams": Positive,
    "num_return_sequences": Positive | None,
    "top_k": NonNegative | None,
    "temperature": NonNegativeNumber | None,
    "top_p": NonNegativeNumber | None,
    "do_sample": bool | None,
}
"""Settings whose types transformers compares before it checks them."""
WHOLE_DISTRIBUTION: dict[str, object] = {"do_sample": True, "top_k": 0, "top_p": 1.0}
"""Settings that switch sampling's cuts off, whatever the model's own settings are."""
_REFUSED = (
    *("inputs", "input_ids", "inputs_embeds", "attention_mask", "max_length", "tokenizer", "generation_config"),
    *("return_dict_in_generate", "output_scores", "output_logits", "output_attentions", "output_hidden_states"),
)
"""Keywords of transformers' `generate` for calls with tokens, which return tokens, and all settings as one object."""


def check_settings(**settings: object) -> None:
    """Raise `InputError` for a setting of a wrong type or range, or one of calls with tokens."""
    for name, value in settings.items():
        if name in _REFUSED and value is not False:
            remedy = "remove it, or call saved.model.generate with saved.encode(texts)"
            raise InputError(f"{name} is {shown(value)}: texts are passed and returned here, {remedy}", name)
        if name in _SETTINGS:
            checked(name, _SETTINGS[name], value)


@contextmanager
def _refusals() -> Iterator[None]:
    """Raise transformers' refusal of a setting, and torch's of a model whose logits are NaN, as an `InputError`."""
    try:
        yield
    except InputError:
        raise
    except RuntimeError as error:
        if "probability tensor" not in str(error):
            raise
        raise FloatingPointError("the model's probabilities are not finite: its weights are damaged") from error
    except ValueError as error:
        raise InputError(f"generate refused its settings: {' '.join(str(error).split())}") from error


@contextmanager
def seeded(model: LanguageModel, seed: int) -> Iterator[None]:
    """Set eval mode and a separate random generator inside the block, so that training around it is undisturbed."""
    devices = [model.device] if model.device.type == "cuda" else []
    with evaluation_mode(model), torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield

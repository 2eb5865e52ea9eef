"""Checks of a model's arguments: one message for every wrong type, shape and range."""

from __future__ import annotations

import torch
from torch import Tensor

from mentalese.errors import InputError
from mentalese.models.text_tokenizer import mask_token_id
from mentalese.models.transformers_seam import TypedModel
from mentalese.nn.loss import IGNORED


def check_tokens(input_ids: object, model: TypedModel) -> Tensor:
    """Return token ids [batch, length] as int64.

    Raises:
        InputError: not a tensor of integers, a wrong shape, no tokens, or ids that the model's embedding does not have.
    """
    ids = _integers("input_ids", input_ids, "pass token ids [batch, length]")
    if ids.ndim != 2 or not ids.numel():
        raise InputError(f"input_ids has the shape {list(ids.shape)}: pass [batch, length], at least one token")
    rows = getattr(model.get_input_embeddings(), "num_embeddings", None)  # a tool may have replaced the embedding
    if rows is not None:
        _check_range("input_ids", ids, 0, max(rows, (mask_token_id(model) or 0) + 1) - 1)
    return ids


def check_mask(attention_mask: object, input_ids: Tensor, seen: int) -> None:
    """Raise `InputError` for a mask that is not of 0 and 1, of the shape [batch, `seen` tokens in a cache + length]."""
    if attention_mask is None:
        return
    if isinstance(attention_mask, Tensor) and attention_mask.dtype == torch.bool:
        attention_mask = attention_mask.long()
    remedy = "pass integers or truth values [batch, length], 1 at tokens and 0 at padding"
    mask = _integers("attention_mask", attention_mask, remedy)
    if mask.ndim != 2 or len(mask) != len(input_ids):
        raise InputError(f"attention_mask has the shape {list(mask.shape)}: {remedy}")
    check_width(mask, seen + input_ids.shape[1])
    _check_range("attention_mask", mask, 0, 1)


def check_width(attention_mask: Tensor, width: int) -> None:
    """Raise `InputError` for a mask without exactly one column for each token read so far."""
    columns = attention_mask.shape[1]
    if columns != width:
        raise InputError(f"attention_mask has {columns} columns: pass {width}, one for each token read so far")


def check_positions(position_ids: object, attention_mask: Tensor | None) -> None:
    """Raise `InputError` if positions begin again within a row, by which other models separate texts packed in it.

    Unlike the other checks it waits for a GPU: few calls with more than one token have `position_ids`.
    """
    if not isinstance(position_ids, Tensor) or position_ids.shape[-1] < 2:
        return
    if position_ids.is_meta or torch.compiler.is_compiling():  # neither has values to read
        return
    falls = position_ids.diff(dim=-1) < 0
    if attention_mask is not None:  # padding has any position
        tokens = attention_mask[:, -position_ids.shape[-1] :] > 0
        falls = falls & tokens[:, 1:] & tokens[:, :-1]
    if falls.any():
        raise InputError(
            "position_ids begin again within a row, as of several texts packed in it, and this model would read them "
            "as one: pass each text in a row of its own, with attention_mask for padding"
        )


def check_labels(labels: object, input_ids: Tensor, vocabulary: int) -> Tensor | None:
    """Return labels [batch, length] as int64; raise `InputError` if they are neither tokens of the head nor -100."""
    if labels is None:
        return None
    ids = _integers("labels", labels, f"pass token ids [batch, length], {IGNORED} where there is none")
    if ids.shape != input_ids.shape:
        raise InputError(f"labels have the shape {list(ids.shape)}: pass {list(input_ids.shape)}, as input_ids")
    _check_range("labels", ids.masked_fill(ids == IGNORED, 0), 0, vocabulary - 1)
    return ids


def check_kept(logits_to_keep: object, length: int) -> None:
    """Raise `InputError` for `logits_to_keep` that is neither a number of the last columns nor indices of columns."""
    if isinstance(logits_to_keep, int) and logits_to_keep >= 0:
        return
    columns = _integers("logits_to_keep", logits_to_keep, "set 0 for all, a number of the last columns, or indices [m]")
    _check_range("logits_to_keep", columns, -length, length - 1)


def _integers(name: str, value: object, remedy: str) -> Tensor:
    """Return a tensor of integers as int64."""
    if isinstance(value, Tensor) and value.dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        return value.long()
    kind = value.dtype if isinstance(value, Tensor) else f"{value!r:.40}"
    raise InputError(f"{name} is {kind}, and not a tensor of integers: {remedy}")


def _check_range(name: str, values: Tensor, least: int, most: int) -> None:
    """Refuse a value out of range; skip values on a GPU, which would have to wait, and in tracers."""
    if values.device.type != "cpu" or torch.compiler.is_compiling() or not values.numel():
        return
    low, high = (int(value) for value in values.aminmax())
    if low < least or high > most:
        raise InputError(f"{name} contains {low if low < least else high}: pass values from {least} to {most}")

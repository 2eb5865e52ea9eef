"""Checks of a model's arguments: one message for every wrong shape, type and range."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mentalese.errors import InputError, require
from mentalese.models.text_tokenizer import mask_token_id
from mentalese.nn.loss import IGNORED


def check_tokens(input_ids: Any, model: Any) -> Tensor:
    """Return token ids [batch, length] as int64.

    Args:
        model: the model that reads the tokens: each is a row of its embedding, or its mask.

    Raises:
        InputError: not a tensor of integers, a wrong shape, no tokens, or ids out of range.
    """
    ids = _integers("input_ids", input_ids, "pass a tensor of token ids [batch, length]")
    if ids.ndim != 2:
        raise InputError(f"input_ids has the shape {list(ids.shape)}: pass [batch, length], two dimensions")
    if not ids.numel():
        raise InputError(f"input_ids has the shape {list(ids.shape)}: pass at least one token")
    vocabulary = _vocabulary(model)
    if vocabulary is not None and (wrong := _outside(ids, 0, vocabulary - 1)) is not None:
        raise InputError(
            f"input_ids contains {wrong}: pass ids from 0 to {vocabulary - 1}, those of the model's tokens"
        )
    return ids


def _vocabulary(model: Any) -> int | None:
    """Return the number of valid ids; `None` if a tool has replaced the embedding."""
    rows, mask = getattr(model.get_input_embeddings(), "num_embeddings", None), mask_token_id(model)
    return rows if rows is None or mask is None else max(rows, mask + 1)


def check_mask(attention_mask: Any, input_ids: Tensor, seen: int) -> None:
    """Check the mask of a call with `seen` tokens before it in a cache.

    Raises:
        InputError: not a tensor of integers or truth values, not of the shape [batch, all tokens so far], or values
            other than 0 and 1.
    """
    if attention_mask is None:
        return
    remedy = "pass integers or truth values [batch, length], 1 at tokens and 0 at padding"
    if not isinstance(attention_mask, Tensor):
        raise InputError(f"attention_mask is a {type(attention_mask).__name__}: {remedy}")
    rows, length = input_ids.shape
    if attention_mask.ndim != 2:
        raise InputError(f"attention_mask has the shape {list(attention_mask.shape)}: {remedy}")
    if len(attention_mask) != rows:
        raise InputError(f"attention_mask has {len(attention_mask)} rows: pass {rows}, one for each of input_ids")
    check_width(attention_mask, seen + length)
    if attention_mask.dtype == torch.bool:
        return
    if (wrong := _outside(_integers("attention_mask", attention_mask, remedy), 0, 1)) is not None:
        raise InputError(f"attention_mask contains {wrong}: {remedy}")


def check_width(attention_mask: Tensor, width: int) -> None:
    """Raise `InputError` for a mask without exactly one column for each token read so far."""
    if attention_mask.shape[1] != width:
        raise InputError(
            f"attention_mask has {attention_mask.shape[1]} columns: pass {width}, one for each token read so far"
        )


def check_labels(labels: Any, input_ids: Tensor, vocabulary: int) -> Tensor | None:
    """Return labels [batch, length] as int64.

    Args:
        vocabulary: number of tokens that the head predicts.

    Raises:
        InputError: not a tensor of integers, not of the shape of the tokens, or values that are neither a token nor
            -100.
    """
    if labels is None:
        return None
    labels = _integers("labels", labels, f"pass a tensor of token ids [batch, length], {IGNORED} where there is none")
    if labels.shape != input_ids.shape:
        raise InputError(f"labels have the shape {list(labels.shape)}: pass {list(input_ids.shape)}, that of input_ids")
    if (wrong := _outside(labels.masked_fill(labels == IGNORED, 0), 0, vocabulary - 1)) is not None:
        raise InputError(f"labels contain {wrong}: pass ids from 0 to {vocabulary - 1}, or {IGNORED} for no label")
    return labels


def check_kept(logits_to_keep: Any, length: int) -> None:
    """Raise `InputError` for `logits_to_keep` that names no columns."""
    if isinstance(logits_to_keep, int):
        require(logits_to_keep >= 0, "logits_to_keep", logits_to_keep, "set 0 for all, or how many of the last")
        return
    columns = _integers("logits_to_keep", logits_to_keep, "set a number of the last columns, or a tensor of indices")
    if columns.ndim != 1 or (columns.numel() and _outside(columns, -length, length - 1) is not None):
        raise InputError(f"logits_to_keep is {columns.tolist()}: pass indices [m] of the {length} columns")


def _integers(name: str, value: Any, remedy: str) -> Tensor:
    """Return the tensor as int64."""
    if not isinstance(value, Tensor):
        raise InputError(f"{name} is a {type(value).__name__}: {remedy}")
    if value.dtype.is_floating_point or value.dtype.is_complex or value.dtype == torch.bool:
        raise InputError(f"{name} is of type {value.dtype}: {remedy}")
    return value.long()


def _outside(values: Tensor, least: int, most: int) -> int | None:
    """Return a value out of range, if there is one; skip values on a GPU, which would have to wait, and in tracers."""
    if values.device.type != "cpu" or torch.compiler.is_compiling() or not values.numel():
        return None
    low, high = (int(value) for value in values.aminmax())
    return low if low < least else high if high > most else None

"""Prompts as token ids: shared by the layouts, which say what comes around a text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING

import numpy as np
import torch

from mentalese.data.batch import Batch
from mentalese.data.config import DataConfig
from mentalese.data.sentences import SentenceEncoder, cut_and_merge
from mentalese.data.tokenizers import MASK, corpus_encoder, special_token_ids
from mentalese.errors import InputError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase


def check_prompts(texts: Sequence[str], *, whole_sentences: bool) -> None:
    """Raises `InputError` for a prompt without text, not in Unicode, or with masks if only whole sentences are read."""
    for index, text in enumerate(texts):
        if not text.strip():
            raise InputError(f"prompts[{index}] is {text!r}: use a prompt with some text")
        try:
            text.encode()
        except UnicodeEncodeError as error:  # a terminal's bytes that are not UTF-8
            raise InputError(f"prompts[{index}] is not Unicode (at character {error.start}): use UTF-8") from None
        if whole_sentences and MASK in text:
            raise InputError(f"prompts[{index}] contains {MASK}: this model reads whole sentences; remove the mask")


def pad_left(rows: Sequence[Sequence[int]], pad: int) -> Batch:
    """`input_ids` and `attention_mask`, int64 [rows, longest]."""
    ids = torch.full((len(rows), max(map(len, rows))), pad)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, -len(row) :] = torch.tensor(row)
        mask[i, -len(row) :] = 1
    return {"input_ids": ids, "attention_mask": mask}


def text_ids(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, mask_token_id: int | None = None
) -> list[list[int]]:
    """Token ids of texts; `<|mask|>` becomes `mask_token_id`, with the spaces before it, unless that is `None`."""
    backend = corpus_encoder(tokenizer)
    return [_masked_ids(text, backend, mask_token_id) for text in texts]


def _masked_ids(text: str, backend: Tokenizer, mask_token_id: int | None) -> list[int]:
    if mask_token_id is None:
        return backend.encode(text, add_special_tokens=False).ids
    *before, last = text.split(MASK)
    pieces = [backend.encode(piece.rstrip(" "), add_special_tokens=False).ids for piece in before]
    masked = list(chain.from_iterable([*piece, mask_token_id] for piece in pieces))
    return masked + backend.encode(last, add_special_tokens=False).ids


def open_sentences(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, data: DataConfig) -> list[list[int]]:
    """Each text as `BOS .. EOS BOS ..`, its sentences as in the store; the last one is left open, so that the model
    decides whether it continues."""
    encoder, special = SentenceEncoder(tokenizer, data), special_token_ids(tokenizer)
    bos, eos = special["sentence_start_token_id"], special["sentence_end_token_id"]
    return [_open_sentences(text, encoder, bos, eos) for text in texts]


def _open_sentences(text: str, encoder: SentenceEncoder, bos: int, eos: int) -> list[int]:
    pieces = [encoder.backend.encode(piece, add_special_tokens=False).ids for piece in encoder.split(text)]
    ids = list(chain.from_iterable(pieces))
    if encoder.whole or encoder.fixed:
        lengths = [encoder.fixed or len(ids)] * -(-len(ids) // (encoder.fixed or len(ids)))
    else:
        # The last sentence may be a beginning: it counts as long enough, or it would join the one before.
        missing = max(0, encoder.minimum - len(pieces[-1]))
        may_cut = np.append(encoder.may_cut(np.array(ids)), np.zeros(missing, dtype=bool))
        lengths = [*map(len, pieces[:-1]), len(pieces[-1]) + missing]
        lengths, _, _ = cut_and_merge(lengths, may_cut, minimum=encoder.minimum, cap=encoder.cap)
    stream, rest = [], iter(ids)
    for length in lengths:
        stream += [bos, *islice(rest, length), eos]
    return stream[:-1]

"""Prompts as tokens, of which layouts build rows: for `Saved`, and for the tokenizer in a model's folder."""

from __future__ import annotations

import copy
from collections import UserList
from collections.abc import Sequence
from functools import cache, cached_property, partial
from itertools import accumulate, chain

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from mentalese.data.batch import Batch
from mentalese.data.config import DataConfig
from mentalese.data.documents import line_places, one_line
from mentalese.data.sentences import SentenceEncoder, cut_and_merge
from mentalese.data.tokenizers import MASK, Turn, beginning, continuing, corpus_encoder, special_token_ids, user_turn
from mentalese.errors import require
from mentalese.values import checked


def check_prompts(texts: Sequence[str], *, whole_sentences: bool) -> None:
    """Raise `InputError` for a prompt without text, not in Unicode, or with masks if only whole sentences are read."""
    for index, text in enumerate(texts):
        name = f"prompts[{index}]"
        checked(name, str, text)
        require(bool(text.strip()), name, text, "use a prompt with some text")
        remedy = f"this model reads whole sentences; remove the mask {MASK}"
        require(not (whole_sentences and MASK in text), name, text, remedy)


def pad_left(rows: Sequence[Sequence[int]], pad: int) -> Batch:
    """Return `input_ids` and `attention_mask`, int64 [rows, longest]."""
    ids = torch.full((len(rows), max(map(len, rows))), pad)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, -len(row) :] = torch.tensor(row)
        mask[i, -len(row) :] = 1
    return {"input_ids": ids, "attention_mask": mask}


Span = tuple[int, int]


class TextRow(UserList[tuple[int, Span | None]]):
    """The tokens of one text, each with the characters [start, end) of the text that it is for; `None` for markers."""

    @classmethod
    def of_markers(cls, *ids: int) -> TextRow:
        return cls((index, None) for index in ids)

    @property
    def ids(self) -> list[int]:
        return [index for index, _ in self]

    @property
    def spans(self) -> list[Span | None]:
        return [span for _, span in self]

    def around(self) -> tuple[int, int]:
        """Count the markers before the text and after it; all of a row without text count as before it."""
        text = [i for i, (_, span) in enumerate(self) if span is not None]
        return (text[0], len(self) - 1 - text[-1]) if text else (len(self), 0)


class PromptEncoder:
    """Encoder of texts as rows of tokens, from which layouts build prompts.

    Args:
        data: states how texts are split into sentences.
        mask_token_id: replaces each `<|mask|>`, with the spaces before it; `None`: the mask is plain text.
        backend: encodes text; `None`: one that reads a marker's name as plain text.

    Attributes:
        known: characters at the beginning of a text whose sentences are found without the rest of it.
    """

    known = 0

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        data: DataConfig,
        mask_token_id: int | None = None,
        backend: Tokenizer | None = None,
    ) -> None:
        self.tokenizer, self.data, self.mask_token_id = tokenizer, data, mask_token_id
        self.backend = corpus_encoder(tokenizer) if backend is None else backend
        self.later = continuing(self.backend)
        self.beginning = TextRow.of_markers(*beginning(tokenizer))
        # Built once, for the copies of `after` too: it looks at every token of the vocabulary.
        self._sentence_encoder = cache(partial(SentenceEncoder, tokenizer, data))

    @cached_property
    def turn(self) -> Turn | None:
        return user_turn(self.tokenizer)

    def after(self, context: str) -> PromptEncoder:
        """Return the encoder for texts that begin with `context`, of which the rest changes no end of a sentence."""
        other = copy.copy(self)
        other.known = len(context)
        return other

    def text(self, text: str, *, continues: bool = False) -> TextRow:
        """Encode a text without anything around it; `continues`: it goes on from another one."""
        if self.mask_token_id is None:
            return self._piece(text, 0, continues)
        row, start = TextRow(), 0
        *before, last = text.split(MASK)
        for piece in before:
            words, end = piece.rstrip(" "), start + len(piece) + len(MASK)
            row += [*self._piece(words, start, continues), (self.mask_token_id, (start + len(words), end))]
            start = end
        return row + self._piece(last, start, continues)

    def message(self, text: str) -> TextRow:
        """Encode a user's message, up to where the assistant begins; only with a chat template."""
        assert self.turn is not None
        before, after, continues, trims = self.turn
        start = len(text) - len(text.lstrip()) if trims else 0
        row = self.text(text.strip() if trims else text, continues=continues)
        said = TextRow((index, span and (start + span[0], start + span[1])) for index, span in row)
        return TextRow.of_markers(*before) + said + TextRow.of_markers(*after)

    def question(self, text: str) -> TextRow:
        """Encode a question on a separate line, after the `known` characters, which are not changed.

        If the tokenizer has a chat template, the question is a user's message.
        """
        before, question = text[: self.known], text[self.known :]
        line = f"{before}{one_line(question)}"
        row = self.beginning + self.text(f"{line}\n") if self.turn is None else self.message(line)
        places = [*range(len(before)), *(len(before) + place for place in line_places(question)), len(text)]
        ends = [0, *(place + 1 for place in places)]
        return TextRow((index, span and (places[span[0]], ends[span[1]])) for index, span in row)

    def sentences(self, text: str) -> TextRow:
        """Encode `BOS .. EOS BOS ..`, sentences as in the store; the last one is left open for the model."""
        special = special_token_ids(self.tokenizer)
        bos, eos = special["sentence_start_token_id"], special["sentence_end_token_id"]
        row, lengths = self._split(text)
        if not len(row):
            return TextRow.of_markers(bos) + self.beginning
        stream, start = TextRow(), 0
        for length in lengths:
            before = TextRow.of_markers(bos) if start else TextRow.of_markers(bos) + self.beginning
            stream += before + row[start : start + length] + TextRow.of_markers(eos)
            start += length
        return stream[:-1]

    def _split(self, text: str) -> tuple[TextRow, list[int]]:
        """Return the tokens of a text, and the number in each sentence; the last number may be too large."""
        prefix, encoder = self.known, self._sentence_encoder()
        *whole, last = (prefix and encoder.split(text[:prefix])) or [""]
        rest = encoder.split(last + text[prefix:])
        while len(rest) > 1 and len(rest[0]) < len(last):  # no sentence may end before the known text does
            rest[:2] = ["".join(rest[:2])]
        closed: list[int] = []
        if prefix:
            before = self._pieces([*whole, last])
            closed = self._lengths([len(piece) for piece in before], TextRow(chain.from_iterable(before)).ids)[:-1]
        pieces = self._pieces([*whole, *rest])
        row, closed_tokens, first = TextRow(chain.from_iterable(pieces)), sum(closed), len(pieces) - len(rest)
        if first == len(pieces) or not len(row):
            return row, closed
        # The open sentence goes on to the end of the piece in which the known text ends.
        opened = max(0, sum(len(piece) for piece in pieces[: first + 1]) - closed_tokens)
        inside = sum(span is not None and span[1] <= prefix for span in row.spans[closed_tokens:])
        lengths = self._lengths(
            [opened, *(len(piece) for piece in pieces[first + 1 :])], row.ids[closed_tokens:], inside
        )
        return row, closed + lengths

    def _pieces(self, texts: Sequence[str]) -> list[TextRow]:
        """Encode texts that follow each other, each by itself."""
        return [self._piece(text, start) for text, start in zip(texts, accumulate(map(len, texts), initial=0))]

    def _lengths(self, pieces: list[int], ids: list[int], whole: int = 0) -> list[int]:
        """Return the tokens of each sentence of pieces, the last one open; none ends before `whole` tokens."""
        encoder = self._sentence_encoder()
        if encoder.whole or encoder.fixed:
            size = encoder.fixed or len(ids)
            return [size] * -(-len(ids) // size)
        # The last sentence may continue, so it counts as long enough; otherwise it would join the one before.
        padding = max(0, encoder.minimum - pieces[-1])
        may_cut = np.append(encoder.may_cut(np.array(ids, dtype=np.int64)), np.zeros(padding, dtype=bool))
        may_cut[: max(0, whole - 1)] = False
        lengths = [*pieces[:-1], pieces[-1] + padding]
        return cut_and_merge(lengths, may_cut, minimum=encoder.minimum, cap=encoder.cap)[0]

    def _piece(self, text: str, start: int, continues: bool = False) -> TextRow:
        """Encode a part of a text that begins at this character of it."""
        backend = self.later if start or continues else self.backend
        backend.encode_special_tokens = self.backend.encode_special_tokens  # which may have been changed since
        encoding = backend.encode(text, add_special_tokens=False)
        spans = ((start + first, start + end) for first, end in encoding.offsets)
        return TextRow(zip(encoding.ids, spans))

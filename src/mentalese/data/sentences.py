"""Sentences: a text is split by a named splitter, then cut and merged by tokens, the same way for all splitters.

Splitting loses nothing: the sentences, each with the white space before it, join to the text again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import version
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from mentalese.data.config import DataConfig
from mentalese.data.documents import Document, Kind
from mentalese.data.tokenizers import Turn, beginning, continuing, corpus_encoder, special_token_ids, user_turn
from mentalese.errors import InputError, nearest
from mentalese.install import install_command

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SPLITTERS = ("sentencex", "syntok", "sat", "none", "fixed:N")
_BATCH_CHARACTERS = 1_000_000
SAT_MODEL, SAT_THRESHOLD = "sat-3l-sm", 0.15

Splitter = Callable[[str], list[str]]
T = TypeVar("T")

# A cut may follow a token that ends so, where the next token begins with white space ("1,000" stays whole).
_CLAUSE_ENDS = (",", ";", ":", ")", "]", ".", "?", "!", "—", "âĢĶ", "–", "âĢĵ")
_SPACES = (" ", "\n", "\t", "Ġ", "Ċ", "ĉ", "▁")


def open_splitter(name: str) -> tuple[Splitter, str]:
    """Return the splitter that `DataConfig.sentences` names, and its version; raise `InputError` if there is none."""
    if name == "none" or fixed_length(name) is not None:
        return lambda text: [text], name
    if name == "sentencex":
        import sentencex

        return lambda text: align(text, sentencex.segment("en", text)), f"sentencex {version('sentencex')}"
    try:
        if name == "syntok":
            from syntok.segmenter import analyze

            def by_syntok(text: str) -> list[str]:
                sentences = (sentence for paragraph in analyze(text) for sentence in paragraph)
                starts = [sentence[0].offset for sentence in sentences]
                return align(text, [text[a:b] for a, b in zip(starts, [*starts[1:], len(text)])])

            return by_syntok, f"syntok {version('syntok')}"
        if name == "sat":  # Segment any Text (Frohmann et al., 2024), the splitter of Thought Gestalt's paper
            from wtpsplit import SaT

            model = SaT(SAT_MODEL)
            return (
                lambda text: align(text, model.split(text, threshold=SAT_THRESHOLD)),
                f"{SAT_MODEL} at {SAT_THRESHOLD}, wtpsplit {version('wtpsplit')}",
            )
        problem = f"use one of {', '.join(SPLITTERS)} with a positive N{nearest(name, SPLITTERS)}"
    except ImportError:
        problem = f"not installed, {install_command(name)}"
    except (OSError, ValueError, RuntimeError) as error:
        problem = f"its weights {SAT_MODEL} cannot be fetched ({error}); fetch them once with network access"
    raise InputError(f"data.sentences is {name!r}: {problem}")


def fixed_length(name: str) -> int | None:
    """Return N of `fixed:N`, which splits by tokens; `None` for every other splitter."""
    kind, _, length = name.partition(":")
    return int(length) if kind == "fixed" and length.isdecimal() and int(length) > 0 else None


def align(text: str, pieces: Iterable[str]) -> list[str]:
    """Return sentences that join to `text`, white space before each, from its pieces, white space lost or not.

    A piece that does not occur in the text is joined to the next one.
    """
    ends: list[int] = []
    position = 0
    for piece in pieces:
        bare = piece.strip()
        start = text.find(bare, position) if bare else -1
        if start >= 0:
            position = start + len(bare)
            ends.append(position)
    if not ends:
        return [text] if text else []
    ends[-1] = len(text)
    return [text[start:end] for start, end in zip([0, *ends], ends)]


class EncodedText(NamedTuple):
    """Documents in tokens, joined, without markers [total].

    Attributes:
        lengths: for each document, the number of tokens of each segment.
        cut, merged: numbers of sentences that were cut at the cap, and that were merged into a neighbour.
    """

    tokens: np.ndarray
    lengths: list[list[int]]
    cut: int
    merged: int


class SentenceEncoder:
    """Encoder of documents into tokens and the lengths of their sentences, as `data` states.

    Each sentence is encoded by itself, so that its tokens do not depend on its neighbours; a space that the tokenizer
    puts before a text comes only before the first sentence of a document. If a document has segments, these are its
    sentences, except with `none` and `fixed:N`; segments of a record are neither cut nor merged.

    Attributes:
        first, end: tokens before each document in a store, and the one after it; they are not part of its text.
        asked: tokens after a record's question, where it is a message of a user (`user_turn`).
        continues: see `Turn`.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, data: DataConfig, kind: Kind = "text") -> None:
        self.split, _ = open_splitter(data.sentences)
        self.kind, self.minimum = kind, data.min_sentence_tokens
        turn = user_turn(tokenizer) if kind == "records" else None
        self.first, self.asked, self.continues, _ = turn or Turn(beginning(tokenizer), [], False, False)
        self.end = special_token_ids(tokenizer, sentences=False)["eos_token_id"]
        # A document's first sentence includes the tokens that the tokenizer puts before a text.
        self.cap = max(self.minimum, data.max_sentence_tokens - len(self.first))
        self.whole, self.fixed = data.sentences == "none", fixed_length(data.sentences)
        self.backend = corpus_encoder(tokenizer)
        self.later = continuing(self.backend)
        self.may_cut = clause_ends(tokenizer)

    def _segments(self, document: Document) -> Sequence[str]:
        if self.asked and document.segments:  # the turn ends the question's line
            question, *rest = document.segments
            return [question.removesuffix("\n"), *rest]
        if self.kind == "records" or not (self.whole or self.fixed):
            return document.segments or self.split(document.text)
        return [document.text]

    def _tokens(self, segments: list[Sequence[str]]) -> tuple[np.ndarray, list[int]]:
        """Return the tokens of all segments of all documents, joined, and their number in each segment.

        Segments are encoded in groups, since the tokenizer's output takes far more memory than the tokens.
        """
        parts = ((part, i > 0 or self.continues) for document in segments for i, part in enumerate(document))
        tokens, counts = [np.empty(0, dtype=np.int32)], list[int]()
        for some in in_batches(parts, lambda part: len(part[0])):
            ids = self._ids(some)
            counts += map(len, ids)
            tokens.append(np.fromiter(chain.from_iterable(ids), dtype=np.int32, count=sum(map(len, ids))))
        return np.concatenate(tokens), counts

    def _ids(self, parts: list[tuple[str, bool]]) -> list[list[int]]:
        """Return the tokens of segments, each with a flag: it continues a document."""
        begun, later = (
            iter(backend.encode_batch_fast([part for part, flag in parts if flag == inside], add_special_tokens=False))
            for backend, inside in ((self.backend, False), (self.later, True))
        )
        return [next(later if inside else begun).ids for _, inside in parts]

    def __call__(self, documents: Sequence[Document]) -> EncodedText:
        segments = [self._segments(document) for document in documents]
        tokens, sizes = self._tokens(segments)
        counts = iter(sizes)
        lengths: list[list[int]] = []
        start = cut = merged = 0
        for parts in segments:
            sentences = [next(counts) for _ in parts]
            total = sum(sentences)
            if self.kind == "text" and self.fixed:
                sentences = [min(self.fixed, total - i) for i in range(0, total, self.fixed)]
            elif self.kind == "text" and not self.whole:
                may_cut = self.may_cut(tokens[start : start + total])
                bounds = {"minimum": self.minimum, "cap": self.cap}
                sentences, new_cut, new_merged = cut_and_merge(sentences, may_cut, **bounds)
                cut, merged = cut + new_cut, merged + new_merged
            lengths.append(sentences)
            start += total
        return EncodedText(tokens, lengths, cut, merged)


def in_batches(items: Iterable[T], characters: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield lists of about a million characters: enough for all cores, little enough for any memory."""
    batch: list[T] = []
    size = 0
    for item in items:
        batch.append(item)
        size += characters(item)
        if size >= _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def clause_ends(tokenizer: PreTrainedTokenizerBase) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from tokens [n] to bool [n]: a sentence that is too long may be cut after this token."""
    tokens = tokenizer.convert_ids_to_tokens([*range(len(tokenizer))])
    ends = np.array([str(token).endswith(_CLAUSE_ENDS) for token in tokens])
    begins = np.array([str(token).startswith(_SPACES) for token in tokens])
    return lambda ids: ends[ids] & np.append(begins[ids[1:]], False)


def cut_and_merge(lengths: Sequence[int], may_cut: np.ndarray, *, minimum: int, cap: int) -> tuple[list[int], int, int]:
    """Cut and merge the sentences of one document to between `minimum` and `cap` tokens, if possible.

    A sentence over the cap is cut after the last clause end (`may_cut`, bool [sum(lengths)]) that leaves at least
    `minimum` tokens before it, else at the cap. Then a sentence shorter than `minimum` joins the next one, or the one
    before where the next has no room. No result is over the cap; a short sentence between two full ones stays short.

    Returns:
        The new lengths, and the numbers of sentences that were cut and that were merged into a neighbour.
    """
    if all(minimum <= length <= cap for length in lengths):
        return list(lengths), 0, 0
    pieces: list[int] = []
    cut, start = 0, 0
    for length in lengths:
        end = start + length
        cut += length > cap
        while end - start > cap:
            allowed = np.flatnonzero(may_cut[start + minimum - 1 : start + cap])
            size = minimum + int(allowed[-1]) if len(allowed) else cap
            pieces.append(size)
            start += size
        if end > start:
            pieces.append(end - start)
        start = end

    results: list[int] = []
    merged, waiting = 0, 0  # `waiting`: tokens of a short sentence that may join the next one
    for length in [*pieces, 0]:
        if waiting and 0 < length <= cap - waiting:
            length += waiting
            merged += 1
        elif waiting and results and results[-1] + waiting <= cap:
            results[-1] += waiting
            merged += 1
        elif waiting:
            results.append(waiting)
        waiting = length if length < minimum else 0
        if length >= minimum:
            results.append(length)
    return results, cut, merged

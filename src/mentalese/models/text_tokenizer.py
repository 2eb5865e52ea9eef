"""The tokenizer in a model's folder: its encoding of a text is the model's.

`tokenizer(texts, padding=True, return_tensors="pt")` equals `mentalese.load(folder).encode(texts)`, or, for a model of
texts with a chat template, `.as_text().encode(texts)`. A layout that puts the same tokens around every text is a
post-processor in `tokenizer.json`, which any tool reads. Every other layout (sentences between markers, questions on a
line of their own, masks) is a `MentaleseTokenizer`.

As in all tokenizers of transformers, a marker's name in a text becomes the marker; `Saved.encode` reads it as plain
text, and so does `split_special_tokens=True` here. `add_special_tokens=False` returns only the tokens of the text, for
a text that continues another one. What transformers does not promise of tokenizers is used in this file only.
"""

from __future__ import annotations

import dataclasses
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Encoding, processors
from transformers import AutoTokenizer, BatchEncoding, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.tokenization_utils_base import TruncationStrategy
from transformers.utils import PaddingStrategy

from mentalese.data.config import SENTENCE_FIELDS, DataConfig
from mentalese.data.layouts import Layout, layout_class
from mentalese.data.prompts import PromptEncoder, TextRow
from mentalese.data.tokenizers import (
    BEGINNING,
    BOS,
    CHAT,
    LATENT_MARKERS,
    MASK,
    base_chat_template,
    beginning,
    corpus_encoder,
    encoding_of,
)
from mentalese.errors import InputError, require
from mentalese.models.anywhere import NotCopied, write_module
from mentalese.models.config import LatentThoughtConfig

if TYPE_CHECKING:  # loads all that models need
    from transformers import PreTrainedModel

MODULE = "mentalese_tokenizer"
ABOUT = "mentalese"
"""The key in a saved tokenizer's settings under which it carries facts about its model, such as the recipe."""


def mask_token_id(model: PreTrainedModel) -> int | None:
    """Return the id of the mask, for models that fill in masks."""
    return None if getattr(model, "causal", True) else getattr(model.config, "mask_token_id", None)


def text_tokenizer(
    tokenizer: PreTrainedTokenizerBase,
    layout: Layout,
    data: DataConfig,
    *,
    mask_token_id: int | None = None,
    model_max_length: int | None = None,
    about: dict[str, object] | None = None,
) -> PreTrainedTokenizerFast:
    """Return a copy of `tokenizer` that reads texts as a model of this layout does, padded on the left.

    A second text continues the first one, after the layout's tokens between them: an answer after the latents.

    Args:
        mask_token_id: the mask's id, for models that fill in `<|mask|>`.
        about: facts about the model that are saved with the tokenizer, JSON-ready.

    Raises:
        InputError: the tokenizer lacks a marker of the layout, or is not backed by the `tokenizers` library.
    """
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise InputError(f"{type(tokenizer).__name__} is not a fast tokenizer: use one that has a tokenizer.json")
    backend = corpus_encoder(tokenizer, markers=True)
    row = layout.prompt_row("a", PromptEncoder(tokenizer, data, mask_token_id))
    before, after = row.around()
    first, last = row.ids[:before], row.ids[len(row) - after :]
    single = [*(f"{index}:0" for index in first), "$A:0", *(f"{index}:0" for index in last)]
    around = [
        {"id": str(index), "ids": [index], "tokens": [backend.id_to_token(index)]}
        for index in dict.fromkeys([*first, *last])
    ]
    backend.post_processor = processors.TemplateProcessing(single=single, pair=[*single, "$B:1"], special_tokens=around)
    named = {
        "bos_token": BOS if layout.markers else tokenizer.bos_token,
        "eos_token": tokenizer.eos_token,
        "pad_token": backend.id_to_token(layout.special_ids(tokenizer)["pad_token_id"]),
        "unk_token": tokenizer.unk_token,
    }
    settings = named | {
        "tokenizer_object": backend,
        "extra_special_tokens": [token for token in tokenizer.all_special_tokens if token not in named.values()],
        "model_max_length": model_max_length,
        "padding_side": "left",
        "clean_up_tokenization_spaces": False,
        "chat_template": layout.chat_template(tokenizer) or tokenizer.chat_template,
        CHAT: base_chat_template(tokenizer) if layout.chat_template(tokenizer) else None,
        BEGINNING: tokenizer.convert_ids_to_tokens(beginning(tokenizer)),
        ABOUT: about,
    }
    settings = {name: value for name, value in settings.items() if value is not None}
    if layout.plain and mask_token_id is None:
        return PreTrainedTokenizerFast(**settings)
    return MentaleseTokenizer(
        **settings,
        text_layout={"kind": layout.kind} | dataclasses.asdict(layout),
        text_sentences={name: getattr(data, name) for name in SENTENCE_FIELDS},
        text_mask_id=mask_token_id,
    )


def saved_reading(tokenizer: PreTrainedTokenizerBase) -> tuple[Layout, DataConfig] | None:
    """Return the layout and the settings of sentences that a saved tokenizer carries; `None` if it carries none."""
    if "text_layout" not in tokenizer.init_kwargs:
        return None
    fields = dict(tokenizer.init_kwargs["text_layout"])
    kind = fields.pop("kind")
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    return layout_class(kind)(**values), DataConfig(**tokenizer.init_kwargs["text_sentences"])


class MentaleseTokenizer(NotCopied, PreTrainedTokenizerFast):
    """A tokenizer that reads a text by a layout: `text_tokenizer` makes it, its settings are saved with it.

    In all other respects it is a fast tokenizer of transformers: batches, padding, truncation, offsets, tensors.

    Truncation cuts the text, not the markers around it. A marker has the span (0, 0) in offsets, as usual.
    """

    _reads: tuple[int, Layout, PromptEncoder] | None = None

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_reads": None}  # reconstructed; a splitter cannot be pickled

    def _reading(self) -> tuple[Layout, PromptEncoder]:
        if self._reads is None or self._reads[0] != len(self):  # it depends on the tokens that may end a clause
            reading = saved_reading(self)
            if reading is None:
                raise InputError("the tokenizer's settings lack text_layout: use an intact copy of its folder")
            layout, data = reading
            encoder = PromptEncoder(self, data, self.init_kwargs.get("text_mask_id"), self.backend_tokenizer)
            self._reads = len(self), layout, encoder
        return self._reads[1:]

    def _row(self, text: str, pair: str | None) -> tuple[TextRow, int]:
        """Return the tokens of a text and of its continuation, and the number of the text's own tokens."""
        remedy = "this tokenizer splits texts into sentences by itself, so pass whole texts"
        for value in (text, pair):
            require(isinstance(value, str | None), "text", value, remedy)
        layout, reads = self._reading()
        remedy = "this model reads sentences between markers, which two texts may share; pass one text"
        require(not (pair and layout.markers), "text_pair", pair, remedy)
        row = layout.prompt_row(text, reads)
        if layout.questions:
            before, after = row.around()
            laid_out = reads.text(text)
            if _has(laid_out.ids, row.ids[:before], row.ids[len(row) - after :]):
                row = laid_out
        if not pair:
            return row, len(row)
        second = reads.text(pair, continues=True)
        start, _, end = (self.convert_tokens_to_ids(marker) for marker in LATENT_MARKERS.values())
        remedy = (
            f"this model learns from written steps: write them and {LATENT_MARKERS['latent_end_token_id']} before it"
        )
        require(row.ids[-1] != start or end in second.ids, "text_pair", pair, remedy)
        return row + second, len(row)

    def _encode_plus(self, *texts: Any, **options: Any) -> BatchEncoding:
        return self.encode_texts(*texts, **options)

    def encode_texts(
        self, text: Any, text_pair: Any = None, add_special_tokens: bool = True, **options: Any
    ) -> BatchEncoding:
        """Return the tokens of one text or several; options are the tokenizer's keywords and two strategies."""
        if not add_special_tokens:
            return super()._encode_plus(text, text_pair, add_special_tokens=False, **options)
        padding = options.pop("padding_strategy", PaddingStrategy.DO_NOT_PAD)
        truncation = options.pop("truncation_strategy", TruncationStrategy.DO_NOT_TRUNCATE)
        longest = options.get("max_length")
        if options.pop("is_split_into_words", False) or options.pop("return_overflowing_tokens", False):
            raise InputError(
                "is_split_into_words and return_overflowing_tokens cut a text where this model's layout does not: pass "
                "whole texts"
            )
        self.set_truncation_and_padding(
            PaddingStrategy.DO_NOT_PAD, TruncationStrategy.DO_NOT_TRUNCATE, 0, 0, None, None
        )
        split = options.pop("split_special_tokens", None)
        self.backend_tokenizer.encode_special_tokens = self.split_special_tokens if split is None else split
        batched = isinstance(text, list | tuple)
        texts = list(text) if batched else [text]
        pairs = (list(text_pair) if batched else [text_pair]) if text_pair else [None] * len(texts)
        require(
            len(pairs) == len(texts), "the length of text_pair", len(pairs), f"pass {len(texts)}, one for each text"
        )
        encodings = []
        for first, second in zip(texts, pairs):
            row, first_length = self._row(first, second)
            if truncation != TruncationStrategy.DO_NOT_TRUNCATE and longest is not None:
                row = _truncated(row, first_length, longest, self.truncation_side)
                first_length = min(first_length, len(row))
            encodings.append(self._encoding(row, first_length, len(first)))
        length, multiple = max(map(len, encodings), default=0), options.get("pad_to_multiple_of") or 1
        if padding == PaddingStrategy.MAX_LENGTH and longest is not None:
            length = max(length, longest)
        for encoding in encodings if padding != PaddingStrategy.DO_NOT_PAD else ():
            encoding.pad(
                -(-length // multiple) * multiple,
                direction=options.get("padding_side") or self.padding_side,
                pad_id=self.pad_token_id,
                pad_type_id=self.pad_token_type_id,
                pad_token=self.pad_token,
            )
        names = ("token_type_ids", "attention_mask", "special_tokens_mask", "offsets_mapping", "length")
        returned = {f"return_{name}": options[f"return_{name}"] for name in names if f"return_{name}" in options}
        parts = [self._convert_encoding(encoding, **returned)[0] for encoding in encodings]
        columns = {name: [part[name][0] for part in parts] for name in (parts[0] if parts else self.model_input_names)}
        for ids in columns["input_ids"]:
            self._eventual_warn_about_too_long_sequence(ids, longest, options.get("verbose", True))
        tensors = options.get("return_tensors")
        if not batched and tensors is None:
            return BatchEncoding({name: column[0] for name, column in columns.items()}, encodings)
        return BatchEncoding(columns, encodings, tensor_type=tensors)

    def _encoding(self, row: TextRow, own: int, characters: int) -> Encoding:
        """Return the row as a result of the `tokenizers` library."""
        second = [int(place >= own) for place in range(len(row))]
        # A layout's addition at the end of a text (a new line) has no characters in it.
        spans = [
            (0, 0) if span is None else span if pair else (min(span[0], characters), min(span[1], characters))
            for span, pair in zip(row.spans, second)
        ]
        ranges = {"0": {"start": 0, "end": own}} | ({"1": {"start": own, "end": len(row)}} if own < len(row) else {})
        return encoding_of(
            [self.backend_tokenizer.id_to_token(index) or MASK for index in row.ids],
            ids=row.ids,
            type_ids=second,
            offsets=spans,
            special_tokens_mask=[int(span is None) for span in row.spans],
            sequence_ranges=ranges,
        )

    def save_pretrained(self, save_directory: str | PathLike[str], *args: Any, **kwargs: Any) -> tuple[str, ...]:
        """Also write the module that lets other programs open the folder."""
        Path(save_directory).mkdir(parents=True, exist_ok=True)
        module = write_module(Path(save_directory), MODULE, type(self))
        return (*super().save_pretrained(save_directory, *args, **kwargs), str(module))

    @property
    def _auto_map(self) -> dict[str, list[str | None]]:
        """The class that opens the tokenizer where this package is not imported."""
        return {"AutoTokenizer": [None, f"{MODULE}.{type(self).__name__}"]}


def _has(ids: list[int], first: list[int], last: list[int]) -> bool:
    """Test if a text begins with a layout's markers and has those that end a question: a chat template added them."""
    ends = range(len(ids) - len(last) + 1)
    return bool(first or last) and ids[: len(first)] == first and any(ids[i : i + len(last)] == last for i in ends)


def _truncated(row: TextRow, own: int, longest: int, side: str) -> TextRow:
    """Return at most `longest` tokens: the continuation is cut, or else the text between its markers."""
    if len(row) <= longest:
        return row
    before, after = (own, 0) if own < len(row) else row.around()
    room = longest - before - after
    require(room >= 0, "max_length", longest, f"set at least {before + after}, the tokens that cannot be cut")
    middle = row[before : len(row) - after]
    middle = middle[:room] if side == "right" else middle[len(middle) - room :]
    skipped = 0
    while side == "left" and skipped < len(middle) and middle.spans[skipped] is None:
        skipped += 1  # a text does not begin with the end of a sentence
    return row[:before] + middle[skipped:] + row[len(row) - after :]


def register_tokenizer() -> None:
    """Make `AutoTokenizer` know the class by its name, whatever the type of the model in the folder."""
    AutoTokenizer.register(LatentThoughtConfig, tokenizer_class=MentaleseTokenizer)

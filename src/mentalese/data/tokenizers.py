"""Tokenizers: trained on the source, from a folder, or from the hub; all with the same markers.

Markers are tokens that no text can produce: `corpus_encoder` reads a marker's name in a text as plain characters.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from tokenizers import AddedToken, Encoding, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import (
    AutoTokenizer,
    GPT2Tokenizer,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from mentalese.errors import InputError, reading, require
from mentalese.files import RECORD, JsonObject, check_files, file_hashes, read_json, sealed, whole_folder, write_json
from mentalese.network import hub_or_cache
from mentalese.packaged import packaged
from mentalese.screen import progress
from mentalese.values import shown

if TYPE_CHECKING:
    from mentalese.data.documents import Source

PAD, BOS, EOS, EOD = "<|pad|>", "<|bos|>", "<|eos|>", "<|endoftext|>"
"""Padding, start and end of a sentence, end of a document."""

MARKERS = (PAD, BOS, EOS, EOD)

LATENT_MARKERS = {
    "latent_start_token_id": "<|start-latent|>",
    "latent_token_id": "<|latent|>",
    "latent_end_token_id": "<|end-latent|>",
}
"""Latent positions and the markers around them, by the names that model configs use; tokenizers of records have
them."""

MASK = "<|mask|>"
"""The place in a prompt where a model fills in a token. No tokenizer has it: its id is the model's `mask_token_id`."""

LONGEST_CHARACTER = 4
"""The most tokens of one character, of one byte each."""

NOTHING_ADDED = processors.TemplateProcessing(single="$A", pair="$A $B:1", special_tokens=[])
"""The post-processor of a tokenizer that adds nothing to a text."""

BEGINNING = "text_beginning"
"""The key in a tokenizer's settings for the tokens that another project's tokenizer puts before a text."""

CHAT = "text_chat"
"""The key in a tokenizer's settings for the chat template of its base, where `chat_template` is a layout's."""

_CLOCK = datetime(2024, 7, 26)
"""What a chat template takes for now: the date that Llama 3.2's template has where it has no clock."""
_FIXED_CLOCK = "".join(
    [
        "{%- macro strftime_now(format) -%}{{- format",
        *(f"|replace('%{code}', '{_CLOCK.strftime(f'%{code}')}')" for code in "aAbBdHIjmMpSyY"),
        "-}}{%- endmacro -%}\n",
    ]
)
_TRAINING_VERSION = 1
_TRAINING_BYTES = 20_000_000
_MESSAGE = "QUESTION"
_MOST_TOKENS = 2**32  # stores keep ids of 32 bits


def special_token_ids(tokenizer: PreTrainedTokenizerBase, *, sentences: bool = True) -> dict[str, int]:
    """Return the markers' ids, by the names that model configs use.

    `bos_token_id` and `eos_token_id` are the beginning and the end of a *document*, where `generate` stops. Tokenizers
    of other projects may define them; otherwise both are EOD. If the tokenizer lacks a marker of sentences or padding,
    `InputError` is raised, or without `sentences` the end of a document replaces it.
    """
    pad, marked_start, marked_end, end = (_marker_id(tokenizer, marker) for marker in MARKERS)
    end = end if tokenizer.eos_token_id is None else tokenizer.eos_token_id
    pad = pad if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    missing = [name for name, index in zip(MARKERS, (pad, marked_start, marked_end, end)) if index is None]
    if end is None or (sentences and missing):
        raise InputError(
            f"the tokenizer lacks the markers {', '.join(missing)}: "
            "add them with mentalese.data.tokenizers.add_markers(tokenizer) and resize the model's embeddings"
        )
    start = tokenizer.bos_token_id
    if start is None or (start == marked_start and _is_marked(tokenizer)):  # saved for a layout of sentences
        start = [end, *beginning(tokenizer)][-1]
    ids = {
        "pad_token_id": pad,
        "bos_token_id": start,
        "eos_token_id": end,
        "sentence_start_token_id": marked_start,
        "sentence_end_token_id": marked_end,
    }
    latent = {name: _marker_id(tokenizer, marker) for name, marker in LATENT_MARKERS.items()}
    return {name: index for name, index in latent.items() if index is not None} | {
        name: end if index is None else index for name, index in ids.items()
    }


def space_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the id of the token that is only a space, by its name in byte-level and in SentencePiece vocabularies.

    It stands between `###` and an answer whose beginning has no token with a space, as digits in `### 12`.
    """
    ids = (_marker_id(tokenizer, name) for name in ("Ġ", "▁"))
    return next((index for index in ids if index is not None), None)


def beginning(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the tokens that another project's tokenizer puts before each text, such as its beginning of a text."""
    if (tokens := tokenizer.init_kwargs.get(BEGINNING)) is not None:
        ids: Any = tokenizer.convert_tokens_to_ids(tokens)
        return list(ids)
    processor = tokenizer.backend_tokenizer.post_processor
    if processor is None or _is_marked(tokenizer):
        return []
    around = processor.process(encoding_of(["a"], ids=[0]))  # a text of one token, for any vocabulary
    return around.ids[: around.special_tokens_mask.index(0)]


def encoding_of(tokens: list[str], **columns: object) -> Encoding:
    """Return a result of the `tokenizers` library, whose state is JSON; `columns`: of its state, by name."""
    every: JsonObject = {"type_ids": 0, "special_tokens_mask": 0, "words": None, "offsets": (0, 1), "attention_mask": 1}
    state: JsonObject = {name: [value] * len(tokens) for name, value in every.items()}
    state |= {"tokens": tokens, "overflowing": [], "sequence_ranges": {}}
    encoding = Encoding()
    encoding.__setstate__(json.dumps(state | columns).encode())
    return encoding


class Turn(NamedTuple):
    """The token ids around a user's message, from the start of a chat to where the assistant begins.

    `continues`: the message has no space before it of those that SentencePiece puts before a text. `trims`: the
    template removes white space around the message.
    """

    before: list[int]
    after: list[int]
    continues: bool
    trims: bool


def base_chat_template(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Return the chat template of another project's tokenizer, also of a model that was trained on questions since.

    A template that prints today's date prints 26 July 2024, so that prompts are the same on every day.
    """
    if "text_layout" in tokenizer.init_kwargs:
        return tokenizer.init_kwargs.get(CHAT)
    template = tokenizer.chat_template
    if isinstance(template, dict):  # of several templates, others are for tools
        remedy = "its chat templates have no default; remove them, or name one so"
        require("default" in template, "the tokenizer", ", ".join(template), remedy)
        template = template["default"]
    if template is None:
        return None
    # transformers passes no function to a template, but what the template defines replaces transformers' clock.
    return template if "strftime_now" not in template or _FIXED_CLOCK in template else f"{_FIXED_CLOCK}{template}"


def user_turn(tokenizer: PreTrainedTokenizerBase) -> Turn | None:
    """Return the tokens that the chat template puts around a user's message; `None` without a chat template.

    Raises:
        InputError: the template does not contain the message as it is.
    """
    template = base_chat_template(tokenizer)
    if template is None:
        return None
    chat = partial(tokenizer.apply_chat_template, chat_template=template, tokenize=False, add_generation_prompt=True)
    try:
        text, spaced = (str(chat([{"role": "user", "content": said}])) for said in (_MESSAGE, f" {_MESSAGE}\n"))
    except Exception as error:  # a template is a program
        raise InputError(f"the tokenizer's chat template refuses a question ({error}): remove or mend it") from error
    before, found, after = text.partition(_MESSAGE)
    require(bool(found), "the tokenizer's chat template", template, f"it does not contain the message {_MESSAGE!r}")
    backend = corpus_encoder(tokenizer, markers=True)
    later = continuing(backend)

    def encoded(by: Tokenizer, part: str) -> list[int]:
        return by.encode(part, add_special_tokens=False).ids

    whole, ending = encoded(backend, text), encoded(later, after)
    # A space at the end of the first part may be the one that is put before the message.
    for start, by in ((before.removesuffix(" "), backend), (before, later), (before, backend)):
        opening = encoded(backend, start)
        if opening + encoded(by, _MESSAGE) + ending == whole:
            return Turn(opening, ending, by is not backend, spaced == text)
    return Turn(encoded(backend, before), ending, later is not backend, spaced == text)


def special_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Return the tokens that are not text: markers, and the special tokens of the tokenizer."""
    added = {index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
    return {*special_token_ids(tokenizer, sentences=False).values(), *tokenizer.all_special_ids, *added}


def _is_marked(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Test if the tokenizer is from `add_markers`: no other project's has both markers of sentences."""
    return None not in (_marker_id(tokenizer, BOS), _marker_id(tokenizer, EOS))


def _marker_id(tokenizer: PreTrainedTokenizerBase, marker: str) -> int | None:
    """Return a marker's id, or `None`. To build the whole vocabulary for each batch would take milliseconds."""
    index: Any = tokenizer.convert_tokens_to_ids(marker)
    is_marker = index is not None and tokenizer.convert_ids_to_tokens(index) == marker  # else it is the unknown token
    return index if is_marker else None


def add_markers(tokenizer: PreTrainedTokenizerBase, *, latents: bool = False) -> PreTrainedTokenizerFast:
    """Return a copy of `tokenizer` with all markers; missing markers get the next free ids.

    The copy adds nothing to encoded text and keeps spaces when it decodes. The beginning, the end and the padding of
    another project's tokenizer do not change, nor does its chat template; but padding that also begins or ends a text
    is replaced. `beginning` returns the tokens that the tokenizer put before a text. `latents` adds markers of latents.

    Raises:
        InputError: the tokenizer is not backed by the `tokenizers` library, or its ids have gaps.
    """
    is_fast = isinstance(tokenizer, PreTrainedTokenizerFast)
    require(is_fast, "the tokenizer", type(tokenizer).__name__, "use a fast one, which has a tokenizer.json")
    vocabulary = tokenizer.get_vocab()
    highest, remedy = max(vocabulary.values()), f"number its {len(vocabulary)} tokens without gaps"
    require(highest < len(vocabulary), "the tokenizer's last id", highest, remedy)  # markers would get used ids
    first = tokenizer.convert_ids_to_tokens(beginning(tokenizer))
    start, end, pad = tokenizer.bos_token, tokenizer.eos_token or EOD, tokenizer.pad_token
    if start is None or (start == BOS and _is_marked(tokenizer)):
        start = first[-1] if first else EOD if end == EOD else None
    if pad is None or pad in (*first, end):
        pad = PAD
    latent = [marker for marker in LATENT_MARKERS.values() if latents or marker in vocabulary]
    markers = [marker for marker in (*MARKERS, *latent) if marker in {*vocabulary, pad, BOS, EOS, end, *latent}]
    roles = {"bos_token": start, "eos_token": end, "pad_token": pad, "unk_token": tokenizer.unk_token}
    extra = dict.fromkeys([*tokenizer.all_special_tokens, *markers])
    backend = corpus_encoder(tokenizer, markers=True)
    backend.add_special_tokens([AddedToken(marker, special=True, normalized=False) for marker in markers])
    settings = roles | {
        "extra_special_tokens": [token for token in extra if token not in roles.values()],
        BEGINNING: first or None,
        "chat_template": base_chat_template(tokenizer),
    }
    settings = {name: value for name, value in settings.items() if value is not None}
    return PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False, **settings)


def open_tokenizer(spec: str, source: Source, *, cache: Path, show: bool = True) -> PreTrainedTokenizerFast:
    """Return the tokenizer that `DataConfig.tokenizer` names, with all markers.

    Args:
        spec: `bpe:SIZE` (byte-level BPE of SIZE tokens, markers included, trained on the source's training split),
            a folder with `tokenizer.json` or with `vocab.json` and `merges.txt`, `models:NAME`, `gguf:FILE` or
            `hub:NAME`.
        cache: the folder of trained tokenizers, by source, size and version.

    Raises:
        InputError: the tokenizer does not exist, or the size is not a number from 260 (256 bytes, 4 markers) to 2^32.
    """
    kind, _, size = spec.partition(":")
    if kind != "bpe":
        return add_markers(load_pretrained_tokenizer(spec))
    least = 256 + len(MARKERS)
    if not size.isdecimal() or len(size) > len(str(_MOST_TOKENS)) or not least <= int(size) <= _MOST_TOKENS:
        raise InputError(f"data.tokenizer is {shown(spec)}: use bpe:SIZE with a SIZE of {least} to {_MOST_TOKENS}")
    key = hashlib.sha256(f"{_TRAINING_VERSION} {size} {source.fingerprint}".encode()).hexdigest()[:16]
    folder = cache / "tokenizers" / f"bpe-{size}-{key}"
    if not folder.exists():
        trained = _train_bpe(source, int(size), show)
        with whole_folder(folder) as temporary:
            trained.save_pretrained(temporary)
            write_json(temporary / RECORD, sealed({"files": file_hashes(temporary)}))
    return add_markers(load_pretrained_tokenizer(str(folder)))


def load_pretrained_tokenizer(path: str, *, check: bool = True) -> PreTrainedTokenizerBase:
    """Return the tokenizer of `hub:NAME`, `models:NAME`, `gguf:FILE`, a run or a folder, whose files are checked.

    Adapters have the tokenizer of their base, unless one lies beside them.
    The beginning, the end and padding that the tokenizer lacks are taken from the model's config next to it.
    """
    name, at_hub = path.removeprefix("hub:"), path.startswith("hub:")
    if not at_hub:
        folder = packaged(path) or Path(path)
        folder = folder / "model" if (folder / "model" / "tokenizer.json").is_file() else folder  # of a run
        if check:
            check_files(folder, "files")
        name = str(folder)
        names = {file.name for file in folder.iterdir()} if folder.is_dir() else set()
        if "tokenizer.json" not in names and {"adapter_config.json", RECORD} <= names:
            about = read_json(folder / RECORD)
            if base := about.get("recipe", {}).get("train", {}).get("init"):
                return load_pretrained_tokenizer(base)
        if "tokenizer.json" not in names and {"vocab.json", "merges.txt"} <= names:
            return GPT2Tokenizer.from_pretrained(folder)
        if not names & {"tokenizer.json", "tokenizer_config.json"}:
            raise InputError(
                f"{path!r} contains no tokenizer: use a folder with tokenizer.json (or vocab.json and merges.txt), "
                "bpe:SIZE, models:NAME or hub:NAME"
            )
    with reading(f"the tokenizer {path!r}"), hub_or_cache("tokenizer", path) if at_hub else nullcontext():
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        unnamed = [name for name in ("bos_token", "eos_token", "pad_token") if getattr(tokenizer, name) is None]
        config: JsonObject = {}
        if unnamed:
            with suppress(OSError):  # a tokenizer without a model
                config, _ = PreTrainedConfig.get_config_dict(tokenizer.name_or_path)
        config = config.get("text_config", {}) | config  # of models that also read images
        for name in unnamed:
            index = config.get(f"{name}_id")
            index = index[0] if isinstance(index, list) and index else index
            if isinstance(index, int) and 0 <= index < len(tokenizer):
                setattr(tokenizer, name, tokenizer.convert_ids_to_tokens(index))
        return tokenizer


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the sha256 of the parts that determine the ids of a text, without the tokens around it."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    for transient in ("truncation", "padding"):
        state.pop(transient)
    state["post_processor"] = json.loads(NOTHING_ADDED.__getstate__())
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def corpus_encoder(tokenizer: PreTrainedTokenizerBase, *, markers: bool = False) -> Tokenizer:
    """Return a new backend for encoding text: `<|eos|>` written in a text is a marker only if it reads `markers`."""
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.post_processor = NOTHING_ADDED  # some also cut white space from a token's offsets
    backend.no_padding()
    backend.no_truncation()
    backend.encode_special_tokens = not markers
    return backend


def continuing(backend: Tokenizer) -> Tokenizer:
    """Return a backend for text that continues another text, without Llama 2's space before it.

    It is `backend` itself if that puts nothing before a text.
    """
    parts = {"normalizer": backend.normalizer, "pre_tokenizer": backend.pre_tokenizer}
    steps = {name: part and json.loads(part.__getstate__()) for name, part in parts.items()}
    without = {name: _without_prefix(step) for name, step in steps.items()}
    if without == steps:
        return backend
    other = Tokenizer.from_str(json.dumps(json.loads(backend.to_str()) | without))
    other.encode_special_tokens = backend.encode_special_tokens
    return other


def _without_prefix(step: JsonObject | None) -> JsonObject | None:
    """Return a normaliser or pre-tokenizer, as JSON, without steps that put something before a text."""
    if step is None or step["type"] == "Prepend":
        return None
    if step["type"] == "Sequence":
        [name] = step.keys() - {"type"}
        return step | {name: [part for inner in step[name] if (part := _without_prefix(inner)) is not None]}
    without = {"prepend_scheme": "never", "add_prefix_space": False}
    return step | {name: value for name, value in without.items() if name in step}


def lost_in_tokens(tokenizer: PreTrainedTokenizerBase, ids: np.ndarray) -> str | None:
    """Return the information that tokenisation discards, such as case; `None` if unknown."""
    backend = tokenizer.backend_tokenizer
    unknown = getattr(backend.model, "unk_token", None)
    if isinstance(backend.model, models.Unigram):
        model = json.loads(backend.to_str())["model"]
        unknown = None if model["unk_id"] is None else model["vocab"][model["unk_id"]][0]
    if unknown is not None and (count := int(np.count_nonzero(ids == backend.token_to_id(unknown)))):
        return f"the words of {count:,} unknown tokens"
    normalizer = backend.normalizer
    letters = "AÉ" if normalizer is None else unicodedata.normalize("NFC", normalizer.normalize_str("AÉ"))
    return None if set("AÉ") <= set(letters) else "capital letters or accents"


def decode(ids: Sequence[int] | Tensor, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the text of token ids [length], markers removed."""
    return str(tokenizer.decode(text_ids(ids, tokenizer)))


def question_text(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase, turn: Turn | None) -> str:
    """Return a record's question, a line, from its first segment, without the user's turn around it."""
    if turn is None:
        return decode(ids, tokenizer)
    return f"{decode(ids[len(turn.before) : len(ids) - len(turn.after)], tokenizer)}\n"


def decode_after(ids: Sequence[int] | Tensor, start: int, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the text of `ids[start:]` after the text of the ids before it, markers removed.

    Some tokenizers, such as Llama 2's, drop the space at the start of a text, which here would be one within it.
    """
    before = last_character(text_ids(ids[:start], tokenizer), tokenizer)
    whole, known = decode([*before, *torch.as_tensor(ids[start:]).tolist()], tokenizer), decode(before, tokenizer)
    if whole.startswith(known):
        return whole.removeprefix(known)
    if known.endswith("�"):  # a part of a character, which the new tokens complete
        return whole.removeprefix(known.rstrip("�"))
    return decode(ids[start:], tokenizer)  # a part of a character, with which the one before is not decoded either


def last_character(ids: list[int], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the tokens of the last character of a text [length]; tokens that are its bytes mean nothing one by one."""
    for count in range(1, LONGEST_CHARACTER + 1):
        if not str(tokenizer.decode(ids[-count:])).startswith("�"):
            return ids[-count:]
    return ids[-1:]


def text_ids(ids: Sequence[int] | Tensor, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the token ids [length] that are not markers."""
    markers = special_ids(tokenizer)
    return [i for i in torch.as_tensor(ids).tolist() if i not in markers]


def _train_bpe(source: Source, size: int, show: bool) -> PreTrainedTokenizerFast:
    """Train byte-level BPE with GPT-2's pre-tokenizer (Radford et al., 2019); the same text gives the same merges."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(MARKERS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    total = source.size("train")
    share = min(1.0, _TRAINING_BYTES / total)

    def sample() -> Iterator[str]:
        """Yield documents spread evenly over the training split; of a few large ones at least the first, in part."""
        done, first, has_sampled = 0, "", False
        with progress(f"training the tokenizer bpe:{size}", total, show=show) as bar:
            for index, document in enumerate(source.documents("train")):
                done += len(document.text)
                if index == 0:
                    first = document.text[:_TRAINING_BYTES]
                if int((index + 1) * share) > int(index * share):
                    has_sampled = True
                    bar.update(min(done, total))
                    yield document.text
        if not has_sampled:
            yield first

    backend.train_from_iterator(sample(), trainer)
    return add_markers(PreTrainedTokenizerFast(tokenizer_object=backend))

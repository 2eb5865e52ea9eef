"""The token store: a source's documents as memory-mapped tokens, with the offsets of documents and sentences.

<folder>/meta.json                     counts, settings, the sha256 of every file, written last
         tokenizer/                    the tokenizer, as `save_pretrained` writes it
         {train,validation,test}/*.bin little-endian arrays, see `data.split.Split`
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import ArrayLike
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from mentalese.data.config import AS_IT_IS, READING, SENTENCE_FIELDS, DataConfig
from mentalese.data.documents import Document, Source
from mentalese.data.layouts import Layout, Packed
from mentalese.data.sentences import SentenceEncoder, fixed_length, in_batches, open_splitter
from mentalese.data.sources import opened_source
from mentalese.data.split import ARRAYS, Split
from mentalese.data.tokenizers import (
    EOD,
    add_markers,
    beginning,
    continuing,
    load_pretrained_tokenizer,
    open_tokenizer,
    special_token_ids,
    tokenizer_fingerprint,
    user_turn,
)
from mentalese.errors import InputError, require
from mentalese.files import JsonObject, cache_dir, check_folder_place, checksum, sealed, sha256, whole_folder
from mentalese.packaged import packaged
from mentalese.screen import progress

FORMAT_VERSION = 1
_OFFSET = np.dtype("<i8")
_READ = ("source", *READING, "tokenizer")
"""Fields of `DataConfig` that a store notes; stores of earlier versions lack two of them."""


@dataclass(frozen=True)
class TokenStore:
    """A prepared corpus; `splits` has the splits of `train`, `validation` and `test` that its source has."""

    folder: Path
    meta: JsonObject
    splits: dict[str, Split]


def open_store(folder: Path | str, *, verify: bool = True) -> TokenStore:
    """Open a prepared folder; arrays stay on disk. With `verify` every file is compared with its checksum.

    Raises:
        InputError: the folder is not a store, has another format version, or a file is missing, cut short or changed.
    """
    folder = Path(folder)
    remedy = "delete the folder and prepare the data again"
    try:
        meta = json.loads((folder / "meta.json").read_text())
        version, files, dtype = meta["format_version"], meta["files"], np.dtype(meta["dtype"])
        intact = meta.pop("checksum") == checksum(meta)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{folder} contains no token store (no meta.json): prepare the data first") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{folder / 'meta.json'} is damaged: {remedy}") from error
    if not intact:
        raise InputError(f"{folder / 'meta.json'} has changed since it was written (checksum): {remedy}")
    if version != FORMAT_VERSION:
        raise InputError(f"{folder} has format version {version}, this version reads {FORMAT_VERSION}: {remedy}")
    for name, expected in files.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != expected["bytes"]:
            raise InputError(f"{path} is missing or cut short: {remedy}")
        if verify and _describe(path) != expected:
            raise InputError(f"{path} has changed since it was written (checksum): {remedy}")
    first = meta.get("beginning", 0)
    return TokenStore(folder, meta, {split: _open_split(folder / split, dtype, first) for split in meta["counts"]})


def prepare(
    config: DataConfig,
    layout: Layout | None = None,
    *,
    out: Path | None = None,
    to_train: bool = True,
    whole: bool = False,
    show: bool = True,
) -> tuple[TokenStore, PreTrainedTokenizerFast]:
    """Return the token store and the tokenizer of `config`; a store of the same inputs and settings is reused.

    `store:FOLDER` as the source opens a prepared folder, which has a tokenizer.

    Args:
        layout: the layout that reads the store and may need questions, sentences or tokens for latents. `None`: plain
            text.
        out: the store's folder; by default one under `cache_dir()`, named by a hash of all inputs.
        to_train: require a training split; otherwise the store has the splits that the source has.
        whole: read a source without splits as the split `test`, see `open_source`.

    Raises:
        InputError: bad input, found before anything is written; `out` contains something else; the disk is full.
    """
    layout, cap = layout or Packed(), config.max_sentence_tokens
    if (folder := _prepared_folder(config)) is not None:
        require(not whole, "split", "all", f"{config.source} has splits of its own, set one of them")
        store = _open_prepared(folder, config, layout, to_train)
        tokenizer = load_pretrained_tokenizer(str(store.folder / "tokenizer"))
    else:
        fixed, remedy = fixed_length(config.sentences) or 0, f"set at most data.max_sentence_tokens ({cap})"
        require(fixed <= cap, "data.sentences", config.sentences, remedy)
        if out is not None:
            is_other = out.exists() and not (out / "meta.json").is_file()
            if is_other and (out.is_file() or any(out.iterdir())):
                raise InputError(f"{out} contains something else than a token store: choose another folder")
            check_folder_place(out, "--out")
        _, splitter = open_splitter(config.sentences)
        source = opened_source(config, whole)
        for remark in source.remarks if show else ():
            _print_once(remark)
        _check_kind(config, layout, source.kind)
        if to_train:
            source.size("train")  # checks
        tokenizer = open_tokenizer(config.tokenizer, source, cache=cache_dir(), show=show)
        store = _open_or_write(config, source, tokenizer, splitter, out, show)
    if layout.sequential and store.meta["kind"] == "records":
        longest = max(int(np.diff(split.segments).max(initial=0)) for split in store.splits.values())
        remedy = f"{config.source} has questions, whose parts are never cut, and one has {longest} tokens; set that"
        require(longest <= cap + 1, "data.max_sentence_tokens", cap, remedy)
    return _fitting(store, layout), add_markers(tokenizer, latents=layout.questions)


def _check_kind(config: DataConfig, layout: Layout, kind: str) -> None:
    remedy = f"{config.source} contains texts; use rows with question, steps and answer, or another layout"
    require(kind == "records" or not layout.questions, "layout", layout.kind, remedy)


@cache
def _print_once(remark: str) -> None:
    print(remark, file=sys.stderr)


def _prepared_folder(config: DataConfig) -> Path | None:
    """Return the folder of a prepared source; `None` for other sources."""
    kind, _, folder = config.source.partition(":")
    return Path(folder).expanduser() if kind == "store" else None


def _open_prepared(folder: Path, config: DataConfig, layout: Layout, to_train: bool) -> TokenStore:
    store = open_store(folder)
    for name in READING:
        value, option = getattr(config, name), name.replace("_", "-")
        remedy = f"{config.source} contains tokens; use --{option} with `mentalese data prepare` instead"
        require(value == AS_IT_IS[name], f"data.{name}", value, remedy)
    if to_train and "train" not in store.splits:
        splits = " and ".join(store.splits)
        raise InputError(f"{config.source} contains only {splits}: use a store with a training split")
    for name in SENTENCE_FIELDS if layout.markers else ():
        requested, prepared = getattr(config, name), store.meta["settings"][name]
        remedy = f"{store.folder} was prepared with {prepared!r}, set it to that or prepare the data again"
        require(requested == prepared, f"data.{name}", requested, remedy)
    _check_kind(config, layout, store.meta["kind"])
    return store


def _open_or_write(
    config: DataConfig,
    source: Source,
    tokenizer: PreTrainedTokenizerFast,
    splitter: str,
    out: Path | None,
    show: bool,
) -> TokenStore:
    inputs = {
        "format_version": FORMAT_VERSION,
        "source_fingerprint": source.fingerprint,
        "tokenizer_fingerprint": tokenizer_fingerprint(tokenizer),
        "splitter": splitter,
        "settings": {name: getattr(config, name) for name in SENTENCE_FIELDS},
    }
    if continuing(backend := tokenizer.backend_tokenizer) is not backend:
        inputs["prefix"] = "of documents"  # stores of earlier versions have it before each sentence
    turn = user_turn(tokenizer) if source.kind == "records" else None
    first = beginning(tokenizer) if turn is None else turn.before
    around = [*first, special_token_ids(tokenizer)["eos_token_id"]]
    if (names := tokenizer.convert_ids_to_tokens(around)) != [EOD]:
        inputs["around"] = names
    if turn is not None:
        inputs["asked"] = tokenizer.convert_ids_to_tokens(turn.after)
        inputs |= {"continues": True} if turn.continues else {}
    key = checksum(inputs)
    folder = out or cache_dir() / "stores" / key[:16]
    if not (folder / "meta.json").is_file():
        with whole_folder(folder) as temporary:
            _write(temporary, inputs | {"key": key}, config, source, tokenizer, show)
    store = open_store(folder)
    if store.meta["key"] != key:
        raise InputError(f"{folder} contains a token store of other data or settings: choose another folder")
    return store


def _fitting(store: TokenStore, layout: Layout) -> TokenStore:
    """Return the store without the documents that the layout leaves out; `meta["left_out"]` counts them by split."""
    splits, left_out = dict(store.splits), dict[str, int]()
    for name, split in store.splits.items():
        mask = layout.fitting(split)
        if mask is None or mask.all():
            continue
        remedy = f"every document of {name} is longer and would be left out; set a larger one"
        require(bool(mask.any()), "layout.sequence_length", layout.sequence_length, remedy)
        splits[name], left_out[name] = split.select(mask), int((~mask).sum())
    return TokenStore(store.folder, store.meta | {"left_out": left_out}, splits) if left_out else store


def split_of(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, config: DataConfig) -> Split:
    """Return texts as a split in memory, each a document, in sentences as `config` has them."""
    encoder, dtype = SentenceEncoder(tokenizer, config), np.dtype("<u4")
    with TemporaryDirectory() as folder:
        _write_split(Path(folder) / "texts", map(Document, texts), encoder, dtype)
        return _open_split(Path(folder) / "texts", dtype, len(encoder.first)).map(np.array)


def report(store: TokenStore, *, sentences: bool) -> list[str]:
    """Return lines on documents that were left out and, with `sentences`, on sentences that were cut."""
    cap, counts = store.meta["settings"]["max_sentence_tokens"], store.meta["counts"]
    remarks = {
        "cut_sentences": ("sentence", f"longer than {cap} tokens and cut"),
        "empty_documents": ("document", "empty and left out"),
        "dropped_documents": ("document", "left out, as a later split has the same text"),
    }
    lines = []
    for name, (what, how) in remarks.items():
        count = sum(split.get(name, 0) for split in counts.values())
        if count and (sentences or name != "cut_sentences"):
            lines.append(f"{count:,} {what}{' was' if count == 1 else 's were'} {how}")
    for split, count in store.meta.get("left_out", {}).items():
        lines.append(
            f"{count:,} of {counts[split]['documents']:,} questions of {split} were left out: they are longer than "
            "layout.sequence_length"
        )
    return lines


def source_fingerprint(config: DataConfig) -> str:
    """Return a hash of the text that `config` names, without preparing it."""
    folder = _prepared_folder(config)
    return opened_source(config).fingerprint if folder is None else open_store(folder).meta["source_fingerprint"]


def tokenizer_in_folder(config: DataConfig, layout: Layout) -> str | None:
    """Return the fingerprint of the tokenizer in the folder that `config` names; `None` without such a folder."""
    folder = _prepared_folder(config)
    path = config.tokenizer if folder is None else str(folder / "tokenizer")
    if not (packaged(path) or Path(path)).is_dir():  # bpe:SIZE follows from the text
        return None
    return tokenizer_fingerprint(add_markers(load_pretrained_tokenizer(path), latents=layout.questions))


def is_divided(config: DataConfig) -> bool:
    """Test if some of a source's text was held out for it, as it has no splits of its own; True if that is unknown."""
    if (folder := _prepared_folder(config)) is not None:
        return bool(open_store(folder, verify=False).meta.get("is_divided", True))
    try:
        return opened_source(config).is_divided
    except InputError:
        return True


def before_preparing(config: DataConfig) -> DataConfig:
    """Return the config, or for a prepared folder a config of the source that it was made from, and of its reading."""
    if (folder := _prepared_folder(config)) is None:
        return config
    meta = open_store(folder, verify=False).meta
    return replace(config, **{name: meta[name] for name in _READ if name in meta})


def _write(
    folder: Path,
    inputs: JsonObject,
    config: DataConfig,
    source: Source,
    tokenizer: PreTrainedTokenizerFast,
    show: bool,
) -> None:
    encoder, vocabulary = SentenceEncoder(tokenizer, config, source.kind), len(tokenizer)
    dtype = np.dtype("<u2" if vocabulary < 2**16 else "<u4")
    tokenizer.save_pretrained(folder / "tokenizer")
    counts, done = {}, 0
    with progress(f"preparing {source.name}", sum(map(source.size, source.splits)), show=show) as bar:

        def report(documents: Iterator[Document]) -> Iterator[Document]:
            nonlocal done
            for document in documents:
                yield document
                done += len(document.text.encode())
                bar.update(done, split)

        for split in source.splits:
            counts[split] = _write_split(folder / split, report(source.documents(split)), encoder, dtype)
            left_out = {"dropped_documents": source.dropped, "empty_documents": source.empty}
            counts[split] |= {name: number.get(split, 0) for name, number in left_out.items()}
    files = {path.relative_to(folder).as_posix(): _describe(path) for path in sorted(folder.rglob("*.*"))}
    meta = inputs | {name: getattr(config, name) for name in _READ} | {"is_divided": source.is_divided}
    meta |= {"kind": source.kind, "dtype": dtype.str, "vocab_size": vocabulary, "counts": counts, "files": files}
    meta |= {"beginning": len(encoder.first)} if encoder.first else {}
    meta["data_hash"] = checksum({name: file["sha256"] for name, file in files.items() if name.endswith(".bin")})
    (folder / "meta.json").write_text(json.dumps(sealed(meta), indent=1))


def _write_split(
    folder: Path, documents: Iterator[Document], encoder: SentenceEncoder, dtype: np.dtype
) -> dict[str, int]:
    first, asked, end = encoder.first, encoder.asked, encoder.end
    counts = dict.fromkeys(("documents", "segments", "tokens", "bytes", "cut_sentences", "merged_sentences"), 0)
    folder.mkdir()
    with ExitStack() as stack:
        opened = {name: stack.enter_context((folder / f"{name}.bin").open("wb")) for name in ARRAYS}

        def append(name: str, values: ArrayLike) -> None:
            opened[name].write(np.asarray(values).astype(dtype if name == "tokens" else _OFFSET).tobytes())

        for name in ("documents", "segments", "document_segments"):
            append(name, [0])
        for chunk in in_batches(documents, lambda document: len(document.text)):
            tokens, sentences, cut, merged = encoder(chunk)
            lengths = [parts or [0] for parts in sentences]
            questions = np.array([parts[0] for parts in lengths])
            for parts in lengths:
                parts[0] += len(first) + len(asked)
                parts[-1] += 1
            ends = np.cumsum([sum(parts) for parts in lengths])
            sizes = [len(document.text.encode()) for document in chunk]
            text_ends = ends - np.arange(1, len(chunk) + 1) * (len(first) + len(asked) + 1)
            starts = np.append(0, text_ends[:-1])
            places = np.stack([*[starts] * len(first), *[starts + questions] * len(asked), text_ends], axis=1)
            append("tokens", np.insert(tokens, places.ravel(), [*first, *asked, end] * len(chunk)))
            append("documents", counts["tokens"] + ends)
            append("segments", counts["tokens"] + np.cumsum(list(chain.from_iterable(lengths))))
            append("document_segments", counts["segments"] + np.cumsum([len(parts) for parts in lengths]))
            append("document_bytes", sizes)
            counts["documents"] += len(chunk)
            counts["segments"] += sum(map(len, lengths))
            counts["tokens"] += int(ends[-1])
            counts["bytes"] += sum(sizes)
            counts["cut_sentences"] += cut
            counts["merged_sentences"] += merged
    return counts


def _describe(path: Path) -> dict[str, int | str]:
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


def _open_split(folder: Path, dtype: np.dtype, beginning: int) -> Split:
    kinds = {name: dtype if name == "tokens" else _OFFSET for name in ARRAYS}
    arrays = (np.memmap(folder / f"{name}.bin", dtype=kind, mode="r") for name, kind in kinds.items())
    return Split(*arrays, beginning=beginning)

"""The token store: a source's documents as memory-mapped tokens, with where documents and sentences begin.

<folder>/meta.json                     counts, settings, the sha256 of every file, written last
         tokenizer/                    the tokenizer, as `save_pretrained` writes it
         {train,validation,test}/*.bin little-endian arrays, see `Split`
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mentalese.errors import InputError

FORMAT_VERSION = 1
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Split:
    """n documents of m segments (sentences, spans, or the parts of a record).

    Attributes:
        tokens: uint16 or uint32, all documents joined; each document is followed by one end-of-document token.
        documents: int64 [n + 1], offset in `tokens` of each document's first token; the last one is `len(tokens)`.
        segments: int64 [m + 1], offset in `tokens` of each segment's first token; the end-of-document token belongs
            to its document's last segment.
        document_segments: int64 [n + 1], index in `segments` of each document's first segment.
        document_bytes: int64 [n], UTF-8 bytes of each document's text.
    """

    tokens: np.ndarray
    documents: np.ndarray
    segments: np.ndarray
    document_segments: np.ndarray
    document_bytes: np.ndarray


@dataclass(frozen=True)
class TokenStore:
    """A prepared corpus; `splits` has `train`, `validation` and `test`."""

    folder: Path
    meta: dict[str, Any]
    splits: dict[str, Split]


def cache_dir() -> Path:
    """`$MENTALESE_CACHE`, or `~/.cache/mentalese`: trained tokenizers and token stores."""
    return Path(os.environ.get("MENTALESE_CACHE") or Path.home() / ".cache" / "mentalese").expanduser()


def open_store(folder: Path | str, *, verify: bool = True) -> TokenStore:
    """Opens a prepared folder; arrays stay on disk.

    Args:
        verify: read every file once and hold it to its checksum.

    Raises:
        InputError: there is no store, it has another format version, or a file is missing, cut short or changed.
    """
    folder = Path(folder)
    remedy = "delete the folder and prepare the data again"
    try:
        meta = json.loads((folder / "meta.json").read_text())
        version, files, dtype = meta["format_version"], meta["files"], np.dtype(meta["dtype"])
    except FileNotFoundError:
        raise InputError(f"{folder} holds no token store (no meta.json): prepare the data first") from None
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{folder / 'meta.json'} is damaged: {remedy}") from error
    if version != FORMAT_VERSION:
        raise InputError(f"{folder} has format version {version}, this version reads {FORMAT_VERSION}: {remedy}")
    for name, expected in files.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != expected["bytes"]:
            raise InputError(f"{path} is missing or cut short: {remedy}")
        if verify:
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != expected["sha256"]:
                    raise InputError(f"{path} has changed since it was written (checksum): {remedy}")
    return TokenStore(folder, meta, {split: _open_split(folder / split, dtype) for split in SPLITS})


def _open_split(folder: Path, dtype: np.dtype) -> Split:
    def array(name: str, kind: np.dtype) -> np.ndarray:
        return np.memmap(folder / f"{name}.bin", dtype=kind, mode="r")

    offsets = np.dtype("<i8")
    return Split(
        tokens=array("tokens", dtype),
        documents=array("documents", offsets),
        segments=array("segments", offsets),
        document_segments=array("document_segments", offsets),
        document_bytes=array("document_bytes", offsets),
    )

"""Data sets of the Hugging Face hub, streamed once: what may be text is kept, the rest never reaches the disk.

`$MENTALESE_CACHE/hub/<key>/{train,validation,test}.jsonl.gz` and `meta.json`, one folder for each source as it is
written. It appears whole or not at all, and later runs read it instead of the network.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any

from mentalese.data.documents import SPLITS
from mentalese.data.files import SPLIT_ALIASES, Row, RowReader, read_json_lines
from mentalese.data.memory import text_fields
from mentalese.errors import InputError
from mentalese.files import cache_dir, read_json, sealed, whole_folder, write_json
from mentalese.network import hub_or_cache

_SPLIT = re.compile(r"([\w.-]*)(?:\[:(\d+)\])?")


def hub_rows(spec: str, *, answers: bool = False) -> dict[str, RowReader]:
    """Readers of the rows of each split of `hub:NAME[@REVISION][:CONFIG[:SPLIT]]`.

    SPLIT may end in `[:N]`: only the first N rows are streamed. Without the network, what `datasets` has in its
    own cache is read.

    Args:
        answers: numbers and choices are needed, which earlier versions did not keep: such a cache is read again.

    Raises:
        InputError: the set cannot be had, or has none of the splits.
    """
    folder = cache_dir() / "hub" / hashlib.sha256(spec.encode()).hexdigest()[:16]
    if not (folder / "meta.json").is_file() or (answers and not read_json(folder / "meta.json").get("answers")):
        print(f"{spec}: read once, the text is kept in {folder}", file=sys.stderr)
        with whole_folder(folder, replace=(folder / "meta.json").is_file()) as temporary:
            counts = {split: _keep(rows, temporary / f"{split}.jsonl.gz") for split, rows in _stream(spec).items()}
            write_json(temporary / "meta.json", sealed({"source": spec, "rows": counts, "answers": True}))
    kept = read_json(folder / "meta.json")["rows"]
    return {split: _reader(spec, split, folder / f"{split}.jsonl.gz") for split in SPLITS if split in kept}


def _stream(spec: str) -> dict[str, Iterable[Mapping[str, Any]]]:
    import datasets

    name, _, place = spec.removeprefix("hub:").partition(":")
    name, _, revision = name.partition("@")
    config, _, place = place.partition(":")
    match = _SPLIT.fullmatch(place)
    if match is None or (place and not match[1]):
        raise InputError(f"data.source is {spec!r}: write its split as train or train[:N]")
    split, count = match[1], int(match[2]) if match[2] else None
    options = {"split": split or None, "revision": revision or None}
    try:
        with hub_or_cache("data.source", spec) as reached:
            found = datasets.load_dataset(name, config or None, **options, streaming=reached)
    except InputError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        raise _unavailable(spec, error) from error
    splits: dict[str, list[Iterable[Mapping[str, Any]]]] = {}
    for own, rows in ({split: found} if split else found).items():
        splits.setdefault(SPLIT_ALIASES.get(own, own), []).append(rows)  # as of files, both validation and dev
    if not set(splits) & set(SPLITS):
        raise InputError(f"data.source is {spec!r}: it has no {', '.join(SPLITS)} split, only {', '.join(splits)}")
    return {own: _rows(spec, chain.from_iterable(splits[own]), count) for own in SPLITS if own in splits}


def _rows(spec: str, rows: Iterable[Mapping[str, Any]], count: int | None) -> Iterator[Mapping[str, Any]]:
    try:
        yield from islice(rows, count)
    except (OSError, ValueError, RuntimeError) as error:
        raise _unavailable(spec, error) from error


def _unavailable(spec: str, error: Exception) -> InputError:
    reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return InputError(f"data.source is {spec!r}: the hub's data set cannot be had ({reason})")


def _keep(rows: Iterable[Mapping[str, Any]], path: Path) -> int:
    """Writes what may be text; the number of rows."""
    count = 0
    with gzip.open(path, "wb", compresslevel=1) as file:
        for row in rows:
            file.write(text_fields(row))
            count += 1
    return count


def _reader(spec: str, split: str, path: Path) -> RowReader:
    def rows() -> Iterator[Row]:
        for number, (_, row) in enumerate(read_json_lines(path), 1):
            yield f"{spec}, {split} row {number}", row

    return rows

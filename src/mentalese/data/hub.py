"""Data sets of the Hugging Face hub, streamed once; only columns that may be text are stored on disk.

Each source string has a folder `$MENTALESE_CACHE/hub/<key>/` with `{train,validation,test}.jsonl.gz` and `meta.json`.
It appears whole or not at all, and later runs read it instead of the network.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, islice
from pathlib import Path

from mentalese.data.documents import SPLITS
from mentalese.data.files import SPLIT_ALIASES, Row, RowReader, read_json_lines
from mentalese.data.memory import text_fields
from mentalese.errors import InputError, reading, require
from mentalese.files import cache_dir, read_json, sealed, whole_folder, write_json
from mentalese.network import hub_or_cache

_VERSION = 2  # of the stored files
_SPEC = re.compile(
    r"hub:(?P<name>[^:@]+)(?:@(?P<revision>[^:]*))?(?::(?P<config>[^:]*))?(?::(?P<split>[\w.-]+)(?:\[:(?P<count>\d+)\])?)?"
)


def hub_rows(spec: str) -> dict[str, RowReader]:
    """Return readers of the rows of each split of `hub:NAME[@REVISION][:CONFIG[:SPLIT]]`.

    SPLIT may end in `[:N]`: only the first N rows are streamed. Without the network, the cache of `datasets` is read.
    """
    folder = cache_dir() / "hub" / hashlib.sha256(f"{_VERSION} {spec}".encode()).hexdigest()[:16]
    if not (folder / "meta.json").is_file():
        print(f"{spec}: read once, the text is kept in {folder}", file=sys.stderr)
        with whole_folder(folder) as temporary:
            counts = _keep(spec, temporary)
            write_json(temporary / "meta.json", sealed({"source": spec, "rows": counts}))
    counts = read_json(folder / "meta.json")["rows"]
    return {split: partial(_rows, spec, split, folder) for split in SPLITS if split in counts}


def _rows(spec: str, split: str, folder: Path) -> Iterator[Row]:
    for number, (_, row) in enumerate(read_json_lines(folder / f"{split}.jsonl.gz"), 1):
        yield f"{spec}, {split} row {number}", row


def _keep(spec: str, folder: Path) -> dict[str, int]:
    """Stream the columns of each split that may be text into a file; return the numbers of rows."""
    import datasets

    match = _SPEC.fullmatch(spec)
    if match is None:
        raise InputError(f"data.source is {spec!r}: write hub:NAME@REVISION:CONFIG:SPLIT, SPLIT as train or train[:N]")
    name, revision, config, split, count = (match[group] or None for group in match.re.groupindex)
    with reading(f"data.source {spec!r}", "use another source"):
        with hub_or_cache("data.source", spec) as reached:
            content = datasets.load_dataset(name, config, split=split, revision=revision, streaming=reached)
        splits: dict[str, list[Iterable[Mapping[str, object]]]] = {}
        for title, rows in ({split: content} if split else content).items():
            splits.setdefault(SPLIT_ALIASES.get(title, title), []).append(rows)
        remedy = f"it has no {', '.join(SPLITS)} split, only {', '.join(splits)}"
        require(bool(splits.keys() & {*SPLITS}), "data.source", spec, remedy)
        counts = {}
        for split_name in (split_name for split_name in SPLITS if split_name in splits):
            with gzip.open(folder / f"{split_name}.jsonl.gz", "wb", compresslevel=1) as file:
                rows = islice(chain.from_iterable(splits[split_name]), count and int(count))
                counts[split_name] = sum(bool(file.write(text_fields(row))) for row in rows)
    return counts

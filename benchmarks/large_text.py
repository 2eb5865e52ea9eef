"""Prepares large texts with `mentalese data prepare`, and measures the peak memory, the time and the tokens per second.

    python benchmarks/large_text.py [--megabytes 1000] [--line 200] [--only NAME ..] [--limit MIB] [--out FILE]

Texts of words drawn at random are written to a temporary folder, one after the other:

- `documents`: a txt file of documents of about 2,000 words, with lines `<|endoftext|>` between them.
- `rows`: the same as jsonl.
- `book`: a txt file without any mark, in paragraphs, which is cut into documents.
- `line`: a txt file of `--line` megabytes in one line.
- `row`: a jsonl file with one row of `--line` megabytes, which is one document, and a few short ones.

Each is prepared in a process of its own, with a tokenizer trained on it and sentences by sentencex. Exit code 1 if one
of them fails, or takes more memory than `--limit`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

WORDS_PER_SENTENCE, SENTENCES_PER_PARAGRAPH, PARAGRAPHS_PER_DOCUMENT = 15, 8, 16


def sentences(megabytes: float, *, seed: int = 0) -> Iterator[str]:
    """Sentences of as many bytes in all."""
    rng = random.Random(seed)
    letters = "etaoinshrdlucmfwypvbgkqjxz"
    words = ["".join(rng.choices(letters, range(26, 0, -1), k=rng.randint(2, 9))) for _ in range(20_000)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    done = 0
    while done < megabytes * 1e6:
        drawn = rng.choices(words, weights, k=WORDS_PER_SENTENCE * 1000)
        for start in range(0, len(drawn), WORDS_PER_SENTENCE):
            sentence = f"{' '.join(drawn[start : start + WORDS_PER_SENTENCE]).capitalize()}."
            done += len(sentence) + 1
            yield sentence


def paragraphs(megabytes: float) -> Iterator[str]:
    found: list[str] = []
    for sentence in sentences(megabytes):
        found.append(sentence)
        if len(found) == SENTENCES_PER_PARAGRAPH:
            yield " ".join(found)
            found = []


def documents(megabytes: float) -> Iterator[str]:
    found: list[str] = []
    for paragraph in paragraphs(megabytes):
        found.append(paragraph)
        if len(found) == PARAGRAPHS_PER_DOCUMENT:
            yield "\n\n".join(found)
            found = []


def write_documents(path: Path, megabytes: float, _: float) -> None:
    with path.open("w") as file:
        file.writelines(f"{document}\n<|endoftext|>\n" for document in documents(megabytes))


def write_rows(path: Path, megabytes: float, _: float) -> None:
    with path.open("w") as file:
        file.writelines(json.dumps({"text": document}) + "\n" for document in documents(megabytes))


def write_book(path: Path, megabytes: float, _: float) -> None:
    with path.open("w") as file:
        file.writelines(f"{paragraph}\n\n" for paragraph in paragraphs(megabytes))


def write_line(path: Path, _: float, line: float) -> None:
    with path.open("w") as file:
        file.writelines(f"{sentence} " for sentence in sentences(line))


def write_row(path: Path, _: float, line: float) -> None:
    with path.open("w") as file:
        file.write('{"text": "')
        file.writelines(f"{sentence} " for sentence in sentences(line))
        file.write('"}\n')
        file.writelines(json.dumps({"text": sentence}) + "\n" for sentence in sentences(0.1, seed=1))


TEXTS: dict[str, tuple[str, Callable[[Path, float, float], None]]] = {
    "documents": ("documents.txt", write_documents),
    "rows": ("rows.jsonl", write_rows),
    "book": ("book.txt", write_book),
    "line": ("line.txt", write_line),
    "row": ("row.jsonl", write_row),
}


def measure(path: Path, folder: Path) -> dict[str, float]:
    """The figures of preparing a file; raises `RuntimeError` if it fails."""
    store = folder / "store"
    command = [sys.executable, "-m", "mentalese", "data", "prepare", f"file:{path}", "--out", str(store)]
    environment = os.environ | {"MENTALESE_CACHE": str(folder / "cache")}
    began = time.perf_counter()
    process = os.posix_spawn(sys.executable, command, environment)
    _, status, usage = os.wait4(process, 0)
    seconds = time.perf_counter() - began
    if status:
        raise RuntimeError(f"{path.name}: the process ended with status {os.waitstatus_to_exitcode(status)}")
    counts = json.loads((store / "meta.json").read_text())["counts"]
    tokens = sum(split["tokens"] for split in counts.values())
    return {
        "bytes": path.stat().st_size,
        "documents": sum(split["documents"] for split in counts.values()),
        "tokens": tokens,
        "seconds": round(seconds, 1),
        "tokens_per_second": round(tokens / seconds),
        "peak_memory_bytes": usage.ru_maxrss * 1024,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=1000)
    parser.add_argument("--line", type=float, default=200)
    parser.add_argument("--only", nargs="+", choices=TEXTS, default=list(TEXTS))
    parser.add_argument("--limit", type=float, default=float("inf"), help="peak memory in MiB that is allowed")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    failed = False
    for name in options.only:
        file, write = TEXTS[name]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / file
            write(path, options.megabytes, options.line)
            try:
                results[name] = found = measure(path, Path(folder))
            except RuntimeError as error:
                failed = True
                print(error, file=sys.stderr)
                continue
        print(
            f"{name}: {found['bytes'] / 1e6:,.0f} MB, {found['documents']:,} documents, {found['tokens']:,} tokens, "
            f"{found['seconds']:,} s, {found['tokens_per_second']:,} tokens/s, "
            f"peak {found['peak_memory_bytes'] / 2**20:,.0f} MiB",
            flush=True,
        )
        failed |= found["peak_memory_bytes"] > options.limit * 2**20
    if options.out is not None:
        options.out.write_text(json.dumps(results, indent=2) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

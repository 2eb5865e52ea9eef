"""`mentalese data prepare`: makes a token store."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from mentalese.commands.options import read_one
from mentalese.data.documents import HELD_OUT
from mentalese.errors import InputError
from mentalese.recipe import Detokenizer


@dataclass(kw_only=True)
class Options:
    """Makes a token store: a text's tokens, documents and sentences on disk.

    Attributes:
        out: the store's folder, required.
        text_column: the column that contains the text, if a file has several.
        detokenizer: read a tokenised set of this format as running text.
        tokenizer: bpe:SIZE, a folder, or hub:NAME.
        sentences: sentencex, syntok, sat, fixed:N or none.
        min_sentence_tokens: shorter sentences are merged with the next one.
        max_sentence_tokens: longer sentences are cut.
        held_out: documents for validation and test where these are missing: a share by a hash of the text, or the last
            N.
    """

    out: Path | None = None
    text_column: str | None = None
    detokenizer: Detokenizer | None = None
    tokenizer: str = "bpe:4096"
    sentences: str = "sentencex"
    min_sentence_tokens: int = 3
    max_sentence_tokens: int = 64
    held_out: float = HELD_OUT


def run(words: list[str]) -> None:
    if words[:1] != ["prepare"]:
        if not {"-h", "--help", "--help-all"} & set(words):
            raise InputError(f"`mentalese data` is followed by {words[:1]}: its only command is `prepare`")
        words = ["prepare", "--help"]
    source, options = read_one(Options, words[1:], "data prepare", "SOURCE")
    if options.out is None:
        raise InputError("`mentalese data prepare` needs --out: set the folder that the store is written to")
    from mentalese.recipe import DataConfig

    fields = {field.name: getattr(options, field.name) for field in dataclasses.fields(options) if field.name != "out"}
    config = DataConfig(source=source, **fields)
    from mentalese.data.store import prepare, report
    from mentalese.screen import print_table

    store, tokenizer = prepare(config, out=options.out)
    rows = [
        (name, f"{len(split.document_bytes):,}", f"{len(split.segments) - 1:,}", f"{len(split.tokens):,}")
        for name, split in store.splits.items()
    ]
    print_table(("split", "documents", "segments", "tokens"), rows)
    print("", *report(store, sentences=True), sep="\n")
    print(f"{len(tokenizer):,} tokens in the vocabulary; train on it with --data store:{options.out}")

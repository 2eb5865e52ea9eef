"""`mentalese data prepare`: makes a token store."""

from __future__ import annotations

import dataclasses
import shlex
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from mentalese.data.config import DataConfig, Detokenizer
from mentalese.data.documents import HELD_OUT
from mentalese.values import Place, Positive, PositiveNumber, checked_dataclass


@checked_dataclass("")
class Options:
    """Makes a token store: a text's tokens, documents and sentences on disk.

    Attributes:
        action: what to do.
        source: the text, a source as in a recipe.
        out: the store's folder.
        text_column: the column that contains the text, if a file has several.
        detokenizer: read a tokenised set of this format as running text.
        tokenizer: bpe:SIZE, a folder, hub:NAME, models:NAME or gguf:FILE.
        sentences: sentencex, syntok, sat, fixed:N or none.
        min_sentence_tokens: shorter sentences are merged with the next one.
        max_sentence_tokens: longer sentences are cut.
        held_out: documents for validation and test where these are missing: a share by a hash of the text, or the last
            N.
    """

    action: Annotated[Positional[Literal["prepare"]], arg(metavar="prepare")]
    source: Annotated[Positional[str], arg(metavar="SOURCE")]
    out: Place
    text_column: str | None = None
    detokenizer: Detokenizer | None = None
    tokenizer: str = "bpe:4096"
    sentences: str = "sentencex"
    min_sentence_tokens: Positive = 3
    max_sentence_tokens: Positive = 64
    held_out: PositiveNumber = HELD_OUT


def run(options: Options) -> None:
    fields = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    config = DataConfig(**{name: value for name, value in fields.items() if name not in ("action", "out")})
    from mentalese.data.store import prepare, report
    from mentalese.screen import print_table

    store, tokenizer = prepare(config, out=options.out)
    rows = [
        (name, f"{len(split.document_bytes):,}", f"{len(split.segments) - 1:,}", f"{len(split.tokens):,}")
        for name, split in store.splits.items()
    ]
    print_table(("split", "documents", "segments", "tokens"), rows)
    print("", *report(store, sentences=True), sep="\n")
    print(f"{len(tokenizer):,} tokens in the vocabulary; train on it with --data {shlex.quote(f'store:{options.out}')}")

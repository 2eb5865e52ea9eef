"""Tokenised sets become running text: what the tokenisation did is undone, and running text stays what it is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mentalese import InputError
from mentalese.data.config import DataConfig, Detokenizer
from mentalese.data.plain_text import DETOKENIZERS, detokenize
from mentalese.data.sources import open_source
from mentalese.data.store import prepare

LINES = [
    (
        "wikitext",
        " = Blue lobster = \n It is red @-@ tipped , and weighs 2 @.@ 5 kg ( 1 @,@ 000 at most ) . \n",
        "= Blue lobster =\nIt is red-tipped, and weighs 2.5 kg (1,000 at most).\n",
    ),
    ("wikitext", " = = = Life [ edit ] = = = \n", "=== Life [edit] ===\n"),
    (
        "wikitext",
        ' It becomes " lobster red " ( a " red " ) on cooking ; the ships \' crews didn \'t eat it .',
        'It becomes "lobster red" (a "red") on cooking; the ships\' crews didn\'t eat it.',
    ),
    (
        "wikitext",
        " At 20 ° C 34 % of $ 5 million was lost : the # 1 loss , at 30 ° N .",
        "At 20 °C 34% of $5 million was lost: the #1 loss, at 30° N.",
    ),
    (
        "wikitext",
        " He said : ' I don 't like Britten 's songs , ' and left .",
        "He said: 'I don't like Britten's songs,' and left.",
    ),
    (
        "ptb",
        "the company 's <unk> rose $ N million or N N\\/N % and it did n't fall",
        "the company's ? rose $1 million or 1 1/1% and it didn't fall",
    ),
    (
        "lm1b",
        '" We don \'t know , " he said ( to CNN ) : " see http : / / www.cnn.com / news . "',
        '"We don\'t know," he said (to CNN): "see http://www.cnn.com/news."',
    ),
    ("lm1b", "The U.S. lost £ 3 , didn 't it ?", "The U.S. lost £3, didn't it?"),
    (
        "lambada",
        "a guardian angel . `` figured if you 're out , you might . '' i look at him",
        'a guardian angel. "figured if you\'re out, you might." i look at him',
    ),
    (
        "lambada",
        "he said . ` oh , yes , sir , ' and the others ' , i do n't",
        "he said. 'oh, yes, sir,' and the others', i don't",
    ),
    ("lambada", "“Here,” she’d said", '"Here," she\'d said'),
    (
        "scientific_papers",
        "models ( see e.g. [ 1 ] , @xmath0 ) are `` sparse '' .\n we do not know .",
        'models (see e.g. [1], @xmath0) are "sparse".\nwe do not know.',
    ),
]


@pytest.mark.parametrize(("name", "line", "text"), LINES)
def test_a_line_of_each_set_becomes_running_text(name: str, line: str, text: str) -> None:
    assert detokenize(line, name) == text


def test_every_format_can_be_asked_for_and_has_a_line_here() -> None:
    assert get_args(Detokenizer) == tuple(DETOKENIZERS) == tuple(dict.fromkeys(name for name, _, _ in LINES))


words = st.from_regex(r"[a-z]{1,6}('s|n't)?", fullmatch=True)
clauses = st.lists(words, min_size=1, max_size=5).map(" ".join)
quoted = st.sampled_from(['"{}"', "({})", "[{}]", "{},", "{};", "{}"])
running = st.lists(st.builds(str.format, quoted, clauses), min_size=1, max_size=4).map(
    lambda parts: " ".join(parts) + "."
)


@given(running, st.sampled_from(sorted(DETOKENIZERS)))
def test_running_text_stays_what_it_is(text: str, name: str) -> None:
    assert detokenize(text, name) == text


def test_a_store_holds_the_running_text_and_counts_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    rows = [f"The ships ' crews had {i} @.@ 5 lobsters ." for i in range(40)]
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    stores = {}
    for detokenizer in (None, "wikitext"):
        config = DataConfig(source=f"file:{path}", tokenizer="bpe:300", sentences="none", detokenizer=detokenizer)
        store, tokenizer = prepare(config, show=False)
        stores[detokenizer] = store
        assert store.meta["detokenizer"] == detokenizer
    assert stores[None].meta["key"] != stores["wikitext"].meta["key"]
    split = stores["wikitext"].splits["train"]
    text = tokenizer.decode(split.tokens[: split.documents[1] - 1])
    assert re.fullmatch(r"The ships' crews had \d+\.5 lobsters\.", text)
    assert split.document_bytes[0] == len(text)

    prepared = DataConfig(source=f"store:{store.folder}", detokenizer="wikitext")
    with pytest.raises(InputError, match=r"data.detokenizer is 'wikitext': store:.* contains tokens"):
        prepare(prepared, show=False)


def test_what_cannot_be_detokenised_is_refused() -> None:
    with pytest.raises(InputError, match=r"data.detokenizer is 'ptb': .* contains questions, leave it out"):
        open_source("builtin:arithmetic", detokenizer="ptb")


def test_wikitext_loses_the_spaces_of_its_tokens(shared_data: Path) -> None:
    text = (shared_data / "corpora" / "wikitext-103" / "validation.txt").read_text()
    found = detokenize(text, "wikitext")
    for left in (" @", " ,", " .", " 's", "( ", " )"):
        assert found.count(left) < text.count(left) / 200, left

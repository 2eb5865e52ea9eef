"""Traces of a text, what the page is told of them, and the command that writes it."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from mentalese import Recipe, ThoughtTrace, cli, get_recipe
from mentalese.data.config import AnswerRuleName
from mentalese.data.store import split_of
from mentalese.errors import InputError
from mentalese.formatting import model_names
from mentalese.models import base
from mentalese.models.base import as_model
from mentalese.models.influence import influence
from mentalese.models.saved import Saved, load
from mentalese.models.thinking import joined, think, token_texts, trace
from mentalese.models.trace import INFLUENCE, Thought
from mentalese.viewer import payload, think_page
from support import metaspace_tokenizer, saved, shrink
from support import opened as read_by

TEXT = "She had a son. He was old, and lived in the town. </script><b>Who?</b>"
FAMILIES = ["thought_gestalt", "thoughtbubbles", "coconut", "latent_thought", "conceptlm", "gpt2", "gpt2-gist", "mdlm"]


def gpt2(tokenizer: PreTrainedTokenizerFast, **fields: Any) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_layer=1, n_head=2, n_positions=64, **fields)
    return GPT2LMHeadModel(config).eval()


@pytest.fixture(scope="module")
def runs(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An untrained run of every family."""
    folder = tmp_path_factory.mktemp("runs")
    return {name: saved(folder / name, _small(get_recipe(f"{name}/tiny"), corpus)) for name in FAMILIES}


def _small(recipe: Recipe, corpus: Path) -> Recipe:
    recipe = shrink(recipe, corpus)
    return dataclasses.replace(recipe, evaluation=dataclasses.replace(recipe.evaluation, answer_tokens=6))


def inside(page: str) -> dict[str, Any]:
    """What the page has to draw."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


# -- thinking ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_fills_the_page_with_what_it_has(runs: dict[str, Path], family: str) -> None:
    page = inside(think_page(load(runs[family]), TEXT, command="mentalese think"))
    (drawn,) = page["traces"]
    assert (page["version"], page["text"], page["command"]) == (1, TEXT, "mentalese think")
    shown = [text for text, special in zip(drawn["tokens"], drawn["special"]) if not special]
    assert "".join(shown).startswith(TEXT)
    assert drawn["name"] == f"{family}/{family}"
    assert (page["title"] == f"What {family}/{family} thought") == bool(drawn["about"])
    assert drawn["parameters"] > 1000
    length = len(drawn["tokens"])
    for score in drawn["scores"].values():
        assert len(score["values"]) == length
        assert score["title"]
        assert score["about"]
    for curve in drawn["curves"].values():
        assert curve["along"] in ("layer", "pass", "step", "chunk", "stream")
        assert curve["about"]
    for thought in drawn["thoughts"]:
        assert 0 <= thought["start"] < thought["end"] <= length
    assert all(len(reading["tokens"]) == length for reading in drawn["readings"])
    # What makes a panel of its own.
    assert bool(drawn["about"]) == (family not in ("gpt2", "gpt2-gist", "mdlm"))
    assert ("entropy" in drawn["scores"]) == (family != "mdlm")
    assert ("memory" in drawn["links"]) == (family == "thought_gestalt")
    assert (drawn["streams"] is not None) == (family == "thoughtbubbles")
    assert any(thought["nearest"] for thought in drawn["thoughts"]) == (family == "coconut")
    assert any(thought["codes"] for thought in drawn["thoughts"]) == (family == "conceptlm")
    assert (len(drawn["readings"]) > 1) == (family == "latent_thought")


@pytest.mark.parametrize(
    ("family", "curve", "link", "score"),
    [
        ("thought_gestalt", True, True, False),
        ("coconut", True, False, False),
        ("conceptlm", True, False, False),
        ("latent_thought", True, False, False),
        ("thoughtbubbles", False, False, True),
    ],
)
def test_influence_is_shown_as_each_family_has_thoughts(
    runs: dict[str, Path], family: str, curve: bool, link: bool, score: bool
) -> None:
    saved = load(runs[family])
    found = saved.think(TEXT, influence=True)
    assert [INFLUENCE in part for part in (found.curves, found.links, found.scores)] == [curve, link, score]
    nats = influence(saved.model, found.input_ids)
    total = found.curves[INFLUENCE] if curve else found.scores[INFLUENCE]
    torch.testing.assert_close(total, nats.nansum(1))
    if family == "thoughtbubbles":
        with pytest.raises(InputError, match="its thoughts are decisions about each token"):
            saved.think(TEXT, patch=TEXT)
    else:
        patched = saved.think(TEXT, patch=f"Oh. {TEXT}")
        assert not torch.equal(patched.curves[INFLUENCE], total[: len(patched.curves[INFLUENCE])])
    if link:
        read = saved.model.read_thoughts(found)
        last, first = found.thoughts[read[1]], read[0]
        expected = nats[0, last.start : last.end].nanmean()
        torch.testing.assert_close(found.links[INFLUENCE][read[1], first], expected)
        assert next(iter(found.links)) == INFLUENCE
    page = inside(think_page(saved, TEXT, influence=True))
    [drawn] = page["traces"]
    assert (INFLUENCE in drawn["curves"], INFLUENCE in drawn["links"]) == (curve, link)


def test_influence_needs_thoughts_and_a_text_at_once(runs: dict[str, Path]) -> None:
    with pytest.raises(InputError, match="the model has no thoughts of its own, use one of a family that thinks"):
        load(runs["gpt2"]).think(TEXT, influence=True)
    with pytest.raises(InputError, match="influence needs it at once, at most"):
        load(runs["conceptlm"]).think(200 * TEXT, influence=True)


def test_question_is_answered_and_the_answer_traced(runs: dict[str, Path]) -> None:
    opened = load(runs["coconut"])
    asked, pad = opened.encode("Who is it?")["input_ids"], opened.tokenizer.pad_token_id
    found = opened.think("Who is it?", max_new_tokens=5)
    answered = opened.model.generate(asked, max_new_tokens=5, do_sample=False, pad_token_id=pad)
    assert torch.equal(found.input_ids, answered[0])
    assert found.written == asked.shape[1]
    assert len(found.thoughts) == 2 * (opened.layout.asked()["latents"] or 0)
    page = inside(think_page(opened.at(latents=3), "Who is it?"))
    assert sum(thought["label"] == "latent" for thought in page["traces"][0]["thoughts"]) == 3


def test_an_answer_is_compared_with_the_right_one(runs: dict[str, Path]) -> None:
    opened = load(runs["coconut"])
    unknown = inside(think_page(opened, "Who is it?"))["traces"][0]["answer"]
    assert (unknown["expected"], unknown["right"]) == (None, None)
    written = unknown["answer"]
    for given, right in ((written, True), (f"a step\n### {written}", True), (f"not {written}", False)):
        answer = inside(think_page(opened, "Who is it?", answer=given))["traces"][0]["answer"]
        assert answer["right"] is right
        assert answer["answer"] == written
    assert inside(think_page(load(runs["gpt2"]), TEXT))["traces"][0]["answer"] is None
    with pytest.raises(InputError, match=r"answer is 'x', and .* does not answer questions: remove it"):
        think_page(load(runs["gpt2"]), TEXT, answer="x")


@pytest.mark.parametrize("rule", ["number", "text", "choice"])
def test_an_answer_is_marked_by_the_rule_of_the_models_questions(runs: dict[str, Path], rule: AnswerRuleName) -> None:
    opened = load(runs["coconut"]).scored_by(answer_rule=rule)
    ids, scores = torch.zeros(2, dtype=torch.long), {"surprisal": torch.zeros(2)}
    for text, expected, right in (("### 07", "7", rule == "number"), ("### B) a dog", "B", rule == "choice")):
        found = ThoughtTrace(
            input_ids=ids, scores=scores, tokens=["q", text], special=[False, False], written=1, model="coconut"
        )
        answer = payload([found], models=[opened], expected=expected)["traces"][0]["answer"]
        assert answer["right"] is right


def test_a_models_free_message_is_its_answer(runs: dict[str, Path]) -> None:
    ids, scores, message = (
        torch.zeros(2, dtype=torch.long),
        {"surprisal": torch.zeros(2)},
        "## Step 1: pay 1,200 in C#.",
    )
    found = ThoughtTrace(
        input_ids=ids, scores=scores, tokens=["q", message], special=[False, False], written=1, model="gpt2"
    )
    assert payload([found], models=[load(runs["gpt2"])])["traces"][0]["answer"]["answer"] == message


def test_the_last_sentence_of_a_text_is_a_thought_too(runs: dict[str, Path]) -> None:
    found = load(runs["thought_gestalt"]).think("He was old. She had a son.")
    assert found.thoughts[-1].end == len(found.input_ids)
    assert [found.special[place] for place in (0, 1, -1)] == [True, False, True]


def test_long_text_is_read_in_its_scoring_windows(runs: dict[str, Path]) -> None:
    text = "He was old. She had a son. " * 26
    for family in ("gpt2", "gpt2-gist"):
        opened = load(runs[family])
        found = opened.think(text)
        assert len(found.windows) > 1
        shown = [place for place, special in enumerate(found.special) if not special]
        assert "".join(found.tokens[place] for place in shown) == text
        expected = opened.token_scores(split_of([text], opened.tokenizer, opened.data))[:-1]
        surprisal = found.scores["surprisal"][shown].numpy()
        np.testing.assert_allclose(surprisal, expected, atol=1e-4, err_msg=family)
    assert not opened.think(TEXT).windows
    for protocol in ({"joined": True}, {"joined": True, "stride": 9}):  # of splits: one text is scored by itself
        assert load(runs["gpt2"]).scored_by(**protocol).think(text).windows == load(runs["gpt2"]).think(text).windows


def test_windows_are_joined_to_one_trace(runs: dict[str, Path]) -> None:
    text = "He was old. She had a son. " * 26
    found = load(runs["thoughtbubbles"]).think(text)
    table, length = found.streams, len(found.tokens)
    assert table["token"].unique().tolist() == list(range(length)), "each token's streams, once"
    made = table["parent"] >= 0
    assert torch.equal(table["token"][table["parent"][made]], table["token"][made]), "parents are of the same token"
    assert found.links["attention"].shape == (len(found.thoughts), len(found.thoughts))
    assert [thought.start for thought in found.thoughts] == sorted(thought.start for thought in found.thoughts)
    last = found.windows[-1][1]
    between = found.links["attention"][[thought.start >= last for thought in found.thoughts]]
    assert not between[:, [thought.start < last for thought in found.thoughts]].any(), "nothing is read across windows"


def test_window_thoughts_are_new_and_curves_are_means() -> None:
    windows = [(0, 1, 6), (3, 6, 8)]
    traces = [
        ThoughtTrace(
            torch.arange(start, stop),
            {"surprisal": torch.arange(start, stop) / 10},
            [Thought(torch.zeros(1), 0, stop - start), Thought(torch.ones(1), 2, 3)],
            links={"memory": torch.eye(2)},
            curves={"elbo": torch.tensor([1.0, 2.0]) * start, "concept_error": torch.zeros(stop)},
            tokens=[*"abcdefgh"[start:stop]],
            special=[False] * (stop - start),
        )
        for start, _, stop in windows
    ]
    found = joined(traces, windows, through=["concept_error"])
    assert "".join(found.tokens) == "abcdefgh"
    assert torch.equal(found.input_ids, torch.arange(8))
    torch.testing.assert_close(found.scores["surprisal"], torch.arange(8) / 10)
    assert [(thought.start, thought.end) for thought in found.thoughts] == [(0, 6), (2, 3), (6, 8)]
    assert torch.equal(found.links["memory"], torch.eye(3))
    assert {name: curve.tolist() for name, curve in found.curves.items()} == {"elbo": [1.5, 3.0]}
    assert found.windows == windows


def test_sentences_are_read_at_once(runs: dict[str, Path], tokenizer: PreTrainedTokenizerFast) -> None:
    found = load(runs["thought_gestalt"]).think("He was old. " * 100)
    assert len(found.thoughts) > 50
    assert not found.windows
    assert not think(read_by(gpt2(tokenizer), tokenizer), "a" * 63).windows
    assert think(read_by(gpt2(tokenizer), tokenizer), "a" * 64).windows == [(0, 1, 64), (32, 64, 65)]
    with pytest.raises(InputError, match=r"max_new_tokens is 6: the question has .* tokens"):
        load(runs["coconut"]).think("Who is it? " * 200)


def test_any_hugging_face_model_has_surprisal_and_entropy(tokenizer: PreTrainedTokenizerFast) -> None:
    model = gpt2(tokenizer)
    found = think(read_by(model, tokenizer), "a plain text")
    log_p = model(found.input_ids[None]).logits[0, :-1].log_softmax(-1).double()
    assert found.tokens == ["<|endoftext|>", *"a plain text"]
    assert found.special == [True] + [False] * 12
    surprisal, entropy = found.scores["surprisal"], found.scores["entropy"]
    assert surprisal[0].isnan()
    assert entropy[0].isnan()
    expected = -log_p.gather(1, found.input_ids[1:, None])[:, 0]
    torch.testing.assert_close(surprisal[1:].double(), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropy[1:].double(), -(log_p.exp() * log_p).sum(-1), atol=1e-5, rtol=1e-5)
    assert torch.equal(found.readings["predicted"][1:], log_p.argmax(-1))
    assert found.vocabulary.keys() == set(found.readings["predicted"].tolist())


def test_logits_in_pieces_give_the_same_trace(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, ids = as_model(gpt2(tokenizer)), torch.randint(256, (2, 30))
    whole = model.traces({"input_ids": ids})
    monkeypatch.setattr(base, "_PIECE", 7)
    for found, expected in zip(model.traces({"input_ids": ids.int()}), whole):
        for name, score in expected.scores.items():
            torch.testing.assert_close(found.scores[name], score, equal_nan=True)
        assert torch.equal(found.readings["predicted"], expected.readings["predicted"])


def test_texts_of_tokens_join_to_the_text(tokenizer: PreTrainedTokenizerFast) -> None:
    text = "né: 2 €, 🙂 � end"
    ids = tokenizer.encode(text, add_special_tokens=False)
    texts = token_texts(ids, tokenizer)
    assert "".join(texts) == text
    assert texts[:4] == ["n", "é", "", ":"]
    assert "".join(token_texts(ids[:2], tokenizer)) == "n�", "half a character is shown as one that is broken"
    end = tokenizer.eos_token_id
    assert token_texts([*ids[:2], end, *ids[3:4]], tokenizer) == ["n", "�", tokenizer.eos_token, ":"], (
        "also by a marker"
    )


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_text_is_refused(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    with pytest.raises(InputError, match=r"the text is .*: pass one with at least one word"):
        think(read_by(gpt2(tokenizer), tokenizer), text)


def test_an_option_that_the_model_does_not_know_is_refused(
    runs: dict[str, Path], tokenizer: PreTrainedTokenizerFast
) -> None:
    says = "fast_steps is 3: this model has no thoughts that depend on it, remove it"
    with pytest.raises(InputError, match=says):
        think(read_by(gpt2(tokenizer), tokenizer), "a text", fast_steps=3)
    with pytest.raises(InputError, match=says):
        think_page(load(runs["thoughtbubbles"]), TEXT, fast_steps=3)
    found = inside(think_page(load(runs["latent_thought"]), TEXT, fast_steps=3))["traces"][0]
    assert len(found["curves"]["elbo"]["values"]) == 3


# -- the payload -------------------------------------------------------------------------------------------------------


def test_numbers_are_short_and_what_is_no_number_is_null() -> None:
    found = ThoughtTrace(torch.arange(3), {"surprisal": torch.tensor([math.nan, 1.23456789, math.inf])}, model="gpt2")
    (drawn,) = payload([found])["traces"]
    assert drawn["scores"]["surprisal"]["values"] == [None, 1.235, None]
    assert drawn["tokens"] == ["0", "1", "2"], "without a tokenizer there are ids"


def test_reading_is_right_where_its_ids_are(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = tokenizer.encode("né: 2 €", add_special_tokens=False)
    found = trace(read_by(gpt2(tokenizer), tokenizer), torch.tensor(ids))
    found.readings["predicted"] = torch.tensor([*ids[:-1], ids[-2]])
    [reading] = payload([found])["traces"][0]["readings"]
    assert reading["right"] == [True] * (len(ids) - 1) + [False], "parts of a character have no texts to compare"


def test_words_of_a_reading_keep_their_leading_space() -> None:
    tokenizer = metaspace_tokenizer()
    the, son = tokenizer.convert_tokens_to_ids(["▁the", "▁son"])
    words = trace(read_by(gpt2(tokenizer), tokenizer), torch.tensor([the, son, the])).vocabulary
    assert words == {token: token_texts([the, token], tokenizer)[1] for token in words}


def test_a_new_familys_words_are_its_names_until_it_says_more() -> None:
    found = ThoughtTrace(
        torch.arange(3),
        {"inner_doubt": torch.zeros(3)},
        curves={"surprisal.2": torch.zeros(2), "doubt.by.layer": torch.zeros(2)},
        model="someone_elses",
    )
    (drawn,) = payload([found])["traces"]
    assert drawn["scores"]["inner_doubt"]["title"] == "inner doubt"
    assert drawn["curves"]["doubt.by.layer"]["title"] == "doubt.by.layer"
    assert (drawn["about"], drawn["streams"]) == ("", None)
    (drawn,) = payload([dataclasses.replace(found, model="mtp")])["traces"]
    assert drawn["curves"]["surprisal.2"]["title"] == "surprisal, 2 ahead"


def test_memory_gates_stand_at_their_layers(runs: dict[str, Path]) -> None:
    opened = load(runs["thought_gestalt"])
    found = opened.think(TEXT)
    [drawn] = payload([found])["traces"]
    values = drawn["curves"]["memory_gate"]["values"]
    assert [place for place, value in enumerate(values) if value is not None] == [*opened.model.config.cross_layers]
    assert [value for value in values if value is not None] == pytest.approx(found.curves["memory_gate"].tolist())


def test_first_chunk_has_no_concept_error(runs: dict[str, Path]) -> None:
    found = load(runs["conceptlm"]).think(TEXT)
    [drawn] = payload([found])["traces"]
    first, *others = drawn["curves"]["concept_error"]["values"]
    assert first is None, "nothing predicts it"
    assert others == pytest.approx(found.curves["concept_error"].tolist(), rel=1e-3)


def test_links_are_the_strongest_between_different_thoughts() -> None:
    link = torch.tensor([[0.9, 0.0, 0.005], [0.2, 0.7, 0.1], [0.3, 0.4, 0.3]])
    thoughts = [Thought(torch.zeros(1), i, i + 1) for i in range(3)]
    (drawn,) = payload([ThoughtTrace(torch.arange(3), thoughts=thoughts, links={"memory": link}, model="ltm")])[
        "traces"
    ]
    assert drawn["links"]["memory"]["edges"] == [[1, 0, 0.2], [1, 2, 0.1], [2, 1, 0.4], [2, 0, 0.3]]


def test_links_below_zero_keep_their_sign() -> None:
    link = torch.tensor([[0.0, 0.0, 0.0], [-0.5, 0.0, -0.005], [0.1, -0.3, 0.0]])
    thoughts = [Thought(torch.zeros(1), i, i + 1) for i in range(3)]
    found = ThoughtTrace(torch.arange(3), thoughts=thoughts, links={INFLUENCE: link}, model="gpt2")
    assert payload([found])["traces"][0]["links"][INFLUENCE]["edges"] == [[1, 0, -0.5], [2, 1, -0.3], [2, 0, 0.1]]


def test_a_gain_is_of_the_tokens_that_both_read(runs: dict[str, Path], tokenizer: PreTrainedTokenizerFast) -> None:
    page = inside(think_page(load(runs["thought_gestalt"]), TEXT, against=load(runs["gpt2"])))
    own, other = page["traces"]
    assert page["title"] == "thought_gestalt/thought_gestalt and gpt2/gpt2 on the same text"
    assert own["scores"]["gain"]["title"] == "gain over gpt2/gpt2"
    assert own["scores"]["gain"]["diverging"]
    pairs = zip(*(_by_text(part, "surprisal") for part in (own, other)), _by_text(own, "gain"), _by_text(other, "gain"))
    checked = 0
    for mine, theirs, gain, back in pairs:
        if None not in (mine, theirs):
            assert gain == pytest.approx(theirs - mine, abs=2e-3 * (1 + abs(mine) + abs(theirs)))
            assert gain == -back
            checked += 1
    assert checked > 20
    short, long = (
        dataclasses.replace(trace(read_by(gpt2(tokenizer), tokenizer), torch.tensor(ids)), model=name)
        for name, ids in (("a", [5, 6, 7, 8]), ("b", [5, 6, 9, 9, 9]))
    )
    drawn = payload([short, long])
    gains = [part["scores"]["gain"]["values"] for part in drawn["traces"]]
    assert gains == [[None, 0.0, None, None], [None, 0.0, None, None, None]], "as far as the texts agree"
    assert drawn["note"] == "The first 2 tokens are the same for a and b; after these no difference is shown."
    other = dataclasses.replace(trace(read_by(gpt2(tokenizer), tokenizer), torch.tensor([5, 9])), model="c")
    assert payload([short, other])["note"].startswith("The first token is the same for a and c;")
    assert not any(score["diverging"] for name, score in drawn["traces"][0]["scores"].items() if name != "gain")
    short.scores[INFLUENCE] = torch.tensor([-1.0, 1.0, 0.0, 0.5])
    assert payload([short])["traces"][0]["scores"][INFLUENCE]["diverging"], "losses have both signs"
    apart = dataclasses.replace(trace(read_by(gpt2(tokenizer), tokenizer), torch.tensor([9, 6, 7])), model="b")
    drawn = payload([short, apart])
    assert "gain" not in drawn["traces"][0]["scores"]
    assert drawn["note"] == "a and b tokenise the text differently from the first token on: no difference can be shown."
    assert page["note"] == payload([short])["note"] == ""


def _by_text(drawn: dict[str, Any], score: str) -> list[float | None]:
    return [v for v, special in zip(drawn["scores"][score]["values"], drawn["special"]) if not special]


@pytest.mark.parametrize("other", ["latent_thought", "thoughtbubbles"])
def test_what_no_likelihood_is_compared_with_says_so(runs: dict[str, Path], other: str) -> None:
    page = inside(think_page(load(runs["gpt2"]), TEXT, against=load(runs[other])))
    about = page["traces"][0]["scores"]["gain"]["about"]
    assert re.search(f"Surprisal of {other}/{other}: .* not a likelihood", about), "it is said of which model"
    assert page["unlike"]
    assert "not a likelihood" in page["note"]


def test_what_no_likelihood_is_compared_with_its_control_says_so(runs: dict[str, Path]) -> None:
    path = runs["latent_thought"]
    without = load(path, config={"thought_control": "removed"})
    note = inside(think_page(load(path), TEXT, against=without))["note"]
    assert note.startswith("Surprisal with thoughts: ")
    assert " Surprisal without thoughts: " in note
    swapped = load(path, config={"thought_control": "swapped"})
    assert "with another text's" in inside(think_page(load(path), TEXT, against=swapped))["title"]


# -- files and notebooks -----------------------------------------------------------------------------------------------


def test_a_trace_is_a_table_of_its_tokens(runs: dict[str, Path]) -> None:
    opened = load(runs["conceptlm"])
    found = opened.think(TEXT)
    table = found.to_pandas()
    assert list(table["token"]) == found.tokens
    assert set(table.columns) == {"token", "thoughts", *found.scores}
    size = opened.model.config.chunk_size
    assert table["thoughts"][0] == [0]
    assert table["thoughts"][size] == [1, 2], "a concept, and what was predicted in its place"


def test_a_notebook_shows_the_page_in_a_frame_of_its_own(runs: dict[str, Path], tmp_path: Path) -> None:
    from html import unescape

    found = load(runs["conceptlm"]).think(TEXT)
    found.save(tmp_path)
    shown = ThoughtTrace.load(tmp_path)._repr_html_()
    assert shown.startswith('<iframe sandbox="allow-scripts allow-downloads"')
    page = unescape(re.findall(r'srcdoc="([^"]*)"', shown)[0])
    assert inside(page)["traces"][0]["tokens"] == found.tokens
    assert "</script><b>" not in page
    assert "<table" in dataclasses.replace(found, tokens=[])._repr_html_(), "tokens without a text are no page"
    scores = {name: score.repeat(100) for name, score in found.scores.items()}
    long = dataclasses.replace(found, input_ids=found.input_ids.repeat(100), scores=scores, tokens=found.tokens * 100)
    assert "<table" in long._repr_html_()


def test_a_trace_of_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"contains no trace\.json: use a folder"):
        ThoughtTrace.load(tmp_path)
    ThoughtTrace(torch.arange(3)).save(tmp_path)
    described = json.loads((tmp_path / "trace.json").read_text())
    (tmp_path / "trace.json").write_text(json.dumps(described | {"version": 1}))
    with pytest.raises(InputError, match="is 1: this library reads 3, make the trace again"):
        ThoughtTrace.load(tmp_path)


def test_trace_keeps_control_windows_and_answer_start(tmp_path: Path) -> None:
    ThoughtTrace(torch.arange(9), control="noisy", written=7, windows=[(0, 1, 6), (3, 6, 9)]).save(tmp_path)
    found = ThoughtTrace.load(tmp_path)
    assert (found.control, found.written, found.windows) == ("noisy", 7, [(0, 1, 6), (3, 6, 9)])


def test_runs_of_one_recipe_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    paths = [tmp_path / part / "seed-0" for part in ("a", "b", "c")]
    for path in paths:
        path.mkdir(parents=True)
        (path / "config.json").write_text(json.dumps({"recipe": {"name": f"x/{'y' if path != paths[2] else 'z'}"}}))
    assert model_names([*map(str, paths)]) == ["a/seed-0", "b/seed-0", "x/z"]


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_writes_a_page(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT)
    run = str(runs["latent_thought"])
    arguments = ["--file", "text.txt", "--config", "fast_steps=2", "--against", str(runs["gpt2"])]
    monkeypatch.setattr("sys.argv", ["mentalese", "think", run, *arguments])
    assert cli.main() == 0
    assert capsys.readouterr().out == f"think.html shows what {run} thought\n"
    page = inside((tmp_path / "think.html").read_text())
    assert page["command"].startswith(f"mentalese think {run} --file text.txt")
    assert [part["model"] for part in page["traces"]] == ["ltm", "gpt2"]
    assert len(page["traces"][0]["curves"]["elbo"]["values"]) == 2


def test_text_of_a_file_lacks_its_final_newline(runs: dict[str, Path], tmp_path: Path) -> None:
    file, out = tmp_path / "text.txt", tmp_path / "think.html"
    file.write_text(f"{TEXT}\n\n")
    assert cli.main(["think", str(runs["gpt2"]), "--file", str(file), "--out", str(out)]) == 0
    assert inside(out.read_text())["text"] == f"{TEXT}\n"


@pytest.mark.parametrize("name", ["thought_gestalt", "latent_thought"])
def test_a_model_is_shown_beside_itself_without_its_thoughts(
    name: str, runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "think.html"
    assert cli.main(["think", str(runs[name]), "--text", TEXT, "--against", "removed", "--out", str(out)]) == 0
    shown = inside(out.read_text())
    own, without = shown["traces"]
    assert shown["title"] == f"{own['name']}, with and without its thoughts"
    assert [own["short"], without["short"]] == ["with thoughts", "without thoughts"]
    assert own["scores"]["gain"]["title"] == "gain with thoughts"
    assert own["scores"]["gain"]["about"].startswith("Surprisal without thoughts minus that with thoughts: below zero")
    assert without["name"] == f"{own['name']}, thoughts removed"
    instead = " This model reads a constant in place of its thoughts (thought_control=removed)."
    assert without["about"] == own["about"] + instead
    gains = [value for value in own["scores"]["gain"]["values"] if value is not None]
    assert any(abs(gain) > 1e-6 for gain in gains)
    assert cli.main(["think", str(runs["gpt2"]), "--text", TEXT, "--against", "removed"]) == 2
    assert "has no thoughts of its own" in capsys.readouterr().err


def test_a_model_without_its_thoughts_has_the_same_options(
    runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read: list[tuple[Any, ...]] = []
    think = Saved.think

    def noted(saved: Saved, text: str, **options: Any) -> Any:
        config = saved.model.config
        read.append((config.thought_control, config.fast_learning_rate, options))
        return think(saved, text, **options)

    monkeypatch.setattr(Saved, "think", noted)
    words = ["think", str(runs["latent_thought"]), "--text", TEXT, "--out", str(tmp_path / "think.html")]
    given = ["--config", "fast_learning_rate=0.125", "--influence", "--against", "noisy"]
    assert cli.main([*words, *given]) == 0
    own = {"influence": True, "patch": None}
    assert read == [(None, 0.125, own), ("noisy", 0.125, {})]
    assert cli.main([*words, "--config", "thought_control=removed", "--against", "removed"]) == 2
    assert "has no thoughts of its own" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("", "--text and --file are missing: use one of them"),
        ("--text a --file b.txt", "--text and --file are both given: use one of them"),
        ("--file none.txt", "--file is 'none.txt': use a UTF-8"),
        ("--text ''", "--text is empty: use a text with at least one word"),
        ("--text a --out none/page.html", "--out is 'none/page.html': its folder does not exist, make it first"),
        ("--text a --out .", "--out is '.': that is a folder, use a file in it"),
    ],
)
def test_what_is_wrong_is_said_before_a_model_is_opened(
    arguments: str, says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def opened(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("nothing is to be opened")

    monkeypatch.setattr("mentalese.viewer.think_page", opened)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["think", "MODEL", *shlex.split(arguments)]) == 2
    assert says in capsys.readouterr().err


def test_unwritable_folder_is_refused_before_loading(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != tmp_path)  # an administrator may write anywhere
    page = tmp_path / "page.html"
    assert cli.main(["think", "MODEL", "--text", "a", "--out", str(page)]) == 2
    assert f"--out is '{page}': its folder cannot be written, use another one" in capsys.readouterr().err


def test_the_other_model_is_opened_before_the_first_thinks(
    runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def thought(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("nothing is to be thought")

    monkeypatch.setattr(sys.modules[think.__module__], "think", thought)
    assert cli.main(["think", str(runs["gpt2"]), "--text", TEXT, "--against", "nowhere"]) == 2
    assert "nowhere contains no model" in capsys.readouterr().err


def test_options_of_questions_are_refused_for_models_of_text(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["think", str(runs["gpt2"]), "--text", TEXT, "--latents", "3"]) == 2
    assert "latents is 3: the layout 'packed' has no latents; remove it" in capsys.readouterr().err
    for option in (["--max-new-tokens", "3"], ["--answer", "x"]):
        assert cli.main(["think", str(runs["gpt2"]), "--text", TEXT, *option]) == 2
        assert "does not answer questions" in capsys.readouterr().err


def test_of_two_models_it_is_said_which_one_refuses(runs: dict[str, Path]) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(str(runs['coconut']))}: .*the question has .*"):
        think_page(load(runs["thought_gestalt"]), "He was old. " * 100, against=load(runs["coconut"]))


def test_bytes_that_are_no_text_are_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(InputError, match=r"prompts\[0\] is .*: use text in Unicode"):
        think(read_by(gpt2(tokenizer), tokenizer), "a\udcff")

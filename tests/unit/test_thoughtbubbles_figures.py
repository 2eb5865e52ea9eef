"""Figures of Thoughtbubbles: the numbers beside a picture are what the model says, token by token."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mentalese import get_recipe
from mentalese.analyses.figures import write_figure
from mentalese.data.layouts import Packed
from mentalese.data.store import TokenStore, prepare
from mentalese.errors import InputError
from mentalese.families.thoughtbubbles.figures import BINS, _attended, _percent, _rank_correlation, _windows
from mentalese.models.build import build_model
from mentalese.models.checkpoints import load_model, save_model
from mentalese.models.saved import load
from mentalese.models.trace import Thought, ThoughtTrace
from mentalese.recipe import DataConfig, Recipe
from support import shrink

TEXT = "Miles has a son, whose name is $Joel$; it costs $5.\nJoel is a baker."


def saved(folder: Path, recipe: Recipe, **fields: Any) -> Path:
    """An untrained model whose forks are decided by what its tokens are, as a run leaves it."""
    recipe = dataclasses.replace(recipe, model=recipe.model | fields)
    _, tokenizer = prepare(recipe.data, recipe.layout, show=False)
    model = build_model(recipe.model, tokenizer, seed=0)
    torch.manual_seed(0)
    with torch.no_grad():
        model.embed.weight.normal_(std=0.2)
        for decision in model.fork_decisions.values():
            decision.decide.weight.normal_(std=0.2)
            decision.threshold.fill_(-2.0)
    folder.mkdir()
    save_model(folder / "model", model, tokenizer, recipe=recipe.to_dict())
    (folder / "config.json").write_text(json.dumps({"recipe": recipe.to_dict()}))
    return folder


@pytest.fixture(scope="module")
def recipe(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """Eight test documents that fit into one row, so that they can be read alone."""
    folder, lines = tmp_path_factory.mktemp("text"), corpus.read_text().splitlines(keepends=True)
    for split, part in (("test", lines[:8]), ("validation", lines[8:12]), ("train", lines[12:])):
        (folder / f"{split}.jsonl").write_text("".join(part))
    recipe = shrink(get_recipe("thoughtbubbles/tiny"), folder)
    layout = Packed(sequence_length=1024, batch_size=4)
    fields = {"max_position_embeddings": 1024, "num_hidden_layers": 4, "fork_layers": (1, 2, 3), "hidden_size": 32}
    return dataclasses.replace(
        recipe,
        model=recipe.model | fields,
        layout=layout,
        evaluation=dataclasses.replace(recipe.evaluation, context_length=1024, stride=1023),
    )


@pytest.fixture(scope="module")
def run(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("forking") / "run", recipe)


@pytest.fixture(scope="module")
def regular(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("regular") / "regular", recipe, fork_layers=())


@pytest.fixture(scope="module")
def store(recipe: Recipe) -> TokenStore:
    return prepare(recipe.data, recipe.layout, show=False)[0]


def documents(store: TokenStore) -> list[torch.Tensor]:
    """Each test document after the EOD before it, without its own: a row [1, n + 1]."""
    split = store.splits["test"]
    tokens = np.asarray(split.tokens, dtype=np.int64)
    bounds = zip(split.documents[:-1].tolist(), split.documents[1:].tolist())
    return [torch.from_numpy(np.concatenate([tokens[-1:], tokens[a : b - 1]]))[None] for a, b in bounds]


def draw(name: str, *paths: Path, out: Path, text: str | None = None) -> dict[str, Any]:
    write_figure(f"thoughtbubbles/{name}", [str(path) for path in paths], out, text)
    assert out.stat().st_size > 5_000
    return json.loads(out.with_suffix(".json").read_text())


# -- perplexities (Figures 3 and 6) ------------------------------------------------------------------------------------


def result(path: Path, source: str, parameters: int, perplexity: float, **fields: Any) -> Path:
    """A run's result, with the fields that the figure reads."""
    model = {"model_type": "thoughtbubbles", **fields}
    config = {"model": model, "data": {"source": source}}
    test = {"perplexity": perplexity, "protocol": {"estimator": "exact"}}
    written = {"recipe": "a/b", "config": config, "test": test, "parameters": {"total": parameters}, "curve": []}
    path.write_text(json.dumps(written))
    return path


def test_runs_of_an_approach_are_a_line_over_sizes(tmp_path: Path) -> None:
    forks = {"fork_layers": [3]}
    runs = [
        result(tmp_path / "a.json", "one", 300, 20.0, **forks),
        result(tmp_path / "b.json", "one", 100, 30.0, **forks),
        result(tmp_path / "c.json", "one", 100, 29.0, budget=4.0, **forks),
        result(tmp_path / "d.json", "one", 100, 31.0, fork_layers=[]),
        result(tmp_path / "e.json", "two", 100, 32.0, fork_layers=[], copies=5),
    ]
    texts = draw("sizes", *runs, out=tmp_path / "sizes.svg")["texts"]
    assert {text: sorted(lines) for text, lines in texts.items()} == {
        "one": ["kappa = 2L", "kappa = 4L", "regular"],
        "two": ["copy-5"],
    }
    assert [(p["parameters"], p["perplexity"]) for p in texts["one"]["kappa = 2L"]] == [(100, 30.0), (300, 20.0)]
    stated = result(tmp_path / "g.json", "one", 200, 25.0, selection="block", readout="mixture", **forks)
    assert list(draw("sizes", runs[0], stated, out=tmp_path / "sizes.svg")["texts"]["one"]) == ["kappa = 2L"]
    more = result(tmp_path / "h.json", "one", 200, 24.0, selection="causal", fork_layers=[1, 3])
    assert list(draw("sizes", runs[0], more, out=tmp_path / "sizes.svg")["texts"]["one"]) == [
        "kappa = 2L, forks before 3",
        "kappa = 2L, selection causal, forks before 1 3",
    ]
    looped = result(tmp_path / "i.json", "one", 200, 24.0, score_scale="model", layers_per_turn=2, **forks)
    assert list(draw("sizes", runs[0], looped, out=tmp_path / "sizes.svg")["texts"]["one"]) == [
        "kappa = 2L",
        "kappa = 2L, score_scale model, layers_per_turn 2",
    ]
    with pytest.raises(InputError, match="use runs of Thoughtbubbles"):
        draw("sizes", result(tmp_path / "f.json", "one", 1, 1.0, model_type="gpt2"), out=tmp_path / "no.svg")


def test_perplexities_of_documents_are_those_of_each_estimator(run: Path, regular: Path, tmp_path: Path) -> None:
    text, out = tmp_path / "text", tmp_path / "autoregression.svg"
    text.mkdir()
    for split, first in (("train", "Ann"), ("validation", "Bob"), ("test", "Miles")):
        rows = [{"text": f"{first} has a son. He is {age}."} for age in (3, 42, 7)]
        (text / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = f"file:{text}"
    write_figure("thoughtbubbles/autoregression", [str(run), str(regular)], out, source=source, documents=2)
    found = json.loads(out.with_suffix(".json").read_text())["perplexities"]
    for path, (name, shown) in zip((run, run, run, regular), found.items()):
        saved = load(path).on(source).scored_by(max_documents=2, estimator=shown["estimator"], tokens="lexical")
        split = saved.split("test")
        assert shown["mean"] == pytest.approx(saved.perplexity(split).perplexity), name
        first = saved.scored_by(max_documents=1).perplexity(split)
        assert len(shown["documents"]) == 2
        assert shown["documents"][0] == pytest.approx(first.perplexity), name
    rules = ["block-not-causal", "prefix-fixed", "prefix-dynamic", "exact"]
    assert [shown["estimator"] for shown in found.values()] == rules
    assert len({round(shown["mean"], 4) for shown in found.values()}) == 4
    with pytest.raises(InputError, match="paths of the figure thoughtbubbles/autoregression"):
        draw("autoregression", run, run, run, out=tmp_path / "no.svg")


# -- forks against entropy ---------------------------------------------------------------------------------------------


def test_forks_and_entropies_equal_separate_documents(
    run: Path, regular: Path, store: TokenStore, tmp_path: Path
) -> None:
    written = draw("entropy", run, regular, out=tmp_path / "entropy.svg")
    (model, _), (other, _) = load_model(run), load_model(regular)
    found: list[tuple[float, float, float]] = []
    for ids in documents(store):
        with torch.no_grad():
            output = model(ids, output_thoughts=True)
            log_p = [m(ids).logits[0].log_softmax(-1) for m in (model, other)]
        streams = output.thoughts[0].scores["streams"]
        own, others = (-(p.exp() * p).sum(-1) for p in log_p)
        # What stands at a place predicts the next token; the last one predicts the end, which is not scored.
        for i in range(0, ids.shape[1] - 1 - 3, 4):
            found.append(tuple(float(v[i : i + 4].mean()) for v in (streams - 1, own, others)))  # type: ignore[arg-type]
    mean = sum(forks for forks, _, _ in found) / len(found)
    assert written["windows"] == len(found)
    assert written["documents"] == len(documents(store)) == 8
    assert written["forks_per_token"] == pytest.approx(mean)
    assert len({forks for forks, _, _ in found}) > 3  # there is something to see
    for panel, column in zip(written["entropy_of"], (1, 2)):
        ordered = sorted(found, key=lambda window: window[column])
        parts = [ordered[-(-len(found) * i // BINS) : -(-len(found) * (i + 1) // BINS)] for i in range(BINS)]
        for part, forks, nats, low, high in zip(parts, panel["forks"], panel["entropy"], *panel["interval"]):
            assert forks == pytest.approx(sum(w[0] for w in part) / len(part) / mean, rel=1e-4)
            assert nats == pytest.approx(sum(w[column] for w in part) / len(part), rel=1e-4)
            assert low <= forks <= high
    assert [Path(panel["path"]) for panel in written["entropy_of"]] == [run, regular]


def test_windows_stay_within_what_is_scored_in_one_piece() -> None:
    scored = np.array([0, 1, 1, 1, 1, 1, 0, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1], dtype=bool)
    windows, piece = _windows(scored)
    assert windows.tolist() == [[1, 2, 3, 4], [10, 11, 12, 13], [14, 15, 16, 17]]
    assert piece.tolist() == [0, 1, 1], "a stretch without a window is not counted"


def test_rank_correlation_shares_places_among_equals() -> None:
    x, unit = np.array([1.0, 20.0, 3.0, 400.0]), np.arange(4)
    assert _rank_correlation(x, x**3, unit)[0] == pytest.approx(1)
    assert _rank_correlation(x, -x, unit)[0] == pytest.approx(-1)
    # Ranks 1 3 2 4 against 1.5 3.5 1.5 3.5: covariance 4, variances 5 and 4.
    assert _rank_correlation(x, np.array([0.0, 1.0, 0.0, 1.0]), unit)[0] == pytest.approx(4 / math.sqrt(20))
    assert _rank_correlation(x, x, np.zeros(4, dtype=int))[1] is None


def test_the_intervals_units_are_documents_drawn_whole() -> None:
    """Copies of a document's windows tell nothing new: the interval stays; as documents of their own they narrow it."""
    rng = np.random.default_rng(1)
    x, unit = rng.normal(size=120), np.arange(120) // 4
    y = x + 2 * rng.normal(size=120)
    once = _rank_correlation(x, y, unit)[1]
    copied = _rank_correlation(np.tile(x, 9), np.tile(y, 9), np.tile(unit, 9))[1]
    apart = _rank_correlation(np.tile(x, 9), np.tile(y, 9), np.arange(9 * 120))[1]
    assert once is not None
    assert copied == pytest.approx(once, abs=1e-3)
    assert apart is not None
    assert apart[1] - apart[0] < (once[1] - once[0]) / 2


# -- who attends to forks ----------------------------------------------------------------------------------------------


def test_attention_is_told_apart_by_reader_and_by_what_is_read() -> None:
    #          token 0: itself; token 1: two forks and itself; token 2: a fork and itself; token 3: itself
    spans = [(0, "token"), (1, "fork"), (1, "fork"), (1, "token"), (2, "fork"), (2, "token"), (3, "token")]
    weight = torch.arange(49.0).view(7, 7).tril()
    trace = ThoughtTrace(
        torch.zeros(4, dtype=torch.long),
        thoughts=[Thought(torch.zeros(1), at, at + 1, label) for at, label in spans],
        links={"attention": weight},
    )
    found = _attended(trace, np.array([True, True, True, True]))
    # Weight [i, j] is 7 i + j. Tokens 1 and 2 have forks: they stand at 3 and 5.
    assert found["token", "itself"].tolist() == [24, 40]
    assert found["token", "its fork, 1 back"].tolist() == [23, 39]
    assert found["token", "its fork, 2 back"].tolist() == [22]
    assert found["token", "its fork, 3 back"].tolist() == []
    assert found["token", "token, 1 back"].tolist() == [21, 38]
    assert found["token", "token, 2 back"].tolist() == [35]
    assert found["token", "a fork of another token"].tolist() == [(36 + 37) / 2]
    assert found["fork", "itself"].tolist() == [8, 16, 32]
    assert found["fork", "a fork of its token"].tolist() == [15]
    assert found["fork", "another token"].tolist() == [7, 14, (28 + 31) / 2]
    assert found["fork", "a fork of another token"].tolist() == [(29 + 30) / 2]
    only = _attended(trace, np.array([True, False, True, True]))
    assert only["token", "itself"].tolist() == [40]
    assert only["fork", "itself"].tolist() == [32]


def test_readers_are_the_scored_tokens_with_forks(run: Path, store: TokenStore, tmp_path: Path) -> None:
    written = draw("attention", run, out=tmp_path / "attention.svg")
    model, _ = load_model(run)
    with_forks = forks = 0
    own, itself = [], written["attention"]["token"]["itself"]
    for ids in documents(store):
        with torch.no_grad():
            (trace,) = model(ids, output_thoughts=True).thoughts
        streams = trace.scores["streams"][:-1]
        with_forks += int((streams > 1).sum())
        forks += int((streams - 1).sum())
        weight = trace.links["attention"].diagonal()
        for value, thought in zip(weight, trace.thoughts):
            if thought.label == "token" and thought.start < len(streams) and streams[thought.start] > 1:
                own.append(float(value))
    assert itself["readers"] == with_forks
    assert written["attention"]["fork"]["itself"]["readers"] == forks
    assert itself["mean"] == pytest.approx(sum(own) / len(own), rel=1e-4)
    assert itself["interval"][0] <= itself["mean"] <= itself["interval"][1]
    assert (written["selection"], written["estimator"]) == ("block", model.estimators[0])


def test_shares_are_written_with_two_digits() -> None:
    assert [_percent(share) for share in (0.123, 0.0123, 0.00123, 0.0)] == ["12%", "1.2%", "0.12%", "0%"]


# -- forks by layer and token ------------------------------------------------------------------------------------------


def test_each_token_shows_its_streams_after_each_fork(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "forks.svg"
    written = draw("forks", run, out=out, text=TEXT)
    assert "".join(written["tokens"][1:]) == TEXT
    model, tokenizer = load_model(run)
    ids = torch.tensor([[tokenizer.eos_token_id, *tokenizer(TEXT, add_special_tokens=False).input_ids]])
    with torch.no_grad():
        (trace,) = model(ids, output_thoughts=True).thoughts
    assert len(written["tokens"]) == ids.shape[1]
    assert list(written["streams"]) == ["1", "2", "3"]
    for layer, streams in written["streams"].items():
        assert streams == trace.scores[f"streams.{layer}"].tolist()
        assert sum(streams) == 2 * ids.shape[1]
    assert max(written["streams"]["3"]) > 2 > min(written["streams"]["3"])
    first = out.read_bytes()
    draw("forks", run, out=out, text=TEXT)
    assert out.read_bytes() == first


def test_a_causal_selection_is_said_to_be_one(recipe: Recipe, tmp_path: Path) -> None:
    folder = saved(tmp_path / "causal", recipe, selection="causal")
    written = draw("forks", folder, out=tmp_path / "forks.svg", text=TEXT)
    assert (written["selection"], written["estimator"]) == ("causal", "causal")


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_what_cannot_be_drawn_is_refused(run: Path, regular: Path, recipe: Recipe, tmp_path: Path) -> None:
    def refused(name: str, *paths: Path, says: str) -> None:
        out = tmp_path / "figure.svg"
        with pytest.raises(InputError, match=says):
            write_figure(
                f"thoughtbubbles/{name}", [str(path) for path in paths], out, TEXT if name == "forks" else None
            )
        assert not out.exists()

    for name in ("entropy", "attention", "forks"):
        refused(name, regular, says="no streams that fork: use a Thoughtbubbles model")
    refused("entropy", run, regular, regular, says="paths of the figure")
    refused("attention", run, regular, says="paths of the figure")
    refused("forks", run, regular, says="paths of the figure")
    smaller = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, tokenizer="bpe:400"))
    refused("entropy", run, saved(tmp_path / "smaller", smaller), says="another tokenizer")
    short = saved(tmp_path / "short", recipe, max_position_embeddings=64)
    refused("entropy", run, short, says="reads 64 tokens and .* 1024 tokens at once")
    unforked = saved(tmp_path / "unforked", recipe, budget=1.0)
    for name in ("entropy", "attention"):
        refused(name, unforked, says="no stream forks")


def test_too_little_text_for_windows_is_refused(tmp_path: Path, recipe: Recipe) -> None:
    path = tmp_path / "short.jsonl"
    path.write_text("".join(json.dumps({"text": f"Number {i} is here."}) + "\n" for i in range(40)))
    data = DataConfig(source=f"file:{path}", tokenizer="bpe:300")
    folder = saved(tmp_path / "run", dataclasses.replace(recipe, data=data))
    with pytest.raises(InputError, match=r"windows of 4 scored tokens: use a model of a text with at least 16"):
        write_figure("thoughtbubbles/entropy", [str(folder)], tmp_path / "entropy.svg")

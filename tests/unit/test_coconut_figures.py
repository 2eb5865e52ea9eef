"""Figures of Coconut and AGCLR: the numbers beside a picture are what the model does with each question."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mentalese import get_recipe
from mentalese.analyses.drawing import drawable_token
from mentalese.analyses.figures import write_figure
from mentalese.data.documents import one_line
from mentalese.data.layouts import QuestionAnswer
from mentalese.data.split import Split
from mentalese.data.store import prepare
from mentalese.data.tokenizers import special_token_ids
from mentalese.errors import InputError
from mentalese.evaluation.answers import ask
from mentalese.families.coconut import figures
from mentalese.families.coconut.plain import Coconut
from mentalese.models.build import build_model
from mentalese.models.checkpoints import load_model, save_model
from mentalese.models.saved import load
from mentalese.recipe import Recipe
from support import sharing

QUESTION = "Ann has $3 and Bob $4.\nWhat have they?"
LATENTS = 3


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Sums with two steps: 6 questions to validate and 5 to test on."""
    folder = tmp_path_factory.mktemp("sums")
    for split, numbers in (("train", range(60)), ("validation", range(60, 66)), ("test", range(66, 71))):
        rows = [
            {
                "question": f"What is {' and '.join(str(i + k) for k in range(2 + i % 3))}?",
                "steps": [f"start with {i}", "go on"],
                "answer": f"It is {i}.",
            }
            for i in numbers
        ]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"file:{folder}"


@pytest.fixture(scope="module")
def recipe(source: str) -> Recipe:
    """AGCLR with three latents and an answer."""
    tiny = get_recipe("coconut/tiny")
    backbone = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    data = dataclasses.replace(tiny.data, source=source, tokenizer="bpe:300", train_tokens=None)
    layout = QuestionAnswer(sequence_length=512, stage=4, stages=3, latents_per_step=1)
    evaluation = dataclasses.replace(tiny.evaluation, answer_tokens=8, batch_size=4)
    model = {"model_type": "coconut", "mode": "agclr", "backbone": backbone}
    return dataclasses.replace(tiny, model=model, data=data, layout=layout, phases=(), evaluation=evaluation)


def saved(folder: Path, recipe: Recipe, mode: str | None, change: Any = None, stage: int = 4, **fields: Any) -> Path:
    """An untrained model as a run leaves it; `change` is called on it."""
    layout = recipe.layout.at(stage, None)
    fields |= {"mode": mode} if mode else {}
    recipe = dataclasses.replace(recipe, name=folder.name, layout=layout, model=recipe.model | fields)
    _, tokenizer = prepare(recipe.data, recipe.layout, show=False)
    model = build_model(recipe.model, tokenizer, seed=0)
    if change is not None:
        with torch.no_grad():
            change(model)
    folder.mkdir()
    save_model(folder / "model", model, tokenizer, recipe=recipe.to_dict())
    (folder / "config.json").write_text(json.dumps({"recipe": recipe.to_dict()}))
    return folder


def speaking(model: Any) -> None:
    """States and gates that depend on the question."""
    torch.manual_seed(1)
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            parameter.mul_(4)
    for gate in model.concept_stream.gates.values() if model.concept_stream is not None else ():
        gate.weight.normal_(std=0.3)


def standing_still(model: Any) -> None:
    """Blocks add nothing and positions are nothing: the last state is the input, normalised, in every pass."""
    body = model.backbone.base_model
    body.wpe.weight.zero_()
    for block in body.h:
        for layer in (block.attn.c_proj, block.mlp.c_proj):
            layer.weight.zero_()
            layer.bias.zero_()


@pytest.fixture(scope="module")
def agclr(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("agclr") / "agclr", recipe, "agclr", speaking)


@pytest.fixture(scope="module")
def coconut(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("coconut") / "coconut", recipe, "coconut", speaking)


@pytest.fixture(scope="module")
def pause(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("pause") / "pause", recipe, "pause", speaking)


def draw(name: str, *paths: Path, out: Path, text: str | None = None, **limits: int) -> dict[str, Any]:
    write_figure(f"coconut/{name}", [str(path) for path in paths], out, text, **limits)
    assert out.stat().st_size > 5_000
    return json.loads(out.with_suffix(".json").read_text())


def asked(run: Path, recipe: Recipe, split: str = "validation") -> list[Tensor]:
    """Each question of a split with its latents, a row [L]."""
    _, tokenizer = load_model(run)
    special = special_token_ids(tokenizer)
    part = questions(recipe, split)
    rows = []
    for first in part.document_segments[:-1]:
        question = part.tokens[part.segments[first] : part.segments[first + 1]].tolist()
        thought = [special["latent_start_token_id"], *[special["latent_token_id"]] * LATENTS]
        rows.append(torch.tensor([*question, *thought, special["latent_end_token_id"]]))
    return rows


def questions(recipe: Recipe, split: str) -> Split:
    return prepare(recipe.data, recipe.layout, show=False)[0].splits[split]


def passes(run: Path, row: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """h, h' and c [K, d] of one question by the plain form of the model."""
    model, _ = load_model(run)
    plain = sharing(Coconut(model.config), model)
    assert plain.concept_stream is not None
    with torch.no_grad():
        hidden = plain.hidden_states(row)[-LATENTS - 2 : -2]
        gated, memory = [], [torch.zeros(hidden.shape[1])]
        for number, state in enumerate(hidden):
            read, written = plain.concept_stream(state, memory[-1], number)
            gated.append(read)
            memory.append(written)
    return hidden, torch.stack(gated), torch.stack(memory[1:])


def cosines(vectors: Tensor, others: Tensor) -> Tensor:
    """[n, m] of [n, d] and [m, d]."""
    return (vectors @ others.T) / vectors.norm(dim=1)[:, None] / others.norm(dim=1)


# -- memory retention --------------------------------------------------------------------------------------------------


def test_retention_is_the_cosine_with_the_first_state(
    recipe: Recipe, agclr: Path, coconut: Path, tmp_path: Path
) -> None:
    written = draw("retention", coconut, agclr, out=tmp_path / "retention.svg")
    plain, gated = written["models"]
    assert [(m["mode"], m["latents"], m["questions"]) for m in (plain, gated)] == [("coconut", 3, 6), ("agclr", 3, 6)]
    states, read = zip(*(passes(agclr, row)[:2] for row in asked(agclr, recipe)))
    for name, each in (("h", states), ("h'", read)):
        by_question = np.stack([cosines(part[:1], part)[0].numpy() for part in each])
        assert gated[name]["mean"] == pytest.approx(by_question.mean(0).tolist(), abs=1e-4)
        assert gated[name]["std"] == pytest.approx(by_question.std(0).tolist(), abs=1e-4)
    assert gated["h"]["mean"][0] == pytest.approx(1)
    assert gated["h"]["mean"][2] < 0.99  # there is something to see
    assert gated["h"]["std"][2] > 1e-3
    assert plain["h"]["mean"] == pytest.approx(plain["h'"]["mean"], abs=1e-6)
    assert (tmp_path / "retention.svg").read_text().count("gated") > 0


def test_a_state_that_does_not_change_is_retained_whole(recipe: Recipe, tmp_path: Path) -> None:
    still = saved(tmp_path / "still", recipe, "coconut", standing_still)
    (model,) = draw("retention", still, out=tmp_path / "retention.png")["models"]
    assert model["h"]["mean"] == pytest.approx([1, 1, 1], abs=1e-5)
    assert model["h"]["std"] == pytest.approx([0, 0, 0], abs=1e-5)


# -- gates -------------------------------------------------------------------------------------------------------------


def test_gates_that_have_not_been_trained_are_those_of_table_3(recipe: Recipe, tmp_path: Path) -> None:
    fresh = saved(tmp_path / "fresh", recipe, "agclr")
    written = draw("gates", fresh, out=tmp_path / "gates.svg")
    assert written["questions"] == 6
    found = {name: [round(value, 2) for value in gate["mean"]] for name, gate in written["gates"].items()}
    assert found == {"read": [0.43] * 3, "forget": [0.27] * 3, "write": [0.18] * 3}
    for gate in written["gates"].values():
        assert gate["std"] == pytest.approx([0, 0, 0], abs=1e-6)
        assert gate["at_the_start"] == pytest.approx(gate["mean"][0])


def test_gates_are_means_over_channels_by_pass(recipe: Recipe, agclr: Path, tmp_path: Path) -> None:
    written = draw("gates", agclr, out=tmp_path / "gates.svg")["gates"]
    model, _ = load_model(agclr)
    with torch.no_grad():
        traces = [model(row[None], output_thoughts=True).thoughts[0] for row in asked(agclr, recipe)]
    for name, gate in written.items():
        curves = torch.stack([trace.curves[name] for trace in traces])
        assert gate["mean"] == pytest.approx(curves.mean(0).tolist(), abs=1e-5)
        assert gate["std"] == pytest.approx(curves.std(0, correction=0).tolist(), abs=1e-5)
        assert max(gate["std"]) > 1e-3


def test_only_gates_that_a_model_has_are_drawn(recipe: Recipe, tmp_path: Path) -> None:
    fewer = saved(tmp_path / "fewer", recipe, "agclr", gates=["read", "write"])
    assert list(draw("gates", fewer, out=tmp_path / "gates.svg")["gates"]) == ["read", "write"]


# -- nearest tokens ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_nearest_tokens_are_those_with_the_largest_cosine(agclr: Path, tmp_path: Path) -> None:
    out = tmp_path / "tokens.svg"
    written = draw("tokens", agclr, out=out, text=QUESTION)
    model, tokenizer = load_model(agclr)
    special = special_token_ids(tokenizer)
    thought = [special["latent_start_token_id"], *[special["latent_token_id"]] * 3, special["latent_end_token_id"]]
    question = f"{one_line(QUESTION)}\n"
    row = torch.tensor([*tokenizer(question, add_special_tokens=False)["input_ids"], *thought])
    _, read, memory = passes(agclr, row)
    for name, vectors in (("latent", read), ("concept", memory)):
        expected = cosines(vectors, model.get_input_embeddings().weight.detach())
        stream = written["streams"][name]
        near = expected.topk(5)
        assert stream["tokens"] == [[tokenizer.decode([i]) for i in ids] for ids in near.indices.tolist()]
        assert np.array(stream["similarity"]) == pytest.approx(near.values.numpy(), abs=1e-4)
        assert stream["mean_similarity"] == pytest.approx(expected.mean(1).tolist(), abs=1e-4)
    first = out.read_bytes()
    draw("tokens", agclr, out=out, text=QUESTION)
    assert out.read_bytes() == first


def test_a_thought_that_is_a_tokens_embedding_is_nearest_to_it(recipe: Recipe, tmp_path: Path) -> None:
    """Where the state stands still it is the start marker's embedding, normalised; all have mean 0 and one length."""

    def change(model: Any) -> None:
        standing_still(model)
        weight = model.get_input_embeddings().weight
        weight.copy_(torch.nn.functional.layer_norm(weight, weight.shape[1:]))

    still = saved(tmp_path / "still", recipe, "coconut", change)
    written = draw("tokens", still, out=tmp_path / "tokens.png", text=QUESTION)
    assert list(written["streams"]) == ["latent"]
    assert [near[0] for near in written["streams"]["latent"]["tokens"]] == ["<|start-latent|>"] * 3
    assert [near[0] for near in written["streams"]["latent"]["similarity"]] == pytest.approx([1, 1, 1], abs=1e-4)


def test_signs_that_a_font_lacks_differ_from_spaces() -> None:
    assert drawable_token(" is\n") == "·is↵"
    assert drawable_token("\x00字") == "��"
    assert drawable_token("<|start-latent|>") == "<|start-lat…"


# -- answers -----------------------------------------------------------------------------------------------------------


def answered(run: Path, split: str, source: str | None = None, latents: int | None = None) -> list[Any]:
    """What a model answers to each question of a split."""
    saved = load(run, "cpu").on(source)
    return ask(saved.at(latents=latents), saved.split(split)).records


def answers_of(folder: Path, source: str, split: str, said: dict[int, Any]) -> str:
    """The same questions; what was said to those in `said` is their answer."""
    folder.mkdir()
    for name in ("train", "validation", "test"):
        lines = (Path(source.removeprefix("file:")) / f"{name}.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        for document, answer in said.items() if name == split else ():
            rows[document]["answer"] = answer.answer
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"file:{folder}"


def clean(given: list[Any]) -> dict[int, Any]:
    """Answers that are the same when they are read from a file."""
    return {each.document: each for each in given if each.answer.isprintable() and "\ufffd" not in each.answer}


@pytest.fixture
def one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Untrained models never end an answer: with one as the right answer the limit would grow, and the next with it."""
    monkeypatch.setattr("mentalese.evaluation.questions.answer_limit", lambda evaluation, *_: evaluation.answer_tokens)


@pytest.mark.slow
@pytest.mark.usefixtures("one_limit")
def test_cases_are_right_by_the_first_and_wrong_by_the_second(
    recipe: Recipe, source: str, agclr: Path, coconut: Path, tmp_path: Path
) -> None:
    said = clean(answered(agclr, "validation"))
    assert len(said) >= 2
    picked = {document: said[document] for document in list(said)[1:]}
    asked_of = answers_of(tmp_path / "asked", source, "validation", picked)
    picture, written = figures.contrast([str(agclr), str(coconut)], source=asked_of)
    assert [case["document"] for case in written["cases"]] == list(picked)
    assert written["right"] == {"both": 0, "first": len(picked), "second": 0, "neither": 6 - len(picked)}
    assert (written["questions"], written["source"], written["latents"]) == (6, asked_of, 3)
    other = {each.document: each.answer for each in answered(coconut, "validation", asked_of)}
    rows = asked(agclr, recipe)
    model, tokenizer = load_model(agclr)
    embeddings = model.get_input_embeddings().weight.detach()
    for case in written["cases"]:
        answer = picked[case["document"]].answer
        assert case["expected"] == answer
        assert case["answers"] == [answer, other[case["document"]]]
        assert case["question"].startswith("What is")
        ids = list(dict.fromkeys(tokenizer(f"### {answer}", add_special_tokens=False)["input_ids"]))
        ids = [i for i in ids if tokenizer.decode([i]).strip(" #")]
        assert case["tokens"] == [tokenizer.decode([i]) for i in ids]
        similarity = cosines(passes(agclr, rows[case["document"]])[2], embeddings)
        assert np.array(case["similarity"]) == pytest.approx(similarity[:, ids].numpy(), abs=1e-4)
        ranks = [[int((row > row[i]).sum()) + 1 for i in ids] for row in similarity]
        assert np.abs(np.array(case["rank"]) - np.array(ranks)).max() <= 1  # two may change places by rounding
    picture.savefig(tmp_path / "contrast.png")
    with pytest.raises(InputError, match=r"agclr answers none of 6 questions right that coconut answers wrong"):
        figures.contrast([str(agclr), str(coconut)])
    with pytest.raises(InputError, match=rf"both right {len(picked)}, neither {6 - len(picked)}"):
        figures.contrast([str(agclr), str(agclr)], source=asked_of)


@pytest.mark.slow
@pytest.mark.usefixtures("one_limit")
def test_accuracy_is_of_so_many_latents_up_to_twice_as_many(
    source: str, agclr: Path, pause: Path, tmp_path: Path
) -> None:
    said = clean(answered(agclr, "test", latents=5))
    asked_of = answers_of(tmp_path / "asked", source, "test", said)
    picture, written = figures.latents([str(agclr), str(pause)], source=asked_of)
    first, second = written["models"]
    assert first["at"] == second["at"] == list(range(7))
    assert (first["mode"], second["mode"], first["latents"], first["questions"]) == ("agclr", "pause", 3, 5)
    assert first["accuracy"][5] == len(said) / 5 > 0
    for count in (0, 3, 6):
        given = answered(agclr, "test", asked_of, count)
        assert first["accuracy"][count] == sum(each.correct for each in given) / 5
    assert min(first["accuracy"]) < first["accuracy"][5], "the number of latents says something"
    low, high = first["interval"]
    assert all(a <= b <= c for a, b, c in zip(low, first["accuracy"], high))
    picture.savefig(tmp_path / "latents.png")
    _, fewer = figures.latents([str(agclr)], source=asked_of, documents=2)
    assert fewer["models"][0]["questions"] == 2


@pytest.fixture(scope="module", params=["sentences", "words"])
def searcher(request: pytest.FixtureRequest, recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model of graphs."""
    source = f"builtin:reachability:facts={request.param},count=200"
    graphs = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, source=source))
    roomy = {"backbone": recipe.model["backbone"] | {"n_positions": 512}}
    return saved(tmp_path_factory.mktemp("searcher") / "searcher", graphs, "coconut", speaking, **roomy)


@pytest.mark.slow
def test_latents_that_contain_the_frontier_raise_the_diagonal(
    searcher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Latent t is the mean of the names at distance t: they are closer to it than all others, in every question."""
    thinking = figures._thinking

    def planted(run: Any, split: Split, label: str) -> Any:
        task, graphs = figures._search(run.data.source)
        embeddings = run.model.get_input_embeddings().weight.detach()
        torch.nn.init.normal_(embeddings)
        for documents, thoughts in thinking(run, split, label):
            for row, document in enumerate(documents):
                graph = graphs[figures._question(run, split, document)]
                for t, latent in enumerate(thoughts.latents, 1):
                    at = [name for i, d in enumerate(graph.distances()) if d == t for name in task.names(graph, i)]
                    ids = [run.tokenizer.encode(f" {word}", add_special_tokens=False) for word in at]
                    latent[row] = torch.stack([embeddings[own].mean(0) for own in ids]).mean(0)
            yield documents, thoughts

    plain = draw("frontier", searcher, out=tmp_path / "plain.svg", documents=100)["distances"]
    monkeypatch.setattr(figures, "_thinking", planted)
    found = draw("frontier", searcher, out=tmp_path / "planted.svg", documents=100)
    distances = found["distances"]
    assert found["questions"] == distances["2"]["questions"] == distances["1"]["questions"] > 0
    assert ("0" in distances) == ("sentences" in found["source"]), "no fact leads to a person"
    for t in range(1, LATENTS + 1):
        column = {name: series["mean"][t - 1] for name, series in distances.items()}
        assert max(column, key=column.__getitem__) == str(t)
        assert column[str(t)] > 0.85 > plain[str(t)]["mean"][t - 1]


def test_the_frontier_needs_graphs(coconut: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"needs graphs, and file:.* has none: use builtin:reachability"):
        draw("frontier", coconut, out=tmp_path / "x.svg")


def test_other_questions_can_be_asked_and_fewer_of_them(agclr: Path, source: str, tmp_path: Path) -> None:
    numbers = write_figure("coconut/gates", [str(agclr)], tmp_path / "few.svg", source=source, documents=2)
    whole = write_figure("coconut/gates", [str(agclr)], tmp_path / "all.svg")
    assert numbers["questions"] == 2 < whole["questions"]
    with pytest.raises(InputError, match="coconut/tokens reads no data, remove --data"):
        write_figure("coconut/tokens", [str(agclr)], tmp_path / "tokens.svg", QUESTION, documents=2)


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_what_cannot_be_drawn_is_refused(
    recipe: Recipe, source: str, agclr: Path, coconut: Path, pause: Path, tmp_path: Path
) -> None:
    def refused(name: str, *paths: Path, says: str, text: str = QUESTION) -> None:
        out = tmp_path / "figure.svg"
        with pytest.raises(InputError, match=says):
            write_figure(f"coconut/{name}", [str(path) for path in paths], out, text if name == "tokens" else None)
        assert not out.exists()

    early = saved(tmp_path / "early", recipe, "agclr", stage=0)
    single = saved(tmp_path / "single", recipe, "coconut", stage=1)
    for name in ("retention", "tokens"):
        refused(name, pause, says="is a pause model: use one of the modes coconut, agclr")
    for name in ("retention", "gates", "tokens", "latents"):
        refused(name, early, says="has 0 latents at stage 0, its last: use a model with at least")
    refused("retention", single, says="has 1 latents at stage 1, its last: use a model with at least 2")
    refused("gates", coconut, says="is a coconut model: use one of the modes agclr")
    refused("gates", agclr, agclr, says="use MODEL")
    refused("gates", saved(tmp_path / "bare", recipe, "agclr", gates=[]), says="has no gates")
    refused("tokens", agclr, coconut, says="use MODEL")
    refused("tokens", agclr, text=" \n", says="use a prompt with some text")
    refused("tokens", agclr, text="one " * 70, says="shorten")
    refused("contrast", agclr, says="use AGCLR OTHER")
    refused("contrast", coconut, agclr, says="is a coconut model")

    plain = dataclasses.replace(recipe, model=recipe.model["backbone"])
    layout = QuestionAnswer(sequence_length=512, stages=3)
    gpt2 = saved(tmp_path / "gpt2", dataclasses.replace(plain, layout=layout), None)
    refused("latents", gpt2, says="is a gpt2 model: use one of the modes coconut, agclr, pause")
    elsewhere = answers_of(tmp_path / "elsewhere", source, "test", {})
    other = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, source=elsewhere))
    stranger = saved(tmp_path / "stranger", other, "coconut")
    refused("contrast", agclr, stranger, says="use two models of the same questions")
    cramped = dataclasses.replace(recipe, evaluation=dataclasses.replace(recipe.evaluation, answer_tokens=60))
    for name in ("retention", "gates", "latents"):
        refused(name, saved(tmp_path / name, cramped, "agclr"), says="the model's context is 64")

"""Texts from Python are a source like a file; a text without splits is scored as a whole."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest

from mentalese import InputError, Recipe, answer, as_source, cli, evaluate, get_recipe, load, train
from mentalese.data.documents import SPLITS
from mentalese.data.sources import open_source
from mentalese.data.store import prepare
from mentalese.evaluation import paired
from mentalese.evaluation.options import TextOptions
from support import saved, shrink

TEXTS = [f"Document {i}. It is short." for i in range(60)]


def texts(source: str, **options: Any) -> dict[str, list[str]]:
    found = open_source(source, **options)
    return {split: [document.text for document in found.documents(split)] for split in found.splits}


def generated() -> Iterator[str]:
    yield from TEXTS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Path:
    """An untrained model, whose own text is the corpus."""
    return saved(tmp_path_factory.mktemp("models") / "gpt2", shrink(get_recipe("gpt2/tiny"), corpus))


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Path:
    recipe = shrink(get_recipe("coconut/tiny"), corpus)
    recipe = dataclasses.replace(recipe, evaluation=dataclasses.replace(recipe.evaluation, answer_tokens=4))
    return saved(tmp_path_factory.mktemp("models") / "coconut", recipe)


def test_every_form_of_the_same_texts_is_the_same_source(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    file = open_source(f"file:{tmp_path / 'a.jsonl'}")
    rows = datasets.Dataset.from_dict({"text": TEXTS})
    forms = [TEXTS, tuple(TEXTS), generated, generated(), [{"text": text} for text in TEXTS], rows]
    forms += [rows.to_iterable_dataset(), {"train": TEXTS}, datasets.DatasetDict({"train": rows})]
    names = {as_source(form) for form in forms}
    assert len(names) == 1
    (name,) = names
    assert name.startswith("python:")
    assert open_source(name).fingerprint == file.fingerprint
    assert texts(name) == texts(f"file:{tmp_path / 'a.jsonl'}")
    assert as_source(TEXTS[1:]) != name
    assert as_source("builtin:stdlib") == "builtin:stdlib"


def test_splits_columns_and_records_are_taken_as_from_files() -> None:
    parts = {"train": TEXTS[:9], "valid": TEXTS[9:11], "test": TEXTS[11:]}
    assert texts(as_source(parts)) == {"train": TEXTS[:9], "validation": TEXTS[9:11], "test": TEXTS[11:]}
    rows = [{"title": "t", "body": text} for text in TEXTS]
    with pytest.raises(InputError, match="several columns"):
        open_source(as_source(rows))
    assert {text for part in texts(as_source(rows), text_column="body").values() for text in part} == set(TEXTS)
    records = [{"question": f"{i}?", "steps": [], "answer": "yes"} for i in range(9)]
    assert open_source(as_source(records)).kind == "records"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (5, r"data\['train'\] is int: use an iterable"),
        (b"text", r"data\['train'\] is bytes"),
        ([], "is empty: use"),
        ({}, "is empty: use"),
        ([" ", "\n"], "no document left for train"),
        (["fine", 3], "data, train item 2 is int: use texts"),
        ([b"text"], "data, train item 1 is bytes"),
        ({"tran": TEXTS}, "the split 'tran'.*did you mean 'train'"),
        ({"train": TEXTS, "validation": ["a"], "dev": ["b"]}, "the split 'dev': use .* each once"),
        ({"train": "text"}, r"data\['train'\] is str"),
        ({"train": TEXTS, "test": []}, "no document left for test"),
        ([{}], "no column contains the text"),
        (["half \ud800"], "not valid Unicode"),
    ],
)
def test_anything_but_texts_is_refused(data: Any, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        open_source(as_source(data))
    assert "\n" not in str(caught.value)


def test_texts_that_change_between_two_readings_are_refused() -> None:
    calls = []

    def changing() -> list[str]:
        calls.append(1)
        return [f"{text} {len(calls)}" for text in TEXTS]

    with pytest.raises(InputError, match="differ from the texts of the first reading"):
        open_source(as_source(changing))


@pytest.mark.slow
def test_training_on_texts_equals_training_on_their_file(corpus: Path, tmp_path: Path) -> None:
    recipe = shrink(get_recipe("gpt2/tiny"), corpus, steps=2)
    rows = [json.loads(line) for line in corpus.read_text().splitlines()]
    train(recipe, out=tmp_path / "file", show=False)
    model = train(recipe, data=datasets.Dataset.from_list(rows), out=tmp_path / "python", show=False)
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("file", "python")]
    assert results[0]["test"]["nll"] == results[1]["test"]["nll"]
    assert model.recipe is not None
    assert model.recipe.data.source == as_source(rows)
    assert Recipe.from_dict(json.loads((tmp_path / "python" / "config.json").read_text())["recipe"]) == model.recipe
    scored = evaluate(model, show=False)["perplexity"]
    assert (scored["split"], scored["nll"]) == ("test", results[1]["test"]["nll"])
    again = train(recipe, data=rows, out=tmp_path / "python", resume=True, show=False)
    assert again.recipe == model.recipe
    code = f"import mentalese; mentalese.evaluate({str(tmp_path / 'python')!r}, show=False)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"data.source is '{as_source(rows)}': these texts were passed from Python" in done.stderr
    assert load(tmp_path / "python").generate("The first", max_new_tokens=2)


def test_a_lone_file_is_scored_whole(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my.txt").write_text("One short text. It is all there is.")
    assert cli.main(["eval", str(folder), "--data", f"file:{tmp_path / 'my.txt'}"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"scored: all of file:{tmp_path / 'my.txt'}, 1 document, ")
    scored = evaluate(folder, data=f"file:{tmp_path / 'my.txt'}", show=False)["perplexity"]
    assert (scored["split"], scored["documents"], scored["bytes"]) == ("all", 1, 35)
    assert last.endswith(f", {scored['tokens']} tokens, in sliding windows of 64 tokens inside a document")
    same = evaluate(folder, data=["One short text. It is all there is."], show=False)["perplexity"]
    assert same["source"].startswith("python:")
    assert {**same, "source": ""} == {**scored, "source": ""}


@pytest.mark.slow
def test_a_models_own_text_is_recognised(
    folder: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = shrink(get_recipe("gpt2/tiny"), corpus, steps=1)
    store = prepare(recipe.data, recipe.layout, show=False)[0].folder
    recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, source=f"store:{store}"))
    trained = train(recipe, out=tmp_path / "run", show=False)
    own = evaluate(tmp_path / "run", show=False)["perplexity"]
    monkeypatch.chdir(corpus.parent)
    scored = evaluate(tmp_path / "run", data=f"file:{corpus.name}", show=False)["perplexity"]
    assert (scored["split"], scored["nll"]) == ("test", own["nll"])
    text = TextOptions(source=f"file:{corpus}")
    unseen = dataclasses.replace(trained, path=str(folder), recipe=None)
    assert (
        paired.run(unseen, trained, text)["documents"]
        == own["documents"]
        < paired.run(unseen, unseen, text)["documents"]
    )


def test_documents_held_out_in_training_stay_held_out(
    folder: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test split by the usual hash would contain documents that the model was trained on."""
    recipe = shrink(get_recipe("gpt2/tiny"), corpus, steps=1)
    data = dataclasses.replace(recipe.data, held_out=6)
    trained = train(dataclasses.replace(recipe, data=data), out=tmp_path / "run", show=False)
    own = evaluate(trained, show=False)["perplexity"]
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(corpus.read_bytes())
    monkeypatch.chdir(corpus.parent)
    for source in (f"file:{corpus}", f"file:{corpus.name}", f"file:{copy}"):
        scored = evaluate(trained, data=source, show=False)["perplexity"]
        assert (scored["split"], scored["documents"], scored["nll"]) == ("test", 3, own["nll"]), source
    assert trained.on("builtin:families").data.held_out == 0.1
    unseen = dataclasses.replace(trained, path=str(folder), recipe=None)
    assert paired.run(trained, unseen)["documents"] == 3


def test_every_document_of_a_file_is_scored_once(folder: Path, tmp_path: Path) -> None:
    whole = evaluate(folder, data=TEXTS, show=False)["perplexity"]
    assert (whole["documents"], whole["bytes"]) == (60, sum(map(len, TEXTS)))
    parts = [evaluate(folder, data=TEXTS, split=split, show=False)["perplexity"] for split in SPLITS]
    assert sum(part["nll"] * part["tokens"] for part in parts) == pytest.approx(whole["nll"] * whole["tokens"])
    assert [part["split"] for part in parts] == [*SPLITS]


@pytest.mark.slow
def test_texts_with_splits_are_not_scored_whole(folder: Path, corpus: Path) -> None:
    own = evaluate(folder, show=False)["perplexity"]
    assert own["split"] == "test"
    assert evaluate(folder, data=f"file:{corpus}", show=False)["perplexity"] == own
    roundabout = corpus.parent / ".." / corpus.parent.name / corpus.name
    assert evaluate(folder, data=f"file:{roundabout}", show=False)["perplexity"]["nll"] == own["nll"]
    parts = {"train": TEXTS[3:], "test": TEXTS[:3]}
    assert evaluate(folder, data=parts, show=False)["perplexity"]["documents"] == 3
    assert evaluate(folder, source=f"file:{corpus}", split="all", show=False)["perplexity"]["documents"] == 120
    with pytest.raises(InputError, match=r"split is 'all': .* has splits of its own, set one of train, test"):
        evaluate(folder, data=parts, split="all", show=False)
    with pytest.raises(InputError, match="source is 'builtin:stdlib': data is set too"):
        evaluate(folder, data=TEXTS, source="builtin:stdlib", show=False)


def test_all_questions_of_a_lone_file_are_asked(
    asked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"question": f"Is {i} more than 1?", "steps": [], "answer": "yes"} for i in range(2)]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert cli.main(["answer", str(asked), "--data", f"file:{tmp_path / 'q.jsonl'}"]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith(f"asked: all of file:{tmp_path / 'q.jsonl'}, 2 questions, ")
    assert said.endswith(" unfinished")
    metrics = answer(asked, data=rows, show=False)
    assert (metrics["questions"], metrics["split"]) == (2, "all")


@pytest.mark.parametrize(("given", "says"), [([], r"texts is \[\]: pass at least one"), (["a", 3], r"texts\[1\] is 3")])
def test_a_model_refuses_anything_but_texts(folder: Path, given: list[Any], says: str) -> None:
    model = load(folder)
    for call in (model.encode, model.generate, model.score):
        with pytest.raises(InputError, match=says):
            call(given)

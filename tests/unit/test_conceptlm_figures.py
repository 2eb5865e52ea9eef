"""Figures of ConceptLM: what runs have logged, and concepts that are those of each text read alone."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mentalese import get_recipe
from mentalese.analyses.figures import write_figure
from mentalese.data.evaluation import evaluation_batches
from mentalese.data.layouts import Packed
from mentalese.errors import InputError
from mentalese.families.conceptlm.plain import ConceptLM
from mentalese.models.checkpoints import load_model
from mentalese.models.saved import load
from mentalese.recipe import EvaluationConfig, Recipe
from support import saved, sharing, short_documents, shrink

LENGTH, SIZE, SEGMENTS = 26, 4, 2
TEXT = "Anna is $3 the\nmother of Ben. 水"


@pytest.fixture(scope="module")
def recipe(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """A few short documents to validate on, cut into rows of which not all are full."""
    folder = short_documents(corpus, tmp_path_factory.mktemp("text"), (210, 190, 160))
    recipe = shrink(get_recipe("conceptlm/tiny"), folder)
    backbone = recipe.model["backbone"] | {"n_embd": 16, "n_layer": 2, "n_head": SEGMENTS, "n_positions": LENGTH}
    return dataclasses.replace(
        recipe,
        model=recipe.model | {"backbone": backbone, "num_codes": 4, "insert_depth": 1},
        data=dataclasses.replace(recipe.data, tokenizer="bpe:280"),
        layout=Packed(sequence_length=LENGTH, batch_size=4),
        evaluation=EvaluationConfig(context_length=LENGTH, stride=LENGTH - 1, batch_size=4),
    )


@pytest.fixture(scope="module")
def model(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("concepts") / "concept", recipe)


def draw(name: str, *paths: Path, out: Path, text: str | None = None) -> dict[str, Any]:
    write_figure(f"conceptlm/{name}", [str(path) for path in paths], out, text)
    assert out.stat().st_size > 5_000
    return json.loads(out.with_suffix(".json").read_text())


def logged(folder: Path, records: list[dict[str, Any]]) -> Path:
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "config.json").write_text(json.dumps({"recipe": {"name": f"conceptlm/{folder.name}"}}))
    return folder


# -- codes over training -----------------------------------------------------------------------------------------------


def test_codes_are_drawn_as_each_run_logged_them(tmp_path: Path) -> None:
    names = [f"codebook_{name}{end}" for name in ("utilisation", "perplexity") for end in ("", ".least")]
    names += ["ncp", "concept_r2"]

    def records(offset: float) -> list[dict[str, Any]]:
        steps = [
            {"step": step, "tokens": 100 * step, "loss": 5.0}
            | {name: offset + step / 10 + i / 100 for i, name in enumerate(names)}
            for step in (1, 2, 3)
        ]
        return [*steps[:2], {"step": 2, "tokens": 200, "validation": {"perplexity": 9.0}}, steps[2]]

    runs = [logged(tmp_path / name, records(offset)) for name, offset in (("a", 0.1), ("b", 0.2))]
    written = draw("codebook", *runs, out=tmp_path / "codebook.svg")
    assert [run["label"] for run in written["runs"]] == ["conceptlm/a", "conceptlm/b"]
    for run, offset in zip(written["runs"], (0.1, 0.2), strict=True):
        assert run["tokens"] == [100, 200, 300]
        for i, name in enumerate(names):
            assert run[name] == pytest.approx([offset + step / 10 + i / 100 for step in (1, 2, 3)])


def test_a_run_from_before_r2_was_logged_is_drawn_without_it(tmp_path: Path) -> None:
    names = [f"codebook_{name}{end}" for name in ("utilisation", "perplexity") for end in ("", ".least")]
    old = {"tokens": 100, "ncp": 0.5} | dict.fromkeys(names, 1.0)
    runs = [logged(tmp_path / "old", [old]), logged(tmp_path / "new", [old | {"concept_r2": 0.3}])]
    for run in draw("codebook", *runs, out=tmp_path / "codebook.svg")["runs"]:
        assert run["ncp"] == [0.5]
        assert "concept_r2" not in run


def test_a_run_without_codes_is_refused(tmp_path: Path) -> None:
    run = logged(tmp_path / "context", [{"step": 1, "tokens": 5, "ncp": 1.0}])
    with pytest.raises(InputError, match="has logged no codebook_utilisation, use a run of a ConceptLM"):
        write_figure("conceptlm/codebook", [str(run)], tmp_path / "codebook.svg")
    assert not (tmp_path / "codebook.svg").exists()


# -- what the baseline's perplexity costs ------------------------------------------------------------------------------


def finished(
    folder: Path, name: str, kind: str, size: int, scores: list[float], text: str = "same", **fields: Any
) -> Path:
    """A result whose validations cost 1,000 tokens each, and 3 FLOPs a token and parameter."""
    points = [
        {"step": i, "tokens": 1000 * i, "flops": 3000 * i * size, "validation_perplexity": score}
        for i, score in enumerate(scores, 1)
    ]
    path = folder / f"{name}.json"
    content = {"recipe": name, "test": {}, "data_hash": text, "parameters": {"non_embedding": size}, "curve": points}
    path.write_text(json.dumps(content | {"config": {"model": {"model_type": kind} | fields}}))
    return path


def test_shares_are_what_the_largest_decoders_perplexity_needs(tmp_path: Path) -> None:
    plain = [finished(tmp_path, f"gpt2-{n}", "gpt2", n, [900, 400 / n, 80, 900 / n]) for n in (10, 100)]  # 4 at 2,000
    own = [
        finished(tmp_path, "small", "conceptlm", 11, [90, 50, 16]),
        finished(tmp_path, "large", "conceptlm", 110, [64, 1, 0.5]),
    ]
    written = draw("shares", *plain, *own, out=tmp_path / "shares.svg")
    assert (written["model"], written["baseline"], written["perplexity"]) == ("large", "gpt2-100", 4)
    tokens = 1000 * 2 ** (2 / 3)  # two of the three factors of 4 between 64 and 1
    assert written["tokens"] == {
        "needed": pytest.approx(tokens),
        "baseline": 2000,
        "share": pytest.approx(tokens / 2000),
    }
    assert written["flops"]["share"] == pytest.approx(tokens * 110 / (2000 * 100))
    size = 11 * 10 ** (2 / 5)  # two of the five factors of 2 between 16 and 0.5
    assert written["parameters"]["share"] == pytest.approx(size / 100)


def test_incomparable_runs_and_missing_perplexity_are_refused(tmp_path: Path) -> None:
    plain = finished(tmp_path, "plain", "gpt2", 10, [9, 3])
    own = finished(tmp_path, "own", "conceptlm", 11, [9, 4])
    written = draw("shares", plain, own, out=tmp_path / "shares.svg")
    assert [written[axis]["share"] for axis in ("tokens", "flops", "parameters")] == [None] * 3
    assert "perplexity is not reached" in (tmp_path / "shares.svg").read_text()
    draw("shares", plain, finished(tmp_path, "better", "conceptlm", 11, [2, 1]), out=tmp_path / "shares.svg")
    assert "is reached before the first validation" in (tmp_path / "shares.svg").read_text()
    other = finished(tmp_path, "other", "conceptlm", 11, [9, 4], text="another")
    mtp = finished(tmp_path, "mtp", "mtp", 12, [9, 2])
    context = finished(tmp_path, "context", "conceptlm", 12, [9, 2], codebook=None)
    for paths, says in (
        ([own], "use results of ConceptLM"),
        ([plain, other], "trained on different texts"),
        ([plain, own, mtp], r"mtp.json'.*it is neither ConceptLM with a codebook nor a plain"),
        ([plain, own, context], r"context.json'.*it is neither ConceptLM with a codebook nor"),
    ):
        with pytest.raises(InputError, match=says):
            write_figure("conceptlm/shares", [str(path) for path in paths], tmp_path / "no.svg")


# -- concepts of a text ------------------------------------------------------------------------------------------------


@torch.no_grad()
def alone(plain: ConceptLM, ids: Tensor) -> tuple[Tensor, Tensor, list[list[int]]]:
    """u and p of a row [n], and the codes nearest to each u."""
    _, [pooled], [predicted] = plain.read(ids[None])
    return pooled, predicted, nearest(plain, pooled)


def nearest(plain: ConceptLM, vectors: Tensor) -> list[list[int]]:
    assert plain.codebook is not None
    return plain.codebook.nearest(vectors)[0].tolist()


def test_concepts_of_a_validation_row_equal_its_own(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "concepts.svg"
    written = draw("concepts", model, out=out, text=TEXT)
    opened = load(model).scored_by(batch_size=1)
    plain, tokenizer = sharing(ConceptLM(opened.model.config), opened.model), opened.tokenizer
    batches = evaluation_batches(opened.split("validation"), opened.layout, opened.evaluation, tokenizer)
    rows = [batch["input_ids"][0] for batch in batches]
    assert len({len(row) for row in rows}) > 1  # read together, some are padded
    there = []
    for row in rows:
        pooled, _, codes = alone(plain, row)
        there += [(row[j * SIZE : (j + 1) * SIZE], u, own) for j, (u, own) in enumerate(zip(pooled, codes))]
    assert written["split_chunks"] == len(there) > 20

    counts = torch.zeros(SEGMENTS, 4)
    for _, _, codes in there:
        for segment, code in enumerate(codes):
            counts[segment, code] += 1
    share = counts / len(there)
    perplexity = torch.special.entr(share).sum(1).exp()
    segment = written["segment"]
    assert segment == int(perplexity.argmax())
    assert written["segment_perplexity"] == pytest.approx(float(perplexity[segment]), rel=1e-5)

    ids = torch.tensor([tokenizer.eos_token_id, *tokenizer(TEXT, add_special_tokens=False).input_ids])
    pooled, predicted, codes = alone(plain, ids)
    assert len(ids) % SIZE
    assert len(written["chunks"]) == len(pooled) > 3
    mean = torch.stack([u for _, u, _ in there]).mean(0)
    for j, (chunk, u) in enumerate(zip(written["chunks"], pooled)):
        assert chunk["text"] == tokenizer.decode(ids[j * SIZE : (j + 1) * SIZE].tolist())
        assert chunk["codes"] == codes[j]
        assert chunk["code"] == codes[j][segment]
        assert chunk["error_of_mean"] == pytest.approx(float((u - mean).square().mean()), rel=1e-4)
        if j:
            assert chunk["error"] == pytest.approx(float((predicted[j - 1] - u).square().mean()), rel=1e-4)
            assert chunk["predicted_code"] == nearest(plain, predicted[j - 1])[segment]
        same = [(tokens, other) for tokens, other, own in there if own[segment] == chunk["code"]]
        assert chunk["same_code"] == len(same)
        own = u.chunk(SEGMENTS)[segment]
        same.sort(key=lambda pair: float((pair[1].chunk(SEGMENTS)[segment] - own).square().sum()))
        said = dict.fromkeys(tokenizer.decode(tokens.tolist()) for tokens, _ in same)
        assert chunk["nearest"] == [other for other in said if other != chunk["text"]][:3]
    assert written["chunks"][0]["error"] is written["chunks"][0]["predicted_code"] is None
    assert any(chunk["nearest"] for chunk in written["chunks"])
    first = out.read_bytes()
    draw("concepts", model, out=out, text=TEXT)
    assert out.read_bytes() == first


def test_a_text_of_one_chunk_has_a_concept_and_no_prediction(model: Path, tmp_path: Path) -> None:
    tokenizer = load_model(model)[1]
    text = tokenizer.decode(tokenizer(TEXT, add_special_tokens=False).input_ids[: SIZE - 1])
    (chunk,) = draw("concepts", model, out=tmp_path / "one.svg", text=text)["chunks"]
    assert chunk["text"].endswith(text)
    assert chunk["error"] is None


def test_what_cannot_be_drawn_is_refused(model: Path, recipe: Recipe, tmp_path: Path) -> None:
    def refused(*paths: Path, says: str, text: str = TEXT) -> None:
        out = tmp_path / "figure.svg"
        with pytest.raises(InputError, match=says):
            write_figure("conceptlm/concepts", [str(path) for path in paths], out, text)
        assert not out.exists()

    refused(model, model, says="use MODEL")
    refused(model, text="a", says=f"it has 2 tokens with its start, use one of {SIZE} .* to {LENGTH}")
    refused(model, text="word " * LENGTH, says="tokens with its start, use one of")
    context = saved(tmp_path / "context", recipe, codebook=None, ncp_weight=0.0, vq_weight=0.0)
    refused(context, says="use a ConceptLM with a codebook")
    gpt2 = dataclasses.replace(get_recipe("gpt2/tiny"), data=recipe.data, layout=recipe.layout)
    refused(saved(tmp_path / "gpt2", gpt2), says="use a ConceptLM")

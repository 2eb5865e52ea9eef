"""Figures of Latent Thought Models: the numbers beside a picture are what the model makes of each text alone."""

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
from mentalese.analyses.figures import write_figure
from mentalese.data.evaluation import evaluation_batches
from mentalese.data.layouts import Packed
from mentalese.data.split import Split
from mentalese.errors import InputError
from mentalese.families.latent_thought import figures
from mentalese.families.latent_thought.inference import infer
from mentalese.families.latent_thought.plain import LatentThought
from mentalese.models.checkpoints import load_model
from mentalese.models.saved import load
from mentalese.recipe import EvaluationConfig, Recipe
from support import saved, sharing, short_documents, shrink

LENGTH, LAYERS = 24, 3
TEXT = "$3 is\n$x_1$:\tA  son."


@pytest.fixture(scope="module")
def recipe(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """Three short documents to validate on, cut into rows of which not all are full."""
    folder = short_documents(corpus, tmp_path_factory.mktemp("text"), (110, 90, 60))
    recipe = shrink(get_recipe("latent_thought/tiny"), folder)
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "max_position_embeddings": LENGTH,
        "window_size": 6,
        "num_latents": 6,
        "fast_steps": 2,
        "initializer_range": 0.02,  # `saved` enlarges it; from these weights each layer guesses some token right
    }
    return dataclasses.replace(
        recipe,
        model=recipe.model | sizes,
        data=dataclasses.replace(recipe.data, tokenizer="bpe:280"),
        layout=Packed(sequence_length=LENGTH, batch_size=4),
        evaluation=EvaluationConfig(context_length=LENGTH, stride=LENGTH - 1, batch_size=4),
    )


@pytest.fixture(scope="module")
def run(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("thinking") / "run", recipe)


@pytest.fixture(scope="module")
def plain(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("plain") / "plain", recipe, num_latents=0)


def validation(path: Path) -> tuple[Any, Split, Any, Any, EvaluationConfig]:
    """What `perplexity` takes after the model."""
    opened = load(path)
    return opened.tokenizer, opened.split("validation"), opened.data, opened.layout, opened.evaluation


def rows(path: Path) -> list[Tensor]:
    """All rows [1, n], without padding, the longest first."""
    tokenizer, split, _, layout, protocol = validation(path)
    protocol = dataclasses.replace(protocol, batch_size=1)
    return [batch["input_ids"] for batch in evaluation_batches(split, layout, protocol, tokenizer)]


def draw(name: str, *paths: Path, out: Path, text: str | None = None) -> dict[str, Any]:
    write_figure(f"latent_thought/{name}", [str(path) for path in paths], out, text)
    assert out.stat().st_size > 5_000
    return json.loads(out.with_suffix(".json").read_text())


# -- scaling of training -----------------------------------------------------------------------------------------------


def finished(
    path: Path, perplexities: list[float], text: str = "d", estimator: str = "elbo-bound", **fields: Any
) -> Path:
    """A run's result, with the fields that the figure reads."""
    points = [
        {"step": step, "tokens": 100 * step, "flops": 1000 * step, "validation_perplexity": perplexity}
        for step, perplexity in enumerate(perplexities, 1)
    ]
    written = {
        "recipe": "latent_thought/x",
        "data_hash": text,
        "test": {"perplexity": perplexities[-1], "tokens": 500, "protocol": {"estimator": estimator}},
        "curve": [{"step": 0, "tokens": 50, "flops": 500, "loss": 5.0}, *points],
        "config": {"model": {"model_type": "ltm", "num_hidden_layers": 6, **fields}},
    }
    path.write_text(json.dumps(written))
    return path


def test_perplexity_is_drawn_by_fast_steps_tokens_and_flops(tmp_path: Path) -> None:
    runs = [
        finished(tmp_path / "a.json", [9.0, 6.0], num_latents=24, fast_steps=32),
        finished(tmp_path / "b.json", [9.0, 8.0], num_latents=24),
        finished(tmp_path / "c.json", [9.0, 5.0], num_latents=96, fast_steps=64),
        finished(tmp_path / "d.json", [20.0, 10.0], estimator="exact", num_latents=0),
    ]
    found = draw("scaling", *runs, out=tmp_path / "scaling.svg")["runs"]
    assert [(run["latents"], run["fast_steps"], run["test_perplexity"]) for run in found] == [
        (24, 32, 6.0),
        (24, 16, 8.0),
        (96, 64, 5.0),
        (0, None, 10.0),
    ]
    kinds: list[dict[str, Any]] = [{}, {"inference": "langevin"}, {"inference": "amortised"}, {"shared_latents": True}]
    kinds += [{"slow_grad": "accumulate"}, {"thought_control": "removed", "hidden_size": 32}]
    others = [finished(tmp_path / f"{i}.json", [9.0], **kind) for i, kind in enumerate(kinds)]
    found_others = draw("scaling", *others, out=tmp_path / "scaling.svg")["runs"]
    assert [(run["model"], run["fast_steps"]) for run in found_others] == [
        ("6 layers of 64, N_z 24", 16),
        ("6 layers of 64, N_z 24, Langevin", 16),
        ("6 layers of 64, N_z 24, VAE", None),
        ("6 layers of 64, N_z 24, shared", 16),
        ("6 layers of 64, N_z 24, accumulate", 16),
        ("6 layers of 32, N_z 24, removed", 16),
    ]
    assert found[0]["curve"] == {"tokens": [100, 200], "flops": [1000, 2000], "perplexity": [9.0, 6.0]}
    with pytest.raises(InputError, match=r"other.json.*another text than .*a.json"):
        draw("scaling", runs[0], finished(tmp_path / "other.json", [9.0], "e"), out=tmp_path / "no.svg")
    with pytest.raises(InputError, match="perplexities are elbo-bound and prefix, use runs of the same estimator"):
        draw("scaling", runs[0], finished(tmp_path / "p.json", [9.0], estimator="prefix"), out=tmp_path / "no.svg")
    with pytest.raises(InputError, match="use runs of Latent Thought Models"):
        draw("scaling", finished(tmp_path / "gpt2.json", [9.0], model_type="gpt2"), out=tmp_path / "no.svg")


# -- progressive reconstruction ----------------------------------------------------------------------------------------


def reconstruct(model: Any, ids: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """What is said of a row [1, n] with thoughts of 0, 1 .. layers: all logits made anew for every token."""
    plain = sharing(LatentThought(model.config), model)
    z = plain.infer(ids, seed=0).mu
    free, forced = [], []
    for layers in range(LAYERS + 1):
        own = z.clone()
        own[:, layers * 2 :] = 0
        said = ids[:, :1]
        while said.shape[1] < ids.shape[1]:
            said = torch.cat((said, plain(said, own)[:, -1:].argmax(-1)), dim=1)
        free.append(said[0, 1:])
        forced.append(plain(ids, own)[0, :-1].argmax(-1))
    return free, forced


@pytest.mark.slow
def test_early_layer_accuracy_matches_separate_decoding(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    *texts, _ = rows(run)
    assert texts[0].shape[1] == LENGTH > texts[-1].shape[1]  # there are padded rows among them
    monkeypatch.setattr(figures, "SEQUENCES", len(texts))
    written = draw("reconstruction", run, out=tmp_path / "reconstruction.svg")
    assert written["sequences"] == len(texts)
    model, _ = load_model(run)
    found = np.zeros((2, LAYERS + 1, len(texts)))
    moved = [0, 0]
    for row, ids in enumerate(texts):
        for kind, said in enumerate(reconstruct(model, ids)):
            found[kind, :, row] = [float((part == ids[0, 1:]).double().mean()) for part in said]
            moved[kind] += int((said[0] != said[-1]).sum())
    assert all(moves > 20 for moves in moved)  # thoughts matter
    assert (found.sum(2) > 0).all()
    for shares, accuracy in zip(found, written["accuracy"].values()):
        np.testing.assert_allclose(np.array(accuracy["each"]), shares, atol=1e-6)
        np.testing.assert_allclose(accuracy["mean"], shares.mean(1), atol=1e-6)
        np.testing.assert_allclose(accuracy["quartiles"][1], np.median(shares, 1), atol=1e-6)


def test_a_word_is_right_where_all_its_tokens_are(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, tokenizer = load_model(run)
    said = ["$3", "is", "$x_1$:", "A", "son."]
    ids = tokenizer(TEXT, add_special_tokens=False).input_ids
    assert len(said) < len(ids) < LENGTH  # some words are of several tokens
    # With so many layers all tokens from the first on, from the second on ..: the last token is the first to be right.
    firsts = (len(ids), len(ids) - 1, len(ids) // 2, 0)

    def reconstruct(opened: Any, batch: dict[str, Tensor]) -> tuple[Tensor, None]:
        assert batch["input_ids"].tolist() == batch["labels"].tolist() == [[tokenizer.eos_token_id, *ids]]
        free = torch.stack([batch["input_ids"]] * (LAYERS + 1))
        for row, first in zip(free, firsts):
            row[:, 1 : 1 + first] += 1
        return free, None

    monkeypatch.setattr(figures, "_reconstruct", reconstruct)
    out = tmp_path / "words.svg"
    written = draw("words", run, out=out, text=TEXT)
    assert written["words"] == said
    for right, words_right, tokens_right, first in zip(
        written["right"], written["words_right"], written["tokens_right"], firsts[1:], strict=True
    ):
        # What the tokens from the first right one on say, read from behind: words that lie wholly in it.
        tail = tokenizer.decode(ids[first:])
        whole = 0
        while whole < len(said) and tail.split()[-whole - 1 :] == said[-whole - 1 :]:
            whole += 1
        assert right == [False] * (len(said) - whole) + [True] * whole
        assert words_right == pytest.approx(whole / len(said))
        assert tokens_right == pytest.approx(1 - first / len(ids))
    assert written["words_right"][-1] == 1
    assert 0 < written["words_right"][1] < 1
    first_file = out.read_bytes()
    draw("words", run, out=out, text=TEXT)
    assert out.read_bytes() == first_file


# -- fast steps --------------------------------------------------------------------------------------------------------


def test_curves_equal_the_inference_of_each_row(run: Path, tmp_path: Path) -> None:
    written = draw("inference", run, out=tmp_path / "inference.svg")
    model, _ = load_model(run)
    steps = 4 * 2
    curves: dict[str, list[Tensor]] = {"NLL + KL": [], "NLL": [], "KL": []}
    layers: dict[int, list[Tensor]] = {2: [], steps: []}
    for ids in rows(run):
        batch, targets = {"input_ids": ids, "labels": ids}, ids.shape[1] - 1
        posteriors = {count: infer(model, batch, fast_steps=count) for count in layers}
        for count, posterior in posteriors.items():
            layers[count].append(posterior.kl_by_layer(LAYERS)[0] / targets)
        far = posteriors[steps]
        for name, nats in zip(curves, (far.nll + far.kl, far.nll, far.kl)):
            curves[name].append(nats[:, 0] / targets)
    assert written["rows"] == len(rows(run))
    for name, found in (written["curves"] | written["kl_by_layer"]).items():
        each = torch.stack(curves[name] if name in curves else layers[int(name)]).double()
        assert found["mean"] == pytest.approx(each.mean(0).tolist(), rel=1e-3)
        assert found["std"] == pytest.approx(each.std(0, unbiased=False).tolist(), rel=1e-2, abs=1e-4)
    assert len(written["curves"]["KL"]["mean"]) == steps
    assert list(written["kl_by_layer"]) == ["2", str(steps)]


def test_a_bound_by_fast_steps_is_the_perplexity_with_so_many(run: Path, plain: Path, tmp_path: Path) -> None:
    written = draw("steps", run, plain, out=tmp_path / "steps.svg")
    found, baseline = written["models"]
    assert found["steps"] == [1, 2, 4, 8]
    assert found["rows"] == baseline["rows"] == len(rows(run))

    def scored(path: Path, estimator: str | None = None, **fields: Any) -> Any:
        saved = load(path, config=fields).scored_by(estimator=estimator)
        return saved.perplexity(saved.split("validation"))

    for i, steps in enumerate(found["steps"]):
        bound, prefix = scored(run, fast_steps=steps), scored(run, "prefix", fast_steps=steps)
        assert found["bound"][i] == pytest.approx(bound.nll, rel=1e-5)
        assert {name: found[name][i] for name in ("nll", "kl")} == pytest.approx(bound.parts, rel=1e-5)
        assert found["prefix"][i] == pytest.approx(prefix.nll, rel=1e-5)
        low, high = np.array(found["interval"]["bound"])[:, i]
        assert low < found["bound"][i] < high
    assert len(set(found["prefix"])) == 4
    assert baseline["bound"] == baseline["nll"] == pytest.approx([scored(plain).nll], rel=1e-5)


def test_without_thoughts_the_same_second_halves_are_scored(run: Path, plain: Path, tmp_path: Path) -> None:
    """What a model with thoughts scores under `prefix`, one without scores given the same tokens."""
    (baseline,) = draw("steps", plain, out=tmp_path / "steps.svg")["models"]
    (thinking, _), (model, _) = load_model(run), load_model(plain)
    nats, tokens = 0.0, 0
    for ids in rows(plain):
        batch = {"input_ids": ids, "labels": ids}
        scored = thinking.scored_labels(batch, "prefix") != -100
        nats += float(model.token_nll(batch)[scored].sum())
        tokens += int(scored.sum())
    assert baseline["prefix"] == pytest.approx([nats / tokens], rel=1e-5)
    assert baseline["prefix"] != pytest.approx(baseline["nll"], rel=1e-5)


def test_an_encoder_takes_no_steps_and_is_a_line(recipe: Recipe, tmp_path: Path) -> None:
    encoder = saved(tmp_path / "encoder", recipe, inference="amortised", encoder_layers=1)
    (found,) = draw("steps", encoder, out=tmp_path / "steps.svg")["models"]
    opened = load(encoder)
    expected = opened.perplexity(opened.split("validation"))
    assert found["steps"] == [None]
    assert found["bound"] == pytest.approx([expected.nll], rel=1e-5)
    with pytest.raises(InputError, match="has an encoder and takes no fast steps, use a model without an encoder"):
        write_figure("latent_thought/inference", [str(encoder)], tmp_path / "inference.svg")


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_what_cannot_be_drawn_is_refused(run: Path, plain: Path, recipe: Recipe, tmp_path: Path) -> None:
    def refused(name: str, *paths: Path, says: str, text: str = TEXT) -> None:
        out = tmp_path / "figure.svg"
        with pytest.raises(InputError, match=says):
            write_figure(
                f"latent_thought/{name}", [str(path) for path in paths], out, text if name == "words" else None
            )
        assert not out.exists()

    shared = saved(tmp_path / "shared", recipe, shared_latents=True)
    for name in ("reconstruction", "words", "inference"):
        refused(name, plain, says="no thoughts, use a model with thoughts")
        refused(name, run, plain, says="use MODEL")
    for name in ("reconstruction", "words"):
        refused(name, shared, says="one set of thoughts for all layers, use a model whose layers have their own")
    refused("words", run, text="word " * LENGTH, says=f"tokens with its start, and the model reads {LENGTH}: shorten")
    smaller = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, tokenizer="bpe:270"))
    refused("steps", run, saved(tmp_path / "smaller", smaller), says="another text, tokenizer or length")
    other = get_recipe("gpt2/tiny")
    other = dataclasses.replace(other, data=recipe.data, layout=recipe.layout)
    refused("steps", saved(tmp_path / "gpt2", other), says="use a Latent Thought Model")


def test_one_set_of_thoughts_for_all_layers_has_one_kl(recipe: Recipe, tmp_path: Path) -> None:
    written = draw("inference", saved(tmp_path / "one", recipe, shared_latents=True), out=tmp_path / "one.svg")
    assert [len(kl["mean"]) for kl in written["kl_by_layer"].values()] == [1, 1]

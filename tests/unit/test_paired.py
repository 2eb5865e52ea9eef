"""Two models on the same tokens: the mean difference, its interval over documents, and where in a sentence it lies."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from mentalese import InputError, Recipe, Saved, TrainConfig, cli, evaluate, get_recipe, load
from mentalese.data.layouts import layout_class
from mentalese.evaluation import paired
from mentalese.evaluation.options import TextOptions
from mentalese.evaluation.paired import compare_scores
from mentalese.evaluation.statistics import bootstrap_questions, bootstrap_ratio
from mentalese.recipe import DataConfig
from support import EOD, make_split, shrink
from support import saved as run_of

SPLIT = make_split([3, 2], [4], [2, 2, 1])


def scores_of(split, value) -> np.ndarray:  # type: ignore[no-untyped-def]
    """Scores of every lexical token, NaN at the ends of documents."""
    return np.where(split.tokens == EOD, np.nan, np.float32(value)).astype(np.float32)


def test_a_gain_on_first_tokens_is_found_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired, "POSITIONS", 3)
    firsts = np.zeros(len(SPLIT.tokens), dtype=np.float32)
    firsts[SPLIT.segments[:-1]] = 0.5
    result = compare_scores(scores_of(SPLIT, 2.0 - firsts), scores_of(SPLIT, 2.0), SPLIT)
    assert result.documents == 3
    assert [(d.position, d.tokens) for d in result.by_position] == [(1, 6), (2, 5), (3, 3)]
    assert [d.difference for d in result.by_position] == [-0.5, 0.0, 0.0]
    assert result.by_position[0].interval == (-0.5, -0.5)
    assert result.overall.tokens == 14
    assert result.overall.difference == pytest.approx(-0.5 * 6 / 14)
    assert result.nll - result.reference_nll == pytest.approx(result.overall.difference)
    low, high = result.overall.interval or (0, 0)
    assert -0.3 <= low < result.overall.difference < high <= -0.125
    assert json.loads(json.dumps(dataclasses.asdict(result)))["by_position"][2]["position"] == 3


def test_one_document_has_no_interval() -> None:
    split = make_split([4, 4])
    result = compare_scores(scores_of(split, 1.0), scores_of(split, 2.0), split)
    assert (result.overall.difference, result.overall.interval) == (-1.0, None)


def test_a_position_that_only_one_document_has_gets_no_interval() -> None:
    """Drawn again and again, one document says nothing about others: the interval would be a point."""
    split = make_split([3], [2], [1, 2])
    gains = np.random.default_rng(0).normal(size=len(split.tokens)).astype(np.float32)
    result = compare_scores(scores_of(split, gains), scores_of(split, 0.0), split)
    assert [d.interval is None for d in result.by_position] == [False, False, True]
    assert result.overall.interval is not None


def test_a_beginning_of_the_text_has_no_position() -> None:
    split = dataclasses.replace(make_split([1 + 3, 2], [1 + 4]), beginning=1)
    scores = scores_of(split, 0.0)
    scores[split.documents[:-1]] = np.nan
    result = compare_scores(scores, scores, split)
    assert [(d.position, d.tokens) for d in result.by_position] == [(1, 3), (2, 3), (3, 2), (4, 1)]


def test_other_tokens_are_refused() -> None:
    other = scores_of(SPLIT, 1.0)
    other[0] = np.nan
    with pytest.raises(InputError, match=r"scored tokens is \(14, 13\)"):
        compare_scores(scores_of(SPLIT, 1.0), other, SPLIT)
    nothing = np.full(len(SPLIT.tokens), np.nan, dtype=np.float32)
    with pytest.raises(InputError, match="use a split with text"):
        compare_scores(nothing, nothing, SPLIT)


def test_bootstrap_is_seeded_and_covers_like_the_normal() -> None:
    generator = np.random.default_rng(0)
    values = generator.normal(3.0, 2.0, size=(400, 1))
    interval = bootstrap_ratio(values, np.ones_like(values))
    assert interval is not None
    error = values.std(ddof=1) / np.sqrt(400)
    np.testing.assert_allclose(interval[:, 0], values.mean() + 1.96 * error * np.array([-1, 1]), atol=0.15 * error)
    again = bootstrap_ratio(values, np.ones_like(values))
    np.testing.assert_array_equal(interval, again)


def test_few_questions_of_one_outcome_leave_room_for_others() -> None:
    """Of 10 right answers in 10: the exact interval of a share, 69.2% to 100%."""
    answers = np.array([[1.0, 0.0, 1.0]] * 9 + [[1.0, 0.0, 0.0]])
    interval = bootstrap_questions(answers, [*map(str, range(len(answers)))], 0.0)
    assert interval is not None
    assert interval[:, :2].T.tolist() == [[pytest.approx(0.6915, abs=1e-4), 1], [0, pytest.approx(0.3085, abs=1e-4)]]
    plain = bootstrap_ratio(answers, np.ones(answers.shape))
    assert plain is not None
    np.testing.assert_array_equal(interval[:, 2], plain[:, 2])
    assert bootstrap_questions(answers[:1], ["a"], 0.0) is None
    assert bootstrap_questions(answers[:2], ["a", "a"], 0.0) is None


def test_documents_that_differ_as_a_whole_widen_the_interval() -> None:
    """400 tokens in 8 documents: with independent tokens it would be seven times as narrow."""
    effects = np.random.default_rng(0).normal(size=8)
    by_document = bootstrap_ratio(50 * effects[:, None], np.full((8, 1), 50.0))
    by_token = bootstrap_ratio(np.repeat(effects, 50)[:, None], np.ones((400, 1)))
    assert by_document is not None
    assert by_token is not None
    assert np.diff(by_document[:, 0]) > 5 * np.diff(by_token[:, 0])


@pytest.fixture
def saved(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> dict[str, str]:
    """Two untrained models of 64 tokens of context: one of blocks, one of the stream with markers."""
    folders = {}
    for kind in ("packed", "marked"):
        torch.manual_seed(0)
        sizes = {"n_positions": 64, "n_embd": 16, "n_layer": 1, "n_head": 2, "initializer_range": 0.2}
        model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), bos_token_id=None, eos_token_id=None, **sizes))
        folder = tmp_path / kind
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        data = DataConfig(source="file:/not/there.txt")
        layout = layout_class(kind)(sequence_length=64)  # type: ignore[call-arg]
        recipe = Recipe(
            name="test/tiny",
            description="",
            model={"model_type": "gpt2"},
            data=data,
            layout=layout,
            train=TrainConfig(steps=1),
        )
        (folder / "mentalese.json").write_text(json.dumps({"recipe": recipe.to_dict(), "step": 1}))
        folders[kind] = str(folder)
    return folders


def both(saved: dict[str, str]) -> tuple[Saved, Saved]:
    return load(saved["marked"], "cpu"), load(saved["packed"], "cpu")


@pytest.mark.slow
def test_models_with_other_layouts_compare_on_the_same_tokens(saved: dict[str, str], corpus: Path) -> None:
    source = f"file:{corpus}"
    marked, packed = both(saved)
    result = paired.run(marked, packed, TextOptions(source=source))
    alone = {name: evaluate(path, source=source, show=False)["perplexity"] for name, path in saved.items()}
    assert result["overall"]["tokens"] == alone["marked"]["tokens"] == alone["packed"]["tokens"]
    assert result["nll"] == pytest.approx(alone["marked"]["nll"], abs=1e-6)
    assert result["reference_nll"] == pytest.approx(alone["packed"]["nll"], abs=1e-6)
    assert result["protocol"]["first_token"] != result["reference_protocol"]["first_token"]
    with pytest.raises(InputError, match="split is 'dev'"):
        paired.run(marked, packed, TextOptions(source=source, split="dev"))  # type: ignore[arg-type]


def test_last_row_of_positions_states_its_open_end(
    saved: dict[str, str], corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["diff", saved["marked"], saved["packed"], "--data", f"file:{corpus}"]) == 0
    _, *rows, _, about = capsys.readouterr().out.splitlines()
    assert [row.partition("  ")[0] for row in rows] == ["all", *map(str, range(1, 12)), "12 and later"]
    assert about.startswith(f"scored: all of file:{corpus}, ")


def test_models_that_are_scored_by_other_rules_are_not_paired(tmp_path: Path, corpus: Path) -> None:
    recipe = shrink(get_recipe("latent_thought/tiny"), corpus)
    half = dataclasses.replace(recipe, evaluation=dataclasses.replace(recipe.evaluation, estimator="prefix"))
    bound, prefix = (load(run_of(tmp_path / name, one)) for name, one in (("bound", recipe), ("prefix", half)))
    says = r"estimators is \['elbo-bound', 'prefix'\]: they score different tokens"
    with pytest.raises(InputError, match=says):
        paired.run(bound, prefix, TextOptions(source=f"file:{corpus}"))


def test_models_with_other_tokens_are_not_paired(saved: dict[str, str], corpus: Path) -> None:
    file = Path(saved["packed"]) / "tokenizer.json"
    described = json.loads(file.read_text())
    described["normalizer"] = {"type": "Lowercase"}
    file.write_text(json.dumps(described))
    with pytest.raises(InputError, match="compare bits per byte"):
        paired.run(*both(saved), TextOptions(source=f"file:{corpus}"))


def test_equal_questions_are_drawn_together() -> None:
    """A model answers them alike: five copies of each question are not five times as many questions."""
    answers = np.random.default_rng(0).integers(0, 2, (80, 1)).astype(float)
    names = [*map(str, range(80))]
    once = bootstrap_questions(answers, names, 0.0)
    copies = bootstrap_questions(np.repeat(answers, 5, axis=0), [name for name in names for _ in range(5)], 0.0)
    assert once is not None
    assert copies is not None
    assert np.ptp(copies, axis=0) == pytest.approx(np.ptp(once, axis=0), rel=0.05)
    alike = bootstrap_questions(np.ones((50, 1)), ["a", "b"] * 25, 0.0)
    assert alike is not None
    assert alike[0, 0] == pytest.approx(0.025**0.5)

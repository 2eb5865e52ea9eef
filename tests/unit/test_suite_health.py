"""The health of runs that were trained: figures of their last steps, and what their own thoughts are worth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mentalese.files import sealed, write_json
from mentalese.recipe import Recipe
from mentalese.registry import families, get_recipe, load
from mentalese.suite import judge as suite_judge
from mentalese.suite.judge import DOCUMENTS, HEALTH_FILE, health, signs_of, worth_of
from mentalese.training.loop import train


def shortest(family: str, corpus: Path) -> Recipe:
    length = {"steps": 2, "epochs": None, "tokens": None, "eval_every": None}
    recipe = get_recipe(f"{family}/tiny")
    return recipe.replace(data={} if recipe.layout.questions else {"source": f"file:{corpus}"}, train=length)


@pytest.mark.slow
@pytest.mark.parametrize("family", [family.name for family in families().values() if family.signs])
def test_each_sign_is_a_metric_of_its_family_s_training(family: str, corpus: Path, tmp_path: Path) -> None:
    recipe = shortest(family, corpus)
    train(recipe, tmp_path / "run", show=False)
    lines = families()[family].signs[recipe.model["model_type"]]
    found = signs_of(tmp_path / "run", lines)
    assert {name.partition(".")[0] for name in found} == {*lines} - {"next_vector_r2"}
    assert health([tmp_path / "run"])["signs"] == {name: [value] for name, value in found.items()}


def logged(folder: Path, lines: list[dict[str, float]], worth: dict[str, Any] | None) -> Path:
    """Write what is read of a run, without a model."""
    folder.mkdir()
    write_json(folder / "config.json", sealed({"recipe": {"model": {"model_type": "thoughtbubbles"}}}))
    records = [json.dumps(sealed({"step": step, "loss": 1.0} | line)) for step, line in enumerate(lines)]
    (folder / "metrics.jsonl").write_text("".join(f"{record}\n" for record in records))
    write_json(folder / HEALTH_FILE, sealed({"documents": DOCUMENTS, "worth": worth}))
    return folder


WORTH = {"loss": 0.2, "interval": [0.1, 0.3]}


def test_signs_are_means_over_the_last_tenth(tmp_path: Path) -> None:
    lines = [{"fork_share": 0.9}] * 18 + [{"fork_share": 0.25}, {"fork_share": 0.5}]
    run = logged(tmp_path / "0", lines, WORTH)
    assert signs_of(run, {"fork_share": 0.05}) == {"fork_share": 0.375}
    assert worth_of(run) == WORTH


def test_a_mechanism_is_not_trained_if_most_seeds_are_idle(tmp_path: Path) -> None:
    forks, idle = [{"fork_share": 0.5}], [{"fork_share": 0.01}]
    unseen = WORTH | {"loss": 0.01, "interval": [-0.1, 0.1]}
    runs = [logged(tmp_path / str(i), *run) for i, run in enumerate([(forks, WORTH), (idle, WORTH), (forks, unseen)])]
    healthy = {"worth": [WORTH] * 2, "healthy": 1, "reason": ""}
    assert health(runs[:2]) == {"signs": {"fork_share": [0.5, 0.01]}} | healthy
    assert (health(runs)["healthy"], health(runs[1:2])["reason"]) == (1, "fork share is below 0.05")
    assert health(runs[2:])["reason"] == "its score does not fall with another text's thoughts"
    assert health([logged(tmp_path / "none", forks, None)])["reason"] == ""


def test_worth_is_the_loss_of_another_text_s_thoughts(corpus: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Above zero where own thoughts are better: fewer nats, more right answers; asked once."""
    asked: list[Path] = []

    def ablations(difference: float) -> Any:
        def run(saved: Any, options: Any, *, controls: list[str]) -> dict[str, Any]:
            asked.append(saved.path)
            assert controls == ["swapped"]
            entries = [{"thoughts": name, "difference": x, "interval": (x - 0.1, x + 0.1)} for name, x in
                       (("own", 0.0), ("swapped", difference))]  # fmt: skip
            return {"ablations": entries}

        return run

    train(shortest("thought_gestalt", corpus), tmp_path / "run", show=False)
    monkeypatch.setattr(suite_judge.ablation, "run", ablations(0.5))
    assert worth_of(tmp_path / "run") == worth_of(tmp_path / "run") == {"loss": 0.5, "interval": [0.4, 0.6]}
    assert len(asked) == 1
    saved = load("mentalese.models.saved:load")(tmp_path / "run")
    object.__setattr__(saved, "layout", type("Asked", (), {"questions": True})())
    monkeypatch.setattr(suite_judge, "load", lambda run: saved)
    (tmp_path / "run" / HEALTH_FILE).unlink()
    monkeypatch.setattr(suite_judge.ablation, "run", ablations(-0.5))
    assert worth_of(tmp_path / "run") == {"loss": 0.5, "interval": [0.4, 0.6]}

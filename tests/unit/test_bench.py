"""A benchmark compares what ran in the same minute, and names what it divides by."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from mentalese import InputError, get_recipe
from mentalese.compare.bench import Contender, bench, measure, peak_flops, peak_memory, print_bench, table
from mentalese.training import memory
from mentalese.training.parallel import setup
from support import shrink


@pytest.mark.parametrize(
    ("device", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40", 181e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA H100 NVL", 835e12),
        ("AMD EPYC 7763", None),
    ],
)
def test_the_peak_is_that_of_the_device_or_none(device: str, peak: float | None) -> None:
    assert peak_flops(device) == peak


def test_contenders_take_turns_and_ratios_pair_their_turns(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = shrink(get_recipe("gpt2/tiny"), corpus)
    turns: list[tuple[str, str]] = []
    speeds = iter([1.0, 1.0, 6.0, 2.0, 8.0, 4.0])  # the first pair warms up

    def train(contender: Contender, steps: int) -> float:
        turns.append((contender.recipe.name, "train"))
        contender.run.state.step += steps
        return next(speeds)

    monkeypatch.setattr(Contender, "train", train)
    monkeypatch.setattr(Contender, "generate", lambda contender: 5.0)
    monkeypatch.setattr("mentalese.compare.bench.memory_of_own_process", lambda recipe, steps: 2**20)
    monkeypatch.setattr("mentalese.compare.bench.peak_flops", lambda name: 1e12)
    result = measure(recipe, recipe, rounds=2, steps=1)
    assert len(turns) == 6
    assert result["ratio"]["training"] == {"median": 2.5, "min": 2.0, "max": 3.0}
    assert result["ratio"]["generation"]["median"] == 1.0
    assert result["ours"]["mfu"] == 7.0 * result["ours"]["train_flops_per_token"] / 1e12
    assert [row["train ratio"] for row in table({"families": {"x": result}})] == ["", "2.50 (2.00-3.00)"]
    print_bench({"families": {"x": result}})
    assert "1 TFLOP/s" in capsys.readouterr().out


def test_a_contender_trains_and_generates(corpus: Path) -> None:
    contender = Contender(shrink(get_recipe("gpt2/tiny"), corpus), setup("cpu"))
    before = [p.detach().clone() for p in contender.run.model.parameters()]
    assert contender.train(1) > 0
    assert any((p != b).any() for p, b in zip(contender.run.model.parameters(), before))
    assert contender.generate() > 0
    assert contender.flops_per_token() > 6 * contender.run.parameters["non_embedding"]


def test_memory_is_that_of_the_whole_process(corpus: Path) -> None:
    assert peak_memory(shrink(get_recipe("gpt2/tiny"), corpus), 1) > 100 * 2**20


@pytest.mark.parametrize(
    ("families", "out", "field"),
    [
        (["thought_gestallt"], None, "families"),
        ([], "nowhere/bench.json", "--out"),
    ],
)
def test_bad_input_ends_before_anything_runs(families: list[str], out: str | None, field: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        bench(families, tmp_path / out if out else None)
    assert refused.value.field == field


def test_memory_that_a_system_does_not_tell_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows has neither `/proc` nor `resource`."""
    monkeypatch.setattr(Path, "exists", lambda path: False)
    monkeypatch.setitem(sys.modules, "resource", None)
    assert memory.peak_memory(torch.device("cpu")) is None


def test_memory_is_asked_elsewhere_if_the_status_has_no_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda path: "VmSize: 9 kB")
    assert (memory.peak_memory(torch.device("cpu")) or 0) > 50 * 2**20

"""The learning rate is a pure function of the position, and weight decay leaves vectors alone."""

from __future__ import annotations

import pytest
import torch

from mentalese import OptimizerConfig
from mentalese.errors import InputError
from mentalese.training.step import build_optimizer, learning_rate


def rates(config: OptimizerConfig, total: int = 100) -> list[float]:
    return [learning_rate(config, step, total, step / total) for step in range(total)]


def test_the_rate_warms_up_and_decays_to_its_floor() -> None:
    config = OptimizerConfig(learning_rate=1.0, warmup=0.1, schedule="cosine", min_learning_rate_ratio=0.1)
    values = rates(config)
    assert values[:10] == pytest.approx([0.1 * (i + 1) for i in range(10)])
    assert max(values) == values[10] == pytest.approx(1.0)
    assert values[10:] == sorted(values[10:], reverse=True)
    assert learning_rate(config, 100, 100, 1.0) == pytest.approx(0.1)


def test_warmup_counts_steps_or_a_fraction() -> None:
    by_steps = OptimizerConfig(warmup=20)
    by_fraction = OptimizerConfig(warmup=0.2)
    assert rates(by_steps) == rates(by_fraction)
    assert max(rates(OptimizerConfig(learning_rate=1.0, warmup=2.5))) == 1.0, "part of a step is a step"


@pytest.mark.parametrize(("schedule", "middle"), [("linear", 0.55), ("cosine", 0.55), ("constant", 1.0)])
def test_schedules_pass_their_middle(schedule: str, middle: float) -> None:
    config = OptimizerConfig(learning_rate=1.0, warmup=0, schedule=schedule, min_learning_rate_ratio=0.1)  # type: ignore[arg-type]
    assert learning_rate(config, 50, 100, 0.5) == pytest.approx(middle)


def test_weight_decay_acts_on_matrices_only() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LayerNorm(3))
    decayed, free = build_optimizer(module.parameters(), OptimizerConfig(weight_decay=0.1)).param_groups
    assert [p.ndim for p in decayed["params"]] == [2]
    assert decayed["weight_decay"] == 0.1
    assert [p.ndim for p in free["params"]] == [1, 1, 1]
    assert free["weight_decay"] == 0.0


def test_the_end_of_a_schedule_that_has_none_is_refused() -> None:
    with pytest.raises(InputError, match=r"optimizer.min_learning_rate_ratio is 0.5: a constant schedule has no end"):
        OptimizerConfig(schedule="constant", min_learning_rate_ratio=0.5)

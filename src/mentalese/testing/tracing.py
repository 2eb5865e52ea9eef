"""The contents of a trace."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from mentalese.data.batch import Batch
from mentalese.models.trace import ThoughtTrace
from mentalese.nn.loss import IGNORED
from mentalese.testing.cases import PROMPTS, ROUGH, TOLERANCE, Case


def _real(batch: Batch) -> torch.Tensor:
    return batch.get("attention_mask", torch.ones_like(batch["input_ids"])).bool()


def test_a_trace_has_a_number_for_every_token_that_something_predicts(case: Case) -> None:
    batch = case.batch()
    real = _real(batch)
    nll = case.model.token_nll(batch | {"labels": batch["input_ids"].masked_fill(~real, IGNORED)})
    traces = case.model.traces(batch)
    assert [trace.model for trace in traces] == [case.model.config.model_type] * len(real)
    for row, trace in enumerate(traces):
        assert torch.equal(trace.input_ids, batch["input_ids"][row])
        surprisal = trace.scores["surprisal"]
        there = ~surprisal.isnan()
        assert there.any()
        assert not there[~real[row]].any()
        assert not there[0]
        for name, score in trace.scores.items():
            assert score.shape == surprisal.shape, name
            assert not score.isinf().any(), name
            assert score[~real[row]].isnan().all(), name
        if not case.model.estimators[0].endswith("-bound"):
            torch.testing.assert_close(surprisal[there], nll[row][there], **TOLERANCE)
        if case.model.causal:
            entropy = trace.scores["entropy"]
            assert torch.equal(entropy.isnan(), ~there)
            assert ((entropy[there] > 0) & (entropy[there] <= math.log(len(case.tokenizer)) + 1e-4)).all()
            assert torch.equal(trace.readings["predicted"][~there], trace.input_ids[~there])


def test_a_latent_thought_model_shows_its_thoughts_and_they_are_kept_as_they_are(family: Case, tmp_path: Path) -> None:
    if not family.model.causal:
        pytest.skip("a model that reads in both directions shows none")
    batch = family.batch()
    assert family.model.about_thoughts
    traces = family.model.traces(batch)
    assert any(trace.thoughts for trace in traces)
    for trace, real in zip(traces, _real(batch)):
        size = len(trace.thoughts)
        for thought in trace.thoughts:
            assert real[thought.start : thought.end].all()
            assert thought.start < thought.end
        for name, values in (trace.curves | trace.links).items():
            assert values.isfinite().all(), name
            assert trace.links.get(name, torch.empty(size, size)).shape == (size, size), name
        for name, said in trace.readings.items():
            assert said.shape == trace.input_ids.shape, name
            assert ((said >= 0) & (said < len(family.tokenizer)) | ~real).all(), name
        assert len({len(column) for column in trace.streams.values()}) <= 1
    trace = max(traces, key=lambda trace: len(trace.thoughts))
    trace.save(tmp_path)
    _assert_same(ThoughtTrace.load(tmp_path), trace)


def _assert_same(trace: ThoughtTrace, expected: ThoughtTrace) -> None:
    for name, value in vars(expected).items():
        result, value = getattr(trace, name), value.cpu() if isinstance(value, torch.Tensor) else value
        if name == "thoughts":
            for thought, other in zip(result, value, strict=True):
                assert torch.equal(thought.vector, other.vector.cpu())
                rest = [{k: v for k, v in vars(t).items() if k != "vector"} for t in (thought, other)]
                assert rest[0] == rest[1]
        elif isinstance(value, dict) and name != "vocabulary":
            assert list(result) == list(value)
            for key, tensor in value.items():
                torch.testing.assert_close(result[key], tensor.cpu(), atol=0, rtol=0, equal_nan=True)
        else:
            assert result is value or bool((torch.as_tensor(result == value)).all()), name


def test_a_trace_is_the_same_behind_padding(case: Case) -> None:
    inputs = case.prompts(PROMPTS)
    for row, trace in enumerate(case.model.traces(inputs)):
        begin = int((inputs["attention_mask"][row] == 0).sum())
        (alone,) = case.model.traces({"input_ids": inputs["input_ids"][row : row + 1, begin:]})
        for name, score in alone.scores.items():
            torch.testing.assert_close(trace.scores[name][begin:], score, equal_nan=True, **ROUGH)
            assert trace.scores[name][:begin].isnan().all()
        for name, curve in (alone.curves | alone.links).items():
            torch.testing.assert_close((trace.curves | trace.links)[name], curve, **ROUGH)
        spans = [(t.start + begin, t.end + begin, t.label, t.layer, t.codes) for t in alone.thoughts]
        assert [(t.start, t.end, t.label, t.layer, t.codes) for t in trace.thoughts] == spans
        for name, column in alone.streams.items():
            torch.testing.assert_close(trace.streams[name], column + begin if name == "token" else column, **ROUGH)

"""What a run trains on follows from the step alone: packing, sharing among ranks, clocks and phases."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mentalese.data.layouts import layout_class
from mentalese.data.split import Split
from mentalese.errors import InputError
from mentalese.recipe import DataConfig, OptimizerConfig, Phase, Recipe, TrainConfig
from mentalese.training.plan import Plan
from mentalese.training.step import learning_rate
from support import BOS, EOD, EOS, MARKERS, PAD, make_split


def make_plan(
    split: Split,
    *,
    phases: tuple[Phase, ...] = (),
    train: TrainConfig | None = None,
    ranks: int = 1,
    train_tokens: int | None = None,
    kind: str = "packed",
    model: dict[str, Any] | None = None,
    optimizer: OptimizerConfig | None = None,
    **fields: Any,
) -> Plan:
    recipe = Recipe(
        name="x/y",
        description="",
        model={"model_type": "gpt2"} | (model or {}),
        data=DataConfig(train_tokens=train_tokens),
        layout=layout_class(kind)(**fields),
        optimizer=optimizer or OptimizerConfig(),
        train=train or TrainConfig(steps=100),
        phases=phases,
    )
    return Plan(split, recipe, MARKERS, world_size=ranks)


def first_epoch(plan: Plan) -> list[dict[str, Any]]:
    batches, step = [], 0
    while plan.position(step).epoch == 0:
        batches.append(plan.batch(step))
        step += 1
    return batches


def targets(batches: list[dict[str, Any]]) -> list[int]:
    """All labels that a model is trained on, sorted."""
    return sorted(t for b in batches for t in b["labels"][:, 1:].flatten().tolist() if t != -100)


def lexical(ids: list[int]) -> list[int]:
    return [i for i in ids if i >= 10]


def most_sentences(batch: dict[str, Any]) -> int:
    return max(row.count(BOS) for row in rows_of(batch))


def rows_of(batch: dict[str, Any]) -> list[list[int]]:
    """The rows without padding."""
    mask = batch.get("attention_mask", torch.ones_like(batch["input_ids"]))
    return [ids[m.bool()].tolist() for ids, m in zip(batch["input_ids"], mask)]


corpora = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=9), min_size=1, max_size=8)
few = settings(max_examples=60, deadline=None)

BOOK = make_split(*[[3 + (7 * d + s) % 6 for s in range(1 + d % 11)] for d in range(40)])
SHAPES: list[dict[str, Any]] = [
    {"kind": "packed", "sequence_length": 16, "batch_size": 12},
    {"kind": "per_document", "sequence_length": 16, "batch_size": 12},
    {"kind": "sentence_streams", "max_sentences": 4, "tokens_per_batch": 120},
    {"kind": "qa", "sequence_length": 80, "batch_size": 12},
    {"kind": "marked", "sequence_length": 16, "batch_size": 12},
]
QUESTIONS = make_split(*[[2 + d % 5, 3, 1 + d % 7] for d in range(40)])


def corpus_for(shape: dict[str, Any]) -> Split:
    return QUESTIONS if shape["kind"] == "qa" else BOOK


every_layout = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape["kind"])


# -- packing -----------------------------------------------------------------------------------------------------------


@few
@given(corpora, st.integers(2, 12))
def test_blocks_target_each_token_once_without_padding(documents: Any, length: int) -> None:
    split = make_split(*documents)
    batches = first_epoch(make_plan(split, kind="packed", sequence_length=length, batch_size=1))
    assert targets(batches) == sorted(split.tokens.tolist())
    assert not any("attention_mask" in b for b in batches)
    if len(split.tokens) >= length:
        assert {b["input_ids"].shape[1] for b in batches} == {length}


def with_markers(split: Split) -> list[int]:
    """`BOS w1..wn EOS BOS ..`, a document ending in `EOD EOS`."""
    pieces = np.split(split.tokens, split.segments[1:-1])
    return [token for piece in pieces for token in (BOS, *piece.tolist(), EOS)]


@few
@given(corpora, st.integers(2, 12))
def test_marked_blocks_are_the_cut_stream_of_sentences(documents: Any, length: int) -> None:
    split = make_split(*documents)
    batches = first_epoch(make_plan(split, kind="marked", sequence_length=length, batch_size=1))
    stream = with_markers(split)
    assert targets(batches) == sorted(stream[1:])
    assert not any("attention_mask" in b for b in batches)
    if len(stream) >= length:
        assert {b["input_ids"].shape[1] for b in batches} == {length}
    text = " ".join(map(str, ["", *stream, ""]))
    for batch in batches:
        assert f" {' '.join(map(str, batch['input_ids'][0].tolist()))} " in text
        real = batch["labels"] != -100
        assert torch.equal(batch["labels"][real], batch["input_ids"][real])


def test_a_marked_block_may_begin_and_end_inside_a_sentence() -> None:
    plan = make_plan(make_split([2, 1], [3]), kind="marked", sequence_length=6, batch_size=1)
    rows = sorted((b["input_ids"][0].tolist(), b["labels"][0].tolist()) for b in first_epoch(plan))
    assert rows == [
        ([BOS, 10, 11, EOS, BOS, 12], [-100, 10, 11, EOS, BOS, 12]),
        ([BOS, 14, 15, 16, EOD, EOS], [-100, -100, -100, 16, EOD, EOS]),
        ([12, EOD, EOS, BOS, 14, 15], [-100, EOD, EOS, BOS, 14, 15]),
    ]


@few
@given(corpora, st.integers(2, 12))
def test_documents_target_each_token_once_without_crossing(documents: Any, length: int) -> None:
    split = make_split(*documents)
    batches = first_epoch(make_plan(split, kind="per_document", sequence_length=length, batch_size=1))
    assert targets(batches) == sorted(split.tokens.tolist())
    for batch in batches:
        (row,) = rows_of(batch)
        assert len(row) <= length
        assert EOD not in row[1:-1]


def test_a_continued_piece_overlaps_by_one_token() -> None:
    plan = make_plan(make_split([10]), kind="per_document", sequence_length=5, batch_size=1)
    rows = sorted(rows_of(b)[0] for b in first_epoch(plan))
    assert rows == [[EOD, 10, 11, 12, 13], [13, 14, 15, 16, 17], [17, 18, 19, EOD]]


def test_padding_is_on_the_right_masked_and_no_target() -> None:
    plan = make_plan(make_split([2], [4]), kind="per_document", sequence_length=8, batch_size=2)
    batch = plan.batch(0)
    assert batch["input_ids"].tolist() == [[EOD, 13, 14, 15, 16, EOD], [EOD, 10, 11, EOD, PAD, PAD]]
    assert batch["labels"].tolist() == [[-100, 13, 14, 15, 16, EOD], [-100, 10, 11, EOD, -100, -100]]
    assert batch["attention_mask"].tolist() == [[1] * 6, [1] * 4 + [0] * 2]
    assert {t.dtype for t in batch.values()} == {torch.int64}


def test_rows_of_similar_length_share_a_batch() -> None:
    lengths = np.random.default_rng(0).integers(1, 60, size=800)
    plan = make_plan(make_split(*[[int(n)] for n in lengths]), kind="per_document", sequence_length=64, batch_size=8)
    masks = [b.get("attention_mask", torch.ones_like(b["input_ids"])).float() for b in first_epoch(plan)]
    padding = 1 - sum(m.sum() for m in masks) / sum(m.numel() for m in masks)
    assert padding < 0.04  # unsorted: about 0.4


@few
@given(
    corpora.filter(lambda documents: any(len(d) > 1 for d in documents)),
    st.integers(1, 5),
    st.integers(1, 40),
    st.integers(1, 4),
)
def test_streams_keep_sentences_whole_under_both_caps(documents: Any, most: int, budget: int, width: int) -> None:
    split = make_split(*documents)
    data = {"max_sentences": most, "tokens_per_batch": budget, "bucket_width": width}
    batches = first_epoch(make_plan(split, kind="sentence_streams", **data))
    of_document = np.repeat([len(d) for d in documents], [len(d) for d in documents])
    sentences = [
        tuple(split.tokens[a:b].tolist()) for a, b, n in zip(split.segments, split.segments[1:], of_document) if n > 1
    ]
    kept = [d for d in documents if len(d) > 1]
    streams = sum(-(-len(d) // most) for d in kept)
    limit = -(-budget * streams // sum(map(sum, kept)))
    seen = []
    for batch in batches:
        rows = rows_of(batch)
        assert len(rows) <= limit
        assert len(rows) == 1 or sum(len(lexical(row)) for row in rows) <= budget
        for row, labels in zip(rows, batch["labels"].tolist()):
            assert 1 <= row.count(BOS) == row.count(EOS) <= most
            assert [-100 if i == BOS else i for i in row] == labels[: len(row)]
            assert set(labels[len(row) :]) <= {-100}
            text = [i for i in row if i not in (BOS, EOS)]
            at = int(np.flatnonzero(split.tokens == text[0])[0])
            assert text == split.tokens[at : at + len(text)].tolist()  # neighbours in the document, in order
            starts = [i for i, token in enumerate(row) if token == BOS]
            for a, b in zip(starts, [*starts[1:], len(row)]):
                assert row[b - 1] == EOS
                seen.append(tuple(row[a + 1 : b - 1]))
    assert sorted(seen) == sorted(sentences)


def streams_of_30(batch: dict[str, Any]) -> int:
    return sum(row.count(BOS) == 30 for row in rows_of(batch))


def test_batches_have_even_sizes() -> None:
    generator = np.random.default_rng(0)
    documents = [generator.integers(5, 40, size=n).tolist() for n in generator.integers(1, 60, size=400)]
    plan = make_plan(make_split(*documents), kind="sentence_streams", max_sentences=30, tokens_per_batch=4000)
    sizes = [len(lexical(targets([b]))) for b in first_epoch(plan)]
    assert np.median(sizes) > 0.95 * 4000


def test_long_streams_are_dealt_out_rather_than_clustered() -> None:
    split = make_split(*[[10] * 30] * 20, *[[10] * 2] * 400)  # 14,000 tokens, 20 batches
    batches = first_epoch(make_plan(split, kind="sentence_streams", tokens_per_batch=700))
    assert [streams_of_30(b) for b in batches] == [1] * 20


def test_long_streams_are_dealt_first() -> None:
    split = make_split(*[[10] * 30] * 20, *[[10] * 8] * 30)  # 20 batches of 300 + 80, 10 short streams are left
    places = set()
    for seed in range(3):
        train = TrainConfig(steps=1, seed=seed)
        plan = make_plan(split, train=train, kind="sentence_streams", tokens_per_batch=420)
        long = [streams_of_30(b) for b in first_epoch(plan)]
        assert sorted(long) == [0] * 4 + [1] * 20
        places.add(tuple(long))
    assert len(places) == 3


def test_a_stream_above_the_budget_has_a_batch_of_its_own() -> None:
    plan = make_plan(make_split([25, 25], [1, 1], [1, 1]), kind="sentence_streams", tokens_per_batch=20)
    sizes = sorted([len(lexical(r)) for r in rows_of(b)] for b in first_epoch(plan))
    assert sizes == [[2, 2], [50]] or sizes == [[2], [2], [50]]


def test_a_long_document_s_last_sentence_may_be_a_stream_alone() -> None:
    plan = make_plan(make_split([3, 3, 3], [9]), kind="sentence_streams", max_sentences=2, tokens_per_batch=20)
    assert sorted(row.count(BOS) for batch in first_epoch(plan) for row in rows_of(batch)) == [1, 2]


def test_a_records_question_is_no_target() -> None:
    plan = make_plan(make_split([3, 2, 1], [2, 1]), kind="qa", sequence_length=7, batch_size=2)
    batch = plan.batch(0)
    assert batch["input_ids"].tolist() == [[10, 11, 12, 13, 14, 15, EOD], [17, 18, 19, EOD, PAD, PAD, PAD]]
    assert batch["labels"].tolist() == [[-100] * 3 + [13, 14, 15, EOD], [-100] * 2 + [19, EOD] + [-100] * 3]
    assert batch["question_lengths"].tolist() == [3, 2]


def test_the_rows_of_an_incomplete_last_batch_are_left_out() -> None:
    plan = make_plan(make_split(*[[3]] * 7), kind="per_document", sequence_length=8, batch_size=2)
    assert [len(b["input_ids"]) for b in first_epoch(plan)] == [2, 2, 2]


@every_layout
def test_epochs_hold_the_same_rows_in_another_order(shape: dict[str, Any]) -> None:
    plan = make_plan(
        corpus_for(shape),
        train=TrainConfig(steps=200),
        **(shape | ({"batch_size": 1} if "batch_size" in shape else {})),
    )
    epochs: dict[int, list[tuple[int, ...]]] = {}
    step = 0
    while plan.position(step).epoch < 2:
        epochs.setdefault(plan.position(step).epoch, []).extend(map(tuple, rows_of(plan.batch(step))))
        step += 1
    assert epochs[0] != epochs[1]
    assert sorted(epochs[0]) == sorted(epochs[1])


# -- purity ------------------------------------------------------------------------------------------------------------


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(torch.as_tensor(a[k]), torch.as_tensor(b[k])) for k in a)


@every_layout
def test_a_batch_follows_from_its_step_alone(shape: dict[str, Any]) -> None:
    split = corpus_for(shape)
    old, new = make_plan(split, **shape), make_plan(split, **shape)
    in_order = [old.batch(step) for step in range(30)]
    positions = [old.position(step) for step in range(30)]
    for step in (29, 0, 17, 3, 28):
        assert same(new.batch(step), in_order[step])
        assert new.position(step) == positions[step]


@every_layout
def test_another_seed_gives_other_batches(shape: dict[str, Any]) -> None:
    split = corpus_for(shape)
    a = make_plan(split, train=TrainConfig(steps=9, seed=1), **shape)
    b = make_plan(split, train=TrainConfig(steps=9, seed=2), **shape)
    assert not all(same(a.batch(step), b.batch(step)) for step in range(3))


@every_layout
@pytest.mark.parametrize(("ranks", "micros"), [(1, 1), (2, 1), (1, 3), (2, 3)])
def test_ranks_and_micro_batches_share_a_batch_without_overlap(shape: dict[str, Any], ranks: int, micros: int) -> None:
    split = corpus_for(shape)
    whole = make_plan(split, **shape)
    shared = make_plan(split, train=TrainConfig(steps=100, gradient_accumulation_steps=micros), ranks=ranks, **shape)
    for step in range(20):
        parts = [shared.batch(step, r, ranks, m) for r in range(ranks) for m in range(micros)]
        assert targets(parts) == targets([whole.batch(step)])
        assert shared.position(step) == whole.position(step)
        sizes = [len(p["input_ids"]) for p in parts]
        assert min(sizes) >= 1
        assert max(sizes) - min(sizes) <= 1


def test_a_rank_without_a_stream_gets_one_without_labels() -> None:
    plan = make_plan(make_split([5, 5]), kind="sentence_streams", ranks=3)
    shares = [plan.batch(0, rank, 3) for rank in range(3)]
    assert all(torch.equal(s["input_ids"], shares[0]["input_ids"]) for s in shares)
    assert [len(targets([s])) for s in shares] == [10 + 1 + 2, 0, 0]


# -- clocks ------------------------------------------------------------------------------------------------------------


@every_layout
def test_clocks_count_what_the_batches_hold(shape: dict[str, Any]) -> None:
    plan = make_plan(corpus_for(shape), **shape)
    tokens = sentence_steps = 0
    for step in range(25):
        position = plan.position(step)
        assert (position.tokens, position.sentence_steps) == (tokens, sentence_steps)
        batch = plan.batch(step)
        tokens += len(lexical(targets([batch])))
        sentence_steps += most_sentences(batch) if shape["kind"] == "sentence_streams" else 1


def test_an_epochs_end_is_the_next_ones_start() -> None:
    plan = make_plan(make_split(*[[3]] * 6), kind="per_document", sequence_length=8, batch_size=2)
    assert [plan.position(step).epoch for step in range(5)] == [0, 0, 0, 1, 1]
    assert [plan.position(step).index for step in range(5)] == [0, 1, 2, 0, 1]
    assert plan.position(3).tokens == 18


@pytest.mark.parametrize(
    ("train", "steps"),
    [
        (TrainConfig(steps=7), 7),
        (TrainConfig(epochs=2), 6),
        (TrainConfig(epochs=1.4), 4),
        (TrainConfig(epochs=0.01), 1),
        (TrainConfig(tokens=1), 1),
        (TrainConfig(tokens=18), 3),
        (TrainConfig(tokens=19), 4),
    ],
    ids=["steps", "epochs", "part of an epoch", "less than a step", "a token", "an epoch of tokens", "one more"],
)
def test_a_run_is_as_long_as_asked(train: TrainConfig, steps: int) -> None:
    plan = make_plan(make_split(*[[3]] * 6), train=train, kind="per_document", sequence_length=8, batch_size=2)
    assert plan.total_steps == steps
    assert plan.position(0).progress == 0
    assert plan.position(steps).progress == 1


def test_epochs_count_alike_in_progress_though_batches_grow() -> None:
    grow = Phase(start=1, clock="epochs", layout={"tokens_per_batch": 480})
    plan = make_plan(BOOK, train=TrainConfig(epochs=2), phases=(grow,), **SHAPES[2])
    progress = np.array([plan.position(step).progress for step in range(plan.total_steps + 1)])
    second = next(s for s in range(plan.total_steps) if plan.position(s).epoch == 1)
    assert progress[second] == pytest.approx(0.5)
    assert second > 2 * (plan.total_steps - second)
    assert (np.diff(progress) > 0).all()


def test_epochs_count_alike_in_progress_though_targets_shrink() -> None:
    """In tokens, the last stage of a curriculum would learn at the end of the schedule."""
    answer_only = Phase(start=1, clock="epochs", layout={"stage": 3})
    shape = {"kind": "qa", "sequence_length": 16, "batch_size": 2, "stages": 2}
    plan = make_plan(make_split(*[[3, 3, 3, 1]] * 8), train=TrainConfig(epochs=4), phases=(answer_only,), **shape)
    tokens = [plan.position(step).tokens for step in (0, 4, 8, 12, 16)]
    assert tokens[1] > 2 * (tokens[2] - tokens[1])
    assert [plan.position(step).progress for step in (0, 4, 8, 12, 16)] == [0, 0.25, 0.5, 0.75, 1]


def test_epochs_of_some_documents_read_them_in_turn() -> None:
    split = make_split(*[[length] for length in range(3, 9)])
    shape = {"kind": "per_document", "sequence_length": 16, "batch_size": 2}
    train = TrainConfig(epochs=4, epoch_documents=2)
    plan = make_plan(split, train=train, **shape)
    rows = [[sum(lexical(row)) for row in rows_of(plan.batch(step))] for step in range(plan.total_steps)]
    assert [plan.position(step).epoch for step in range(plan.total_steps)] == [0, 1, 2, 3]
    assert len({row for batch in rows[:3] for row in batch}) == 6
    assert set(rows[3]) == set(rows[0])
    assert plan.text_read()["train_documents"] == 6
    one = make_plan(split, train=dataclasses.replace(train, epochs=1), **shape)
    assert one.text_read() == {"train_tokens": 3 + 6, "train_documents": 2, "available_documents": 6}


def test_parts_too_small_for_a_batch_name_the_field() -> None:
    with pytest.raises(
        InputError, match=r"train.epoch_documents is 1: layout.batch_size is 2: .* only 1 rows"
    ) as error:
        make_plan(
            make_split([3], [4]), train=TrainConfig(epochs=1, epoch_documents=1), kind="per_document", batch_size=2
        )
    assert error.value.field == "train.epoch_documents"


def test_a_run_says_how_many_documents_it_does_not_read() -> None:
    train = TrainConfig(epochs=1, epoch_documents=2)
    plan = make_plan(make_split(*[[3]] * 6), train=train, kind="per_document", batch_size=2)
    assert plan.remarks() == ["the run reads 2 of 6 documents before it ends (train.epoch_documents is 2)"]


# -- phases ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clock", "start", "epoch"),
    [("steps", 1, 1), ("epochs", 2, 2), ("epochs", 0.5, 1), ("tokens", 1, 1), ("sentence_steps", 10**9, None)],
)
def test_data_changes_at_the_first_epoch_after_the_start(clock: Any, start: float, epoch: int | None) -> None:
    longer = Phase(start=start, clock=clock, layout={"max_sentences": 8})
    plan = make_plan(BOOK, train=TrainConfig(epochs=4), phases=(longer,), **SHAPES[2])
    most: dict[int, int] = {}
    for step in range(plan.total_steps):
        e = plan.position(step).epoch
        most[e] = max(most.get(e, 0), most_sentences(plan.batch(step)))
    assert list(most.values()) == [8 if epoch is not None and e >= epoch else 4 for e in range(4)]


def test_a_stream_curriculum_of_many_phases_resumes_anywhere() -> None:
    phases = tuple(Phase(start=e, clock="epochs", layout={"max_sentences": 4 + 2 * e}) for e in range(1, 4))
    plan = make_plan(BOOK, train=TrainConfig(epochs=4), phases=phases, **SHAPES[2])
    for step in (plan.total_steps - 1, plan.total_steps // 2):
        fresh = make_plan(BOOK, train=TrainConfig(epochs=4), phases=phases, **SHAPES[2])
        assert same(plan.batch(step), fresh.batch(step))


def test_later_phases_override_earlier_ones() -> None:
    phases = (
        Phase(model={"eos_weight": 1.0, "dropout": 0.0}),
        Phase(start=1, clock="epochs", model={"eos_weight": 0.05}),
        Phase(start=2, clock="sentence_steps", model={"dropout": 0.5}),
    )
    plan = make_plan(BOOK, phases=phases, **SHAPES[2])
    second = next(s for s in range(100) if plan.position(s).epoch == 1)
    assert plan.settings(0) == {"eos_weight": 1.0, "dropout": 0.0}
    assert plan.settings(1) == {"eos_weight": 1.0, "dropout": 0.5}
    assert plan.settings(second - 1)["eos_weight"] == 1.0
    assert plan.settings(second)["eos_weight"] == 0.05


@pytest.mark.parametrize(
    "train",
    [
        {"steps": 10, "eval_every": 3},
        {"steps": 9, "eval_every": 3},
        {"steps": 1, "eval_every": 3},
        {"epochs": 2},
        {"epochs": 2.5},
        {"epochs": 0.5},
    ],
)
def test_validations_are_counted_before_they_happen(train: dict[str, Any]) -> None:
    plan = make_plan(BOOK, train=TrainConfig(**train), **SHAPES[2])
    assert plan.validations() == sum(map(plan.is_validation, range(1, plan.total_steps + 1))) > 0


def test_a_run_that_ends_before_its_phases_begin_says_so() -> None:
    """A phase of the layout waits for an epoch, one of the model for its step."""
    phases = (
        Phase(start=1, clock="epochs", layout={"max_sentences": 8}),
        Phase(start=2, clock="epochs", layout={"max_sentences": 12}, model={"dropout": 0.5}),
    )
    epoch = make_plan(BOOK, phases=phases, train=TrainConfig(epochs=2), **SHAPES[2]).total_steps // 2
    for steps, says in (
        (epoch, r"before 2 of its 2 phases begin, from epochs 1 \(max_sentences=8\) on"),
        (epoch + 1, r"before 1 of its 2 phases begins, from epochs 2 \(max_sentences=12, dropout=0\.5\)"),
    ):
        [remark] = make_plan(BOOK, phases=phases, train=TrainConfig(steps=steps), **SHAPES[2]).remarks()
        assert re.search(says, remark)
    assert not make_plan(BOOK, phases=phases, train=TrainConfig(epochs=3), **SHAPES[2]).remarks()
    late = (Phase(start=5, model={"dropout": 0.5}),)
    assert make_plan(BOOK, phases=late, train=TrainConfig(steps=5), **SHAPES[2]).remarks()
    assert not make_plan(BOOK, phases=late, train=TrainConfig(steps=6), **SHAPES[2]).remarks()


def test_pair_is_a_ramp_from_phase_start_to_run_end() -> None:
    phases = (Phase(start=20, model={"weight": (1.0, 3.0)}),)
    plan = make_plan(BOOK, phases=phases, train=TrainConfig(steps=100), **SHAPES[0])
    assert plan.settings(60) == {"weight": pytest.approx(2.0)}
    assert plan.settings(19) == {}
    assert plan.settings(20) == {"weight": 1.0}
    assert plan.settings(100) == {"weight": 3.0}
    fresh = make_plan(BOOK, phases=phases, train=TrainConfig(steps=100), **SHAPES[0])
    assert fresh.settings(99) == plan.settings(99)


@pytest.mark.parametrize("length", [TrainConfig(steps=40), TrainConfig(tokens=4000)], ids=["steps", "tokens"])
def test_the_beginning_of_a_longer_run_has_its_rates(length: TrainConfig) -> None:
    phases = (Phase(start=5, model={"weight": (1.0, 3.0)}),)
    name = "steps" if length.steps else "tokens"
    part = dataclasses.replace(length, **{name: getattr(length, name) // 4}, schedule_share=0.25)
    whole, begun = (make_plan(BOOK, phases=phases, train=train, **SHAPES[0]) for train in (length, part))
    optimizer = OptimizerConfig(warmup=4)

    def rate(plan: Plan, step: int) -> float:
        return learning_rate(optimizer, step, plan.schedule_steps, plan.position(step).progress)

    assert begun.total_steps == pytest.approx(whole.total_steps / 4, abs=1)
    for step in range(begun.total_steps):
        assert rate(begun, step) == pytest.approx(rate(whole, step), rel=0.02)
        if step > 5:
            assert begun.settings(step)["weight"] == pytest.approx(whole.settings(step)["weight"], abs=0.02)
    assert rate(begun, begun.total_steps) > 0.8 * optimizer.learning_rate
    assert whole.remarks() == []
    assert begun.remarks() == ["the run ends after 25% of its learning rate's schedule (train.schedule_share)"]
    for share in (0, 1.5):
        with pytest.raises(InputError, match=r"train\.schedule_share"):
            TrainConfig(steps=1, schedule_share=share)


@pytest.mark.parametrize("clock", ["steps", "epochs", "tokens", "sentence_steps"])
def test_the_optimizer_is_reset_once_where_the_phase_begins(clock: Any) -> None:
    probe = make_plan(BOOK, **SHAPES[2])
    second = next(s for s in range(100) if probe.position(s).epoch == 1)
    position = probe.position(second)
    start = {"steps": second, "epochs": 1, "tokens": position.tokens, "sentence_steps": position.sentence_steps}[clock]
    plan = make_plan(BOOK, phases=(Phase(start=start, clock=clock, reset_optimizer=True),), **SHAPES[2])
    assert [s for s in range(60) if plan.reset_optimizer(s)] == [second]


def test_the_optimizer_is_reset_where_the_layout_changes() -> None:
    changes = {"layout": {"max_sentences": 8}, "model": {"dropout": (0.0, 1.0)}, "reset_optimizer": True}
    plan = make_plan(BOOK, phases=(Phase(start=2, **changes),), train=TrainConfig(epochs=2), **SHAPES[2])
    second = next(step for step in range(plan.total_steps) if plan.position(step).epoch == 1)
    assert second > 2
    assert [step for step in range(plan.total_steps) if plan.reset_optimizer(step)] == [second]
    assert [plan._layout_of(epoch).max_sentences for epoch in (0, 1)] == [4, 8]  # type: ignore[attr-defined]
    assert plan.settings(second - 1) == {}
    assert plan.settings(second) == {"dropout": 0.0}


def test_a_warmup_longer_than_the_run_is_named() -> None:
    long, short = (
        make_plan(BOOK, train=TrainConfig(steps=8), optimizer=OptimizerConfig(warmup=warmup), **SHAPES[0]).remarks()
        for warmup in (2000, 8)
    )
    assert long == ["the learning rate still rises when the run ends, after 8 steps (optimizer.warmup is 2,000)"]
    assert short == []
    part = TrainConfig(steps=8, schedule_share=0.5)  # of 16 steps, of which the warm-up takes 12
    about = make_plan(BOOK, train=part, optimizer=OptimizerConfig(warmup=0.75), **SHAPES[0]).remarks()
    assert about[0] == "the learning rate still rises when the run ends, after 8 steps (optimizer.warmup is 0.75)"


def test_a_phase_that_begins_with_the_run_resets_nothing() -> None:
    plan = make_plan(BOOK, phases=(Phase(reset_optimizer=True),), **SHAPES[0])
    assert not any(plan.reset_optimizer(s) for s in range(20))


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_a_batch_that_ranks_cannot_share_is_refused() -> None:
    with pytest.raises(InputError, match=r"layout.batch_size is 12: set a multiple of 8, which is 4 ranks"):
        make_plan(BOOK, train=TrainConfig(steps=1, gradient_accumulation_steps=2), ranks=4, **SHAPES[0])
    with pytest.raises(InputError, match=r"layout.batch_size is 5: set a multiple of 2"):
        make_plan(BOOK, phases=(Phase(start=9, layout={"batch_size": 5}),), ranks=2, **SHAPES[0])


@pytest.mark.parametrize(("ranks", "micros"), [(1, 12), (12, 1), (3, 4)])
def test_thoughts_are_swapped_between_two_rows_at_least(ranks: int, micros: int) -> None:
    """Of one row alone they would be removed, which is another control."""
    train, swapped = TrainConfig(steps=1, gradient_accumulation_steps=micros), {"thought_control": "swapped"}
    with pytest.raises(InputError, match=r"layout.batch_size is 12: .* set at least 24"):
        make_plan(BOOK, train=train, ranks=ranks, model=swapped, **SHAPES[0])
    make_plan(BOOK, train=train, ranks=ranks, model={"thought_control": "removed"}, **SHAPES[0])
    make_plan(BOOK, train=TrainConfig(steps=1, gradient_accumulation_steps=6), model=swapped, **SHAPES[0])


def test_too_little_text_for_a_batch_is_refused() -> None:
    with pytest.raises(InputError, match=r"layout.batch_size is 12: the training split has only 1 rows"):
        make_plan(make_split([3]), **SHAPES[0])


def test_a_split_without_text_is_refused() -> None:
    empty = make_split([0], [0])
    for shape in SHAPES:
        with pytest.raises(InputError, match="its training split has no text"):
            make_plan(empty, **shape)


def test_streams_of_single_sentences_are_refused() -> None:
    with pytest.raises(InputError, match=r"layout is 'sentence_streams': every document .* is a single sentence"):
        make_plan(make_split([5], [7], [2]), kind="sentence_streams")


def test_records_that_are_too_long_or_have_no_answer_are_refused() -> None:
    long = make_split(*[[2, 3, 10] if d < 10 else [2, 3] for d in range(40)])
    with pytest.raises(
        InputError, match=r"layout.sequence_length is 9: 10 of 40 questions are longer; set at least 16"
    ):
        make_plan(long, kind="qa", sequence_length=9)
    with pytest.raises(InputError, match="set at least 16, for the latents of all phases"):  # what prepare did not see
        make_plan(long, kind="qa", sequence_length=9, too_long="skip")
    with pytest.raises(InputError, match=r"1 of 2 documents lack a question or an answer"):
        make_plan(make_split([3, 3], [3]), kind="qa", batch_size=1)


def test_a_phase_cannot_change_data_that_is_fixed_for_the_run() -> None:
    with pytest.raises(InputError, match=r"phases.layout is 'tokenizer': only sequence_length, batch_size"):
        make_plan(BOOK, phases=(Phase(layout={"tokenizer": "bpe:512"}),), **SHAPES[0])
    with pytest.raises(InputError, match=r"layout.max_sentences is 0"):
        make_plan(BOOK, phases=(Phase(start=5, layout={"max_sentences": 0}),), **SHAPES[2])


def test_the_recipe_is_not_changed_by_its_phases() -> None:
    plan = make_plan(BOOK, phases=(Phase(layout={"batch_size": 6}),), **SHAPES[0])
    assert len(plan.batch(0)["input_ids"]) == 6
    assert dataclasses.asdict(plan.recipe.layout)["batch_size"] == 12


def test_train_tokens_takes_the_first_whole_documents() -> None:
    split = make_split(*[[5, 4]] * 20)  # ten tokens a document
    plan = make_plan(split, train_tokens=55, kind="per_document", sequence_length=16, batch_size=1)
    seen = {int(plan.batch(step)["input_ids"].max()) for step in range(6)}
    assert len(plan.split.document_bytes) == 6
    assert max(seen) < 10 + 60
    assert plan.remarks() == [
        "the run trains on the first 6 of 20 documents (data.train_tokens is 55); for all of them set "
        "this field to None"
    ]
    whole = make_plan(split, kind="per_document", sequence_length=16, batch_size=1)
    assert len(whole.split.document_bytes) == 20
    assert whole.remarks() == []

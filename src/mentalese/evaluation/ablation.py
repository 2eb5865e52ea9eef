"""Does the thought matter? A trained model with its own thoughts, and with each control in their place."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mentalese.data.split import Split
from mentalese.errors import require
from mentalese.evaluation.answers import GREEDILY, Answers, ask
from mentalese.evaluation.options import AblationOptions
from mentalese.evaluation.paired import compare_scores
from mentalese.evaluation.questions import QuestionPrompts
from mentalese.evaluation.statistics import bootstrap_questions, bootstrap_ratio
from mentalese.models.build import context_length
from mentalese.models.config import require_own_thoughts
from mentalese.models.generation import seeded
from mentalese.models.influence import influence
from mentalese.models.saved import Saved
from mentalese.models.thinking import document_ids
from mentalese.nn.controls import CONTROLS, OneThought, ThoughtControl
from mentalese.screen import progress
from mentalese.values import temporarily

OWN = "own"
FARTHEST = 8  # parts back that are counted each by itself


def run(
    saved: Saved,
    options: AblationOptions | None = None,
    *,
    controls: Sequence[ThoughtControl] = CONTROLS,
    show: bool = False,
) -> dict[str, Any]:
    """Score a split's texts, or ask its questions, once with the model's own thoughts and once under each control.

    With `options.each` also with only one thought replaced: of questions each latent under each control, of texts each
    thought by a constant, see `_changes`.

    Returns:
        `ablations`, own thoughts first, without `swapped` if there is only one text: `thoughts` (`own`, or a control of
        `mentalese.nn.controls`, after the thought if it is only one), `score`, the `difference` from own thoughts, and
        its 95% `interval` over documents or questions (`None` with too few). Of questions also the number of
        `unfinished` answers, and with own and swapped thoughts the share of answers that are right for the question
        whose thoughts are swapped in (`others`; of pairs with different right answers). Then `unit` (`nats per token`
        or `accuracy`), `documents` or `questions`, `protocol`, and the origin of the text.
    """
    options = options or AblationOptions()
    config = saved.model.config
    require_own_thoughts(config, "model", str(saved.path))
    saved = options.read_by(saved)
    saved = saved.scored_in_pairs(max_documents=options.documents, tokens="lexical")
    part = options.part(saved)
    store = saved.store(part, show=show)
    split, questions = store.splits[part], saved.layout.questions
    answered = not questions or store.meta["kind"] == "records"
    require(answered, "source", saved.data.source, f"{saved.path} answers questions, use a source that has some")

    if questions:
        has_latents = options.each and getattr(config, "latent_token_id", None) is not None
        latents = saved.layout.asked().get("latents") if has_latents else None
        remedy = "the model has no latents, or decides their number, leave out --each"
        require(not options.each or bool(latents), "each", True, remedy)
        reference, ablations = _asked(saved, split, [*_kinds(controls, latents or 0)], show)
    else:
        changes = _changes(saved, split, show) if options.each else []
        reference, ablations = _scored(saved, split, [*_kinds(controls)], show)
        ablations += _one_by_one(changes) if changes else []
    documents = saved.evaluation.documents(len(split.document_bytes))
    tokens = int((~np.isnan(reference)).sum())
    counted = {"questions": len(reference)} if questions else {"documents": documents, "tokens": tokens}
    return {
        "unit": "accuracy" if questions else "nats per token",
        "ablations": ablations,
        **counted,
        "protocol": saved.layout.asked() if questions else saved.protocol,
        **options.origin(saved, store),
    }


Kind = tuple[str, str | OneThought | None]
"""A name of thoughts, and what `config.thought_control` is then."""
Entry = dict[str, Any]


def _kinds(controls: Sequence[ThoughtControl], latents: int = 0) -> Iterator[Kind]:
    """Yield own thoughts, all thoughts under each control, then each thought by itself."""
    yield OWN, None
    yield from ((control, control) for control in controls)
    for number in range(latents):
        for control in controls:
            yield f"thought {number + 1}, {control}", OneThought(number, control)


def _asked(saved: Saved, split: Split, kinds: Sequence[Kind], show: bool) -> tuple[np.ndarray, list[Entry]]:
    """Return 1 for each question that own thoughts answer right, else 0, and an entry for each kind of thoughts."""
    donors = neighbours(saved, split)
    reference, entries = np.empty(0), list[Entry]()
    for thoughts, control in kinds:
        if len(donors) == 1 and thoughts.endswith("swapped"):
            continue  # a single question has nothing to swap
        with temporarily(saved.model.config, thought_control=control):
            answers = ask(saved, split, show=show)
        right = np.array([record.correct for record in answers.records], dtype=np.float64)
        reference = right if thoughts == OWN else reference
        bounds = bootstrap_questions((right - reference)[:, None], [one.question for one in answers.records], -1.0)
        interval = None if bounds is None else bounds[:, 0].tolist()
        entry = _entry(thoughts, float(right.mean()), float((right - reference).mean()), interval)
        others = _others(answers, donors) if thoughts == OWN or thoughts.endswith("swapped") else None
        entries.append(entry | {"unfinished": answers.metrics().unfinished, "others": others})
    return reference, entries


def neighbours(saved: Saved, split: Split) -> dict[int, int]:
    """Return the question whose thoughts each question reads when they are swapped within its batch."""
    donors: dict[int, int] = {}
    for batch in QuestionPrompts(saved, split, GREEDILY, None).batches():
        documents = batch["documents"].tolist()
        donors |= zip(documents, np.roll(documents, 1).tolist())
    return donors


def _entry(thoughts: str, score: float | None, difference: float, interval: Sequence[float] | None) -> Entry:
    own = thoughts == OWN
    return {
        "thoughts": thoughts,
        "score": score,
        "difference": None if own else difference,
        "interval": None if own or interval is None else tuple(interval),
        "unfinished": None,
    }


def _others(answers: Answers, donors: Mapping[int, int]) -> float | None:
    """Return the share of answers that are right for the donor, of pairs with different right answers."""
    expected, equal = {record.document: record.expected for record in answers.records}, answers.rule.equal
    pairs = [(record.answer, record.expected, expected[donors[record.document]]) for record in answers.records]
    taken = [equal(answer, other) for answer, right, other in pairs if not equal(right, other)]
    return float(np.mean(taken)) if taken else None


def _scored(saved: Saved, split: Split, kinds: Sequence[Kind], show: bool) -> tuple[np.ndarray, list[Entry]]:
    """Return the scores under own thoughts, [tokens], and an entry for each kind of thoughts."""
    values: dict[str, np.ndarray] = {}
    for thoughts, control in kinds:
        with temporarily(saved.model.config, thought_control=control), seeded(saved.model, 0):
            values[thoughts] = saved.token_scores(split, show=show)
    lone = saved.evaluation.documents(len(split.document_bytes)) == 1 and "removed" in values
    if lone and np.array_equal(values.get("swapped", 0), values["removed"], equal_nan=True):
        del values["swapped"]  # thoughts of a single row could only be removed; a long text has other windows
    entries = []
    for thoughts, scores in values.items():
        overall = compare_scores(scores, values[OWN], split).overall
        mean = float(np.nanmean(scores, dtype=np.float64))
        entries.append(_entry(thoughts, mean, overall.difference, overall.interval))
    return values[OWN], entries


def _changes(saved: Saved, split: Split, show: bool) -> list[dict[str, Tensor]]:
    """Return what tokens of each document lose, in nats, if one thought is a constant: by distance, or by thought.

    The distance is the number of parts (sentences, chunks) from the thought's own to the token's; distances above
    `FARTHEST` are one group. Thoughts of the whole text are counted from its start. Of documents longer than the
    context only the beginning is read.
    """
    model, rows = saved.model, list[tuple[list[slice], Tensor]]()
    documents = saved.evaluation.documents(len(split.document_bytes))
    with progress("Replacing one thought at a time", documents, show=show) as bar:
        for number in range(documents):
            trace = saved.trace(document_ids(saved, split, number)[: context_length(model.config)])
            read = model.read_thoughts(trace)
            remedy = "the model's thoughts are decisions about single tokens, use `mentalese think --influence`"
            require(read is not None, "each", True, remedy)
            assert read is not None
            nats = influence(model, trace.input_ids).cpu().double()
            nats[:, torch.tensor(trace.special)] = math.nan  # scores of the same table leave them out too
            spans = [slice(trace.thoughts[i].start, trace.thoughts[i].end) for i in read]
            rows.append((spans[: len(nats)], nats))
            bar.update(number + 1)
    has_parts = any(len({(span.start, span.stop) for span in spans}) > 1 for spans, _ in rows)
    if has_parts:
        return [_by_distance(spans, nats) for spans, nats in rows]
    return [{f"thought {number}": changed for number, changed in enumerate(nats, 1)} for _, nats in rows]


def _by_distance(spans: Sequence[slice], nats: Tensor) -> dict[str, Tensor]:
    """Return the changes of a text's tokens, its `influence`, by the distance from thoughts."""
    parts: dict[int, list[Tensor]] = defaultdict(list)
    for number, changed in enumerate(nats[: len(spans)]):
        for distance, span in enumerate(spans[number:]):
            parts[min(distance, FARTHEST + 1)].append(changed[span])
    return {f"{d} back" if d <= FARTHEST else f"{d} or more back": torch.cat(parts[d]) for d in sorted(parts)}


def _one_by_one(rows: Sequence[Mapping[str, Tensor]]) -> list[Entry]:
    """Return an entry for each distance or thought, from the changes of documents; each is of other tokens."""
    names = np.array([*{name: None for row in sorted(rows, key=len) for name in row}])
    none = torch.empty(0)
    sums, counts = (
        np.array([[float(measure(row.get(name, none))) for name in names] for row in rows])
        for measure in (torch.nansum, lambda values: values.isfinite().sum())
    )
    scored = counts.sum(0) > 0
    names, sums, counts = names[scored], sums[:, scored], counts[:, scored]
    means, bounds = (sums.sum(0) / counts.sum(0)).tolist(), bootstrap_ratio(sums, counts)
    several = (counts > 0).sum(0) > 1
    intervals = [None if bounds is None or not several[i] else bounds[:, i].tolist() for i in range(len(names))]
    return [_entry(f"{name}, removed", None, mean, interval) for name, mean, interval in zip(names, means, intervals)]

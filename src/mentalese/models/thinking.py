"""Traces of a model's thoughts about a text."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor

from mentalese.data.config import EvaluationConfig
from mentalese.data.layouts import Layout
from mentalese.data.rows import document_windows
from mentalese.data.tokenizers import LONGEST_CHARACTER, decode, last_character, special_ids
from mentalese.errors import require
from mentalese.models.base import LanguageModel
from mentalese.models.build import context_length
from mentalese.models.generation import plainly, seeded, stops
from mentalese.models.influence import influence, thoughts_of
from mentalese.models.trace import ALONG_TEXT, INFLUENCE, ThoughtTrace
from mentalese.values import checked

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from mentalese.data.split import Split
    from mentalese.models.saved import Saved


Window = tuple[int, int, int]
T = TypeVar("T")
_TOKEN, _PARENT = "token", "parent"


def think(
    saved: Saved,
    text: str,
    *,
    max_new_tokens: int | None = None,
    influence: bool = False,
    patch: str | None = None,
    **options: object,
) -> ThoughtTrace:
    """Return what a model thinks of a text, read as in training: after the end of a document, or in whole sentences.

    For models trained on questions, the text is the question, followed by the latents of `layout`, and the greedy
    answer is traced too. A text longer than the model's context is read in windows, as in scoring: each repeats tokens
    of the window before it as context. See `Saved.think` for options and errors.
    """
    layout, model = saved.layout, saved.model
    limit = saved.evaluation.answer_tokens
    max_new_tokens = limit if max_new_tokens is None else checked("max_new_tokens", int, max_new_tokens)
    require(bool(text.strip()), "the text", text, "pass one with at least one word")
    ids, special = _prompt(saved, text), layout.special_ids(saved.tokenizer)
    length, context = ids.shape[1], context_length(model.config)
    asked = influence or patch is not None

    def answered(prompt: Tensor) -> Tensor:
        """Return a prompt with the greedy answer of a model that answers, which may think in it."""
        if not saved.answers:
            return prompt
        size = prompt.shape[1]
        remedy = f"the question has {size} tokens and the model's context is {context}, shorten it or set fewer"
        require(context is None or size + max_new_tokens <= context, "max_new_tokens", max_new_tokens, remedy)
        options_of_answer = {"do_sample": False, "max_new_tokens": max_new_tokens, **stops(model, special)}
        with seeded(model, 0), plainly(model), torch.no_grad():
            return model.generate(input_ids=prompt, attention_mask=torch.ones_like(prompt), **options_of_answer)

    def measured(read: ThoughtTrace) -> ThoughtTrace:
        if asked:
            values = None if patch is None else thoughts_of(model, answered(_prompt(saved, patch))[0], **options)
            _add_influence(model, read, values, **options)
        return read

    if not saved.answers:
        if context is None or length <= context:
            return measured(trace(saved, ids[0], **options))
        require(not asked, "the text", f"{text[:20]}..", f"influence needs it at once, at most {context} tokens")
        windows = _windows(length, context, layout, saved.evaluation.of_one_text())
        traces = [trace(saved, ids[0, start:stop], **options) for start, _, stop in windows]
        through = [name for name, words in model.shown.items() if words.along in ALONG_TEXT]
        return joined(traces, windows, through)
    require(max_new_tokens >= 1, "max_new_tokens", max_new_tokens, "set at least 1")
    return dataclasses.replace(measured(trace(saved, answered(ids)[0], **options)), written=length)


def _prompt(saved: Saved, text: str) -> Tensor:
    """Return the tokens [1, length] of a text as `think` reads it."""
    ids: Tensor = saved.encode_prompts([text])["input_ids"]
    if saved.layout.markers:  # the last sentence has an end too
        end = saved.layout.special_ids(saved.tokenizer)["sentence_end_token_id"]
        ids = torch.nn.functional.pad(ids, (0, 1), value=end)
    return ids.to(saved.device)


def document_ids(saved: Saved, split: Split, number: int) -> Tensor:
    """Return the tokens [length] of a document of a split as `think` reads a text, without a chat template."""
    ids = split.tokens[split.documents[number] : split.documents[number + 1]].tolist()
    return _prompt(saved.as_text(), decode(ids, saved.tokenizer))[0]


def _add_influence(
    model: LanguageModel, trace: ThoughtTrace, values: Sequence[Tensor] | None, **options: object
) -> None:
    """Add the influence of each thought to a trace, see `mentalese.models.influence.influence`.

    The curve is of each thought on all that follows it, the link of thought j on the tokens of thought i (their mean),
    if the model reads all thoughts of the trace. If thoughts are decisions about tokens, a score has the curve's sums.
    """
    nats, read = influence(model, trace.input_ids, values, **options), model.read_thoughts(trace)
    if read is None:
        trace.scores[INFLUENCE] = nats.nansum(1)
        return
    trace.curves[INFLUENCE] = nats.nansum(1)
    spans = [slice(thought.start, thought.end) for thought in trace.thoughts]
    is_scored = any(bool(nats[:, span].isfinite().any()) for span in spans)
    if is_scored and len(read) == len(spans) == len(nats) and len({span.start for span in spans}) > 1:
        links = torch.stack([nats[:, span].nanmean(1).nan_to_num() for span in spans])
        trace.links = {INFLUENCE: links} | trace.links


def _windows(length: int, context: int, layout: Layout, evaluation: EvaluationConfig) -> list[Window]:
    """Return the windows in which this number of tokens is scored: (start, first, stop), see `ThoughtTrace.windows`."""
    size, stride = layout.window(evaluation) or (context, context // 2)
    if size > context:
        size, stride = context, context // 2
    rows = document_windows(np.array([1]), np.array([length]), size, stride)
    return [*zip(rows.start.tolist(), rows.target.tolist(), rows.stop.tolist())]


def trace(saved: Saved, input_ids: Tensor, **options: object) -> ThoughtTrace:
    """Return what a model thinks of these tokens [length], with their texts; options as in `think`."""
    ids = input_ids[None].to(saved.device)
    with seeded(saved.model, 0):
        (result,) = saved.model.traces({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, **options)
    tokens, special = result.input_ids.tolist(), special_ids(saved.tokenizer)
    others = {token for reading in result.readings.values() for token in reading.tolist()}
    others |= {token for thought in result.thoughts for token, _ in thought.nearest}
    result.tokens = token_texts(tokens, saved.tokenizer)
    result.special = [token in special for token in tokens]
    result.vocabulary = {token: _text_inside(token, saved.tokenizer) for token in sorted(others)}
    return result


def _text_inside(token: int, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the text of a token inside a text: some tokenizers drop a space at the start."""
    return str(tokenizer.decode([token, token])).removeprefix(str(tokenizer.decode([token])))


def token_texts(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return the text of each token; joined, they are the whole text. Of one character the first token has it all."""
    texts: list[str] = []
    start, before, ids, special = 0, list[int](), [*ids], special_ids(tokenizer)
    for end in range(1, len(ids) + 1):
        text = str(tokenizer.decode([*before, *ids[start:end]]))
        going_on = end < len(ids) and end - start < LONGEST_CHARACTER and ids[end] not in special
        if text.endswith("�") and going_on:
            continue
        texts += [text.removeprefix(str(tokenizer.decode(before)))] + [""] * (end - start - 1)
        # Some tokenizers drop a space at the start of a text.
        start, before = end, last_character(ids[max(end - LONGEST_CHARACTER, 0) : end], tokenizer)
    return texts


def joined(traces: Sequence[ThoughtTrace], windows: Sequence[Window], through: Collection[str]) -> ThoughtTrace:
    """Return the trace of a text from the traces of its windows, each of which contributes its new tokens.

    A curve is the mean over windows; curves that follow the text (`through`) are left out, as windows repeat context.
    """
    news = [0, *(first - start for start, first, _ in windows[1:])]  # the first new token of each window

    def tokens(columns: Sequence[Sequence[T]]) -> list[T]:
        return [value for column, new in zip(columns, news) for value in column[new:]]

    def tensors(columns: Sequence[Tensor]) -> Tensor:
        return torch.cat([column[new:] for column, new in zip(columns, news)])

    def links(name: str) -> Tensor:
        blocks = (trace.links[name][numbers][:, numbers] for trace, numbers in zip(traces, new_thoughts))
        return torch.block_diag(*blocks)

    first = traces[0]
    new_thoughts = [[n for n, t in enumerate(trace.thoughts) if t.end > new] for trace, new in zip(traces, news)]
    thoughts = []
    for trace, numbers, new, (start, _, _) in zip(traces, new_thoughts, news, windows):
        for thought in (trace.thoughts[number] for number in numbers):
            own = max(thought.start, new)  # without earlier tokens
            thoughts.append(dataclasses.replace(thought, start=own + start, end=thought.end + start))
    return dataclasses.replace(
        first,
        input_ids=tensors([trace.input_ids for trace in traces]),
        scores={name: tensors([trace.scores[name] for trace in traces]) for name in first.scores},
        thoughts=thoughts,
        links={name: links(name) for name in first.links},
        curves={
            name: torch.stack([trace.curves[name].float() for trace in traces]).mean(0)
            for name in first.curves
            if name not in through
        },
        readings={name: tensors([trace.readings[name] for trace in traces]) for name in first.readings},
        streams=_streams(traces, windows, news),
        tokens=tokens([trace.tokens for trace in traces]),
        special=tokens([trace.special for trace in traces]),
        vocabulary={token: text for trace in traces for token, text in trace.vocabulary.items()},
        windows=[*windows],
    )


def _streams(traces: Sequence[ThoughtTrace], windows: Sequence[Window], news: Sequence[int]) -> dict[str, Tensor]:
    """Return the joined tables of streams: rows of new tokens, with places and parents in the whole text's table."""
    tables, rows = [], 0
    for trace, (start, _, _), new in zip(traces, windows, news):
        if not trace.streams:
            return {}
        keep = trace.streams[_TOKEN] >= new
        number = keep.cumsum(0) - 1 + rows  # number of each remaining row in the whole table
        table = {name: column[keep] for name, column in trace.streams.items()}
        parent = table[_PARENT]
        tables.append(table | {_TOKEN: table[_TOKEN] + start, _PARENT: parent.where(parent < 0, number[parent])})
        rows += int(keep.sum())
    return {name: torch.cat([table[name] for table in tables]) for name in tables[0]}

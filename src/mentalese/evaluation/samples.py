"""Measures of generated text, unconditional or after prompts: likelihood, diversity, speed and similarity to documents.

- Generative perplexity: the perplexity of samples under a larger model (Dieleman et al., "Continuous diffusion for
  categorical data", 2022).
- Entropy of a sample's token frequencies, which falls if a model repeats itself (Zheng et al., "Masked Diffusion
  Models are Secretly Time-Agnostic Masked Models", 2024).
- MAUVE between continuations and the text of people (Pillutla et al., "MAUVE", 2021).
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import statistics
import time
from collections.abc import Sequence
from itertools import groupby

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerBase

from mentalese import provenance
from mentalese.data.batch import Batch, to_device
from mentalese.data.config import DataConfig, EvaluationConfig
from mentalese.data.layouts import PerDocument
from mentalese.data.prompts import PromptEncoder
from mentalese.data.split import Split
from mentalese.data.tokenizers import beginning, corpus_encoder, decode, decode_after
from mentalese.errors import InputError, require
from mentalese.evaluation.options import Decoding, SampleOptions
from mentalese.install import install_command
from mentalese.models.base import evaluation_mode
from mentalese.models.build import context_length
from mentalese.models.generation import WHOLE_DISTRIBUTION, seeded
from mentalese.models.saved import Saved, load
from mentalese.screen import progress
from mentalese.values import temporarily

BATCH_SIZE = 8
"""Samples at once, as published speeds are measured (Kong et al., "Latent Thought Models", 2025, appendix A.3)."""

_LONGEST, _TEXTS = 1024, 3
_FEWEST_TEXTS = 100  # MAUVE compares histograms with a tenth as many bins, too coarse for fewer texts


def open_judge(options: SampleOptions) -> Saved:
    """Open the model that scores samples, and check that MAUVE can be computed if it is needed.

    Raises:
        InputError: no judge is set, there is no such model, or it does not read plain text; MAUVE is not installed.
    """
    name = options.judge
    if name is None:
        raise InputError("judge is None: samples are scored by another model; set --judge PATH or --judge hub:NAME")
    if "conditional" in options.kinds and importlib.util.find_spec("mauve") is None:
        raise InputError(f"MAUVE is not installed: {install_command('mauve')}")
    saved = load(name)
    kind = saved.layout.kind
    require(saved.layout.plain, "judge", name, f"it has layout {kind!r}, use a model of plain text")
    return as_judge(saved)


def as_judge(saved: Saved) -> Saved:
    """Return the model with a layout that reads each sample as a document, in windows of at most 1,024 tokens."""
    return dataclasses.replace(
        saved,
        data=DataConfig(),
        layout=PerDocument(sequence_length=min(context_length(saved.model.config) or _LONGEST, _LONGEST)),
        evaluation=EvaluationConfig(batch_size=BATCH_SIZE),
    )


def run(saved: Saved, options: SampleOptions, judge: Saved, *, show: bool = False) -> dict[str, dict[str, object]]:
    """Generate and score samples of each kind, `{kind: result}`, by the result of `open_judge`.

    Raises:
        InputError: a model of questions, too few documents, or tokens above the model's context; errors of
            `Saved.store`.
    """
    results: dict[str, dict[str, object]] = {}
    for kind in options.kinds:
        if kind == "unconditional":
            results[kind] = unconditional(saved, options, judge, show=show)
        else:
            reader = options.read_by(saved)
            part = options.part(reader)
            store = reader.store(part, show=show)
            figures = conditional(reader, store.splits[part], options, judge, show=show)
            results[kind] = figures | options.origin(reader, store)
    return results


def unconditional(saved: Saved, options: SampleOptions, judge: Saved, *, show: bool = False) -> dict[str, object]:
    """Generate and score sequences from the beginning of a document; a model with thoughts draws these from its prior.

    All have their full length. After the end of a document the next one begins, which the judge reads as another text.

    Returns:
        For each decoding `generative_perplexity` (per token of the judge; `None` if only ends of documents were
        generated), `entropy` (nats, the mean over samples), `samples_per_second` and the first few `texts`; and the
        `protocol`.
    """
    special = _special_ids(saved)
    end = special["eos_token_id"]
    start = [special["sentence_start_token_id"]] if saved.layout.markers else []
    start = [*start, *beginning(saved.tokenizer)] or [special["bos_token_id"]]
    context = context_length(saved.model.config)
    tokens = options.sample_tokens or min(_LONGEST, _LONGEST if context is None else context - len(start))
    _check_room(context, len(start), tokens)
    first = torch.tensor([start]).repeat(options.samples or 64, 1)
    prompts = {"input_ids": first, "attention_mask": torch.ones_like(first)}

    results: dict[str, object] = {}
    for decoding in options.decodings:
        ids, measured = _sampled(saved, prompts, tokens, decoding, options, show)
        pieces = [_between_ends(row, end) for row in ids.tolist()]
        texts = [[decode(piece, saved.tokenizer) for piece in row] for row in pieces]
        results[decoding] = {
            "generative_perplexity": judge_texts(judge, [("", text) for row in texts for text in row]),
            **measured,
            "texts": ["\n\n".join(row) for row in texts[:_TEXTS]],
        }
    return results | {"protocol": _protocol(judge, options, len(first), tokens)}


def conditional(
    saved: Saved, split: Split, options: SampleOptions, judge: Saved, *, show: bool = False
) -> dict[str, object]:
    """Generate continuations of the beginnings of a split's documents, and compare them with the documents.

    The first documents that are long enough yield one prompt each.

    Returns:
        As `unconditional`, for the continuations given their prompts; and `mauve` (0 to 1) of prompts and continuations
        against the documents' first tokens: for `multinomial` the mean over `draws` and its `mauve_stderr`.
    """
    special = _special_ids(saved)
    tokens = options.sample_tokens or 50
    beginnings, whole = _beginnings(split, saved.tokenizer, options, tokens)
    prompts = saved.layout.encode_prompts(beginnings, saved.tokenizer, saved.data)
    _check_room(context_length(saved.model.config), prompts["input_ids"].shape[1], tokens)
    human, count = text_features(judge, whole), len(beginnings)

    results: dict[str, object] = {}
    for decoding in options.decodings:
        draws = options.draws if decoding == "multinomial" else 1
        ids, measured = _sampled(saved, prompts, tokens, decoding, options, show, draws=draws)
        rows = zip(prompts["input_ids"].tolist() * draws, ids.tolist())
        new = [_continuation(prompt, row, special["eos_token_id"], saved.tokenizer) for prompt, row in rows]
        pairs = list(zip(beginnings * draws, new))
        texts = [prompt + text for prompt, text in pairs]
        scores = [mauve(human, text_features(judge, texts[i : i + count])) for i in range(0, len(texts), count)]
        results[decoding] = {
            "generative_perplexity": judge_texts(judge, pairs),
            "mauve": statistics.fmean(scores),
            "mauve_stderr": statistics.stdev(scores) / math.sqrt(draws) if draws > 1 else None,
            **measured,
            "texts": texts[:_TEXTS],
        }
    about = {"prompt_tokens": options.prompt_tokens, "draws": options.draws}
    return results | {"protocol": _protocol(judge, options, count, tokens) | about}


def _special_ids(saved: Saved) -> dict[str, int]:
    remedy = "it answers questions and continues no texts, use `mentalese answer`"
    require(not saved.layout.questions, "model", str(saved.path), remedy)
    return saved.layout.special_ids(saved.tokenizer)


def _check_room(context: int | None, prompt: int, tokens: int) -> None:
    if context is not None:
        remedy = f"the model's context is {context}, of which the prompt takes {prompt}; "
        remedy += f"set at most {max(context - prompt, 1)}, or shorter prompts"
        require(prompt + tokens <= context, "sample_tokens", tokens, remedy)


def _sampled(
    saved: Saved,
    prompts: Batch,
    tokens: int,
    decoding: Decoding,
    options: SampleOptions,
    show: bool,
    *,
    draws: int = 1,
) -> tuple[Tensor, dict[str, float]]:
    """Return new tokens [draws * prompts, tokens], draw by draw, with their entropy and the speed."""
    model, pad = saved.model, saved.layout.special_ids(saved.tokenizer)["pad_token_id"]
    new: list[Tensor] = []
    count = len(prompts["input_ids"])
    # Without ends before the full length, and without a checkpoint's own settings.
    sampling = WHOLE_DISTRIBUTION | {"temperature": options.temperature}
    generation = GenerationConfig(pad_token_id=pad, **(sampling if decoding == "multinomial" else {}))
    with (
        seeded(model, options.seed),
        temporarily(model, generation_config=generation),
        torch.no_grad(),
        progress(f"Sampling ({decoding})", count * draws, show=show) as bar,
    ):
        began = time.perf_counter()
        for start in [*range(0, count, BATCH_SIZE)] * draws:
            rows = {name: ids[start : start + BATCH_SIZE].to(model.device) for name, ids in prompts.items()}
            output = model.generate(**rows, max_new_tokens=tokens, do_sample=decoding == "multinomial")
            new.append(output[:, rows["input_ids"].shape[1] :].cpu())
            bar.update(sum(map(len, new)))
        seconds = time.perf_counter() - began
    ids = torch.cat(new)
    entropy = statistics.fmean(token_entropy(row) for row in ids)
    return ids, {"entropy": entropy, "samples_per_second": len(ids) / seconds}


def _between_ends(ids: Sequence[int], end: int) -> list[list[int]]:
    """Return the tokens between ends of documents."""
    parts = groupby(ids, key=lambda token: token == end)
    return [list(part) for is_end, part in parts if not is_end]


def _continuation(prompt: list[int], new: list[int], end: int, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return new tokens as the text that follows a prompt's, documents apart."""
    pieces = _between_ends(new, end)
    texts = [decode(piece, tokenizer) for piece in pieces]
    if new[0] != end:
        texts[0] = decode_after([*prompt, *pieces[0]], len(prompt), tokenizer)
    return "\n\n".join(texts)


def _beginnings(
    split: Split, tokenizer: PreTrainedTokenizerBase, options: SampleOptions, tokens: int
) -> tuple[list[str], list[str]]:
    """Return the first tokens of documents that are long enough, and the same with those that follow."""
    length = options.prompt_tokens + tokens
    long_enough = np.flatnonzero(np.diff(split.documents) - split.beginning > length)
    count = options.samples or min(1000, len(long_enough))
    remedy = f"{len(long_enough)} documents have the {length} tokens of a prompt and its continuation, and MAUVE needs "
    remedy += f"{_FEWEST_TEXTS} of them; set a number in between, fewer tokens or other text"
    require(_FEWEST_TEXTS <= count <= len(long_enough), "samples", count, remedy)

    def text(start: int, size: int) -> str:
        return decode(split.tokens[start : start + size].tolist(), tokenizer).rstrip("�")  # a part of a character

    starts = (split.documents[long_enough[:count]] + split.beginning).tolist()
    prompts = [text(start, options.prompt_tokens) for start in starts]
    remedy = "a prompt has not one whole character with text, set more"
    require(all(prompt.strip() for prompt in prompts), "prompt_tokens", options.prompt_tokens, remedy)
    return prompts, [text(start, length) for start in starts]


def token_entropy(ids: Tensor) -> float:
    """Nats of the token frequencies in one sample [tokens]: 0 for one token repeated, log(tokens) at most."""
    share = ids.unique(return_counts=True)[1].double() / len(ids)
    return float(-(share * share.log()).sum())


def judge_texts(judge: Saved, texts: Sequence[tuple[str, str]]) -> float | None:
    """Return the perplexity, per token of the judge, of texts after their prompts: (prompt, text); `None` without text.

    Each pair is read as one document, a long one in windows of half context and half new tokens.
    """
    encode = PromptEncoder(judge.tokenizer, judge.data).text
    pairs = [(encode(prompt).ids, encode(new, continues=bool(prompt)).ids) for prompt, new in texts]
    parts = [(prompt, new) for prompt, new in pairs if new]
    if not parts:
        return None
    first, end = beginning(judge.tokenizer), judge.layout.special_ids(judge.tokenizer)["eos_token_id"]
    ids = [[*first, *prompt, *new, end] for prompt, new in parts]
    bounds = np.cumsum([0, *map(len, ids)])
    split = Split(
        tokens=np.concatenate(ids).astype(np.uint32),
        documents=bounds,
        segments=bounds,
        document_segments=np.arange(len(bounds)),
        document_bytes=np.ones(len(ids), dtype=np.int64),
        beginning=len(first),
    )
    scores = judge.token_scores(split)
    for start, (prompt, _) in zip(bounds.tolist(), parts):
        scores[start : start + len(first) + len(prompt)] = np.nan
    return math.exp(np.nanmean(scores.astype(np.float64)))


def text_features(judge: Saved, texts: Sequence[str]) -> np.ndarray:
    """Return the judge's last hidden state at the last token that it reads of each text, float32 [texts, hidden]."""
    encode, pad = corpus_encoder(judge.tokenizer), judge.layout.special_ids(judge.tokenizer)["pad_token_id"]
    length = judge.layout.sequence_length
    first = beginning(judge.tokenizer)
    encoded = ([*first, *encode.encode(text, add_special_tokens=False).ids] for text in texts)
    rows = [torch.tensor(ids[:length]) for ids in encoded]
    features = []
    for start in range(0, len(rows), BATCH_SIZE):
        part = rows[start : start + BATCH_SIZE]
        ids = torch.nn.utils.rnn.pad_sequence(part, batch_first=True, padding_value=pad)
        last = torch.tensor([len(row) - 1 for row in part])
        batch = {"input_ids": ids, "attention_mask": (torch.arange(ids.shape[1]) <= last[:, None]).long()}
        with evaluation_mode(judge.model), torch.no_grad():
            hidden = judge.model.final_hidden_states(to_device(batch, judge.device))
        features.append(hidden[torch.arange(len(part)), last].float().cpu().numpy())
    return np.concatenate(features)


def mauve(human: np.ndarray, model: np.ndarray) -> float:
    """MAUVE, 0 to 1, of two sets of text features [texts, hidden], by the settings of its authors' package."""
    from mauve import compute_mauve

    return float(compute_mauve(p_features=human, q_features=model).mauve)


def _protocol(judge: Saved, options: SampleOptions, samples: int, tokens: int) -> dict[str, object]:
    return {
        "samples": samples,
        "sample_tokens": tokens,
        "batch_size": BATCH_SIZE,
        "temperature": options.temperature,
        "seed": options.seed,
        "judge": {"name": judge.path, **{name: judge.protocol[name] for name in ("context", "estimator")}},
        "entropy": "nats of the frequencies of a sample's own tokens",
        "hardware": provenance.hardware(judge.device),
    }

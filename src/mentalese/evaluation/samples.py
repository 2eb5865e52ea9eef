"""A model's own text, from nothing or after prompts: how likely another model finds it, how varied it is, how fast it
comes, and how close to people's.

- Generative perplexity: the perplexity of samples under a larger model (Dieleman et al., "Continuous diffusion for
  categorical data", 2022).
- Entropy of a sample's token frequencies, which falls where a model repeats itself (Zheng et al., "Masked Diffusion
  Models are Secretly Time-Agnostic Masked Models", 2024).
- MAUVE between continuations and what people wrote (Pillutla et al., "MAUVE", 2021).
"""

from __future__ import annotations

import importlib.util
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig

from mentalese import provenance
from mentalese.data.batch import Batch, to_device
from mentalese.data.layouts import Layout, PerDocument
from mentalese.data.store import Split
from mentalese.data.tokenizers import corpus_encoder, decode
from mentalese.errors import InputError
from mentalese.models.adapter import hugging_face_model
from mentalese.models.build import context_length
from mentalese.models.checkpoints import load_model, saved_recipe
from mentalese.models.contract import evaluation_mode
from mentalese.models.generation import seeded
from mentalese.models.scoring import protocol, token_scores
from mentalese.recipe import DataConfig, EvaluationConfig
from mentalese.screen import progress

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Decoding = Literal["greedy", "multinomial"]

BATCH_SIZE = 8
"""Samples at once, as published speeds are measured (Kong et al., "Latent Thought Models", 2025, appendix A.3)."""

_LONGEST, _KEPT = 1024, 3
_JUDGED = EvaluationConfig(batch_size=BATCH_SIZE)
_FEWEST_TEXTS = 100  # MAUVE compares histograms of a tenth as many bins: of fewer texts it says nothing


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """What is generated, and who judges it.

    Attributes:
        judge: the model that scores samples, a folder or `hub:NAME`; needed.
        samples: sequences, 64 unless given, or prompts, 1,000 unless given or as many as the split has.
        sample_tokens: new tokens of each; from nothing what the model's context holds, at most 1,024, unless given,
            after prompts 50.
        prompt_tokens: tokens of a prompt.
        draws: multinomial continuations of each prompt.
        decoding: `greedy` or `multinomial`, the whole distribution; both unless given.
        temperature: of multinomial sampling.
        seed: of what is drawn.
    """

    judge: str | None = None
    samples: int | None = None
    sample_tokens: int | None = None
    prompt_tokens: int = 50
    draws: int = 5
    decoding: Decoding | None = None
    temperature: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("samples", "sample_tokens", "prompt_tokens", "draws"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}: give at least 1")
        if not self.temperature > 0:
            raise InputError(f"temperature is {self.temperature}: give a positive number")

    @property
    def decodings(self) -> tuple[Decoding, ...]:
        return (self.decoding,) if self.decoding else ("greedy", "multinomial")


UNASKED = Sampling()


@dataclass(frozen=True)
class Judge:
    """The model that scores samples, which it reads in its own tokens.

    Attributes:
        length: the most tokens that it reads at once.
    """

    name: str
    model: Any
    tokenizer: PreTrainedTokenizerBase
    length: int
    device: str | torch.device

    @property
    def layout(self) -> PerDocument:
        """How it reads samples: each as a document."""
        return PerDocument(sequence_length=self.length)

    @property
    def special_ids(self) -> dict[str, int]:
        return self.layout.special_ids(self.tokenizer)


def open_judge(sampling: Sampling, device: str | torch.device = "cpu", *, mauve: bool = False) -> Judge:
    """The judge, and a check that MAUVE can be computed where it is asked for.

    Raises:
        InputError: no judge was named, there is no such model, or it does not read plain text; MAUVE is not installed.
    """
    name = sampling.judge
    if name is None:
        raise InputError("samples are scored by another model: give it with --judge PATH or --judge hub:NAME")
    if mauve and importlib.util.find_spec("mauve") is None:
        raise InputError("MAUVE is not installed: install it with pip install 'mentalese[mauve]'")
    recipe = saved_recipe(name)
    if recipe is not None and not recipe.layout.plain:
        raise InputError(f"judge is {name!r}, which has layout {recipe.layout.kind!r}: use a model of plain text")
    model, tokenizer = load_model(name, device)
    return Judge(name, model, tokenizer, min(context_length(model.config) or _LONGEST, _LONGEST), device)


def unconditional(
    model: Any, tokenizer: PreTrainedTokenizerBase, layout: Layout, sampling: Sampling, judge: Judge, *, show: bool
) -> dict[str, Any]:
    """Sequences that begin as a document does, where a model with thoughts has them from its prior.

    All have their full length; after the end of a document the next one begins, which the judge reads as another text.

    Args:
        model: keeps the contract, or is a Hugging Face causal LM; left in the mode it came in.
        layout: that of its recipe, which tells what a document begins with.

    Returns:
        For each decoding `generative_perplexity` (a token of the judge; `None` where nothing but ends of documents was
        said), `entropy` (nats, the mean over samples), `samples_per_second` and the first few `texts`; and the
        `protocol`.

    Raises:
        InputError: a model of questions, or `sample_tokens` above the model's context.
    """
    plain, special = hugging_face_model(model), _special_ids(tokenizer, layout)
    context = context_length(plain.config)
    tokens = sampling.sample_tokens or min(_LONGEST, _LONGEST if context is None else context - 1)
    _check_room(context, 1, tokens)
    start = special["sentence_start_token_id" if layout.markers else "bos_token_id"]
    first = torch.full((sampling.samples or 64, 1), start)
    prompts = {"input_ids": first, "attention_mask": torch.ones_like(first)}

    figures = {}
    for decoding in sampling.decodings:
        ids, measured = _sampled(plain, prompts, tokens, decoding, 1, special["pad_token_id"], sampling, show)
        texts = [
            [decode(piece, tokenizer) for piece in _between_ends(row, special["eos_token_id"])] for row in ids.tolist()
        ]
        figures[decoding] = {
            "generative_perplexity": judge_texts(judge, [("", text) for pieces in texts for text in pieces]),
            **measured,
            "texts": ["\n\n".join(pieces) for pieces in texts[:_KEPT]],
        }
    return figures | {"protocol": _protocol(judge, sampling, len(first), tokens)}


def conditional(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    split: Split,
    data: DataConfig,
    layout: Layout,
    sampling: Sampling,
    judge: Judge,
    *,
    show: bool,
) -> dict[str, Any]:
    """Continuations of the beginnings of a split's documents, beside what stands there.

    Args:
        model, layout: as `unconditional` has them.
        data: how its prompts are split into sentences.
        split: its first documents that are long enough give a prompt each.

    Returns:
        As `unconditional`, of the continuations given their prompts; and `mauve` (0 to 1) of prompts and continuations
        against the documents' own first tokens: for `multinomial` the mean over `draws`, each with one continuation of
        every prompt, with its `mauve_stderr`.

    Raises:
        InputError: a model of questions, too few documents, or tokens above the model's context.
    """
    plain, special = hugging_face_model(model), _special_ids(tokenizer, layout)
    tokens = sampling.sample_tokens or 50
    begun, whole = _beginnings(split, tokenizer, sampling, tokens)
    prompts = layout.encode_prompts(begun, tokenizer, data)
    _check_room(context_length(plain.config), prompts["input_ids"].shape[1], tokens)
    human = text_features(judge, whole)

    figures = {}
    for decoding in sampling.decodings:
        draws = sampling.draws if decoding == "multinomial" else 1
        ids, measured = _sampled(plain, prompts, tokens, decoding, draws, special["pad_token_id"], sampling, show)
        said = [
            "\n\n".join(decode(piece, tokenizer) for piece in _between_ends(row, special["eos_token_id"]))
            for row in ids.tolist()
        ]
        texts = [prompt + text for prompt, text in zip(begun * draws, said)]
        scores = [
            mauve(human, text_features(judge, texts[i : i + len(begun)])) for i in range(0, len(texts), len(begun))
        ]
        figures[decoding] = {
            "generative_perplexity": judge_texts(judge, list(zip(begun * draws, said))),
            "mauve": statistics.fmean(scores),
            "mauve_stderr": statistics.stdev(scores) / math.sqrt(draws) if draws > 1 else None,
            **measured,
            "texts": texts[:_KEPT],
        }
    about = {"prompt_tokens": sampling.prompt_tokens, "draws": sampling.draws}
    return figures | {"protocol": _protocol(judge, sampling, len(begun), tokens) | about}


# -- generation --------------------------------------------------------------------------------------------------------


def _special_ids(tokenizer: PreTrainedTokenizerBase, layout: Layout) -> dict[str, int]:
    if layout.questions:
        raise InputError("samples need a model that continues texts, and this one answers questions: use accuracy")
    return layout.special_ids(tokenizer)


def _check_room(context: int | None, prompt: int, tokens: int) -> None:
    if context is not None and prompt + tokens > context:
        raise InputError(
            f"sample_tokens is {tokens}: the model's context is {context} and holds {prompt} before them, give at most "
            f"{max(context - prompt, 1)}, or shorter prompts"
        )


def _sampled(
    model: Any,
    prompts: Batch,
    tokens: int,
    decoding: Decoding,
    draws: int,
    pad: int,
    sampling: Sampling,
    show: bool,
) -> tuple[Tensor, dict[str, float]]:
    """New tokens [draws * prompts, tokens], draw by draw, with their entropy and the speed."""
    made: list[Tensor] = []
    count = len(prompts["input_ids"])
    with (
        seeded(model, sampling.seed),
        _whole_distribution(model, pad, sampling.temperature, decoding),
        torch.no_grad(),
        progress(f"Sampling ({decoding})", count * draws, show=show) as bar,
    ):
        began = time.perf_counter()
        for start in [*range(0, count, BATCH_SIZE)] * draws:
            rows = {name: ids[start : start + BATCH_SIZE].to(model.device) for name, ids in prompts.items()}
            new = model.generate(**rows, max_new_tokens=tokens, do_sample=decoding == "multinomial")
            made.append(new[:, rows["input_ids"].shape[1] :].cpu())
            bar.update(sum(map(len, made)))
        seconds = time.perf_counter() - began
    ids = torch.cat(made)
    entropy = statistics.fmean(token_entropy(row) for row in ids)
    return ids, {"entropy": entropy, "samples_per_second": len(ids) / seconds}


@contextmanager
def _whole_distribution(model: Any, pad: int, temperature: float, decoding: Decoding) -> Iterator[None]:
    """No end before the full length, and none of a checkpoint's own settings, inside the block."""
    own = model.generation_config
    drawn = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    model.generation_config = GenerationConfig(pad_token_id=pad, **(drawn if decoding == "multinomial" else {}))
    try:
        yield
    finally:
        model.generation_config = own


def _between_ends(ids: Sequence[int], end: int) -> list[list[int]]:
    """The tokens between ends of documents."""
    parts = groupby(ids, key=lambda token: token == end)
    return [list(part) for is_end, part in parts if not is_end]


def _beginnings(
    split: Split, tokenizer: PreTrainedTokenizerBase, sampling: Sampling, tokens: int
) -> tuple[list[str], list[str]]:
    """The first tokens of documents that are long enough, and the same with those that follow."""
    length = sampling.prompt_tokens + tokens
    long_enough = np.flatnonzero(np.diff(split.documents) > length)
    count = sampling.samples or min(1000, len(long_enough))
    if count > len(long_enough) or count < _FEWEST_TEXTS:
        raise InputError(
            f"samples is {count}: {len(long_enough)} documents have the {length} tokens of a prompt and its "
            f"continuation, and MAUVE needs {_FEWEST_TEXTS} of them; give a number between, fewer tokens or other text"
        )

    def text(start: int, size: int) -> str:
        return decode(torch.from_numpy(split.tokens[start : start + size].astype("int64")), tokenizer)

    starts = split.documents[long_enough[:count]].tolist()
    return [text(start, sampling.prompt_tokens) for start in starts], [text(start, length) for start in starts]


# -- figures -----------------------------------------------------------------------------------------------------------


def token_entropy(ids: Tensor) -> float:
    """Nats of the frequencies of tokens in one sample [tokens]: 0 for one token repeated, log(tokens) at most."""
    share = ids.unique(return_counts=True)[1].double() / len(ids)
    return float(-(share * share.log()).sum())


def judge_texts(judge: Judge, texts: Sequence[tuple[str, str]]) -> float | None:
    """The perplexity under the judge, a token of its own, of texts that each follow what is given: (given, text).

    Each pair is read as a document of its own, in windows of half context and half new tokens where it is longer than
    the judge reads at once. `None` where there is no text.
    """
    encode = corpus_encoder(judge.tokenizer)
    pairs = [[encode.encode(part, add_special_tokens=False).ids for part in pair] for pair in texts]
    parts = [(given, said) for given, said in pairs if said]
    if not parts:
        return None
    ids = [[*given, *said, judge.special_ids["eos_token_id"]] for given, said in parts]
    bounds = np.cumsum([0, *map(len, ids)])
    split = Split(
        tokens=np.concatenate(ids).astype(np.uint32),
        documents=bounds,
        segments=bounds,
        document_segments=np.arange(len(bounds)),
        document_bytes=np.ones(len(ids), dtype=np.int64),
    )
    scores = token_scores(judge.model, judge.tokenizer, split, DataConfig(), judge.layout, _JUDGED, device=judge.device)
    for start, (given, _) in zip(bounds.tolist(), parts):
        scores[start : start + len(given)] = np.nan
    return math.exp(np.nanmean(scores.astype(np.float64)))


def text_features(judge: Judge, texts: Sequence[str]) -> np.ndarray:
    """[texts, hidden] float32: the judge's last hidden state at the last token of each, as far as it reads at once."""
    encode = corpus_encoder(judge.tokenizer)
    rows = [torch.tensor(encode.encode(text, add_special_tokens=False).ids[: judge.length]) for text in texts]
    features = []
    for start in range(0, len(rows), BATCH_SIZE):
        part = rows[start : start + BATCH_SIZE]
        ids = torch.nn.utils.rnn.pad_sequence(part, batch_first=True, padding_value=judge.special_ids["pad_token_id"])
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


def _protocol(judge: Judge, sampling: Sampling, samples: int, tokens: int) -> dict[str, Any]:
    asked = {name: getattr(sampling, name) for name in ("temperature", "seed")}
    read = protocol(judge.model, DataConfig(), judge.layout, _JUDGED)
    return {
        "samples": samples,
        "sample_tokens": tokens,
        "batch_size": BATCH_SIZE,
        **asked,
        "judge": {"name": judge.name, **{name: read[name] for name in ("context", "estimator")}},
        "entropy": "nats of the frequencies of a sample's own tokens",
        "hardware": provenance.hardware(torch.device(judge.device)),
    }

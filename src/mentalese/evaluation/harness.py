"""An lm-eval model for all families: log-likelihoods by the model's `token_nll`.

`MentaleseLM(mentalese.load(path))` is an `lm_eval.api.model.LM` for all of lm-eval's tasks.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from lm_eval.api import task as lm_eval_task
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.evaluator import evaluate
from lm_eval.models.utils import normalize_gen_kwargs
from torch import Tensor

from mentalese.data.batch import Batch, to_device
from mentalese.data.prompts import PromptEncoder, TextRow
from mentalese.data.tokenizers import decode_after
from mentalese.errors import InputError, require
from mentalese.evaluation.options import Questions
from mentalese.models import hf
from mentalese.models.base import LanguageModel, evaluation_mode
from mentalese.models.build import context_length
from mentalese.models.generation import continuations, stop_tokens
from mentalese.models.saved import Saved
from mentalese.nn.loss import IGNORED
from mentalese.screen import progress
from mentalese.values import checked, temporarily


class Score(NamedTuple):
    """Score of a continuation: `nll` in nats, summed over its `tokens`, and whether each is the most likely one."""

    nll: float
    tokens: int
    greedy: bool | None


Pair = tuple[str | None, str]
"""A context and its continuation. After an empty context the continuation's first token is scored, too, after a
beginning-of-text token; after `None` it is not, unless the tokenizer puts a token before each text."""


class _Window(NamedTuple):
    """`[start, end)` of row `row` is read, `[scored, end)` is scored."""

    row: int
    start: int
    scored: int
    end: int


class MentaleseLM(LM):
    """A trained model for lm-eval.

    A text is read as in training (`Layout.prompt_row`). Every token of a continuation is scored, also one that begins
    in the context. Sentences of the context are split without the continuation, so that all choices have the same
    context; the end of its last sentence and the ends inside the continuation are scored, and the last sentence is left
    open. A longer text than the model reads at once is read in windows, each with at least half a window of context; a
    whole text is read in lm-eval's blocks. Results do not depend on the batch size.

    Attributes:
        unfinished: generated texts so far that were cut at the limit of new tokens.

    Args:
        max_length: the most tokens read at once; `None`: as its recipe scores, or else the model's context. Models of
            sentences read everything.

    Raises:
        InputError: a layout of questions, which are not plain text, or a tokenizer without markers.
    """

    def __init__(self, saved: Saved, *, max_length: int | None = None, show: bool = False) -> None:
        super().__init__()
        self.saved, self.show = saved.as_text(), show  # as `text` of the protocol says
        self.model, self.tokenizer, self.layout = saved.model, saved.tokenizer, saved.layout
        require(not self.layout.questions, "layout", self.layout.kind, "use a model of plain text, not of questions")
        self.special_ids = self.layout.special_ids(self.tokenizer)
        # A model of another project has no recipe, and reads all of its context.
        window = self.layout.window(saved.evaluation) if saved.recipe else None
        context = max_length or (window[0] if window else context_length(self.model.config))
        self.max_length = None if self.layout.sequential else context
        self.batch_size = saved.evaluation.batch_size
        self.unfinished = 0
        self._encoder = PromptEncoder(self.tokenizer, saved.data)

    def protocol(self, *, blocks: bool = False) -> dict[str, object]:
        """Return the protocol to publish with a result; `blocks`: for whole texts."""
        cut = f"of at most {self.max_length} tokens"
        longer = f"blocks {cut} that share one" if blocks else f"windows {cut}"
        longer = "whole texts" if self.max_length is None else longer
        return {
            "text": f"{self.layout.beginning}; {longer}",
            "tokens": f"every token of the continuation{', ends of sentences included' if self.layout.markers else ''}",
            "estimator": self.model.continuation_scoring().get("estimator", self.model.estimators[0]),
            "lm_eval": version("lm-eval"),
        }

    # -- what lm-eval calls ------------------------------------------------------------------------------------------

    def loglikelihood(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """For each (context, continuation): its log-likelihood, and whether greedy decoding yields its tokens."""
        scores = self.score([request.args for request in requests], greedy=True)
        return [(-score.nll, bool(score.greedy)) for score in scores]

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """For each whole (text,): its log-likelihood, in blocks that share one token, the last of them full."""
        texts = [request.args[0] for request in requests]
        scores = iter(self.score([("", text) for text in texts if text], blocks=True))
        return [-next(scores).nll if text else 0.0 for text in texts]

    def scores(self, requests: Sequence[Instance]) -> list[Score]:
        """Return scores of `loglikelihood` without greedy decoding; lm-eval has no such kind of request."""
        return self.score([request.args for request in requests])

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Continue each (context, options), up to the first of `options["until"]`, or the limit of new tokens.

        A context that leaves no room for them loses its first tokens, as in lm-eval.
        """
        texts, last_tokens = [], {*stop_tokens(self.model, self.special_ids)}
        for settings, group in groupby(requests, key=lambda request: request.args[1]):
            contexts = [request.args[0] for request in group]
            options: dict[str, Any] = dict(normalize_gen_kwargs(settings))
            new, stops = options.pop("max_gen_toks"), options.pop("until")
            if not options["do_sample"]:  # lm-eval means this by a temperature of 0, which transformers warns of
                options.pop("temperature", None)
            options |= {"max_new_tokens": new, "batch_size": self.batch_size}
            for _, ids, start in continuations(self.saved, contexts, cut=True, **options):
                text = whole = decode_after(ids, start, self.tokenizer)
                for stop in filter(None, stops):
                    text = text.partition(stop)[0]
                self.unfinished += text == whole and last_tokens.isdisjoint(ids[start:].tolist())
                texts.append(text)
        return texts

    # -- scoring -----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def score(
        self,
        pairs: Sequence[Pair],
        *,
        greedy: bool = False,
        blocks: bool = False,
    ) -> list[Score]:
        """Return the likelihood of each continuation after its context, which may be empty, joined as they are.

        Only the continuation has labels, so a model that infers thoughts from a text infers them from the context.
        Other models read pairs of the same text once.

        Args:
            greedy: also test if each label is the most likely token.
            blocks: read long texts in blocks instead of windows.
        """
        distinct = list(dict.fromkeys(pairs))
        if not distinct:
            return []
        rows, labels = self._encode(distinct)
        rows, together, members = self._together(rows, labels)
        windows = [_Window(i, *window) for i, row in enumerate(together) for window in self._windows(row, blocks)]
        windows.sort(key=lambda window: window.start - window.end)  # longest first: lack of memory shows at once
        nll, right = np.zeros(len(distinct)), np.ones(len(distinct), dtype=bool)
        total = sum(window.end - window.start for window in windows)
        with progress("Scoring", total, show=self.show) as bar, evaluation_mode(self.model):
            count = 0
            for start in range(0, len(windows), self.batch_size):
                part = windows[start : start + self.batch_size]
                batch = to_device(self._batch(part, rows, together), self.saved.device)
                by_token, missed = self._read(batch, greedy)
                nats = by_token.cpu().double().numpy()  # float64: a sum of many tokens
                for row, window in enumerate(part):
                    for i in members[window.row]:
                        counted = np.flatnonzero(labels[i][window.scored : window.end] != IGNORED)
                        counted += window.scored - window.start
                        value = nats[row, counted].sum()
                        if not np.isfinite(value):
                            raise FloatingPointError(
                                f"the log-likelihood of {''.join(filter(None, distinct[i]))[:80]!r} is {-value}: the "
                                "model's weights or activations are not finite"
                            )
                        nll[i] += value
                        right[i] &= not missed[row, counted].any()
                bar.update(count := count + sum(window.end - window.start for window in part))
        counts = (int((row != IGNORED).sum()) for row in labels)
        scores = {
            pair: Score(float(nats), tokens, bool(is_right) if greedy else None)
            for pair, nats, tokens, is_right in zip(distinct, nll, counts, right)
        }
        return [scores[pair] for pair in pairs]

    @property
    def _is_one_pass(self) -> bool:
        """True if a token's likelihood follows from the tokens before it, whichever tokens have labels."""
        return type(self.model).token_nll is LanguageModel.token_nll

    def _together(
        self, rows: list[np.ndarray], labels: list[np.ndarray]
    ) -> tuple[list[np.ndarray], list[np.ndarray], list[list[int]]]:
        """Return rows that differ, with the labels of all pairs that have the row, and the numbers of these pairs."""
        members: dict[object, list[int]] = {}
        for i, row in enumerate(rows):
            shared = self._is_one_pass and (self.max_length is None or len(row) <= self.max_length)
            members.setdefault(row.tobytes() if shared else i, []).append(i)
        groups = [*members.values()]
        return (
            [rows[group[0]] for group in groups],
            [np.max([labels[i] for i in group], axis=0) for group in groups],
            groups,
        )

    def _encode(self, pairs: Sequence[Pair]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return the token ids and the labels of each pair, both int64 [length]; see `score`."""
        end = self.special_ids["sentence_end_token_id"] if self.layout.markers else None
        rows, labels = [], []
        for given, continuation in pairs:
            context = given or ""
            text = checked("text", str, context + continuation)
            row = self.layout.prompt_row(text, self._encoder.after(context))
            begins = bool(row) and row.spans[0] is not None and not context
            if not row or (begins and (given is not None or len(row) == 1)):
                row = TextRow.of_markers(self.special_ids["bos_token_id"]) + row
            lexical = [i for i, span in enumerate(row.spans) if span is not None]
            context_tokens = sum(span is not None and span[1] <= len(context) for span in row.spans)
            # Of some texts, white space only, tokenizers make no token: then nothing is scored.
            first = lexical[context_tokens - 1] + 1 if context_tokens else next(iter(lexical), len(row))
            ids = np.array(row.ids)
            scored = np.array([span is not None or i == end for i, span in zip(row.ids, row.spans)])
            scored[: max(first, 1)] = False
            rows.append(ids)
            labels.append(np.where(scored, ids, IGNORED))
        return rows, labels

    def _windows(self, labels: np.ndarray, blocks: bool) -> Iterator[tuple[int, int, int]]:
        """`(start, scored, end)` of windows that together score every label once."""
        scored = int(np.argmax(labels != IGNORED))
        size = self.max_length or len(labels)
        while scored < len(labels):
            end = min(len(labels), max(size, scored + (size - 1 if blocks else size // 2)))
            yield max(0, end - size), scored, end
            scored = end

    def _batch(self, windows: Sequence[_Window], rows: list[np.ndarray], labels: list[np.ndarray]) -> Batch:
        shape = len(windows), max(window.end - window.start for window in windows)
        batch = {
            "input_ids": torch.full(shape, self.special_ids["pad_token_id"]),
            "labels": torch.full(shape, IGNORED),
            "attention_mask": torch.zeros(shape, dtype=torch.int64),
        }
        for i, (row, start, scored, end) in enumerate(windows):
            batch["input_ids"][i, : end - start] = torch.from_numpy(rows[row][start:end])
            batch["labels"][i, scored - start : end - start] = torch.from_numpy(labels[row][scored:end])
            batch["attention_mask"][i, : end - start] = 1
        return batch

    def _read(self, batch: Batch, greedy: bool) -> tuple[Tensor, np.ndarray]:
        """Return the nats of each label, and whether it has not the largest logit (if asked), both [rows, length].

        Models that fill in masks predict all labels at once.
        """
        model, labels = self.model, batch["labels"]
        counted = labels[:, 1:] != IGNORED
        missed = torch.zeros_like(labels, dtype=torch.bool)
        if greedy and self._is_one_pass:
            hidden = model.final_hidden_states(batch)
            nats, logits = model.next_token_nll(hidden, labels), model.output_head()(hidden[:, :-1][counted])
        else:
            nats = model.token_nll(batch, **model.continuation_scoring())
            if not greedy:
                return nats, missed.cpu().numpy()
            # The protocol names the estimator, so a warning that logits are not a likelihood adds nothing.
            with temporarily(hf.logger, disabled=True):
                logits = model(**model.continuation_inputs(batch), use_cache=False).logits
            logits = (logits[:, :-1] if model.causal else logits[:, 1:])[counted]
        missed[:, 1:][counted] = logits.argmax(-1) != labels[:, 1:][counted]
        return nats, missed.cpu().numpy()


# -- tasks -------------------------------------------------------------------------------------------------------------

_SEED = 1234  # lm-eval's seed for few-shot examples, and of NumPy
_RESAMPLINGS = 1000  # for standard errors that have no formula


def zero_shot(lm: MentaleseLM, questions: Questions) -> dict[str, object]:
    """Ask a model questions.

    Returns:
        Each metric with its standard error over questions, `NAME_stderr` (`None` for a single one), `items`, and
        `protocol`. Of lm-eval's own tasks lm-eval's metrics; of a group, and of a set of many files, also `subsets`;
        of a tag, which has no metrics, `{task: metrics}`; for generated answers also `unfinished`, those that were cut
        at the limit of new tokens. Of local sets `data_hash`, and with choices `acc_perplexity`: the share of questions
        whose right choice has, together with what comes before it, the lowest perplexity.
    """
    name, shots, tasks = questions.name, questions.shots, questions.tasks["tasks"].values()
    unfinished = lm.unfinished
    for task in tasks:
        default = task.get_config("num_fewshot")
        if default is None or (shots is not None and default != 0):
            task.set_config(key="num_fewshot", value=shots or 0)
        task.set_fewshot_seed(seed=_SEED)
    ask: dict[str, Any] = {"limit": questions.limit, "bootstrap_iters": _RESAMPLINGS, "log_samples": False}
    try:
        # `MentaleseLM` shows the progress of slow work.
        with temporarily(lm_eval_task, tqdm=lambda items, **_: items), seeded():
            about = evaluate(lm=lm, task_dict=questions.tasks, **ask)
    except ModuleNotFoundError as error:
        raise InputError(f"task 'hub:{name}' needs {error.name}: pip install {error.name}") from error
    except ValueError as error:
        if not shots or "larger than population" not in str(error):
            raise
        raise InputError(f"shots is {shots}: 'hub:{name}' has fewer examples; set less") from error
    metrics = {part: _by_name(values) for part, values in about["results"].items()}
    parts = {part: {**metrics[part], "items": count["effective"]} for part, count in about["n-samples"].items()}
    items = sum(count["effective"] for count in about["n-samples"].values())
    result: dict[str, object] = {}
    protocol: dict[str, object] = {"limit": questions.limit}
    if questions.data_hash is not None:
        result |= {**_mean([metrics[part] for part in parts]), "items": items, "data_hash": questions.data_hash}
        result |= {"subsets": parts} if len(parts) > 1 else {}
    else:
        protocol["shots"] = {part: about["n-shot"][part] for part in parts}
        if name in parts:
            result |= parts[name]
        elif metrics.get(name):
            result |= {**metrics[name], "items": items, "subsets": parts}
        else:
            result |= parts
        if any(task.OUTPUT_TYPE == "generate_until" for task in tasks):
            result["unfinished"] = lm.unfinished - unfinished
    whole = all(task.OUTPUT_TYPE == "loglikelihood_rolling" for task in tasks)
    return result | {"protocol": protocol | lm.protocol(blocks=whole)}


@contextmanager
def seeded() -> Iterator[None]:
    """Seed Python's and NumPy's generators as lm-eval does, for tasks that shuffle choices; restore them at the end."""
    python, numpy = random.getstate(), np.random.get_state()
    random.seed(0)
    np.random.seed(_SEED)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def _mean(parts: list[dict[str, float | None]]) -> dict[str, float | None]:
    """Return each metric's mean over the parts, and its standard error with the parts fixed."""
    means: dict[str, float | None] = {}
    for name in parts[0]:
        values = [value for part in parts if (value := part[name]) is not None]
        if not name.endswith("_stderr"):
            means[name] = sum(values) / len(parts)
        else:
            means[name] = math.hypot(*values) / len(parts) if len(values) == len(parts) else None
    if (nll := means.pop("nll", None)) is not None:
        error = means.pop("nll_stderr")
        perplexity = math.exp(nll) if nll < 700 else math.inf
        # The delta method: a small error of the logarithm is the relative error of the perplexity.
        means |= {"perplexity": perplexity, "perplexity_stderr": None if error is None else perplexity * error}
    return means


def _by_name(metrics: dict[str, str | float]) -> dict[str, float | None]:
    """Rename lm-eval's `metric,filter` and `metric_stderr,filter`; the filter `none` has no name."""
    values = {}
    for key, value in metrics.items():
        metric, comma, filter_name = key.partition(",")
        if comma:
            name = metric.removesuffix("_stderr") + ("" if filter_name == "none" else f".{filter_name}")
            values[name + metric[len(metric.removesuffix("_stderr")) :]] = None if value == "N/A" else float(value)
    return values

"""The father-son probe: after a sentence about the son of a man, does a model name the father of that son?

    The son of F is S. The son of F is        normal: S is the target, F the distractor
    The son of F is S. The father of S is     reversed: F is the target, S the distractor

It measures the reversal curse within a context (Thought Gestalt, section 3.4, Figure 5): a model that prefers the name
that followed in the context fails on the second line.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from mentalese.data.batch import to_device
from mentalese.data.generated import words
from mentalese.errors import require
from mentalese.evaluation.statistics import bootstrap_pairs
from mentalese.models.base import evaluation_mode
from mentalese.models.saved import Saved
from mentalese.nn.loss import IGNORED
from mentalese.screen import progress

CONTEXT = "The son of {father} is {son}."
QUERIES = {"normal": "The son of {father} is", "reversed": "The father of {son} is"}

NAMES = tuple(words("reversal")["names"])
"""Common male first names in English."""


def single_token_names(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Return the names of `NAMES` that are one token after a word, with its id."""
    before = tokenizer("He is", add_special_tokens=False)["input_ids"]
    ids = {}
    for name in NAMES:
        *start, last = tokenizer(f"He is {name}", add_special_tokens=False)["input_ids"]
        if start == before and last != tokenizer.unk_token_id:
            ids[name] = last
    return ids


@torch.no_grad()
def reversal_scores(
    saved: Saved, names: Sequence[str], *, batch_size: int = 256, show: bool = False
) -> dict[str, np.ndarray]:
    """Return the nats of target and distractor as the first token of the answer, for all ordered pairs of names.

    With sentence markers the context is a whole sentence and the query an open one.

    Returns:
        `normal` and `reversed`: float64 [names, names, 2], by father, son and (target, distractor); NaN where father
        and son would be the same.
    """
    model, tokenizer = saved.model, saved.tokenizer
    ids = single_token_names(tokenizer)
    pairs = list(permutations(range(len(names)), 2))
    scores = {condition: np.full((len(names), len(names), 2), np.nan) for condition in QUERIES}
    with progress("Probing", 2 * len(QUERIES) * len(pairs), show=show) as bar, evaluation_mode(model):
        for done, (condition, query) in enumerate(QUERIES.items()):
            people = [{"father": names[f], "son": names[s]} for f, s in pairs]
            texts = [f"{CONTEXT} {query}".format(**both) for both in people]
            prompts = saved.layout.encode_prompts(texts, tokenizer, saved.data)
            order = ("son", "father") if condition == "normal" else ("father", "son")
            answers = torch.tensor([[ids[both[who]]] for both in people for who in order])
            rows = torch.cat((prompts["input_ids"].repeat_interleave(2, 0), answers), dim=1)
            mask = prompts["attention_mask"].repeat_interleave(2, 0)
            batch = {
                "input_ids": rows,
                "labels": torch.cat((torch.full_like(rows[:, :-1], IGNORED), answers), dim=1),
                "attention_mask": torch.cat((mask, torch.ones_like(answers)), dim=1),
            }
            answered: list[torch.Tensor] = []
            for start in range(0, len(rows), batch_size):
                part = {name: value[start : start + batch_size] for name, value in batch.items()}
                nll = model.token_nll(to_device(part, saved.device), **model.continuation_scoring())
                answered.append(nll[:, -1].cpu().double())
                bar.update(done * len(rows) + start + len(answered[-1]))
            fathers, sons = zip(*pairs)
            scores[condition][fathers, sons] = torch.cat(answered).view(-1, 2).numpy()
    return scores


def run(saved: Saved, *, show: bool = False) -> dict[str, object]:
    """Return the father-son probe with every name of `NAMES` that the tokenizer has as one token.

    Returns:
        `names`, `pairs`, `prompts`, and for `normal` and `reversed`: `target_nll` and `distractor_nll` in nats,
        `margin` (distractor minus target, below zero if the distractor is preferred) and `error_rate` (the share of
        such pairs), each with `mean`, `std` over pairs and a 95% `interval` of the mean, by drawing names
        (`bootstrap_pairs`; `None` for two names).
    """
    remedy = f"{saved.path} reads questions and the probe is a text, use a model of text"
    require(not saved.layout.questions, "tasks", "reversal", remedy)
    names = list(single_token_names(saved.tokenizer))
    remedy = f"the probe needs two of {len(NAMES)} first names as one token, use a model with a larger vocabulary"
    require(len(names) > 1, "the model", str(saved.path), remedy)
    scores = reversal_scores(saved, names, show=show)
    result: dict[str, object] = {
        "names": names,
        "pairs": len(names) * (len(names) - 1),
        "prompts": {condition: f"{CONTEXT} {query}" for condition, query in QUERIES.items()},
    }
    for condition, nats in scores.items():
        target, distractor = nats[..., 0], nats[..., 1]
        margin = distractor - target
        values = {"target_nll": target, "distractor_nll": distractor, "margin": margin, "error_rate": margin < 0}
        summaries = {}
        same = np.eye(len(names), dtype=bool)
        for name, value in values.items():
            pairs = value[~same].astype(np.float64)
            interval = bootstrap_pairs(np.where(same, 0.0, value))
            summaries[name] = {"mean": float(pairs.mean()), "std": float(pairs.std(ddof=1)), "interval": interval}
        result[condition] = summaries
    return result

"""Speed, memory and decoding of Thoughtbubbles beside the same model without forks and beside GPT-2.

    python benchmarks/thoughtbubbles.py [speed] [memory] [generation]

All models have 6 layers of width 256, 8 heads and a vocabulary of 8,192; the text is random, 8 rows of 256 tokens.
Forks stand before blocks 1, 2 and 3, kappa is 2L. All turn about in one process; ratios are taken turn by turn (median,
lowest-highest).

speed       a training step's forward and backward pass, in units of the model without forks, beside the ratio of FLOPs
memory      the most memory that a process has taken after a training step, in all and over what it had before the step
generation  512 tokens, 1 and 8 rows: whole passes (every 16th is run) over cached steps, for all and for the last 32
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from measuring import print_peaks, spread, step_peak
from mentalese.data.batch import Batch
from mentalese.families.thoughtbubbles.config import ThoughtbubblesConfig
from mentalese.families.thoughtbubbles.model import ThoughtbubblesForCausalLM

VOCABULARY, WIDTH, LAYERS, HEADS, LENGTH, ROWS = 8192, 256, 6, 8, 256, 8
FORKS = (1, 2, 3)


def thoughtbubbles(**fields: Any) -> ThoughtbubblesForCausalLM:
    torch.manual_seed(0)
    config = ThoughtbubblesConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=LENGTH,
        **({"fork_layers": FORKS} | fields),
    )
    return ThoughtbubblesForCausalLM(config).train()


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    sizes = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": LENGTH}
    dropouts = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0, **sizes, **dropouts)
    ).train()


def batch(rows: int = ROWS, length: int = LENGTH) -> Batch:
    ids = torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "labels": ids}


def speed(rounds: int = 9) -> None:
    text = batch()
    models = {"no forks": thoughtbubbles(fork_layers=())}
    models |= {f"forks, {readout}": thoughtbubbles(readout=readout) for readout in ("residual", "mixture")}
    sides: dict[str, Callable[[], Tensor]] = {
        name: lambda model=model: model.training_loss(text).loss for name, model in models.items()
    }
    stock = gpt2()
    sides["gpt2"] = lambda: stock(**text).loss
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, loss in sides.items():
            began = time.perf_counter()
            loss().backward()
            if turn:
                times[name].append(time.perf_counter() - began)
    flops = {name: model.training_flops(text) for name, model in models.items()}
    for name, values in times.items():
        ratios = [ours / theirs for ours, theirs in zip(values, times["no forks"])]
        cost = flops.get(name, 0) / flops["no forks"]
        against = f", its FLOPs {cost:.3f}, time over FLOPs {spread([r / cost for r in ratios], '.2f')}" if cost else ""
        print(f"{name}: {spread([1000 * v for v in values], '.0f')} ms, {spread(ratios, '.2f')} x no forks{against}")


def memory() -> None:
    cases = {"no forks": {"fork_layers": ()}, "forks, residual": {"readout": "residual"}, "forks, mixture": {}}
    print_peaks(_peak, {name: (fields,) for name, fields in cases.items()})


def _peak(fields: dict[str, Any]) -> tuple[int, int]:
    model, text = thoughtbubbles(**fields), batch()
    return step_peak(lambda: model.training_loss(text).loss.backward())


def generation(tokens: int = 512, every: int = 16) -> None:
    model = thoughtbubbles(selection="causal")
    model.training_loss(batch())  # finds the thresholds
    model.eval()
    options = {"do_sample": False, "min_new_tokens": tokens, "max_new_tokens": tokens, "pad_token_id": 0}
    for rows in (1, ROWS):
        prompt = batch(rows=rows, length=8)["input_ids"]
        whole: list[float] = []
        end: list[float] = []
        for _ in range(3):
            times: list[float] = []

            def clock(input_ids: Tensor, scores: Tensor, times: list[float] = times) -> Tensor:
                times.append(time.perf_counter())
                return scores

            mask = torch.ones_like(prompt)
            text = model.generate(prompt, attention_mask=mask, logits_processor=[clock], **options)
            cached = [b - a for a, b in pairwise(times)]
            passes = [_pass(model, text[:, :length]) for length in range(prompt.shape[1] + every, text.shape[1], every)]
            whole.append(statistics.fmean(passes) / statistics.fmean(cached))
            end.append(statistics.median(passes[-2:]) / statistics.median(cached[-2 * every :]))
        print(
            f"{rows} x {tokens} tokens: whole passes over cached steps {spread(whole, '.1f')}; "
            f"the last {2 * every} {spread(end, '.1f')}"
        )


@torch.no_grad()
def _pass(model: ThoughtbubblesForCausalLM, text: Tensor) -> float:
    began = time.perf_counter()
    model(text, use_cache=False, logits_to_keep=1)
    return time.perf_counter() - began


if __name__ == "__main__":
    parts = {"speed": speed, "memory": memory, "generation": generation}
    for part in sys.argv[1:] or parts:
        parts[part]()

"""Speed, memory and decoding of Thoughtbubbles against the same model without forks and GPT-2.

    python benchmarks/thoughtbubbles.py [speed] [memory] [generation]

All models have 6 layers of width 256, 8 heads and a vocabulary of 8,192; the text is random, 8 rows of 256 tokens.
Forks are before blocks 1, 2 and 3, kappa is 2L. All turn about in one process; ratios are taken turn by turn (median,
lowest-highest).

speed       a training step's forward and backward pass, in units of the model without forks, and the ratio of FLOPs
memory      peak memory of a process after a training step, and how much it grew in the step
generation  512 tokens, 1 and 8 rows: whole passes (every 16th is run) over cached steps, for all and for the last 32
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from measuring import (
    in_turns,
    print_peaks,
    print_times,
    ratios,
    run_parts,
    spread,
    step_peak,
    timed_generation,
    whole_pass,
)
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
    losses: dict[str, Callable[[], Tensor]] = {
        name: lambda model=model: model.training_loss(text).loss for name, model in models.items()
    }
    stock = gpt2()
    losses["gpt2"] = lambda: stock(**text).loss
    times = in_turns({name: lambda loss=loss: loss().backward() for name, loss in losses.items()}, rounds)
    flops = {name: model.training_flops(text) for name, model in models.items()}
    notes = {}
    for name, count in flops.items():
        cost = count / flops["no forks"]
        over = spread([ratio / cost for ratio in ratios(times, name, "no forks")], ".2f")
        notes[name] = f", FLOPs {cost:.3f} x, time over FLOPs {over}"
    print_times(times, "no forks", notes)


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
    for rows in (1, ROWS):
        prompt = batch(rows=rows, length=8)["input_ids"]
        whole: list[float] = []
        end: list[float] = []
        for _ in range(3):
            text, cached = timed_generation(model, prompt, tokens)
            lengths = range(prompt.shape[1] + every, text.shape[1], every)
            passes = [whole_pass(model, text[:, :length]) for length in lengths]
            whole.append(statistics.fmean(passes) / statistics.fmean(cached))
            end.append(statistics.median(passes[-2:]) / statistics.median(cached[-2 * every :]))
        print(
            f"{rows} x {tokens} tokens: whole passes over cached steps {spread(whole, '.1f')}; "
            f"the last {2 * every} {spread(end, '.1f')}"
        )


if __name__ == "__main__":
    run_parts(__doc__, {"speed": speed, "memory": memory, "generation": generation})

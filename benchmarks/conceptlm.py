"""Speed, memory and decoding of ConceptLM beside its backbone and the parameter-matched model.

    python benchmarks/conceptlm.py [speed] [long] [memory] [generation]

GPT-2 with 6 layers of width 256, 8 heads and a vocabulary of 8,192; k 4, N 64, S 8, concepts before layer 0 and 1;
the matched model has two more layers. The text is random, 8 rows of 256 tokens. All turn about in one process;
ratios are taken turn by turn (median, lowest-highest). The processor's time is taken, so that other work on the machine
weighs less; run it with OMP_NUM_THREADS=1.

speed       a training step's forward and backward pass, in units of the backbone's, beside the ratio of FLOPs
long        the same with 2 rows of 1,024 tokens
memory      the most memory that a process has taken after a training step, in all and over what it had before the step
generation  256 cached tokens after a prompt of 64, 1 and 8 rows, in units of the backbone's own time a token
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GPT2Config

from measuring import print_peaks, spread, step_peak
from mentalese.data.batch import Batch
from mentalese.families.conceptlm.config import ConceptLMConfig
from mentalese.families.conceptlm.model import ConceptLMForCausalLM
from mentalese.models.adapter import as_contract

VOCABULARY, WIDTH, LAYERS, HEADS, POSITIONS = 8192, 256, 6, 8, 1024
BACKBONE: dict[str, Any] = {
    "model_type": "gpt2",
    "activation_function": "gelu_pytorch_tanh",
    "n_embd": WIDTH,
    "n_layer": LAYERS,
    "n_head": HEADS,
    "n_positions": POSITIONS,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}


def decoder(layers: int = LAYERS) -> Any:
    torch.manual_seed(0)
    fields = {name: value for name, value in BACKBONE.items() if name != "model_type"} | {"n_layer": layers}
    config = GPT2Config(vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0, **fields)
    return as_contract(AutoModelForCausalLM.from_config(config)).train()


def concepts(**fields: Any) -> ConceptLMForCausalLM:
    torch.manual_seed(0)
    config = ConceptLMConfig(backbone=BACKBONE, vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0, **fields)
    return ConceptLMForCausalLM(config).train()


def batch(rows: int = 8, length: int = 256) -> Batch:
    ids = torch.randint(1, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "labels": ids}


def models() -> dict[str, Any]:
    return {
        "backbone": decoder(),
        "before layer 0": concepts(insert_depth=0),
        "before layer 1": concepts(insert_depth=1),
        "ContextLM": concepts(insert_depth=0, codebook=None, ncp_weight=0.0, vq_weight=0.0),
        "matched": decoder(LAYERS + 2),
    }


def speed(rows: int = 8, length: int = 256, rounds: int = 15) -> None:
    text, sides = batch(rows, length), models()

    def step(model: Any) -> None:
        model.training_loss(text).loss.backward()
        model.zero_grad(set_to_none=True)

    times = _in_turns({name: lambda model=model: step(model) for name, model in sides.items()}, rounds)
    flops = {name: model.training_flops(text) for name, model in sides.items()}
    for name, values in times.items():
        ratios = [ours / theirs for ours, theirs in zip(values, times["backbone"])]
        cost = flops[name] / flops["backbone"]
        print(f"{name}: {spread([1000 * v for v in values], '.0f')} ms, {spread(ratios, '.3f')} x, FLOPs {cost:.3f} x")


def long() -> None:
    speed(2, 1024)


def _in_turns(sides: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Seconds of the processor by side, the first turn left out."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, run in sides.items():
            began = time.process_time()
            run()
            if turn:
                times[name].append(time.process_time() - began)
    return times


def memory() -> None:
    print_peaks(_peak, {name: (name,) for name in ("backbone", "before layer 0", "matched")})


def _peak(name: str) -> tuple[int, int]:
    model, text = models()[name], batch()
    return step_peak(lambda: model.training_loss(text).loss.backward())


def generation(new: int = 256, rounds: int = 5) -> None:
    for rows in (1, 8):
        prompt = batch(rows, 64)["input_ids"]
        sides = {name: model.eval() for name, model in models().items()}
        options = {"do_sample": False, "min_new_tokens": new, "max_new_tokens": new, "pad_token_id": 0}
        mask = torch.ones_like(prompt)

        def run(model: Any, prompt: Any = prompt, mask: Any = mask, options: Any = options) -> None:
            model.generate(prompt, attention_mask=mask, **options)

        times = _in_turns({name: lambda model=model: run(model) for name, model in sides.items()}, rounds)
        for name, values in times.items():
            ratios = [ours / theirs for ours, theirs in zip(values, times["backbone"])]
            print(
                f"{rows} x {new}, {name}: {spread([1000 * v / new for v in values], '.2f')} ms a token, "
                f"{spread(ratios, '.3f')} x"
            )


if __name__ == "__main__":
    parts = {"speed": speed, "long": long, "memory": memory, "generation": generation}
    for part in sys.argv[1:] or parts:
        parts[part]()

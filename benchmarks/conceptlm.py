"""Speed, memory and decoding of ConceptLM against its backbone and the parameter-matched model.

    python benchmarks/conceptlm.py [speed] [long] [memory] [generation]

GPT-2 with 6 layers of width 256, 8 heads and a vocabulary of 8,192; k 4, N 64, S 8, concepts before layer 0 and 1;
the matched model has two more layers. The text is random, 8 rows of 256 tokens. All turn about in one process;
ratios are taken turn by turn (median, lowest-highest). Times are processor times, so other work on the machine
matters less; run it with OMP_NUM_THREADS=1.

speed       a training step's forward and backward pass, in units of the backbone's, and the ratio of FLOPs
long        the same with 2 rows of 1,024 tokens
memory      peak memory of a process after a training step, and how much it grew in the step
generation  256 cached tokens after a prompt of 64, 1 and 8 rows, in units of the backbone's
"""

from __future__ import annotations

import functools
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GPT2Config

from measuring import in_turns, print_peaks, print_times, run_parts, step_peak, timed_generation
from mentalese.data.batch import Batch
from mentalese.families.conceptlm.config import ConceptLMConfig
from mentalese.families.conceptlm.model import ConceptLMForCausalLM
from mentalese.models.base import as_model

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
    return as_model(AutoModelForCausalLM.from_config(config)).train()


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
    text, contenders = batch(rows, length), models()

    def step(model: Any) -> None:
        model.training_loss(text).loss.backward()
        model.zero_grad(set_to_none=True)

    times = in_turns({n: functools.partial(step, model) for n, model in contenders.items()}, rounds, time.process_time)
    flops = {name: model.training_flops(text) for name, model in contenders.items()}
    print_times(times, "backbone", {name: f", FLOPs {flops[name] / flops['backbone']:.3f} x" for name in flops})


def long() -> None:
    speed(2, 1024)


def memory() -> None:
    print_peaks(_peak, {name: (name,) for name in ("backbone", "before layer 0", "matched")})


def _peak(name: str) -> tuple[int, int]:
    model, text = models()[name], batch()
    return step_peak(lambda: model.training_loss(text).loss.backward())


def generation(new: int = 256, rounds: int = 5) -> None:
    contenders = {name: model.eval() for name, model in models().items()}
    for rows in (1, 8):
        prompt = batch(rows, 64)["input_ids"]
        runs = {name: functools.partial(timed_generation, model, prompt, new) for name, model in contenders.items()}
        print(f"{rows} x {new} tokens")
        print_times(in_turns(runs, rounds, time.process_time), "backbone")


if __name__ == "__main__":
    run_parts(__doc__, {"speed": speed, "long": long, "memory": memory, "generation": generation})

"""Speed, memory and decoding of Coconut and AGCLR: what latents cost.

    python benchmarks/coconut.py [speed] [questions] [memory] [generation]

GPT-2 with 6 layers of width 256, 8 heads and a vocabulary of 8,192; the text is random, 8 rows of 256 tokens, of which
6 are latents after 128 tokens. They take turns in one process; ratios are taken turn by turn (median, minimum-maximum).

speed       a training step's forward and backward pass, in units of the step on the same rows without latents
questions   the same on 16 rows of `builtin:prosqa`, whose lengths differ, with 6 latents instead of all steps
memory      peak memory of a process after a training step, and how much it grew in the step
generation  32 new tokens after 6 latents: 32 prompts at once over one at a time, read again for every token
"""

from __future__ import annotations

import dataclasses
import functools
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from measuring import in_turns, print_peaks, print_times, run_parts, spread, step_peak
from mentalese.data.batch import Batch
from mentalese.data.config import DataConfig, EvaluationConfig
from mentalese.data.layouts import QuestionAnswer
from mentalese.data.store import prepare
from mentalese.families.coconut.config import CoconutConfig
from mentalese.families.coconut.model import CoconutForCausalLM
from mentalese.families.coconut.plain import Coconut

VOCABULARY, WIDTH, LAYERS, HEADS, LENGTH, ROWS = 8192, 256, 6, 8, 256, 8
QUESTION, LATENTS, NEW = 128, 6, 32
LATENT = 0


def coconut(mode: str, n_positions: int = LENGTH, **fields: int) -> CoconutForCausalLM:
    torch.manual_seed(0)
    backbone = {
        "model_type": "gpt2",
        "activation_function": "gelu_pytorch_tanh",
        "n_embd": WIDTH,
        "n_layer": LAYERS,
        "n_head": HEADS,
        "n_positions": n_positions,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    }
    tokens = {"vocab_size": VOCABULARY, "latent_token_id": LATENT} | fields
    config = CoconutConfig(backbone=backbone, mode=mode, **tokens)  # type: ignore[arg-type]
    return CoconutForCausalLM(config).train()


def batch(latents: int, rows: int = ROWS, length: int = LENGTH) -> Batch:
    """Rows of `length` tokens with latents after the question."""
    ids = torch.randint(1, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(1))
    ids[:, QUESTION : QUESTION + latents] = LATENT
    labels = ids.clone()
    labels[:, : QUESTION + LATENTS] = -100
    return {"input_ids": ids, "labels": labels}


def step(model: CoconutForCausalLM, text: Batch) -> None:
    model.training_loss(text).loss.backward()


def speed(rounds: int = 15) -> None:
    cases = {
        "0 latents": (coconut("coconut"), batch(0)),
        f"{LATENTS} latents, Coconut": (coconut("coconut"), batch(LATENTS)),
        f"{LATENTS} latents, AGCLR": (coconut("agclr"), batch(LATENTS)),
    }

    contenders = {name: functools.partial(step, *case) for name, case in cases.items()}
    print_times(in_turns(contenders, rounds), "0 latents")


def questions(rounds: int = 15) -> None:
    """Of the rows that a run trains on, so that passes also read the columns that unequal rows leave empty."""
    plain = QuestionAnswer(sequence_length=512, stages=LATENTS, stage=LATENTS + 1, latents_per_step=0)
    store, tokenizer = prepare(DataConfig(source="builtin:prosqa", tokenizer="bpe:400"), plain, show=False)
    split, numbers = store.splits["validation"], np.arange(16)

    def rows(layout: QuestionAnswer) -> Batch:
        return layout.assemble(split, layout.evaluation_rows(split, EvaluationConfig())[numbers], tokenizer)

    with_latents = rows(dataclasses.replace(plain, latents_per_step=1))
    lengths = {"n_positions": 512, "vocab_size": len(tokenizer), "latent_token_id": tokenizer.vocab["<|latent|>"]}
    contenders = {"0 latents": functools.partial(step, coconut("coconut", **lengths), rows(plain))}
    for mode, name in (("coconut", "Coconut"), ("agclr", "AGCLR")):
        contenders[f"{LATENTS} latents, {name}"] = functools.partial(step, coconut(mode, **lengths), with_latents)
    print_times(in_turns(contenders, rounds), "0 latents")


def memory() -> None:
    cases = {"0 latents": (0, "coconut"), "Coconut": (LATENTS, "coconut"), "AGCLR": (LATENTS, "agclr")}
    print_peaks(_peak, cases)


def _peak(latents: int, mode: str) -> tuple[int, int]:
    model, text = coconut(mode), batch(latents)
    return step_peak(lambda: model.training_loss(text).loss.backward())


def generation(prompts: int = 32, alone: int = 3) -> None:
    model = coconut("agclr").eval()
    text = batch(LATENTS, prompts, QUESTION + LATENTS)["input_ids"]
    options: dict[str, Any] = {"do_sample": False, "min_new_tokens": NEW, "max_new_tokens": NEW, "pad_token_id": LATENT}
    mask = torch.ones_like(text)
    model.generate(text, attention_mask=mask, **options)
    plain = Coconut(model.config)
    plain.load_state_dict(model.state_dict())
    ratios = []
    for turn in range(alone):
        began = time.perf_counter()
        ours = model.generate(text, attention_mask=mask, **options)[:, text.shape[1] :]
        seconds_per_token = (time.perf_counter() - began) / (prompts * NEW)
        began = time.perf_counter()
        theirs: Tensor = plain.eval().generate(text[turn], NEW)
        ratios.append((time.perf_counter() - began) / NEW / seconds_per_token)
        assert torch.equal(ours[turn], theirs)
    print(
        f"{prompts} prompts at once over one at a time without a cache: {spread(ratios, '.0f')} x the tokens per second"
    )


if __name__ == "__main__":
    run_parts(__doc__, {"speed": speed, "questions": questions, "memory": memory, "generation": generation})

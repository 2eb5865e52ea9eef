"""Speed, memory and generation of Thought Gestalt against GPT-2 and its own plain form.

    python benchmarks/thought_gestalt.py [speed] [memory] [generation] [kernels] [table1]

Both models have 12 layers of width 256, 8 heads and a vocabulary of 8,192. The text is random: 8 streams of 30
sentences of 5 to 64 tokens, 25 on average, for GPT-2 the same number of tokens in blocks of 750. Real tokens are
counted, markers and padding are not. They take turns in one process; ratios are taken turn by turn (median,
minimum-maximum).

speed       a training step's forward and backward pass: tokens per second of
              thought_gestalt          the model
              gpt2                     transformers' model with its own loss, as it ships
              gpt2, tuned              the same under our contract: chunked cross-entropy, GELU as one operation
              thought_gestalt, plain   the plain model, every sentence padded to 67
memory      peak memory of a process after one training step, for streams of 66 and 138 sentences
generation  milliseconds per token, 8 rows, sentences of at most 16 tokens, in sentences 2-11 and 191-200
kernels     what a GPU would launch in a training step of 6 layers (swiglu), counted without one; and with the recurrent
              layers compiled, whose kernels are the scheduled ones of inductor on this CPU
table1      the throughput column of the paper's Table 1: sentence steps per second of a whole training step (one is a
            sentence of each of the 8 streams, appendix B.1), tokens per second, and the ratio to the baseline beside
            the one of the paper's column (85M parameters on an A40). A row is the model of its recipe, at this width.
            "No EOS down-weighting" computes what the baseline does, and has no row
"""

from __future__ import annotations

import multiprocessing
import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from measuring import in_turns, ratios, run_parts, spread, timed_generation
from mentalese.data.batch import Batch
from mentalese.data.layouts import SentenceStreams
from mentalese.families.thought_gestalt.config import ThoughtGestaltConfig
from mentalese.families.thought_gestalt.model import ThoughtGestaltForCausalLM
from mentalese.families.thought_gestalt.plain import ThoughtGestalt
from mentalese.families.thought_gestalt.plan import Step
from mentalese.models.base import as_model
from mentalese.registry import get_recipe
from mentalese.training.memory import peak_memory
from mentalese.training.step import TrainStep
from pretended_device import PretendedDevice

VOCABULARY, WIDTH, LAYERS, HEADS, BLOCK = 8192, 256, 12, 8, 750
BOS, EOS, EOD = 1, 2, 3


def streams(sentences: int, rows: int = 8, longest: int = 64) -> tuple[Batch, int]:
    """Random streams with sentences of 5 to 64 tokens, 25 on average, and their number of real tokens."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.empty(rows, sentences).log_normal_(3.12, 0.45, generator=generator).round().clamp(5, longest).int()
    tokens = [
        [token for n in row for token in (BOS, *torch.randint(4, VOCABULARY, (n,), generator=generator).tolist(), EOS)]
        for row in lengths.tolist()
    ]
    ids = torch.tensor([row + [0] * (max(map(len, tokens)) - len(row)) for row in tokens])
    labels = ids.masked_fill(ids <= BOS, -100)
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}, int(lengths.sum())


def thought_gestalt(**fields: Any) -> ThoughtGestaltForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    fixed = {"vocab_size": VOCABULARY, "attention_dropout": 0.0, "sentence_head": "normalized"}
    return ThoughtGestaltForCausalLM(ThoughtGestaltConfig(**fixed | sizes | fields))


def gpt2(**fields: Any) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    sizes = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 1024}
    dropouts = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    markers = {"bos_token_id": EOD, "eos_token_id": EOD}
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, **sizes, **dropouts, **markers, **fields))


def speed(rounds: int = 7) -> None:
    batch, real = streams(30)
    blocks = torch.randint(4, VOCABULARY, (real // BLOCK, BLOCK))
    flat = {"input_ids": blocks, "labels": blocks}
    model, stock = thought_gestalt().train(), gpt2().train()
    plain = ThoughtGestalt(model.config)
    tuned = as_model(gpt2(activation_function="gelu_pytorch_tanh").train())
    losses: dict[str, tuple[Callable[[], Tensor], int]] = {
        "thought_gestalt": (lambda: model.training_loss(batch).loss, real),
        "gpt2": (lambda: stock(**flat).loss, blocks.numel()),
        "gpt2, tuned": (lambda: tuned.training_loss(flat).loss, blocks.numel()),
        "thought_gestalt, plain": (lambda: plain.loss(batch["input_ids"]), real),
    }
    times = in_turns({name: lambda loss=loss: loss().backward() for name, (loss, _) in losses.items()}, rounds)
    speeds = {name: [losses[name][1] / seconds for seconds in values] for name, values in times.items()}
    for name, values in speeds.items():
        over = spread(ratios(speeds, "thought_gestalt", name), ".2f")
        print(f"{name}: {spread(values, ',.0f')} tokens/s; thought_gestalt over it {over}")


def memory() -> None:
    peaks = {}
    for sentences in (66, 138):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            peaks[sentences] = pool.apply(_peak, (sentences,))
        print(f"{sentences} sentences per stream: {peaks[sentences] / 2**20:,.0f} MiB")
    print(f"138 over 66 sentences: {peaks[138] / peaks[66]:.2f}")


def _peak(sentences: int) -> int:
    thought_gestalt().train().training_loss(streams(sentences)[0]).loss.backward()
    return peak_memory(torch.device("cpu"))


def generation(sentences: int = 201) -> None:
    model = thought_gestalt(max_sentence_tokens=16).eval()

    def change(scores: Tensor) -> Tensor:
        ends = torch.tensor([EOS, EOD])  # sentences end at their limit, documents never
        return scores.index_add(-1, ends, torch.tensor([-1e4, -1e5]).expand(len(scores), 2))

    _, steps = timed_generation(model, torch.full((8, 1), BOS), sentences * 18, change)
    taken = [1000 * seconds for seconds in steps]
    early, late = (statistics.median(taken[18 * a : 18 * b]) for a, b in ((1, 11), (190, 200)))
    print(f"sentences 2-11: {early:.2f} ms per token; 191-200: {late:.2f} ms; ratio {late / early:.3f}")


PAPER = {
    "table2-30m": 21,
    "ablation-self-cross": 17,
    "ablation-parallel": 17,
    "ablation-no-memory": 26,
    "ablation-detach": 24,
    "ablation-in-context": 19,
    "ablation-last-layer": 21,
    "ablation-static-bos": 21,
    "ablation-fixed-streams": 21,
    "ablation-short-sentences": 22,
}
"""Sentence steps per second of Table 1, by recipe."""


def table1(rounds: int = 3) -> None:
    steps: dict[str, Callable[[], None]] = {}
    counted = {}
    for name in PAPER:
        recipe = get_recipe(f"thought_gestalt/{name}")
        assert isinstance(recipe.layout, SentenceStreams)
        sizes = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "vocab_size": VOCABULARY}
        fields = {field: value for field, value in recipe.model.items() if field != "model_type"} | sizes
        torch.manual_seed(0)
        model = ThoughtGestaltForCausalLM(ThoughtGestaltConfig(**fields)).train()
        batch, real = streams(recipe.layout.max_sentences, longest=model.config.max_sentence_tokens)
        steps[name] = partial(_train, model, torch.optim.AdamW(model.parameters(), fused=True), batch)
        counted[name] = recipe.layout.max_sentences, real
    times = in_turns(steps, rounds)
    speeds = {name: [counted[name][0] / seconds for seconds in values] for name, values in times.items()}
    for name, values in speeds.items():
        tokens = spread([counted[name][1] / seconds for seconds in times[name]], ",.0f")
        over, paper = spread(ratios(speeds, name, "table2-30m"), ".2f"), PAPER[name] / PAPER["table2-30m"]
        figures = f"{spread(values, '.1f')} sentence steps/s, {tokens} tokens/s"
        print(f"{name}: {figures}; {over} x the baseline, {paper:.2f} in the paper")


def _train(model: ThoughtGestaltForCausalLM, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    model.training_loss(batch).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def kernels(sentences: int = 30) -> None:
    model, (batch, _) = thought_gestalt(num_hidden_layers=6, activation="swiglu").train(), streams(sentences)
    alone: list[int] = []

    def step() -> None:
        _train(model, optimizer, batch)

    def counted_layers(*args: Any) -> Any:
        alone.append(device.count(lambda: _layers_alone(model, *args)).kernels.total())
        return model.run_layers(*args)

    with PretendedDevice() as device:
        model.to("cuda")
        batch = {name: values.to("cuda") for name, values in batch.items()}
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        step()
        eager = device.count(step).kernels.total()
        model.compiled_layers = counted_layers
        model.training_loss(batch)
    compiled = _scheduled()
    print(f"a step of {sentences} sentences: {eager:,} kernels, {sum(alone):,} of them in recurrent layers")
    print(f"recurrent layers of a sentence: {alone[-1]} kernels, compiled {compiled}")
    print(f"a step with these compiled: {eager - sum(alone) + sentences * compiled:,} kernels")


def _layers_alone(model: ThoughtGestaltForCausalLM, x: Tensor, steps: list[Step], sentence_dropout: float) -> None:
    """A forward and a backward pass of the recurrent layers and of nothing before or after them."""

    def leaf(tensor: Any) -> Any:
        return tensor.detach().requires_grad_(tensor.requires_grad) if isinstance(tensor, Tensor) else tensor

    own = []
    for of in steps:
        memory = {layer: (leaf(keys), leaf(values)) for layer, (keys, values) in of.memory.items()}
        maps = {name: type(use)(*map(leaf, use)) for name, use in of.maps.items()}
        own.append(replace(of, memory=memory, maps=maps))
    made = [tensor for tensor in model.run_layers(leaf(x), own, sentence_dropout) if tensor is not None]
    torch.autograd.backward(made, [tensor.detach() for tensor in made])


def _scheduled() -> int:
    """The kernels, forward and backward, of the compiled recurrent layers of a sentence that reads several vectors."""
    from torch._inductor.scheduler import NopKernelSchedulerNode, Scheduler

    graphs: list[int] = []
    codegen = Scheduler.codegen

    def counting(scheduler: Scheduler) -> Any:
        nodes = [node for node in scheduler.nodes if not isinstance(node, NopKernelSchedulerNode)]
        graphs.append(sum(type(node.node).__name__ != "MultiOutput" for node in nodes))
        return codegen(scheduler)

    model = thought_gestalt(num_hidden_layers=6, activation="swiglu").train()
    sentence = torch.tensor([BOS, *range(4, 27), EOS])  # all of one length, as those of a GPU are filled up to be
    ids = sentence.repeat(8, 4)
    step = TrainStep(model)
    step.compile()
    with mock.patch.object(Scheduler, "codegen", counting):
        step({"input_ids": ids, "labels": ids.masked_fill(ids == BOS, -100)}, {}).loss.backward()
    return graphs[4] + graphs[5]  # after the graphs of first and of second sentences


if __name__ == "__main__":
    parts = {"speed": speed, "memory": memory, "generation": generation, "kernels": kernels, "table1": table1}
    run_parts(__doc__, parts)

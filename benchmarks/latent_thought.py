"""Speed and decoding of Latent Thought Models: what fast steps, the window and the cache cost and save.

    python benchmarks/latent_thought.py [speed] [window] [generation]

All models have 6 layers of width 256, 8 heads, a vocabulary of 8,192, a window of 64 and 8 thoughts a layer; the text
is random, 8 rows. They take turns in one process; ratios are taken turn by turn (median, minimum-maximum).

speed       a training step of 256 tokens per row, 16 fast steps, over the plain form, which shares nothing between fast
            steps; and ours with gradients of all weights in each fast step. Loss and gradients are checked against the
            plain form's
window      forward and backward pass of attention in a window over 1,024 tokens, in units of blocks as long as the
            window that see nothing before them: the kernel alone, and a whole layer of self-attention
generation  512 tokens, cached: tokens per second along the way, and whole passes at 512 tokens over cached steps
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from measuring import in_turns, print_times, run_parts, spread, timed_generation, whole_pass
from mentalese.data.batch import Batch
from mentalese.families.latent_thought.config import LTMConfig
from mentalese.families.latent_thought.decoder import SelfAttention
from mentalese.families.latent_thought.model import LTMForCausalLM
from mentalese.families.latent_thought.plain import LatentThought
from mentalese.nn.window import window_attention

VOCABULARY, WIDTH, LAYERS, HEADS, LENGTH, ROWS = 8192, 256, 6, 8, 256, 8
WINDOW, LATENTS, STEPS = 64, 8, 16
LONG, NEW = 1024, 512


def ltm(**fields: Any) -> LTMForCausalLM:
    torch.manual_seed(0)
    config = LTMConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_latents=LATENTS * LAYERS,
        window_size=WINDOW,
        fast_steps=STEPS,
        **({"max_position_embeddings": LENGTH} | fields),
    )
    return LTMForCausalLM(config).train()


def batch(rows: int = ROWS, length: int = LENGTH) -> Batch:
    ids = torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "labels": ids}


# -- a training step ---------------------------------------------------------------------------------------------------


def speed(rounds: int = 3) -> None:
    models = {"ours": ltm(), "ours, all weights": ltm(slow_grad="accumulate")}
    text = batch()
    torch.manual_seed(1)
    loss = models["ours"].training_loss(text).loss
    gradients = torch.autograd.grad(loss, list(models["ours"].parameters()))
    torch.manual_seed(1)
    seed = int(torch.randint(2**62, ()))  # the one that training drew
    plain = LatentThought(models["ours"].config)
    plain.load_state_dict(models["ours"].state_dict())
    expected = plain.loss(text["input_ids"], seed)
    wanted = torch.autograd.grad(expected, [plain.get_parameter(name) for name, _ in models["ours"].named_parameters()])
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=0)
    for ours, theirs in zip(gradients, wanted):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    contenders: dict[str, Callable[[], Any]] = {
        name: lambda model=model: model.training_loss(text).loss.backward() for name, model in models.items()
    }
    contenders["plain form"] = lambda: plain.loss(text["input_ids"], seed).backward()
    print_times(in_turns(contenders, rounds), "plain form")


# -- the window --------------------------------------------------------------------------------------------------------


def window(rounds: int = 15) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(ROWS, LONG, HEADS, WIDTH // HEADS).transpose(1, 2).requires_grad_() for _ in range(3))
    blocks = LONG // WINDOW

    def in_blocks() -> Tensor:
        parts = [x.unflatten(2, (blocks, WINDOW)).transpose(1, 2).flatten(0, 1) for x in (q, k, v)]
        out = F.scaled_dot_product_attention(*parts, is_causal=True)
        return out.unflatten(0, (ROWS, blocks)).transpose(1, 2).flatten(2, 3)

    def both(forward: Callable[[], Tensor]) -> Callable[[], Any]:
        weights = torch.randn_like(forward().detach())
        return lambda: forward().backward(weights)

    kernels = {"in a window": lambda: window_attention(q, k, v, WINDOW), "in blocks": in_blocks}
    print("kernel")
    print_times(in_turns({name: both(forward) for name, forward in kernels.items()}, rounds), "in blocks")

    model = ltm(max_position_embeddings=LONG)
    layer = model.blocks[0].attention
    assert isinstance(layer, SelfAttention)
    x = torch.randn(ROWS, LONG, WIDTH, requires_grad=True)
    with torch.no_grad():
        (_, long), (_, short) = (model.read(batch(1, length)["input_ids"]) for length in (LONG, WINDOW))
    layers = {
        "in a window": lambda: layer(x, long),
        "in blocks": lambda: layer(x.view(-1, WINDOW, WIDTH), short),
    }
    print("layer")
    print_times(in_turns({name: both(forward) for name, forward in layers.items()}, rounds), "in blocks")


# -- decoding ----------------------------------------------------------------------------------------------------------


def generation(tokens: int = NEW, stretch: int = 64) -> None:
    model = ltm(max_position_embeddings=NEW + 8).eval()
    for rows in (1, ROWS):
        text, steps = timed_generation(model, batch(rows, 8)["input_ids"], tokens)
        whole = [whole_pass(model, text) for _ in range(5)]
        cached = {n: statistics.median(steps[n - stretch : n]) for n in range(stretch, tokens + 1, stretch)}
        speeds = ", ".join(f"{rows / seconds:,.0f} at {n}" for n, seconds in cached.items())
        print(f"{rows} x {tokens} tokens: tokens per second {speeds}")
        ratios = [seconds / statistics.median(steps[-stretch:]) for seconds in whole]
        print(f"  whole passes over the last {stretch} cached steps: {spread(ratios, '.1f')}")


if __name__ == "__main__":
    run_parts(__doc__, {"speed": speed, "window": window, "generation": generation})

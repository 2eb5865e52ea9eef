"""The cost of passes, in FLOPs as PyTorch's counter counts them (`LanguageModel.forward_flops`)."""

from __future__ import annotations

import torch
from torch import Tensor

from mentalese.families.thought_gestalt.config import ThoughtGestaltConfig
from mentalese.families.thought_gestalt.streams import Sentences
from mentalese.nn.ragged import Ragged


def head_flops(config: ThoughtGestaltConfig, tokens: int) -> int:
    """Return the FLOPs of the language-model head on `tokens` tokens."""
    return 2 * tokens * config.hidden_size * config.vocab_size


def layer_flops(config: ThoughtGestaltConfig, sentences: Sentences, ends: bool = True) -> int:
    """Return the FLOPs of all layers on fresh streams: recurrent ones step by step, the others on all sentences.

    Without `ends` the other layers skip the last token of each sentence.
    """
    d, size, layers = config.hidden_size, config.memory_size, config.num_hidden_layers
    steps = sentences.lengths.split(sentences.counts) if sentences.counts else ()
    depth = layers if config.memory == "prefix" else config.recurrent_layers
    window = config.memory_gradient_window
    entry = 2 * d * d * (2 if window is not None and 0 < window < size else 1)  # keys and values of a vector
    lower, upper = (
        sum(layer in config.cross_layers for layer in part) for part in (range(depth), range(depth, layers))
    )
    products = (lower + upper) * size * d * d  # W_K PE
    for k, lengths in enumerate(steps if depth else ()):
        prefix = min(k, size) if config.memory == "prefix" else 0
        products += _blocks(config, lengths, range(depth), max(1, min(k, size)), prefix=prefix)
        products += len(lengths) * d * d  # the sentence head
        written = k + 1 < len(steps)
        products += lower * len(lengths) * (written * entry + (k == 0) * 2 * d * d)  # first step: and the unused slot
    if depth < layers and steps:
        lengths = sentences.lengths if ends else sentences.lengths - 1
        slots = max(1, min(len(steps) - 1, size))
        products += _blocks(config, lengths, range(depth, layers), slots, grouped=True)
        products += upper * len(sentences.lengths) * entry
    return 2 * products


def _blocks(
    config: ThoughtGestaltConfig, lengths: Tensor, part: range, slots: int, *, prefix: int = 0, grouped: bool = False
) -> int:
    """Return the products of layers `part` for sentences of these lengths that read `slots` slots."""
    d = config.hidden_size
    before = torch.full_like(lengths, prefix)
    shapes = Ragged.of(lengths, before, grouped=grouped).shapes
    tokens = int((lengths + before).sum())
    cross = sum(layer in config.cross_layers for layer in part)
    attending = len(part) - cross if config.attention_layout == "alternate" else len(part)
    mlp = tokens * d * config.mlp_width * (3 if config.activation == "swiglu" else 2)
    attend = tokens * 4 * d * d + sum(2 * d * rows * longest**2 for rows, longest in shapes)
    read = tokens * 2 * d * d + sum(2 * d * rows * longest * slots for rows, longest in shapes)
    return len(part) * mlp + attending * attend + cross * read

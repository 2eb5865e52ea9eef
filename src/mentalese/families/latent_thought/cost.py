"""The cost of passes, in FLOPs as PyTorch's counter counts them (`LanguageModel.forward_flops`)."""

from __future__ import annotations

from mentalese.data.batch import Batch
from mentalese.families.latent_thought.config import LTMConfig
from mentalese.nn.window import window_pairs


def forward_flops(config: LTMConfig, batch: Batch) -> int:
    """Return the FLOPs of one pass with given thoughts."""
    first, rest, _ = _decoder(config, batch)
    return 2 * (first + rest)


def training_flops(config: LTMConfig, batch: Batch) -> int:
    """Return the FLOPs of T_fast passes with gradients of activations, and one pass with all gradients.

    With `slow_grad="accumulate"` all passes have gradients of weights. With an encoder there is a single pass, which
    includes the encoder. Gradients of activations cost one pass, plus attention once more. The paper counts (T_fast +
    1) whole steps.
    """
    first, rest, attention = _decoder(config, batch)
    if not config.num_latents or config.inference == "amortised":
        return 6 * (first + rest + _encoder(config, batch))
    fast = 3 * rest if config.slow_grad == "accumulate" else 2 * rest + attention
    return config.fast_steps * 2 * fast + 6 * (first + rest)


def scoring_flops(config: LTMConfig, batch: Batch) -> int:
    """Return the FLOPs of T_fast passes with gradients of activations, or of the encoder, plus one forward pass."""
    first, rest, attention = _decoder(config, batch)
    if not config.num_latents or config.scoring == "amortised":
        return 2 * (first + rest + _encoder(config, batch))
    return config.fast_steps * 2 * (2 * rest + attention) + 2 * (first + rest)


def _length(batch: Batch) -> int:
    """Return N, the number of tokens in the longest row."""
    mask = batch.get("attention_mask")
    return batch["input_ids"].shape[1] if mask is None else int(mask.sum(1).max())


def _decoder(config: LTMConfig, batch: Batch) -> tuple[int, int, int]:
    """Return multiply-adds of a pass: the first self-attention, all the rest, and the rest's share of attention."""
    rows, width = batch["input_ids"].shape
    length = _length(batch)
    d, n, layers = config.hidden_size, config.latents_per_layer, config.num_hidden_layers
    pairs = 2 * d * window_pairs(length, config.window_size)
    first = 4 * d * d * length + pairs
    attention = (layers - 1) * pairs + layers * 2 * d * n * length
    cross = (2 * length + 2 * n) * d * d if config.num_latents else 0
    rest = (layers - 1) * 4 * d * d * length + layers * (cross + 3 * d * config.width * length)
    rest += attention + width * d * config.vocab_size
    return rows * first, rows * rest, rows * attention


def _encoder(config: LTMConfig, batch: Batch) -> int:
    """Return multiply-adds of a pass through the encoder."""
    if config.inference != "amortised":
        return 0
    d, n = config.hidden_size, config.num_latents
    length = n + _length(batch)
    block = 4 * d * d * length + 2 * d * length**2 + 3 * d * config.width * length
    return len(batch["input_ids"]) * (config.encoder_layers * block + 2 * d * d * n)

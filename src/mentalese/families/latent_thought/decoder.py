"""The decoder of Latent Thought Models, which predicts text from thoughts, and the encoder of a VAE.

A pass has two parts. `read` runs everything that does not depend on thoughts, once per batch; `decode` runs the rest at
each step of inference. Letters in shapes: B rows of N packed tokens, n thoughts per layer, N_z in all, d hidden size,
d_h head size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GradientCheckpointingLayer
from transformers import initialization as init

from mentalese.data.batch import Batch
from mentalese.errors import require
from mentalese.families.latent_thought.config import NORM_EPS, LTMConfig
from mentalese.models.cache import ThoughtCache
from mentalese.models.hf import E, LatentThoughtModel, Limits
from mentalese.models.transformers_seam import attention_of
from mentalese.nn.blocks import ResidualLinear, SwiGLU, merge_heads, rotary_heads
from mentalese.nn.packing import PackedRows
from mentalese.nn.ragged import split_heads
from mentalese.nn.rotary import rotary_table, rotate
from mentalese.nn.window import window_attention, window_mask, window_pairs

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


@dataclass
class PackedBatch:
    """The data that all blocks of a pass share.

    Attributes:
        rows: the columns of the tokens in the batch.
        ids: [B, N], the packed tokens.
        rotary: cosines and sines for tokens [1 or B, 1, N, d_h / 2].
        latent_rotary: cosines and sines for the thoughts of a layer [n, d_h / 2].
        window: see `window_mask`.
        past: the cache that the pass continues, if any.
    """

    rows: PackedRows
    ids: Tensor
    rotary: tuple[Tensor, Tensor]
    latent_rotary: tuple[Tensor, Tensor]
    window: Tensor | BlockMask | None
    past: Past | None


class Past:
    """A cache in use, with keys and values in `window_size` slots: position p in slot p modulo `window_size`.

    Args:
        state: the state of the cache: `k.LAYER`, `v.LAYER` [B, heads, window, d_h], `zk.LAYER`, `zv.LAYER` [B, heads,
            n, d_h].
        newest: [B, window], the new token that enters a slot; negative: the slot keeps its token.
        visible: bool [B, 1, N, m], for the keys of `attend`; `None`: no earlier tokens.
    """

    def __init__(self, state: dict[str, Tensor], newest: Tensor, visible: Tensor | None) -> None:
        self.state, self.visible = state, visible
        self.enters = (newest >= 0)[:, None, :, None]
        self.source = newest.clamp(min=0)[:, None, :, None]

    def keep(self, name: str, new: Tensor) -> Tensor:
        """Store new keys or values [B, heads, N, d_h]; return the ones that queries read, [B, heads, m, d_h]."""
        old = self.state[name] if name in self.state else new.new_zeros(())
        slots = new
        if new.shape[2] > 1:
            slots = new.gather(2, self.source.expand(*new.shape[:2], -1, new.shape[3]))
        self.state[name] = torch.where(self.enters, slots, old)
        if self.visible is None:
            return new
        # One token overwrites the slot that just left its window; several tokens still need these slots.
        return self.state[name] if new.shape[2] == 1 else torch.cat((old, new), dim=2)


def slot_positions(count: Tensor, window: int) -> Tensor:
    """Return the position in each slot [B, window] after `count` [B, 1] tokens; negative: the slot is empty."""
    last = count - 1
    return last - (last - torch.arange(window, device=count.device)) % window


class SelfAttention(nn.Module):
    """Rotary attention to the last `window_size` tokens."""

    def __init__(self, config: LTMConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.heads, self.window = layer, config.num_attention_heads, config.window_size
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=False)
        self.out = ResidualLinear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor, packed: PackedBatch) -> Tensor:
        """Return the attention output [B, N, d]."""
        q, k, v = rotary_heads(self.qkv(x), self.heads, packed.rotary)
        past = packed.past
        if past is not None:
            k, v = past.keep(f"k.{self.layer}", k), past.keep(f"v.{self.layer}", v)
        if past is None or past.visible is None:
            out = window_attention(q, k, v, self.window, mask=packed.window)
        else:
            out = F.scaled_dot_product_attention(q, k, v, past.visible)
        return self.out(merge_heads(out))


class CrossAttention(nn.Module):
    """Attention to all thoughts of a layer; keys and values are linear in z, which is not normalised."""

    def __init__(self, config: LTMConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.heads = layer, config.num_attention_heads
        self.query = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.key_value = nn.Linear(config.hidden_size, 2 * config.hidden_size, bias=False)
        self.out = ResidualLinear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor, z: Tensor, packed: PackedBatch) -> Tensor:
        """Return the output [B, N, d] for thoughts [B, n, d]; a cache keeps the thoughts of its first call."""
        q = rotate(split_heads(self.query(x), self.heads), *packed.rotary)
        state = {} if packed.past is None else packed.past.state
        names = f"zk.{self.layer}", f"zv.{self.layer}"
        if names[0] not in state:
            k, v = self.key_value(z).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
            state |= dict(zip(names, (rotate(k, *packed.latent_rotary), v)))
        out = F.scaled_dot_product_attention(q, state[names[0]], state[names[1]])
        return self.out(merge_heads(out))


class Block(GradientCheckpointingLayer):
    """Pre-norm self-attention, cross-attention to thoughts and SwiGLU."""

    def __init__(self, config: LTMConfig, layer: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.hidden_size, eps=NORM_EPS)
        self.attention = SelfAttention(config, layer)
        self.thinks = config.num_latents > 0
        if self.thinks:
            self.cross_norm = nn.RMSNorm(config.hidden_size, eps=NORM_EPS)
            self.cross_attention = CrossAttention(config, layer)
        self.mlp_norm = nn.RMSNorm(config.hidden_size, eps=NORM_EPS)
        self.mlp = SwiGLU(config.hidden_size, config.width)

    def forward(
        self, x: Tensor, z: Tensor | None, packed: PackedBatch, *, before_z: bool = True, after: bool = True
    ) -> Tensor:
        """Return the states [B, N, d] after the block; `before_z` runs its self-attention, `after` the rest.

        Thoughts are [B, n, d]; `None` without thoughts, or if the pass ends before them.
        """
        if before_z:
            x = x + self.attention(self.attention_norm(x), packed)
        if not after:
            return x
        if self.thinks:
            x = x + self.cross_attention(self.cross_norm(x), z, packed)
        return x + self.mlp(self.mlp_norm(x))


class EncoderBlock(GradientCheckpointingLayer):
    """Pre-norm bidirectional self-attention and SwiGLU."""

    def __init__(self, config: LTMConfig) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.attention_norm = nn.RMSNorm(config.hidden_size, eps=NORM_EPS)
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=False)
        self.out = ResidualLinear(config.hidden_size, config.hidden_size, bias=False)
        self.mlp_norm = nn.RMSNorm(config.hidden_size, eps=NORM_EPS)
        self.mlp = SwiGLU(config.hidden_size, config.width)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], seen: Tensor | None) -> Tensor:
        """Return the states [B, m, d] after the block; `seen` is bool [B, 1, 1, m], `None` for all."""
        q, k, v = rotary_heads(self.qkv(self.attention_norm(x)), self.heads, rotary)
        out = F.scaled_dot_product_attention(q, k, v, seen)
        x = x + self.out(merge_heads(out))
        return x + self.mlp(self.mlp_norm(x))


class Encoder(nn.Module):
    """The inference model of a VAE (section 2.2, table 4): one learned query per thought, read with the text.

    Queries have the positions of their thoughts. Tokens use the embeddings of the decoder.
    """

    def __init__(self, config: LTMConfig) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.empty(config.num_latents, config.hidden_size))
        self.blocks = nn.ModuleList(EncoderBlock(config) for _ in range(config.encoder_layers))
        self.final_norm = nn.RMSNorm(config.hidden_size, eps=NORM_EPS)
        self.posterior = nn.Linear(config.hidden_size, 2 * config.hidden_size, bias=False)

    def forward(self, tokens: Tensor, read: Tensor, packed: PackedBatch) -> tuple[Tensor, Tensor]:
        """Return means and log variances [B, N_z, d] given the embedded tokens [B, N, d] in `read` [B, N]."""
        count = len(self.queries)
        x = torch.cat((self.queries.to(tokens.dtype).expand(len(tokens), -1, -1), tokens), dim=1)
        everything = read.device.type == "cpu" and bool(read.all())  # without waiting for a GPU
        seen = None if everything else F.pad(read, (count, 0), value=True)[:, None, None]
        layers = count // len(packed.latent_rotary[0])
        rotary = [torch.cat((z.repeat(layers, 1), x[0, 0])) for z, x in zip(packed.latent_rotary, packed.rotary)]
        for block in self.blocks:
            x = block(x, (rotary[0], rotary[1]), seen)
        mu, log_var = self.posterior(self.final_norm(x[:, :count])).chunk(2, dim=-1)
        return mu, log_var


class _Decoding(nn.Module):
    """The compiled part of a decoder: all layers in one graph, as a fast step runs them."""

    def __init__(self, model: LTMDecoder) -> None:
        super().__init__()
        self.model = model

    def compile(self, **options: Any) -> None:
        self.model.compiled_layers = torch.compile(self.model.run_layers, **options)


class LTMDecoder(LatentThoughtModel[E]):
    """Blocks with a short window that also attend to thoughts; with `num_latents` = 0, blocks without thoughts."""

    config_class = LTMConfig
    supports_gradient_checkpointing = True
    supports_flex_attention = True
    lora_targets = ("qkv", "query", "key_value")

    def __init__(self, config: LTMConfig) -> None:
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.final_norm = nn.RMSNorm(config.hidden_size, eps=NORM_EPS)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.encoder = Encoder(config) if config.inference == "amortised" else None
        self.compiled_layers: Callable[..., Tensor] | None = None
        self.post_init()

    def initialize(self, module: nn.Module) -> None:
        super().initialize(module)
        if isinstance(module, Encoder):
            init.normal_(module.queries, std=self.config.initializer_range)

    @property
    def limits(self) -> Limits:
        return Limits(hidden_states=None, static_cache="it is always as large as the window of tokens")

    def new_cache(self) -> ThoughtCache:
        return ThoughtCache()

    def compiled_parts(self) -> list[nn.Module]:
        """Return the layers of a step as one graph, and the encoder layers; the loop over steps is not traced."""
        return [_Decoding(self), *([] if self.encoder is None else self.encoder.blocks)]

    def read(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, cache: ThoughtCache | None = None
    ) -> tuple[Tensor, PackedBatch]:
        """Return the stream [B, N, d] after the first self-attention, before thoughts, and the blocks' shared data."""
        config, device = self.config, input_ids.device
        rows = self.packed_rows(input_ids, attention_mask, cache)
        ids = rows.gather(input_ids)
        places, past = torch.arange(ids.shape[1], device=device)[None], None
        if cache is not None:
            places, past = self._past(cache, rows, places)
        head = config.hidden_size // config.num_attention_heads
        apart = config.max_position_embeddings // max(config.num_latents, 1)
        latents = apart * torch.arange(config.latents_per_layer, device=device)
        flex = attention_of(config) == "flex_attention"
        packed = PackedBatch(
            rows=rows,
            ids=ids,
            rotary=rotary_table(places[:, None], head),
            latent_rotary=rotary_table(latents, head),
            window=window_mask(ids.shape[1], config.window_size, device=device, flex=flex),
            past=past,
        )
        return self.blocks[0](self.embed(ids), None, packed, after=False), packed

    def _past(self, cache: ThoughtCache, rows: PackedRows, places: Tensor) -> tuple[Tensor, Past]:
        """Return the positions [B, N] of new tokens, counted from the first one of the text, and the cache in use."""
        window, lengths, length = self.config.window_size, rows.lengths, places.shape[1]
        before = cache.state.get("tokens", torch.zeros_like(lengths[:, None]))
        after = before + lengths[:, None]
        places = before + places
        visible = None
        if cache.seen_tokens:
            slots = slot_positions(after if length == 1 else before, window)
            keys = slots if length == 1 else torch.cat((slots, places), dim=1)
            ago = places[:, :, None] - keys[:, None]
            first = torch.arange(keys.shape[1], device=keys.device) == 0  # padding reads one key: no row is empty
            visible = ((keys[:, None] >= 0) & (ago >= 0) & (ago < window)) | (first & (lengths == 0)[:, None, None])
            visible = visible[:, None]
        past = Past(cache.state, slot_positions(after, window) - before, visible)
        cache.state["tokens"] = after
        cache.seen_tokens += rows.width
        return places, past

    def decode(self, x: Tensor, z: Tensor | None, packed: PackedBatch, *, kept: list[Tensor] | None = None) -> Tensor:
        """Return the head's input [B, N, d] from the stream [B, N, d] of `read` and thoughts [B, N_z, d].

        Thoughts are layer-major; `None` is the prior mean. `kept` receives the stream after each block except the last.
        """
        if self.compiled_layers is None or packed.past is not None or kept is not None:
            return self.run_layers(x, z, packed, kept=kept)
        return self.compiled_layers(x, z, packed)

    def run_layers(
        self, x: Tensor, z: Tensor | None, packed: PackedBatch, *, kept: list[Tensor] | None = None
    ) -> Tensor:
        """Run `decode`, or its compiled graph."""
        config = self.config
        if z is None and config.num_latents:
            z = x.new_zeros(len(x), config.num_latents, config.hidden_size)
        n = config.latents_per_layer
        z = z if z is None else z.to(x.dtype)
        for layer, block in enumerate(self.blocks):
            thoughts = z if z is None or config.shared_latents else z[:, layer * n : (layer + 1) * n]
            if layer and kept is not None:
                kept.append(x)
            x = block(x, thoughts, packed, before_z=layer > 0)
        return self.final_norm(x)

    def check_z(self, z: Tensor | None, rows: int) -> Tensor | None:
        """Return the thoughts from the caller; raise `InputError` unless their shape is [rows, N_z, d]."""
        shape = [rows, self.config.num_latents, self.config.hidden_size]
        if z is not None:
            remedy = f"pass {shape}" if shape[1] else "this model has no thoughts (num_latents is 0)"
            require([*z.shape] == shape and shape[1] > 0, "z.shape", [*z.shape], remedy)
        return z

    # ------------------------------------------------------------------------------------- cost

    def forward_flops(self, batch: Batch) -> int:
        """See `LanguageModel.forward_flops`; with given thoughts, without inference."""
        first, rest, _ = self._products(batch)
        return 2 * (first + rest)

    def training_flops(self, batch: Batch, **settings: Any) -> int:
        """Return the FLOPs of T_fast passes with gradients of activations, and one pass with all gradients.

        With `slow_grad="accumulate"` all passes have gradients of weights. With an encoder there is a single pass,
        which includes the encoder. Gradients of activations cost one pass, plus attention once more. The paper counts
        (T_fast + 1) whole steps.
        """
        first, rest, attention = self._products(batch)
        if not self.config.num_latents or self.encoder is not None:
            return 6 * (first + rest + self._encoder_products(batch))
        fast = 3 * rest if self.config.slow_grad == "accumulate" else 2 * rest + attention
        return self.config.fast_steps * 2 * fast + 6 * (first + rest)

    def scoring_flops(self, batch: Batch) -> int:
        """Return the FLOPs of T_fast passes with gradients of activations, or of the encoder, plus one forward pass."""
        first, rest, attention = self._products(batch)
        if not self.config.num_latents or self.encoder is not None:
            return 2 * (first + rest + self._encoder_products(batch))
        return self.config.fast_steps * 2 * (2 * rest + attention) + 2 * (first + rest)

    def _products(self, batch: Batch) -> tuple[int, int, int]:
        """Return multiply-adds of a pass: the first self-attention, all the rest, and the rest's share of attention."""
        config, (rows, width), length = self.config, batch["input_ids"].shape, _longest(batch)
        d, n, layers = config.hidden_size, config.latents_per_layer, config.num_hidden_layers
        pairs = 2 * d * window_pairs(length, config.window_size)
        first = 4 * d * d * length + pairs
        attention = (layers - 1) * pairs + layers * 2 * d * n * length
        cross = (2 * length + 2 * n) * d * d if config.num_latents else 0
        rest = (layers - 1) * 4 * d * d * length + layers * (cross + 3 * d * config.width * length)
        rest += attention + width * d * config.vocab_size
        return rows * first, rows * rest, rows * attention

    def _encoder_products(self, batch: Batch) -> int:
        """Return multiply-adds of a pass through the encoder, if there is one."""
        config = self.config
        d, n = config.hidden_size, config.num_latents
        length = n + _longest(batch)
        block = 4 * d * d * length + 2 * d * length**2 + 3 * d * config.width * length
        products = len(batch["input_ids"]) * (config.encoder_layers * block + 2 * d * d * n)
        return 0 if self.encoder is None else products


def _longest(batch: Batch) -> int:
    """Return N, the number of tokens in the longest row."""
    mask = batch.get("attention_mask")
    return batch["input_ids"].shape[1] if mask is None else int(mask.sum(1).max())

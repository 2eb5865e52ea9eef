"""A Hugging Face decoder inside a model of this library: its embeddings, padding, cache and cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from mentalese.errors import InputError, require
from mentalese.models.backbone import (
    attention_masks,
    attention_width,
    build_decoder,
    layers_of,
    linear_weights,
    output_head_of,
)
from mentalese.models.cache import ThoughtCache
from mentalese.models.config import PAIRED, WrappedDecoderConfig, sliding_window
from mentalese.models.hf import E, LatentThoughtModel, Limits
from mentalese.models.places import places
from mentalese.models.transformers_seam import CACHE, attention_of, initialize_as, set_attention


@dataclass
class TokenLayout:
    """The real tokens of a call; `real`, `mask` and `positions` are `None` if no row has padding.

    Attributes:
        seen: number of tokens read before, without padding; [B], or one number if no row has padding.
        real: bool [B, L].
        mask: bool [B, all tokens so far].
        positions: [B, L], counted from each row's first token.
        on_host: int64 [2, B] on the host: numbers of tokens read before and in this call.
    """

    seen: Tensor | int
    real: Tensor | None = None
    mask: Tensor | None = None
    positions: Tensor | None = None
    on_host: Tensor | None = None


class WrappedDecoder(LatentThoughtModel[E]):
    """A Hugging Face decoder as `backbone`, whose embeddings and head are the model's."""

    config_class = WrappedDecoderConfig
    tied_weights: ClassVar[dict[str, str]] = {}  # the backbone's own; PEFT searches them if this is a dict
    supports_gradient_checkpointing = True

    def __init__(self, config: WrappedDecoderConfig) -> None:
        attention = attention_of(config)  # transformers sets it for this class; a backbone may not have it
        super().__init__(config)
        where = f"{config.model_type}.backbone"
        self.backbone = build_decoder(where, config.backbone_config, attention)
        set_attention(config, attention_of(self.backbone.config))

    @property
    def limits(self) -> Limits:
        return Limits(hidden_states=None)

    def compiled_parts(self) -> list[nn.Module]:
        return layers_of(self)

    def get_input_embeddings(self) -> nn.Module:
        return self.backbone.get_input_embeddings()

    def set_input_embeddings(self, value: Any) -> None:
        self.backbone.set_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Module:
        return self.backbone.get_output_embeddings()

    def output_head(self) -> nn.Module:
        return output_head_of(self.backbone)

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.backbone.set_output_embeddings(new_embeddings)

    @cached_property
    def _positions(self) -> int | None:
        """Return the rows of the backbone's table of positions; `None` if it has no table."""
        tokens = self.get_input_embeddings()
        tables = (m for m in self.backbone.base_model.modules() if isinstance(m, nn.Embedding) and m is not tokens)
        return self.config.max_position_embeddings if [*tables] else None

    def check_length(self, mask: Tensor | None, columns: int) -> None:
        """Raise `InputError` for a row of more tokens (mask [B, columns]) than the backbone has positions for."""
        if self._positions is None or columns <= self._positions:
            return
        longest = columns if mask is None else int(mask.sum(1).max())
        remedy = f"the backbone has {self._positions} positions; shorten the text"
        require(longest <= self._positions, "the length of a row of input_ids", longest, remedy)


class LayeredDecoder(WrappedDecoder[E]):
    """A decoder with additions in front of its layers; its initialisation is the model's."""

    initializes_containers = True  # GPT-2's rule for its attention scales the projections inside it down

    def __init__(self, config: WrappedDecoderConfig) -> None:
        super().__init__(config)
        self.places = places(f"{config.model_type}.backbone", self.backbone)
        self._window = sliding_window(self.backbone.config)

    def initialize(self, module: nn.Module) -> None:
        """Initialise a module by the backbone's rule."""
        initialize_as(self.backbone, module)

    @property
    def layers(self) -> nn.ModuleList:
        """The backbone's layers."""
        return getattr(self.backbone.base_model, self.places.layers)

    def new_layers(self, indices: Iterable[int]) -> nn.ModuleList:
        """Return layers of the backbone's class, each of the kind of the layer at that index, initialised as there."""
        return nn.ModuleList(type(self.layers[0])(self.backbone.config, layer_idx=i) for i in indices)

    def token_layout(self, input_ids: Tensor, attention_mask: Tensor | None, cache: ThoughtCache | None) -> TokenLayout:
        """Find the padding of this call and those before it, in the cache; a mask on a GPU is waited for once."""
        past, state = (0, {}) if cache is None else (cache.seen_tokens, cache.state)
        rows, length = input_ids.shape
        real, now = self.real_tokens(input_ids, attention_mask, cache), torch.full((rows,), length)
        if attention_mask is not None:
            now = real.sum(1).cpu()
        if "mask" not in state and bool((now == length).all()):
            self.check_length(None, past + length)
            return TokenLayout(past)
        before = state.get("mask", input_ids.new_ones(rows, past, dtype=torch.bool))
        seen = state.get("tokens", torch.full((rows,), past))  # on the host
        mask = torch.cat((before, real), dim=1)
        self.check_length(mask, mask.shape[1])
        self._check_window(mask)
        if cache is not None:
            state["mask"], state["tokens"] = mask, seen + now
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, past:]
        return TokenLayout(before.sum(1), real, mask, positions, torch.stack((seen, now)))

    def _check_window(self, mask: Tensor) -> None:
        """Refuse padding between a row's tokens [B, columns], which would use up a window that counts columns."""
        if self._window is None or mask.shape[1] <= self._window:
            return
        begun, going_on = mask.cumsum(1) > 0, mask.flip(1).cumsum(1).flip(1) > 0
        if bool((begun & going_on & ~mask).any()):
            raise InputError(
                f"attention_mask has padding between the tokens of a row of {mask.shape[1]} columns: the backbone's "
                f"sliding window of {self._window} counts columns; pad prompts at the left"
            )

    def run_backbone(self, input_ids: Tensor, layout: TokenLayout, cache: ThoughtCache | None, **options: Any) -> Any:
        """Return the backbone's output, `last_hidden_state` [B, L, d]; layers get `options`, and the cache moves on."""
        mask, tokens = None if layout.mask is None else layout.mask.long(), {"input_ids": input_ids}
        if self.backbone.config.model_type in PAIRED:  # transformers then does not search it for padding
            if cache is not None:
                tokens = {"inputs_embeds": self.get_input_embeddings()(input_ids)}
            if layout.mask is None and cache is None:
                mask = torch.ones_like(input_ids)
            elif layout.mask is not None and layout.positions is not None and self._window is None:
                dtype = self.backbone.dtype
                past = layout.mask.shape[1] - input_ids.shape[1]
                mask = attention_masks(self.backbone.config, layout.mask, layout.positions, past, dtype)
        output = self.backbone.base_model(
            **tokens,
            attention_mask=mask,
            position_ids=layout.positions,
            use_cache=cache is not None,
            **{CACHE: cache},
            **options,
        )
        if cache is not None:
            cache.seen_tokens += input_ids.shape[1]
        return output

    @property
    def final_norm(self) -> nn.Module:
        """The backbone's final norm."""
        return getattr(self.backbone.base_model, self.places.norm)

    def backbone_flops(self, rows: int, length: int) -> int:
        """Return the FLOPs of the backbone and the head."""
        attention = 2 * length * attention_width(self.backbone.config)
        return 2 * rows * length * (linear_weights(self.backbone) + attention + self.output_weight().numel())

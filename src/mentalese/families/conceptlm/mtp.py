"""Multi-token prediction (Gloeckle et al., "Better & Faster Large Language Models via Multi-token Prediction").

The trunk is the backbone without its last layer. Each of n heads is one layer on the trunk's output; all share the
final norm and the output embedding. The first head is the backbone's last layer, so that the model generates as its
backbone does. The others, which predict the tokens after the next one, are only trained and scored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mentalese.data.batch import Batch
from mentalese.errors import InputError
from mentalese.families.conceptlm.config import MTPConfig
from mentalese.models.backbone import attention_width, linear_weights
from mentalese.models.base import LossOutput
from mentalese.models.cache import ThoughtCache
from mentalese.models.hf import Encoded, Limits
from mentalese.models.lora import BACKBONE_TARGETS
from mentalese.models.trace import Shown, Thought, ThoughtTrace
from mentalese.models.wrapped import LayeredDecoder
from mentalese.nn.loss import IGNORED


@dataclass(kw_only=True)
class MTPEncoded(Encoded):
    """Final hidden states of the first head and, for a trace, of the other heads, [B, L, d] each."""

    future: list[Tensor]


class MTPForCausalLM(LayeredDecoder[MTPEncoded]):
    """A Hugging Face decoder that also predicts the tokens after the next one."""

    config_class = MTPConfig
    lora_targets = BACKBONE_TARGETS
    about_thoughts = "States that each predict a token further ahead than the next one; they are shown where it stands."
    shown = {  # noqa: RUF012 (nothing writes to it)
        "surprisal.": Shown("surprisal, {} ahead", "The token's cost, predicted this number of tokens ahead.", "nats")
    }

    def __init__(self, config: MTPConfig) -> None:
        super().__init__(config)
        self.future_layers = self.new_layers([config.num_hidden_layers - 1] * (config.num_future_tokens - 1))
        self.layers[-1].register_forward_pre_hook(self._look_ahead, with_kwargs=True)
        self.post_init()

    @property
    def limits(self) -> Limits:
        return Limits(hidden_states=None, loss="the losses of later tokens")

    def _look_ahead(
        self, layer: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        """Run the other heads on the input of the last layer, for a caller that passes a list for their states."""
        future = kwargs.pop("future", None)
        if isinstance(future, list):
            future += [self.final_norm(head(*args, **kwargs)) for head in self.future_layers]
        return args, kwargs

    def encode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        cache: ThoughtCache | None = None,
        trace: bool = False,
        output_hidden_states: bool = False,
    ) -> MTPEncoded:
        """Return final hidden states [B, L, d] of the first head that continue `cache`, and update the cache.

        A trace also runs the other heads, which have no cache: head i's states at t predict token t + i.
        """
        if trace and cache is not None:
            raise InputError("output_thoughts is True with a cache: pass the whole text in one call, without a cache")
        future: list[Tensor] = []
        layout = self.token_layout(input_ids, attention_mask, cache)
        options: dict[str, object] = {"output_hidden_states": True} if output_hidden_states else {}
        options |= {"future": future} if trace else {}
        output = self.run_backbone(input_ids, layout, cache, **options)
        return MTPEncoded(hidden=output.last_hidden_state, hidden_states=output.hidden_states, future=future)

    def training_loss(self, batch: Batch, **settings: Any) -> LossOutput:
        """Return the sum of all heads' mean losses (Gloeckle et al., Eq. 2); `metrics` has each, the first as `ntp`."""
        weights = self.target_weights(batch, **settings)
        ids, mask = batch["input_ids"], batch.get("attention_mask")
        encoded, real = self.encode(ids, mask, trace=True), self.real_tokens(ids, mask)
        loss, weight = self.next_token_loss(encoded.hidden, batch["labels"], weights)
        metrics = {"ntp": loss.detach()}
        for ahead, hidden in enumerate(encoded.future, 1):
            later, _ = self.next_token_loss(*_further(hidden, batch["labels"], real, ahead))
            metrics[f"mtp.{ahead + 1}"] = later.detach()
            loss = loss + later
        return LossOutput(loss, weight, metrics, encoded=lambda: encoded)

    def forward_flops(self, batch: Batch) -> int:
        return self.backbone_flops(*batch["input_ids"].shape)

    def training_flops(self, batch: Batch, **settings: Any) -> int:
        rows, length = batch["input_ids"].shape
        inner, heads = self.backbone.config, len(self.future_layers)
        attention = 2 * length * attention_width(inner) * heads // inner.num_hidden_layers
        each = linear_weights(self.future_layers) + attention + heads * self.output_weight().numel()
        return 3 * (self.forward_flops(batch) + 2 * rows * length * each)

    def fill(self, traces: list[ThoughtTrace], encoded: MTPEncoded, real: Tensor) -> None:
        """Add the state and the surprisal of each later head to the token that it predicts.

        `surprisal.2` is the surprisal in nats under the head that predicts two tokens ahead.
        """
        input_ids = torch.stack([trace.input_ids for trace in traces])
        labels, length = input_ids.masked_fill(~real, IGNORED), input_ids.shape[1]
        for ahead, hidden in enumerate(encoded.future, 2):
            later = self.next_token_nll(*_further(hidden, labels, real, ahead - 1))
            later = nn.functional.pad(later, (ahead - 1, 0))[:, :length]
            seen = real & nn.functional.pad(real, (ahead, 0))[:, :length]
            later = later.masked_fill(~seen, math.nan)
            for row, trace in enumerate(traces):
                trace.scores[f"surprisal.{ahead}"] = later[row]
                columns = real[row].nonzero()[:, 0].tolist()
                for here, there in zip(columns, columns[ahead:]):
                    trace.thoughts.append(Thought(hidden[row, here], there, there + 1, f"{ahead} ahead"))


def _further(hidden: Tensor, labels: Tensor, real: Tensor, ahead: int) -> tuple[Tensor, Tensor]:
    """Return states [B, n, d] and labels [B, n] of the head for `ahead` tokens after the next; n = L - ahead.

    The position `ahead` before a row's first target may be padding, which predicts nothing.
    """
    count = max(hidden.shape[1] - ahead, 0)
    return hidden[:, :count], labels[:, ahead:].masked_fill(~real.roll(1, dims=1)[:, :count], IGNORED)

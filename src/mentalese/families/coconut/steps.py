"""SIM-CoT (Wei et al., "SIM-CoT: Supervised Implicit Chain-of-Thought", arXiv 2509.20317): latents predict their steps.

A second decoder reads the latents that replace a written step and predicts the step, token by token: it reads
`z_1 .. z_c, s_1 .. s_{S-1}` and predicts `s_1 .. s_S`. Its loss trains the latents and, through them, the model. It
runs only in training.

Letters in shapes: M steps of a batch, of S tokens and c latents each; d hidden size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mentalese.data.batch import Batch
from mentalese.errors import require
from mentalese.families.coconut.config import LatentsConfig
from mentalese.models.backbone import attention_masks, attention_width, build_decoder, linear_weights
from mentalese.models.build import context_length
from mentalese.models.transformers_seam import attention_of
from mentalese.nn.loss import linear_cross_entropy


class StepDecoder(nn.Module):
    """A decoder of the backbone's kind over latents and the tokens of a step, with the model's embeddings and head.

    Positions count from 0; in the release from 1, which differs for learned positions (README).
    """

    def __init__(self, config: LatentsConfig) -> None:
        super().__init__()
        inner, layers = config.backbone_config, config.step_decoder_layers
        inner.num_hidden_layers = layers
        if getattr(inner, "layer_types", None):
            inner.layer_types = inner.layer_types[:layers]
        where = f"{config.model_type}.backbone"
        decoder: Any = build_decoder(where, inner, attention_of(config))
        self.body = decoder.base_model
        self.body.set_input_embeddings(nn.Identity())  # its inputs are vectors

    def forward(self, latents: Tensor, tokens: Tensor) -> Tensor:
        """Return the states [M, S, d] that predict the tokens of steps, from latents [M, c, d] and tokens [M, S, d]."""
        inputs = torch.cat((latents.to(tokens.dtype), tokens[:, :-1]), dim=1)
        most, columns = context_length(self.body.config), inputs.shape[1]
        remedy = f"the backbone reads at most {most} tokens; use shorter steps or a backbone of more positions"
        require(most is None or columns <= most, "tokens of a written step with its latents", columns, remedy)
        real = torch.ones(inputs.shape[:2], dtype=torch.bool, device=inputs.device)  # padding follows every step
        masks = attention_masks(self.body.config, real, real.cumsum(1) - 1, 0, inputs.dtype)
        output = self.body(inputs_embeds=inputs, attention_mask=masks, use_cache=False)
        return output.last_hidden_state[:, latents.shape[1] - 1 :]

    def start_from(self, backbone: PreTrainedModel) -> None:
        """Copy the decoder's first layers, its positions and its final norm."""
        weights = backbone.base_model.state_dict()
        self.body.load_state_dict({name: weights[name] for name in self.body.state_dict()})

    def flops(self, batch: Batch, head: int) -> int:
        """Return the FLOPs of a forward pass over a batch's steps, under a head with this number of weights."""
        (steps, length), latents = batch["steps"].shape, batch["step_latents"].shape[1]
        columns = length + latents - 1
        body = columns * linear_weights(self.body) + 2 * columns**2 * attention_width(self.body.config)
        return 2 * steps * (body + length * head)


def step_loss(
    decoder: StepDecoder, batch: Batch, latents: list[Tensor], embed: nn.Module, head: Tensor | nn.Module
) -> Tensor:
    """Return the mean negative log-likelihood of the tokens of all steps of a batch (L_step), 0 without steps.

    `latents` are the model's own latents [rows, d], by pass; for the batch see `questions.written_steps`.
    """
    steps = batch["steps"]
    if not steps.numel():
        return torch.zeros((), device=steps.device)
    of_steps = torch.stack(latents, dim=1)[batch["step_rows"][:, None], batch["step_latents"]]
    hidden = decoder(of_steps, embed(steps.clamp(min=0)))
    return linear_cross_entropy(hidden.flatten(0, 1), head, steps.flatten())

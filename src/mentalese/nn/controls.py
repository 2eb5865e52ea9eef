"""Controls: replacements for a model's own thoughts, at the same cost.

A gain that remains under a control does not come from the thoughts. The same control serves in training, as a baseline
that keeps the cost and the effect on optimisation, and on a trained model (`mentalese ablate`).
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

ThoughtControl = Literal["removed", "swapped", "noisy"]
CONTROLS: tuple[str, ...] = get_args(ThoughtControl)


def controlled(thoughts: Tensor, control: str | None, removed: Tensor | float = 0.0) -> Tensor:
    """Return the thoughts [rows, ..] that a model reads under a control; `None` leaves them as they are.

    Args:
        control: `removed`: a constant. `swapped`: the thoughts of another row of the batch, which is another text, or
            another window of a long one; in a batch of one row, the constant. `noisy`: the thoughts plus normal noise
            with their root mean square.
        removed: the constant, a value or of a shape that fits.
    """
    if control is None:
        return thoughts
    if control == "noisy":
        scale = thoughts.detach().float().square().mean().sqrt().to(thoughts.dtype)
        return thoughts + scale * torch.randn_like(thoughts)
    if control == "swapped" and len(thoughts) > 1:
        return thoughts.roll(1, 0)
    constant = torch.as_tensor(removed, dtype=thoughts.dtype, device=thoughts.device)
    return constant.expand_as(thoughts) + 0.0 * thoughts  # every weight keeps a gradient, though it is zero (DDP)

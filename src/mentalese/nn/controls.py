"""Controls: replacements for a model's own thoughts, at the same cost.

A gain that remains under a control does not come from the thoughts. The same control serves in training, as a baseline
that keeps the cost and the effect on optimisation, and on a trained model (`mentalese ablate`). Any `Control` can
take the place of a name in the config of a trained model: `OneThought` controls a single thought of each row (which
thought matters?), and `Noise` samples thoughts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

ThoughtControl = Literal["removed", "swapped", "noisy"]
CONTROLS: tuple[ThoughtControl, ...] = get_args(ThoughtControl)

Numbers = int | Tensor | Literal["columns"]
"""The number of a call's thoughts [rows, ..]; of thoughts [rows, n, ..] the numbers, int64 [rows, n] or 0 to n - 1."""


class Control(Protocol):
    """A replacement for thoughts."""

    def read(self, thoughts: Tensor, removed: Tensor | float, numbers: Numbers | None, own: Tensor | None) -> Tensor:
        """Return the thoughts [rows, ..] that a model reads; arguments as in `controlled`."""


@dataclass(frozen=True)
class Noise:
    """Normal noise on all thoughts, of `scale` times their root mean square: thoughts that are sampled."""

    scale: float

    def read(self, thoughts: Tensor, removed: Tensor | float, numbers: Numbers | None, own: Tensor | None) -> Tensor:
        """Return the thoughts [rows, ..] plus noise, whose standard deviation has no gradient."""
        deviation = self.scale * thoughts.detach().float().square().mean().sqrt()
        return thoughts + deviation.to(thoughts.dtype) * torch.randn_like(thoughts)


@dataclass
class OneThought:
    """A control of one thought of each row, while a model reads a batch; its other thoughts stay its own.

    It takes the place of a name in `config.thought_control`. Thoughts of a call are numbered from 0 in the order in
    which the model makes them: read a text in one call.

    Attributes:
        number: the number of the thought, or int64 [rows]; -1: none.
        control: the control of this thought.
        values: [rows, ..], thoughts of another text, read in its place instead of the control's.
        made: the model's own thoughts [rows, ..] by number; empty if a thought is many decisions.
        count: the number of thoughts.
    """

    number: int | Tensor
    control: ThoughtControl = "removed"
    values: Tensor | None = None
    made: dict[int, Tensor] = field(default_factory=dict)
    count: int = 0

    def read(self, thoughts: Tensor, removed: Tensor | float, numbers: Numbers | None, own: Tensor | None) -> Tensor:
        """Return the thoughts [rows, ..] that a model reads; arguments as in `controlled`."""
        number = torch.as_tensor(self.number, device=thoughts.device).expand(len(thoughts))
        numbers = self.count if numbers is None else numbers
        if isinstance(numbers, Tensor):
            self.count = max(self.count, int(numbers.max()) + 1)
            chosen = numbers == number[:, None]
        elif isinstance(numbers, int):
            self.made[numbers] = thoughts
            chosen = number == numbers
        else:
            self.made |= enumerate(thoughts.unbind(1))
            chosen = torch.arange(thoughts.shape[1], device=thoughts.device) == number[:, None]
        self.count = max(self.count, len(self.made))
        other = controlled(thoughts, self.control, removed, own=own)
        if self.values is not None:
            other = self.values if isinstance(numbers, int) else self.values[:, None]
        return torch.where(chosen.view(*chosen.shape, *[1] * (thoughts.ndim - chosen.ndim)), other, thoughts)


def controlled(
    thoughts: Tensor,
    control: str | Control | None,
    removed: Tensor | float = 0.0,
    numbers: Numbers | None = None,
    own: Tensor | None = None,
) -> Tensor:
    """Return the thoughts [rows, ..] that a model reads under a control; `None` leaves them as they are.

    Args:
        control: `removed`: a constant. `swapped`: the thoughts of another row of the batch, which is another text, as
            long as windows of several texts are left; in a batch of one row, the constant. `noisy`: the thoughts plus
            normal noise with their root mean square. Or any other `Control`.
        removed: the constant, a value or of a shape that fits.
        numbers: the numbers of the thoughts in the order in which a model makes them; `None`: each call has the next
            thought of every row.
        own: bool [rows, ..], the leading sizes of `thoughts`: thoughts that a row has. A row with more of them than
            the other one reads the constant after that one's last. `None`: all of them.
    """
    if control is None:
        return thoughts
    constant = torch.as_tensor(removed, dtype=thoughts.dtype, device=thoughts.device)
    if control == "noisy":
        control = Noise(1.0)
    if not isinstance(control, str):
        return control.read(thoughts, removed, numbers, own)
    if control == "swapped" and len(thoughts) > 1:
        other = thoughts.roll(1, 0)
        if own is None:
            return other
        return torch.where(own.roll(1, 0).view(*own.shape, *[1] * (thoughts.ndim - own.ndim)), other, constant)
    return constant.expand_as(thoughts) + 0.0 * thoughts  # every weight keeps a gradient, though it is zero (DDP)

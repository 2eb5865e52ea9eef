"""The posterior over a text's thoughts, by gradient steps (fast learning; Kong et al., section 2.2) or an encoder.

Only the parameters of the posterior get gradients, and everything that does not depend on thoughts is computed once
(`LTMDecoder.read`). Rows never mix, and a row's noise is a function of the seed and its targets.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mentalese.data.batch import Batch
from mentalese.errors import InputError, require
from mentalese.families.latent_thought.config import LTMConfig
from mentalese.nn.linear import is_plain
from mentalese.nn.loss import IGNORED, linear_nll_sum
from mentalese.nn.noise import Noise
from mentalese.screen import progress
from mentalese.values import Positive, PositiveNumber, checked

if TYPE_CHECKING:
    from mentalese.families.latent_thought.decoder import LTMDecoder, PackedBatch

_MEANS, _VARIANCES, _FINAL = -3, -2, -1  # numbers of noise draws outside the fast steps
_WEIGHT_DECAY = 0.01  # in the release's AdamW


# -------------------------------------------------------------------------------------------------------- the posterior


@dataclass
class Posterior:
    """The inferred posterior of each row.

    Attributes:
        mu: [B, N_z, d], the means; for `langevin` the end of the chain.
        log_var: [B, N_z, d]; `None` for `langevin`.
        nll, kl: float32 [steps, B], nats per row before each fast step; for `langevin`, |z|^2 / 2 instead of the KL.
            `amortised` takes no steps.
        noise, last: the noise of `sample`, and the number of its draw.
    """

    mu: Tensor
    log_var: Tensor | None
    nll: Tensor
    kl: Tensor
    noise: Noise
    last: int = _FINAL

    @property
    def elbo(self) -> Tensor:
        """The ELBO [steps, B]."""
        return -(self.nll + self.kl)

    def sample(self, *, fresh: bool = False) -> Tensor:
        """Return a draw [B, N_z, d], always the same; `fresh`: with noise unused in inference, as a bound requires."""
        if self.log_var is None:
            return self.mu
        return self.mu + (0.5 * self.log_var).exp() * self.noise.draw(_FINAL if fresh else self.last, self.mu.shape[1:])

    def kl_by_layer(self, layers: int) -> Tensor:
        """Return the KL from the prior by layer, [B, layers] in nats."""
        assert self.log_var is not None
        return kl_divergence(self.mu, self.log_var).unflatten(1, (layers, -1)).sum((2, 3))


def kl_divergence(mu: Tensor, log_var: Tensor) -> Tensor:
    """Return KL(N(mu, exp(log_var)) || N(0, 1)) of each element."""
    return 0.5 * (mu.square() + log_var.exp() - 1 - log_var)


def infer(
    model: LTMDecoder,
    batch: Batch,
    *,
    inference: str | None = None,
    fast_steps: int | None = None,
    fast_learning_rate: float | None = None,
    seed: int | Tensor = 0,
    show: bool = False,
) -> Posterior:
    """Return the posterior over the thoughts that explain a batch's labels; of a row without targets it is the prior.

    Args:
        batch: see `Batch`; thoughts explain each of `labels`, given the tokens before it.
        inference, fast_steps, fast_learning_rate: replace the config's settings; an encoder takes no steps.
        seed: seeds the noise, for all rows or for each, [B].
        show: show progress on standard error.

    Raises:
        InputError: the model has no thoughts, or an argument is out of range or has no effect.
        FloatingPointError: an ELBO is not finite; the message names step and row.
    """
    require(model.config.num_latents > 0, "num_latents", 0, "this model has no thoughts to infer")
    config = inference_config(model, inference=inference, fast_steps=fast_steps, fast_learning_rate=fast_learning_rate)
    with torch.inference_mode(False), torch.no_grad():
        batch = differentiable(batch)
        x, packed = model.read(batch["input_ids"], batch.get("attention_mask"))
        return fit(model, x, packed, packed.rows.targets(batch["labels"]), config, seed=seed, show=show)[0]


def prompt_batch(input_ids: Tensor, attention_mask: Tensor | None) -> Batch:
    """Return a text [B, L] as a batch for inference, in which all tokens are labels."""
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    return {"input_ids": input_ids, "attention_mask": mask, "labels": input_ids.masked_fill(mask == 0, IGNORED)}


def differentiable(batch: Batch) -> Batch:
    """Return a batch of copies, because autograd rejects tensors created under `torch.inference_mode`."""
    return {name: value.clone() for name, value in batch.items() if isinstance(value, Tensor)}


def inference_config(model: LTMDecoder, **fields: object) -> LTMConfig:
    """Return the model's config with other fields of inference; `None` leaves a field as it is.

    Raises:
        InputError: a method that the model does not have, a number out of range, or a field without effect.
    """
    config = copy.copy(model.config)
    fields = {name: value for name, value in fields.items() if value is not None}
    for name, value in fields.items():
        setattr(config, name, value)
    methods = ("variational", "langevin") if model.encoder is None else ("variational", "langevin", "amortised")
    require(config.inference in methods, "inference", config.inference, f"this model has {', '.join(methods)}")
    unused = {"amortised": ("fast_steps", "fast_learning_rate"), "langevin": ("fast_learning_rate",)}
    for name in unused.get(config.inference, ()):
        remedy = f"{config.inference} inference does not use it, so remove it"
        require(name not in fields, name, fields.get(name), remedy)
    checked("fast_steps", Positive, config.fast_steps)
    checked("fast_learning_rate", PositiveNumber, config.fast_learning_rate)
    return config


def fit(
    model: LTMDecoder,
    x: Tensor,
    packed: PackedBatch,
    targets: Tensor,
    config: LTMConfig,
    *,
    seed: int | Tensor = 0,
    weights: Sequence[nn.Parameter] | None = None,
    together: bool = False,
    show: bool = False,
) -> tuple[Posterior, list[Tensor]]:
    """Infer from the output of `LTMDecoder.read`, whose stream gets no gradient; see `infer`.

    Args:
        targets: [B, N - 1], the targets of all tokens except the last.
        config: see `inference_config`.
        weights: also return the gradients of the negative ELBO in `x` and in these, summed over rows and fast steps.
        together: all ranks infer at the same time and take equally many steps.

    Returns:
        The posterior, and the gradients; none without `weights`.
    """
    live = (targets != IGNORED).any(1)
    # Thoughts are sums of small steps, so they are at least float32.
    noise = Noise.of(targets, seed, torch.promote_types(x.dtype, torch.float32))
    if config.inference == "amortised":
        return _amortised(model, packed, targets, live, noise), []
    frozen = _frozen(model) if weights is None and model.compiled_layers is not None else nullcontext()
    with torch.inference_mode(False), torch.enable_grad(), frozen:
        x, head = x.detach(), model.loss_head()
        extra: list[Tensor] = []
        if weights is not None:
            extra = [x.requires_grad_(), *weights]
        elif isinstance(head, Tensor):
            head = head.detach()
        search = (_Variational if config.inference == "variational" else _Langevin)(config, noise, live)
        gradients: list[Tensor] = []
        nlls, kls = [], []
        with progress("Inferring thoughts", config.fast_steps, show=show) as bar:
            for step in range(config.fast_steps):
                z, kl = search.propose(step)
                hidden = model.decode(x, z, packed)
                total, nll = linear_nll_sum(hidden[:, :-1].flatten(0, 1), head, targets.flatten())
                nlls.append(nll.view(targets.shape).sum(1))
                kls.append(kl.detach())
                # Ranks with sharded weights take each step together, including ranks without targets.
                if not (together or step) and not bool(live.any()):
                    break
                count, inputs = len(search.parameters), [*search.parameters, *extra]
                slopes = torch.autograd.grad(total + kl.sum(), inputs, materialize_grads=bool(extra))
                if not step:
                    _check_gradient(model, slopes[0], search.parameters[0], live)
                search.move(step, slopes[:count])
                gradients = [old + new for old, new in zip(gradients, slopes[count:])] or list(slopes[count:])
                bar.update(step + 1)
    posterior = search.result(torch.stack(nlls), torch.stack(kls))
    check_finite(posterior.elbo, "model.fast_learning_rate (langevin_step_size)")
    return posterior, gradients


@contextmanager
def _frozen(model: LTMDecoder) -> Iterator[None]:
    """Disable gradients of weights inside, because a compiled graph computes all of them, needed or not."""
    trained = [p for p in model.parameters() if p.requires_grad]
    try:
        for p in trained:
            p.requires_grad_(False)
        yield
    finally:
        for p in trained:
            p.requires_grad_()


def _check_gradient(model: LTMDecoder, slope: Tensor, parameter: Tensor, live: Tensor) -> None:
    """Raise `InputError` if the gradient of the negative ELBO equals the gradient of the KL, the parameter itself."""
    key_value = model.get_submodule("blocks.0.cross_attention.key_value")
    if not is_plain(key_value) and bool(live.any()) and torch.equal(slope[live], parameter[live]):
        raise InputError(
            "the model's maps pass no gradient on to thoughts (quantised activations), so none can be inferred: "
            "quantise only the weights, or pass z"
        )


def _amortised(model: LTMDecoder, packed: PackedBatch, targets: Tensor, live: Tensor, noise: Noise) -> Posterior:
    """Return the posterior that the encoder of a VAE computes (section 2.2), differentiable in its weights.

    The encoder only reads a row's first token and its `targets` [B, N - 1]. The posterior of a row without targets is
    the prior.
    """
    assert model.encoder is not None
    read = F.pad(targets != IGNORED, (1, 0), value=True)
    mu, log_var = model.encoder(model.embed(packed.ids), read, packed)
    mu, log_var = (torch.where(live[:, None, None], value.to(noise.dtype), 0.0) for value in (mu, log_var))
    none = mu.new_zeros(0, len(mu))
    return Posterior(mu, log_var, none, none, noise)


def check_finite(elbo: Tensor, rate: str) -> None:
    """Raise `FloatingPointError` if an ELBO [B] or [steps, B] is not finite; `rate` names the setting to lower."""
    elbo = elbo.detach()
    if elbo.isfinite().all():  # one wait for a GPU, as long as all is well
        return
    for place in (~elbo.isfinite()).nonzero().tolist():
        at = f" at fast step {place[0]}" if elbo.ndim > 1 else ""
        raise FloatingPointError(
            f"the ELBO of row {place[-1]} is {float(elbo[tuple(place)])}{at}: lower {rate}, or check the weights and "
            "this row"
        )


class _Variational:
    """Adam on means and log variances (Algorithm 1); a row without targets keeps the prior."""

    def __init__(self, config: LTMConfig, noise: Noise, live: Tensor) -> None:
        self.config, self.noise, self.live = config, noise, live[:, None, None]
        self.shape, self.resampled = (config.num_latents, config.hidden_size), config.noise == "resampled"
        some = self.live.to(noise.dtype)
        self.mu = (some * 0.01 * noise.draw(_MEANS, self.shape)).requires_grad_()
        log_var = 0.1 * noise.draw(_VARIANCES, self.shape) + config.initial_log_variance
        self.log_var = (some * log_var).requires_grad_()
        self.parameters = [self.mu, self.log_var]
        kind, decay = (torch.optim.AdamW, _WEIGHT_DECAY) if config.fast_optimizer == "adamw" else (torch.optim.Adam, 0)
        fused = noise.keys.is_cuda  # one kernel
        self.optimizer = kind(self.parameters, lr=config.fast_learning_rate, weight_decay=decay, fused=fused)

    def propose(self, step: int) -> tuple[Tensor, Tensor]:
        """Return thoughts [B, N_z, d] and each row's KL [B], both differentiable."""
        noise = self.noise.draw(step if self.resampled else 0, self.shape)
        z = self.mu + (0.5 * self.log_var).exp() * noise
        return z, kl_divergence(self.mu, self.log_var).sum((1, 2))

    @torch.no_grad()
    def move(self, step: int, gradients: Sequence[Tensor]) -> None:
        """Update the live rows by one step."""
        factor = schedule(self.config.fast_schedule, step, self.config.fast_steps)
        self.optimizer.param_groups[0]["lr"] = self.config.fast_learning_rate * factor
        before = [p.clone() for p in self.parameters]
        for parameter, gradient in zip(self.parameters, gradients):
            parameter.grad = gradient
        self.optimizer.step()
        for parameter, old in zip(self.parameters, before):
            torch.where(self.live, parameter, old, out=parameter)

    def result(self, nll: Tensor, kl: Tensor) -> Posterior:
        last = _FINAL if self.resampled else 0
        return Posterior(self.mu.detach(), self.log_var.detach(), nll, kl, self.noise, last)


class _Langevin:
    """Langevin dynamics on z (Eq. 4); a row without targets keeps a draw from the prior."""

    def __init__(self, config: LTMConfig, noise: Noise, live: Tensor) -> None:
        self.size, self.noise, self.live = config.langevin_step_size, noise, live[:, None, None]
        start = noise.draw(_MEANS, (config.num_latents, config.hidden_size))
        self.z = torch.where(self.live, 0.01 * start, start).requires_grad_()
        self.parameters = [self.z]

    def propose(self, step: int) -> tuple[Tensor, Tensor]:
        return self.z, 0.5 * self.z.square().sum((1, 2))

    @torch.no_grad()
    def move(self, step: int, gradients: Sequence[Tensor]) -> None:
        change = (2 * self.size) ** 0.5 * self.noise.draw(step, self.z.shape[1:]) - self.size * gradients[0]
        self.z += torch.where(self.live, change, 0.0)

    def result(self, nll: Tensor, kl: Tensor) -> Posterior:
        return Posterior(self.z.detach(), None, nll, kl, self.noise)


def schedule(kind: str, step: int, steps: int) -> float:
    """Return the learning-rate factor of a fast step (from 0); a tenth at the last step, unless constant."""
    share = step / max(steps - 1, 1)
    return {"constant": 1.0, "linear": 1 - 0.9 * share, "cosine": 0.1 + 0.45 * (1 + math.cos(math.pi * share))}[kind]

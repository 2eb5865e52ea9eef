"""The matrix of a linear map, and tests of whether it may be used without calling the module."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn


class PatchedMatrix(NamedTuple):
    """A matrix [out, in]; `values` [r, in] are in the place of its `rows` [r], and are trained when it is not."""

    matrix: Tensor
    rows: Tensor | None = None
    values: Tensor | None = None


def is_plain(module: nn.Module, *kinds: type[nn.Module]) -> bool:
    """Test if a call of this module, of one of `kinds` or an `nn.Linear`, uses its weights and nothing else.

    Returns False for an adapter around a map (LoRA), a quantised or parametrised map, and a map with hooks or a
    replaced `forward` (weights that are stored elsewhere): their matrix is not the whole map, and only a call is right.
    """
    if type(module) not in (kinds or (nn.Linear,)) or type(module.weight) not in (nn.Parameter, Tensor):
        return False
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return "forward" not in vars(module) and not any(hooks)


def patched_matrix(module: nn.Module) -> PatchedMatrix | None:
    """Return the matrix of a map without bias of which some rows are trained (`models.lora`), if it is one."""
    patched = getattr(getattr(module, "token_adapter", None), "patched_matrix", None)
    return patched() if callable(patched) else None


def matrix_or_module(module: nn.Module) -> Tensor | nn.Module:
    """Return the matrix [out, in] of a plain map without bias; any other module itself."""
    weight = module.weight if is_plain(module) and module.bias is None else None
    return weight if isinstance(weight, Tensor) else module

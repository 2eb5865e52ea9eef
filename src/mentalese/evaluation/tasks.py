"""A saved model in pieces, for the figures that do not read a `Saved` yet."""

from __future__ import annotations

from typing import Any

from mentalese.data.config import DataConfig, EvaluationConfig
from mentalese.data.layouts import Layout
from mentalese.data.store import TokenStore
from mentalese.models.saved import Saved, load


def open_evaluation(path: str, source: str | None = None, device: Any = "cpu") -> tuple[Any, ...]:
    """(model, tokenizer, data, layout, protocol) of `load(path, device).on(source)`."""
    saved = load(path, device).on(source)
    return saved.model, saved.tokenizer, saved.data, saved.layout, saved.evaluation


def open_text(tokenizer: Any, data: DataConfig, layout: Layout, split: str, show: bool) -> TokenStore:
    """`Saved.store`."""
    opened = Saved(path="", model=None, tokenizer=tokenizer, data=data, layout=layout, evaluation=EvaluationConfig())  # type: ignore[arg-type]
    return opened.store(split, show=show)

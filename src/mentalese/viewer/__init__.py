"""A model's thoughts about a text, as one self-contained page."""

from __future__ import annotations

from mentalese.viewer.page import think_page
from mentalese.viewer.payload import payload

__all__ = ["payload", "think_page"]

"""A model's thoughts about a text, as one self-contained page."""

from __future__ import annotations

from mentalese.viewer.payload import payload
from mentalese.viewer.think import think_page

__all__ = ["payload", "think_page"]

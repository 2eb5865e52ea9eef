"""What a model thought of a text, as one page that needs nothing else."""

from __future__ import annotations

from mentalese.viewer.payload import payload
from mentalese.viewer.think import think_page

__all__ = ["payload", "think_page"]

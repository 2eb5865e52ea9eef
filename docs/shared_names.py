"""For the reference: `a, b: what both are` in a docstring's list of attributes is one entry of two names."""

from __future__ import annotations

import re
from typing import Any

import griffe

_NAMES = re.compile(r"^ {4}\w+(?:, \w+)+(?=: )", re.MULTILINE)


class SharedNames(griffe.Extension):
    """griffe takes what follows the first space for a type; a space that does not break is none."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = _NAMES.sub(lambda found: found[0].replace(", ", ",\u00a0"), obj.docstring.value)

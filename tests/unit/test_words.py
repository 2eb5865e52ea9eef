"""The words of docstrings, comments, templates and documents: a short list of what plain English avoids."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[2]
AVOIDED = {
    r"(?<!there )\b(is|are) no (?!longer|more|less|such)": "is not a",
    r"\b(that|those) of\b": "repeat the noun",
    r"\b(nobody|somebody|half-way|cannot be had|be it)\b": "use the passive, or name the thing",
    r"\balone[.,;:)]": "put only before the noun",
}
PLACES = ("*.md", "docs/**/*.md", "results/*.md", "src/**/*.md", "src/**/*.j2")
DOCUMENTS = [path for place in PLACES for path in ROOT.glob(place)]


def comments(path: Path) -> str:
    """Return the comments and docstrings of a module."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    words = [token.string for token in tokens if token.type == tokenize.COMMENT or token.string.startswith('"""')]
    return "\n".join(words)


def test_texts_avoid_words_on_the_list() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in DOCUMENTS if path.name != "CHANGELOG.md"}
    texts |= {path: comments(path) for path in ROOT.glob("src/**/*.py")}
    assert len(texts) > 200
    found = [
        f"{path.relative_to(ROOT)}: {match[0]!r} ({remedy})"
        for path, text in texts.items()
        for pattern, remedy in AVOIDED.items()
        for match in re.finditer(pattern, text)
    ]
    assert not found, "\n".join(found)

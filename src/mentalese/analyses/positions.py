"""Nats per token by the place in a document, which show the worth of long context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from mentalese.analyses.drawing import Drawing, Figure, Numbers, canvas, line_style, ticks_at
from mentalese.errors import require
from mentalese.formatting import model_names

if TYPE_CHECKING:
    from mentalese.data.split import Split


def nll_by_position(scores: np.ndarray, split: Split, length: int) -> list[Numbers]:
    """Return mean scores of a document's first tokens, in spans that double: 1, 2-3, 4-7 ... up to `length`.

    Later tokens are not counted: windows give them less context than their place in the document suggests.

    Args:
        scores: nats per token [len(split.tokens)], NaN if not scored.
        length: tokens that a model reads at once.

    Returns:
        For each span with a scored token: `first` and `last` place in the document, from 1, `tokens` and `nll`.
    """
    index = np.flatnonzero(~np.isnan(scores))
    start = split.documents[np.searchsorted(split.documents, index, side="right") - 1]
    place = index - start + 1
    spans = []
    for first in (2**n for n in range(length.bit_length())):
        last = min(2 * first - 1, length)
        inside = index[(place >= first) & (place <= last)]
        if len(inside):
            nll = float(scores[inside].mean(dtype=np.float64))
            spans.append({"first": first, "last": last, "tokens": len(inside), "nll": nll})
    return spans


def _positions(paths: Sequence[str], *, source: str | None = None, documents: int | None = None) -> Drawing:
    """Draw nats per token against the place in the document, of models on the test split of one text.

    Raises:
        InputError: models whose tokenizers split the text into different tokens, or that score none.
    """
    from mentalese.models.saved import load

    runs: list[Numbers] = []
    first: np.ndarray | None = None
    settings: dict[str, str | None] = {}
    for path, label in zip(paths, model_names(paths)):
        saved = load(path).on(source, **settings).scored_by(max_documents=documents)
        source, split = saved.data.source, saved.split("test")
        settings = {"text_column": saved.data.text_column, "detokenizer": saved.data.detokenizer}  # one text for all
        tokens = np.delete(split.tokens, split.documents[1:] - 1)  # without each model's own end of text
        first = tokens if first is None else first
        remedy = f"it is another than in {paths[0]}, so their positions are not comparable; draw them separately"
        require(np.array_equal(tokens, first), f"tokenizer of {path}", saved.data.tokenizer, remedy)
        window = saved.layout.window(saved.evaluation)
        length = window[0] if window else int(np.diff(split.documents).max(initial=1))
        spans = nll_by_position(saved.token_scores(split), split, length)
        require(bool(spans), f"scored tokens of {path}", 0, "use a model of text, and documents of two tokens")
        scored = saved.scored_by(tokens="lexical").protocol
        runs.append({"path": path, "label": label, "length": length, "spans": spans, "protocol": scored})
    picture, ((axes,),) = canvas(1, 1, 7, 4)
    for i, run in enumerate(runs):
        places = [span["first"] for span in run["spans"]]
        axes.plot(places, [span["nll"] for span in run["spans"]], label=run["label"], **line_style(i))
    axes.set(title="nats per token", xlabel="position in the document (start of span)", xscale="log")
    longest = max(runs, key=lambda run: run["spans"][-1]["last"])
    ticks_at(axes.xaxis, [span["first"] for span in longest["spans"]])
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.legend()
    return picture, {"source": source, "runs": runs}


POSITIONS = Figure(
    description="test loss by position in the document: what long context is worth",
    takes="MODEL ...",
    draw=_positions,
    reads_source=True,
)

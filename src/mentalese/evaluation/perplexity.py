"""The perplexity of a text, by the model's own protocol or another one."""

from __future__ import annotations

from mentalese.errors import InputError
from mentalese.evaluation.options import PerplexityOptions
from mentalese.models.build import check_length
from mentalese.models.saved import Saved


def run(saved: Saved, options: PerplexityOptions | None = None, *, show: bool = False) -> dict[str, object]:
    """Score a text, or a split of one.

    Returns:
        `Perplexity.to_dict()` with the number of `documents`, and `split`, `source`, `detokenizer` and `data_hash` of
        the text; with `options.estimators`: `{estimator: the same}`.

    Raises:
        InputError: the model has no such scoring rule or protocol, or its layout no stage or latents; errors of
            `Saved.store`.
    """
    options = options or PerplexityOptions()
    saved = _with_protocol(saved, options)
    for name in options.estimators:
        if name not in saved.model.estimators:
            raise InputError(
                f"estimators contains {name!r}: this model has {', '.join(saved.model.estimators)}; use one of them"
            )
    part = options.part(saved)
    store = saved.store(part, show=show)
    documents = saved.evaluation.documents(len(store.splits[part].document_bytes))

    def score(scorer: Saved) -> dict[str, object]:
        result = scorer.perplexity(store.splits[part], show=show)
        return result.to_dict() | {"documents": documents} | options.origin(saved, store)

    if not options.estimators:
        return score(saved)
    return {name: score(saved.scored_by(estimator=name)) for name in options.estimators}


def _with_protocol(saved: Saved, options: PerplexityOptions) -> Saved:
    """Return the model with the text, stage, latents and protocol of the options."""
    saved = options.read_by(saved).at(options.stage, options.latents)
    changes: dict[str, object] = {"max_documents": options.documents, "context_length": options.context_length}
    changes = {name: value for name, value in changes.items() if value is not None}
    if options.joined or options.context_length is not None:
        if saved.layout.window(saved.evaluation) is None:
            name = "joined" if options.joined else "context_length"
            raise InputError(
                f"{name} is {getattr(options, name)}: {saved.path} has layout {saved.layout.kind!r}, which reads no "
                "windows; remove it"
            )
        check_length(saved.model.config, "context_length", options.context_length)
        # The recipe's stride belongs to its own windows.
        changes |= {"stride": None, "joined": options.joined or saved.evaluation.joined}
    return saved.scored_by(**changes)

"""Figures of Thoughtbubbles: places of forks, their relation to entropy, and attention to forks.

Section 5 of the paper. The model's config sets the selection of streams. With `block`, the paper's selection, later
tokens influence it, and every figure states this. Tokens of the test split are read as for a perplexity, each once and
in the same context.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from mentalese.analyses.drawing import (
    COLORS,
    Drawing,
    Figure,
    Numbers,
    batches,
    canvas,
    count_axis,
    drawable_token,
    footnote,
    heat_map,
    interval_band,
    line_style,
    percent_axis,
    read_result,
    ticks_at,
)
from mentalese.errors import InputError
from mentalese.formatting import model_names

if TYPE_CHECKING:
    from torch import Tensor

    from mentalese.data.batch import Batch
    from mentalese.data.split import Split
    from mentalese.models.saved import Saved
    from mentalese.models.trace import ThoughtTrace

DOCUMENTS = 32  # first documents of the test split
WINDOW = 4  # tokens, as in Figure 4
BINS = 16
FAR = 4  # distances from here on are grouped
LINE = 40  # tokens in a row


# -- a model that forks, and its test split ----------------------------------------------------------------------------


def _open(path: str) -> Saved:
    """Return a model with forks."""
    from mentalese.models.saved import load

    saved = load(path)
    if not getattr(saved.model.config, "fork_layers", ()):
        raise InputError(f"{path} has no streams that fork: use a Thoughtbubbles model with fork_layers")
    return saved.scored_by(tokens="lexical", batch_size=4, max_documents=DOCUMENTS)


def _about(saved: Saved, label: str) -> Numbers:
    config = saved.model.config
    fields = {name: getattr(config, name) for name in ("selection", "budget", "fork_layers")}
    return {"model": label, "estimator": saved.model.estimators[0]} | fields


def _no_forks(saved: Saved) -> InputError:
    return InputError(f"no stream forks in the test split of {saved.data.source}: use another model")


def _selection(saved: Saved) -> str:
    """Return the model's selection in words."""
    rule = saved.model.config.selection
    return f"selection: {rule}, {'not causal: later tokens influence it' if rule == 'block' else 'causal'}"


def _outputs(saved: Saved, split: Split) -> Iterator[tuple[Batch, Tensor, Tensor, list[ThoughtTrace]]]:
    """Yield batches, the index in the split of each token's target [B, L] (-1: not scored), logits and traces."""
    import torch

    for batch in batches(saved, split, f"Reading the test split of {saved.data.source}"):
        target = torch.nn.functional.pad(batch["store_index"][:, 1:], (0, 1), value=-1).cpu()
        read: Batch = {n: v for n, v in batch.items() if n in ("input_ids", "attention_mask")}
        with torch.no_grad():
            output = saved.model(**read, output_thoughts=True)
        yield read, target, output.logits, output.thoughts


# -- forks against entropy (Figure 4) ----------------------------------------------------------------------------------


def entropy(paths: list[str]) -> Drawing:
    """Draw forks in windows of four tokens over the entropy of predictions by the model and by another model.

    A token's forks are its streams after the last forking layer, minus one. Windows do not cross documents, bins
    contain equal numbers of them, and forks are divided by their mean over all.
    """
    import torch
    from matplotlib.ticker import MaxNLocator

    from mentalese.models.saved import on_one_text

    saved, names = _open(paths[0]), model_names(paths)
    models = [one.model for one in on_one_text([saved, *(_other(path, saved, names[0]) for path in paths[1:])])]
    split = saved.split("test")
    forks, entropies = np.full(len(split.tokens), np.nan), np.full((len(models), len(split.tokens)), np.nan)
    for batch, target, logits, traces in _outputs(saved, split):
        scored = target >= 0
        streams = torch.stack([trace.scores["streams"] for trace in traces])
        forks[target[scored]] = streams.cpu()[scored] - 1
        for values, model in zip(entropies, models):
            with torch.no_grad():
                read = logits if model is saved.model else model(**batch, use_cache=False).logits
            # One row at a time, to save memory.
            rows = [torch.distributions.Categorical(logits=row.float()).entropy() for row in read]
            values[target[scored]] = torch.stack(rows).cpu()[scored]
    windows, documents = _windows(~np.isnan(forks))
    if len(windows) < BINS:
        raise InputError(
            f"the test split of {saved.data.source} has {len(windows)} windows of {WINDOW} scored tokens: use a model "
            f"of a text with at least {BINS}"
        )
    count = forks[windows].mean(1)
    if not count.any():
        raise _no_forks(saved)
    picture, (panels,) = canvas(1, len(models), 1.6 + 3.8 * len(models), 4, sharey=True)
    numbers = _about(saved, names[0]) | {
        "windows": len(windows),
        "documents": int(documents.max()) + 1,
        "forks_per_token": float(count.mean()),
        "entropy_of": [],
    }
    for panel, color, path, label, values in zip(panels, COLORS, paths, names, entropies):
        bins = _binned(values[windows].mean(1), count / count.mean(), documents)
        panel.plot(bins["entropy"], bins["forks"], marker="o", color=color)
        interval_band(panel, bins["entropy"], bins["interval"], color)
        panel.axhline(1, color="0.5", linestyle=":", linewidth=1)
        panel.xaxis.set_major_locator(MaxNLocator(6))
        rho, interval = bins["spearman"], bins["spearman_interval"]
        within = "" if interval is None else f" [{interval[0]:.2f}, {interval[1]:.2f}]"
        rank = f"Spearman {rho:.2f}{within}".replace("-", "−")
        panel.set(title=f"entropy of {label}\n{rank}", xlabel=f"mean entropy of {WINDOW} predictions, nats")
        numbers["entropy_of"].append({"path": path, "label": label} | bins)
    panels[0].set_ylabel(f"forks in {WINDOW} tokens, relative to the mean")
    footnote(
        picture,
        f"{len(windows):,} windows of {numbers['documents']} documents, "
        f"{numbers['forks_per_token']:.2f} forks per token; bands: 95% over documents\n{_selection(saved)}",
    )
    return picture, numbers


def _other(path: str, saved: Saved, label: str) -> Saved:
    """Return a model that reads the same tokens."""
    from mentalese.data.tokenizers import tokenizer_fingerprint
    from mentalese.models.build import context_length
    from mentalese.models.saved import load

    other = load(path)
    if tokenizer_fingerprint(other.tokenizer) != tokenizer_fingerprint(saved.tokenizer):
        raise InputError(f"{path} has another tokenizer than {label}: use a model trained on the same tokens")
    context, window = context_length(other.model.config), saved.layout.window(saved.evaluation)
    length = (window[0] if window else saved.layout.sequence_length) or 0
    if context is None or context < length:
        raise InputError(
            f"{path} reads {'sentence by sentence' if context is None else f'{context} tokens'} and {label} "
            f"{length} tokens at once: use a model that reads at least as many"
        )
    return other


def _windows(scored: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return indices [n, WINDOW] of consecutive scored tokens, and the number of the unbroken stretch of each.

    Stretches that have no window are not counted.
    """
    place = np.flatnonzero(scored)
    stretches = np.split(place, np.flatnonzero(np.diff(place) > 1) + 1)
    cut = [stretch[: len(stretch) // WINDOW * WINDOW].reshape(-1, WINDOW) for stretch in stretches]
    numbers = np.repeat(np.arange(len(cut)), [len(part) for part in cut])
    return np.concatenate(cut), np.unique(numbers, return_inverse=True)[1]


def _binned(x: np.ndarray, y: np.ndarray, unit: np.ndarray) -> Numbers:
    """Return means of y in equally large bins of x, with 95% intervals over units, and the rank correlation."""
    from mentalese.evaluation.statistics import bootstrap_ratio

    bins = np.argsort(np.argsort(x, kind="stable"), kind="stable") * BINS // len(x)
    units = int(unit.max()) + 1
    sums, sizes = np.zeros((2, units, BINS))
    np.add.at(sums, (unit, bins), y)
    np.add.at(sizes, (unit, bins), 1)
    interval = bootstrap_ratio(sums, sizes)
    correlation, correlation_interval = _rank_correlation(x, y, unit)
    return {
        "entropy": [float(x[bins == i].mean()) for i in range(BINS)],
        "forks": (sums.sum(0) / sizes.sum(0)).tolist(),
        "interval": None if interval is None else interval.tolist(),
        "spearman": correlation,
        "spearman_interval": correlation_interval,
    }


def _rank_correlation(x: np.ndarray, y: np.ndarray, unit: np.ndarray) -> tuple[float, tuple[float, float] | None]:
    """Return Spearman's correlation and its 95% bootstrap interval over units (with ranks of the whole sample)."""
    a, b = (_ranks(values) for values in (x, y))
    units = int(unit.max()) + 1
    moments = np.stack([np.bincount(unit, m, units) for m in (np.ones_like(a), a, b, a * a, b * b, a * b)], axis=1)

    def correlation(sums: np.ndarray) -> np.ndarray:
        n, a, b, aa, bb, ab = np.moveaxis(sums, -1, 0)
        spread = np.sqrt(np.maximum((n * aa - a * a) * (n * bb - b * b), 0))
        return np.divide(n * ab - a * b, spread, out=np.full(n.shape, np.nan), where=spread > 0)

    draws = np.random.default_rng(0).multinomial(units, np.full(units, 1 / units), size=2_000)
    interval = np.nanquantile(correlation(draws @ moments), (0.025, 0.975)) if units > 1 else None
    return float(correlation(moments.sum(0))), None if interval is None else (float(interval[0]), float(interval[1]))


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return centred ranks divided by their number; equal values share the mean of their ranks."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2 - (len(values) + 1) / 2)[group] / len(values)


# -- attention to forks (Figure 5) -----------------------------------------------------------------------------------


def attention(paths: list[str]) -> Drawing:
    """Draw the share of attention that original streams and forks give to streams of each kind.

    Means over heads and the blocks after the last fork, then over the visible streams of a kind, then over all readers
    that see such a stream. Tokens are those with at least one fork.
    """
    from mentalese.evaluation.statistics import bootstrap_ratio

    saved, [label] = _open(paths[0]), model_names(paths)
    split = saved.split("test")
    count = min(DOCUMENTS, len(split.document_bytes))
    names = [(reader, kind) for reader, kinds in _KINDS.items() for kind in kinds]
    sums, sizes = np.zeros((2, count, len(names)))
    for _, target, _, traces in _outputs(saved, split):
        for places, trace in zip(target.numpy(), traces):
            if (places >= 0).any():
                document = np.searchsorted(split.documents, places.max(), side="right") - 1
                attended = _attended(trace, places >= 0)
                for column, name in enumerate(names):
                    sums[document, column] += attended[name].sum()
                    sizes[document, column] += len(attended[name])
    there = sizes.sum(0) > 0
    if not there.any():
        raise _no_forks(saved)
    names = [name for name, present in zip(names, there) if present]
    sums, sizes = sums[:, there], sizes[:, there]
    mean, interval = sums.sum(0) / sizes.sum(0), bootstrap_ratio(sums, sizes)
    several = (sizes > 0).sum(0) > 1  # with one document the interval would be a point
    picture, panels = canvas(2, 1, 6.5, 5.6, sharex=True, height_ratios=(sum(r == "token" for r, _ in names), 4))
    numbers = _about(saved, label) | {"documents": count, "attention": {reader: {} for reader in _KINDS}}
    for column, (reader, kind) in enumerate(names):
        panel = panels[list(_KINDS).index(reader), 0]
        panel.barh(kind, mean[column], color=COLORS[_KINDS[reader][kind]], height=0.65)
        within = interval[:, column].tolist() if interval is not None and several[column] else None
        if within is not None:
            panel.plot(within, [kind, kind], color="0.2", linewidth=1)
        end = max([mean[column], *(within or ())])
        panel.annotate(_percent(mean[column]), (end, kind), (4, 0), textcoords="offset points", va="center", fontsize=8)
        numbers["attention"][reader][kind] = {
            "mean": float(mean[column]),
            "interval": within,
            "readers": int(sizes[:, column].sum()),
        }
    for panel, title in zip(panels[:, 0], ("a token with forks", "a fork")):
        panel.invert_yaxis()
        panel.set(title=f"attention of {title} to", xlim=(0, 1.1 * panel.get_xlim()[1]))
        percent_axis(panel.xaxis)
        panel.grid(visible=False, axis="y")
    note = f"mean share of one such stream, {label}; {count} documents, lines: 95% over documents\n{_selection(saved)}"
    footnote(picture, note)
    return picture, numbers


def _distances(name: str) -> list[str]:
    return [f"{name}, {i} back" for i in range(1, FAR)] + [f"{name}, {FAR} or more back"]


_FORKS, _NEIGHBOURS = _distances("its fork"), _distances("token")
_KINDS = {
    "token": {"itself": 0} | dict.fromkeys(_FORKS, 1) | dict.fromkeys(_NEIGHBOURS, 2) | {"a fork of another token": 3},
    "fork": {"itself": 0, "a fork of its token": 1, "another token": 2, "a fork of another token": 3},
}
"""Readers, and the kinds of streams that they read, with their colours."""


def _attended(trace: ThoughtTrace, scored: np.ndarray) -> dict[tuple[str, str], np.ndarray]:
    """Return, by reader and kind, the mean attention to streams of that kind; readers are of `scored` tokens [L]."""
    weight = trace.links["attention"].float().cpu().numpy()
    token = np.array([thought.start for thought in trace.thoughts])
    original = np.array([thought.label == "token" for thought in trace.thoughts])
    place = np.arange(len(token))
    back, tokens_back = place[:, None] - place, token[:, None] - token
    same, earlier = tokens_back == 0, tokens_back > 0
    with_forks = np.bincount(token, minlength=len(scored))[token] > 1
    read = {
        "itself": back == 0,
        "a fork of its token": same & (back > 0),
        "another token": earlier & original,
        "a fork of another token": earlier & ~original,
    }
    for distances, kinds, mask in ((back, _FORKS, same & (back > 0)), (tokens_back, _NEIGHBOURS, earlier & original)):
        for i, kind in enumerate(kinds, 1):
            read[kind] = mask & (distances >= FAR if i == FAR else distances == i)
    attended = {}
    for reader, kinds_read in _KINDS.items():
        rows = scored[token] & with_forks & (original if reader == "token" else ~original)
        for kind in kinds_read:
            seen = read[kind][rows]
            number = seen.sum(1)
            attended[reader, kind] = (weight[rows] * seen).sum(1)[number > 0] / number[number > 0]
    return attended


def _percent(share: float) -> str:
    """Return a percentage with two significant digits."""
    digits = max(0, 1 - math.floor(math.log10(100 * share))) if share > 0 else 0
    return f"{100 * share:.{digits}f}%"


# -- forks by layer and token (Figure 7) -------------------------------------------------------------------------------


def forks(paths: list[str], text: str) -> Drawing:
    """Draw the number of streams of each token of a text after each forking layer."""
    import torch
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    saved, [label] = _open(paths[0]), model_names(paths)
    trace, layers = saved.think(text), saved.model.config.fork_layers
    streams = torch.stack([trace.scores[f"streams.{layer}"] for layer in layers]).int().cpu().numpy()
    labels = ["<end>" if special else drawable_token(token) for token, special in zip(trace.tokens, trace.special)]
    lines, width = -(-len(labels) // LINE), min(LINE, len(labels))
    picture, panels = canvas(lines, 1, max(5.0, 1.6 + 0.25 * width), 0.5 + lines * (0.75 + 0.25 * len(layers)))
    most = max(2, int(streams.max()))
    shades = ListedColormap(colormaps["Blues"](np.linspace(0.12, 0.95, most)))
    for line, (panel,) in enumerate(panels):
        part = slice(line * LINE, (line + 1) * LINE)
        image = heat_map(
            panel, streams[:, part], list(map(str, layers)), labels[part], cmap=shades, vmin=0.5, vmax=most + 0.5
        )
        panel.tick_params(axis="x", rotation=90)
        panel.set_xlim(0, width)
    picture.supylabel("fork before block", fontsize=9)
    bar = picture.colorbar(image, ax=list(panels[:, 0]), fraction=0.03, pad=0.01, label="streams")
    bar.set_ticks(range(1, most + 1))
    picture.suptitle(f"streams of each token, {label}", fontsize=10, x=0.01, ha="left")
    footnote(picture, _selection(saved))
    return picture, _about(saved, label) | {
        "tokens": trace.tokens,
        "streams": {str(layer): row.tolist() for layer, row in zip(layers, streams)},
    }


# -- perplexity over sizes (Figure 3) ----------------------------------------------------------------------------------


def sizes(paths: list[str]) -> Drawing:
    """Draw test perplexity of finished runs over parameters, a panel for each text, a line for each approach."""
    results = [read_result(path) for path in paths]
    places: dict[int | None, set[tuple[int, ...]]] = {}
    for result in results:
        fields = result["config"]["model"]
        if forks := tuple(fields.get("fork_layers") or ()):
            places.setdefault(fields.get("num_hidden_layers"), set()).add(forks)
    differ = any(len(forks) > 1 for forks in places.values())  # in models of one depth
    texts: dict[str, dict[str, list[Numbers]]] = {}
    for path, result in zip(paths, results):
        point = {
            "path": path,
            "parameters": result["parameters"]["total"],
            "perplexity": result["test"]["perplexity"],
            "estimator": result["test"]["protocol"]["estimator"],
        }
        approaches = texts.setdefault(result["config"]["data"]["source"], {})
        approaches.setdefault(_approach(path, result["config"]["model"], places=differ), []).append(point)
    names = sorted({name for approaches in texts.values() for name in approaches})
    picture, (panels,) = canvas(1, len(texts), 1.6 + 3.6 * len(texts), 3.8)
    rules = set()
    for panel, (source, approaches) in zip(panels, texts.items()):
        counts = set()
        for name, points in approaches.items():
            points.sort(key=lambda point: point["parameters"])
            values = [[point[axis] for point in points] for axis in ("parameters", "perplexity")]
            panel.plot(*values, label=name, **line_style(names.index(name)))
            counts |= set(values[0])
            rules |= {point["estimator"] for point in points}
        panel.set(title=source, ylabel="test perplexity", xscale="log")
        count_axis(panel.xaxis, "parameters")
        ticks_at(panel.xaxis, sorted(counts))
        panel.legend()
    footnote(picture, f"estimators: {', '.join(sorted(rules))}")
    return picture, {"texts": texts}


def _approach(path: str, fields: Numbers, *, places: bool) -> str:
    """Return the row of Table 1 for the `model` section of a recipe; with `places` also its fork layers."""
    from mentalese.families.thoughtbubbles.config import ThoughtbubblesConfig

    if fields["model_type"] != "thoughtbubbles":
        raise InputError(f"{path} is a run of a {fields['model_type']} model: use runs of Thoughtbubbles")
    if fields.get("copies", 1) > 1:
        return f"copy-{fields['copies']}"
    if not fields.get("fork_layers"):
        return "regular"
    choices = ("selection", "readout", "thought_control", "score_scale", "rotation", "layers_per_turn")
    usual = {name: getattr(ThoughtbubblesConfig, name) for name in choices}
    others = [f"{name} {fields[name]}" for name, value in usual.items() if fields.get(name, value) != value]
    others += [f"forks before {' '.join(map(str, fields['fork_layers']))}"] if places else []
    return ", ".join([f"kappa = {fields.get('budget', 2.0):g}L", *others])


# -- block-wise and autoregressive perplexity (Figure 6) ---------------------------------------------------------------


def autoregression(paths: list[str], *, source: str | None = None, documents: int = DOCUMENTS) -> Drawing:
    """Draw perplexities of test documents: block-wise, and autoregressive with a fixed and a dynamic budget.

    The autoregressive ones take a pass per token. A second model without forks is the baseline.

    Args:
        source: the text; `None`: the text of the model's training.
        documents: score the first N of them.
    """
    from mentalese.evaluation.options import TextOptions
    from mentalese.models.saved import on_one_text

    names, opened = model_names(paths), _open(paths[0])
    saved, *others = on_one_text([opened, *(_other(path, opened, names[0]) for path in paths[1:])], source)
    saved = saved.scored_by(max_documents=documents)
    part = TextOptions(source=saved.data.source).part(saved, *others)
    split = saved.split(part)
    readers = {
        "block-wise (not causal)": saved.scored_by(estimator="block-not-causal"),
        "fixed budget": saved.scored_by(estimator="prefix-fixed"),
        "dynamic budget": saved.scored_by(estimator="prefix-dynamic"),
    }
    for other, name in zip(others, names[1:], strict=True):
        evaluation = dataclasses.replace(saved.evaluation, estimator=None)
        readers[name] = dataclasses.replace(other, data=saved.data, layout=saved.layout, evaluation=evaluation)
    picture, ((panel,),) = canvas(1, 1, 6.5, 4)
    numbers = _about(saved, names[0]) | {"perplexities": {}}
    for i, (name, reader) in enumerate(readers.items()):
        print(f"scoring {name}", file=sys.stderr, flush=True)
        nats = reader.token_scores(split)
        each = [nats[a:b] for a, b in zip(split.documents, split.documents[1:])]
        each = [row_nats[~np.isnan(row_nats)].astype(np.float64) for row_nats in each]
        values = [float(np.exp(row_nats.mean())) for row_nats in each if len(row_nats)]
        mean = float(np.exp(np.concatenate(each).mean()))
        numbers["perplexities"][name] = {"estimator": reader.estimator, "mean": mean, "documents": values}
        style = {"color": COLORS[i], "drawstyle": "steps-post"}
        panel.plot(sorted(values), np.arange(1, len(values) + 1) / len(values), label=f"{name}: {mean:.2f}", **style)
    panel.set(title=f"perplexity of documents, {names[0]}", xscale="log", xlabel="perplexity", ylabel="documents below")
    percent_axis(panel.yaxis)
    panel.legend()
    read = " of the test split" if part == "test" else ""
    footnote(picture, f"{len(values)} documents{read}; in the legend, perplexities of all tokens")
    return picture, numbers


FIGURES = {
    "sizes": Figure("test perplexity of runs over their parameters", "RESULT ...", sizes),
    "autoregression": Figure(
        "perplexities of documents, block-wise and autoregressive", "MODEL [OTHER]", autoregression
    ),
    "entropy": Figure("forks against the entropy of predictions, the model's and another's", "MODEL [OTHER]", entropy),
    "attention": Figure("attention between tokens and forks", "MODEL", attention),
    "forks": Figure("streams of each token of a text after each fork", "MODEL", forks),
}

"""Figures of Latent Thought Models: what each layer's thoughts hold of a text, and where fast steps lead.

Texts are non-overlapping rows of the validation split, of the length trained on, the longest first; each is a text of
its own, and its first token is given. Thoughts are found by Algorithm 1, or by the encoder of a model that has one.
"""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from mentalese.analyses.drawing import COLORS, MARKERS, Figure, canvas, footnote, labels
from mentalese.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from mentalese.data.batch import Batch

SEQUENCES = 200  # that are reconstructed (appendix B)
ROWS = 32  # whose inference is looked at
BEYOND = 4  # times T_fast: how far inference is followed
TIMES = (0.5, 1, 2, 4)  # T_fast at test time, in units of training's
WIDTH = 100  # characters of a line


# -- a model with thoughts, and its validation split -------------------------------------------------------------------


@dataclass(frozen=True)
class _Opened:
    """A model, and how its recipe reads a text."""

    path: str
    label: str
    model: Any
    tokenizer: Any
    data: Any
    layout: Any
    protocol: Any
    device: Any

    @property
    def layers(self) -> int:
        """Sets of thoughts."""
        return self.model.thought_layers

    @property
    def method(self) -> str:
        """How thoughts are found."""
        return self.model.config.scoring

    @property
    def takes_steps(self) -> bool:
        return self.model.config.num_latents > 0 and self.method == "variational"

    def about(self) -> dict[str, Any]:
        fields = ("num_hidden_layers", "num_latents", "fast_steps", "fast_learning_rate", "fast_schedule")
        return {"path": self.path, "label": self.label} | {name: getattr(self.model.config, name) for name in fields}

    def rows(self, count: int, title: str) -> Iterator[Batch]:
        """So many rows of the validation split in batches, with progress on standard error."""
        from mentalese.data.batch import to_device
        from mentalese.data.evaluation import evaluation_batches
        from mentalese.evaluation.tasks import open_text
        from mentalese.screen import progress

        split = open_text(self.tokenizer, self.data, self.layout, "validation", show=False).splits["validation"]
        found = evaluation_batches(split, self.layout, self.protocol, self.tokenizer)
        batches = list(islice(found, -(-count // self.protocol.batch_size)))
        count = min(count, sum(len(batch["input_ids"]) for batch in batches))
        with progress(f"{title} {self.label}", count) as bar:
            done = 0
            while done < count:
                batch = {n: v[: count - done] for n, v in batches.pop(0).items() if n != "store_index"}
                yield to_device(batch, self.device)
                bar.update(done := done + len(batch["input_ids"]))


def _open(paths: list[str]) -> list[_Opened]:
    """Latent Thought Models, or the same decoder without thoughts."""
    from mentalese.evaluation.tasks import open_evaluation
    from mentalese.training.parallel import setup

    device = setup("auto").device
    found = []
    for path, label in zip(paths, labels(paths)):
        model, tokenizer, data, layout, protocol = open_evaluation(path, device=device)
        if model.config.model_type != "ltm":
            raise InputError(f"{path} is a {model.config.model_type} model: give a Latent Thought Model")
        if not layout.plain or layout.sequence_length is None:
            raise InputError(
                f"{path} has layout {layout.kind!r}: use a model trained on layout 'packed' or 'per_document'"
            )
        length = min(layout.sequence_length, model.config.max_position_embeddings)
        protocol = dataclasses.replace(protocol, tokens="lexical", context_length=length, stride=length - 1)
        found.append(_Opened(path, label, model, tokenizer, data, layout, protocol, device))
    return found


def _one(paths: list[str], name: str, *, layered: bool = False) -> _Opened:
    """The only model, which has thoughts; `layered`: those of each layer its own."""
    if len(paths) != 1:
        raise InputError(f"the figure latent_thought/{name} shows one model, and {len(paths)} were given")
    (opened,) = _open(paths)
    if not opened.model.config.num_latents:
        raise InputError(f"{opened.path} has no thoughts (num_latents is 0): give a model that has")
    if layered and opened.model.config.shared_latents:
        raise InputError(
            f"{opened.path} has one set of thoughts for all layers (shared_latents is True), and none to leave out: "
            "give a model whose layers have their own"
        )
    return opened


# -- progressive reconstruction (appendix B, Figures 10 and 11) --------------------------------------------------------


def _reconstruct(opened: _Opened, batch: Batch) -> tuple[Tensor, Tensor]:
    """The tokens [layers + 1, B, N] said with the thoughts of the first 0, 1 .. all layers, free-running and forced.

    Thoughts are the posterior's means; those of the other layers are the prior's, zero. Free-running goes on greedily
    from a row's first token, forced reads the row. Said of position 0 is the row's own token.

    This costs T_fast fast steps on the rows, `layers` + 1 passes over them, and as many decodings, cached and all at
    once: N passes over (`layers` + 1) B tokens.
    """
    import torch

    from mentalese.families.latent_thought.inference import infer

    model, ids = opened.model, batch["input_ids"]
    z = model.first_thoughts(infer(model, batch, inference=opened.method).mu)
    with torch.no_grad():
        forced = torch.stack(
            [model(ids, batch.get("attention_mask"), z=own, use_cache=False).logits.argmax(-1) for own in z]
        )
    free = model.continue_greedily(ids[:, :1].repeat(len(z), 1), z.flatten(0, 1), ids.shape[1])
    free = free.view(len(z), *ids.shape)
    return free, torch.cat((ids[None, :, :1].expand(len(z), -1, -1), forced[..., :-1]), dim=-1)


def reconstruction(paths: list[str]) -> tuple[Any, dict[str, Any]]:
    """The share of a text's tokens that come back, in their places, from the thoughts of the first layers alone."""
    import torch

    opened = _one(paths, "reconstruction", layered=True)
    shares: dict[str, list[Tensor]] = {"free-running": [], "teacher-forced": []}
    for batch in opened.rows(SEQUENCES, "Reconstructing for"):
        counted = torch.nn.functional.pad(batch["labels"][:, 1:] != -100, (1, 0))
        for values, said in zip(shares.values(), _reconstruct(opened, batch)):
            right = (said == batch["input_ids"]) & counted
            values.append((right.sum(-1) / counted.sum(-1)).cpu())
    picture, ((panel,),) = canvas(1, 1, 6.5, 4)
    numbers: dict[str, Any] = opened.about() | {"split": "validation", "accuracy": {}}
    layers = range(opened.layers + 1)
    for i, (name, parts) in enumerate(shares.items()):
        share = torch.cat(parts, dim=1).double().numpy()
        mean, (low, median, high) = share.mean(1), np.quantile(share, (0.25, 0.5, 0.75), axis=1)
        panel.plot(layers, mean, color=COLORS[i], marker=MARKERS[i], label=name)
        panel.fill_between(layers, low, high, color=COLORS[i], alpha=0.15, linewidth=0)
        found = {"mean": mean, "quartiles": np.stack((low, median, high)), "each": share}
        numbers["accuracy"][name] = {key: value.tolist() for key, value in found.items()}
        numbers["sequences"] = share.shape[1]
    panel.set(title=f"progressive reconstruction, {opened.label}", ylim=(0, None), xticks=layers)
    panel.set(xlabel="layers whose thoughts are kept, from below", ylabel="tokens right")
    panel.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    panel.legend()
    note = f"{numbers['sequences']} validation sequences, greedy; bands: quartiles; other layers: the prior mean"
    footnote(picture, note)
    return picture, numbers


def words(paths: list[str], text: str) -> tuple[Any, dict[str, Any]]:
    """The words of a text that come back, free-running, from the thoughts of the first layers alone; dots elsewhere.

    Words are what white space parts; a word is right where all its tokens are, in their places.
    """
    from mentalese.data.batch import to_device
    from mentalese.data.tokenizers import corpus_encoder

    opened = _one(paths, "words", layered=True)
    batch = opened.layout.encode_prompts([text], opened.tokenizer, opened.data)
    ids, length = batch["input_ids"], opened.protocol.context_length
    if ids.shape[1] > length:
        raise InputError(f"the text has {ids.shape[1]} tokens, its start included, and the model {length}: shorten it")
    free, _ = _reconstruct(opened, to_device(batch | {"labels": ids}, opened.device))
    right = (free.cpu() == ids)[1:, 0, 1:].numpy()
    spans = corpus_encoder(opened.tokenizer).encode(text, add_special_tokens=False).offsets
    found = [match.span() for match in re.finditer(r"\S+", text)]
    inside = np.array([[a < end and b > start for a, b in spans] for start, end in found])
    whole = (right[:, None] | ~inside).all(2)
    said = [text[start:end] for start, end in found]
    numbers = opened.about() | {
        "text": text,
        "words": said,
        "right": whole.tolist(),
        "words_right": whole.mean(1).tolist(),
        "tokens_right": right.mean(1).tolist(),
    }
    return _draw_words(opened.label, said, whole, right.mean(1)), numbers


def _draw_words(label: str, said: list[str], right: np.ndarray, tokens: np.ndarray) -> Any:
    """The text by number of layers, and as it is, each word in the same place; what is wrong is dots."""
    rows = [
        (f"thoughts of {i} of {len(right)} layers", f"{kept.mean():.0%} of words, {share:.0%} of tokens", kept)
        for i, (kept, share) in enumerate(zip(right, tokens), 1)
    ]
    rows.append(("the text", "", np.ones(len(said), dtype=bool)))
    lines = textwrap.wrap(" ".join(said), WIDTH, break_on_hyphens=False, break_long_words=False)
    ends = np.cumsum([len(line.split()) for line in lines]).tolist()
    picture, panels = canvas(len(rows), 1, 0.3 + 0.067 * WIDTH, 0.4 + len(rows) * (0.33 + 0.137 * len(lines)))
    for (panel,), (name, share, kept) in zip(panels, rows):
        panel.set_axis_off()
        panel.set_title(name, fontsize=9, fontweight="bold")
        panel.set_title(share, fontsize=8, color="0.4", loc="right")
        # One text over another, in letters of one width: colours within a line, and every word in its place.
        dotted = ["·" * len(word) for word in said]
        for color, layer, shown in (("black", said, kept), ("0.65", dotted, ~kept)):
            parts = [word if show else " " * len(word) for word, show in zip(layer, shown)]
            cut = "\n".join(" ".join(parts[a:b]) for a, b in zip([0, *ends], ends))
            panel.text(
                0, 1, cut, transform=panel.transAxes, va="top", family="monospace", fontsize=8, color=color,
                parse_math=False, in_layout=False,
            )  # fmt: skip
    picture.suptitle(
        f"words that come back from the thoughts of the first layers, {label}", fontsize=10, x=0.01, ha="left"
    )
    return picture


# -- fast steps (Figures 1 and 4) --------------------------------------------------------------------------------------


def inference(paths: list[str]) -> tuple[Any, dict[str, Any]]:
    """The bound and its parts, nats a token, before each of `BEYOND` times T_fast steps; the KL by layer after these.

    A schedule that is not constant goes over all steps, so that the first T_fast are not those of training.
    """
    import torch

    from mentalese.families.latent_thought.inference import infer
    from mentalese.nn.loss import IGNORED

    opened = _one(paths, "inference")
    if not opened.takes_steps:
        raise InputError(f"{opened.path} has an encoder and takes no fast steps: give a model that does")
    model, trained = opened.model, opened.model.config.fast_steps
    model.config.tolerance = None  # a row that rests would hide where it goes
    curves: dict[str, list[Tensor]] = {"NLL + KL": [], "NLL": [], "KL": []}
    layers: dict[int, list[Tensor]] = {trained: [], BEYOND * trained: []}
    for batch in opened.rows(ROWS, "Inferring thoughts with"):
        targets = (batch["labels"][:, 1:] != IGNORED).sum(1)
        for steps, found in layers.items():
            posterior = infer(model, batch, inference="variational", fast_steps=steps)
            found.append((posterior.kl_by_layer(opened.layers) / targets[:, None]).cpu())
        for parts, nats in zip(curves.values(), (-posterior.elbo, posterior.nll, posterior.kl)):
            parts.append((nats / targets).cpu())
    picture, ((left, right),) = canvas(1, 2, 10, 3.8, width_ratios=(3, 2))
    numbers: dict[str, Any] = opened.about() | {"split": "validation", "curves": {}, "kl_by_layer": {}}
    for i, (name, parts) in enumerate(curves.items()):
        numbers["curves"][name] = series = _mean_and_spread(torch.cat(parts, dim=1).T)
        _band(left, range(len(series["mean"])), series, color=COLORS[i], label=name)
    places = np.arange(opened.layers)
    for i, (steps, parts) in enumerate(layers.items()):
        numbers["kl_by_layer"][str(steps)] = series = _mean_and_spread(torch.cat(parts))
        style = {"yerr": series["std"], "ecolor": "0.4", "color": COLORS[3 + i], "label": f"after {steps} steps"}
        right.bar(places + 0.4 * (i - 0.5), series["mean"], 0.38, **style)
    numbers["rows"] = sum(map(len, layers[trained]))
    left.axvline(trained, color="0.5", linestyle=":", linewidth=1)
    left.annotate(
        "T_fast of training", (trained, 1), xycoords=("data", "axes fraction"), xytext=(3, -3),
        textcoords="offset points", va="top", fontsize=7, color="0.4",
    )  # fmt: skip
    left.set(title=f"inference of {opened.label}", xlabel="fast steps", ylabel="nats a token", ylim=(0, None))
    left.legend(ncols=3)
    names = ["all"] if model.config.shared_latents else [str(layer) for layer in places]
    right.set(xlabel="layer (from 0)", ylabel="KL, nats a token", ylim=(0, None))
    right.set_xticks(places, names)
    right.grid(visible=False, axis="x")
    right.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    note = f"{numbers['rows']} validation rows; bands, lines: one standard deviation; " + _schedule(opened)
    footnote(picture, note)
    return picture, numbers


def _schedule(opened: _Opened) -> str:
    config = opened.model.config
    return f"{config.fast_optimizer}, learning rate {config.fast_learning_rate:g}, {config.fast_schedule}"


def _mean_and_spread(values: Tensor) -> dict[str, list[float]]:
    """Over rows, of [rows, n]."""
    return {"mean": values.double().mean(0).tolist(), "std": values.double().std(0, unbiased=False).tolist()}


def _band(panel: Any, x: Sequence[float], series: dict[str, list[float]], **style: Any) -> None:
    """A line, and a standard deviation to either side of it."""
    mean, std = np.array(series["mean"]), np.array(series["std"])
    panel.plot(x, mean, **style)
    panel.fill_between(x, mean - std, mean + std, color=style["color"], alpha=0.12, linewidth=0)


def steps(paths: list[str]) -> tuple[Any, dict[str, Any]]:
    """The bound, its parts and the prefix-conditioned NLL, nats a token, by the number of fast steps at test time.

    The fast learning rate stays training's. What takes no steps is a line: models with an encoder, and those without
    thoughts, whose likelihood is no bound and is shown of the same second halves too.
    """
    from mentalese.analyses.drawing import ticks_at
    from mentalese.data.tokenizers import tokenizer_fingerprint

    models = _open(paths)
    read = [(m.data.source, tokenizer_fingerprint(m.tokenizer), m.protocol.context_length) for m in models]
    for opened, other in zip(models[1:], read[1:]):
        if other != read[0]:
            raise InputError(
                f"{opened.path} has another text, tokenizer or length than {models[0].path}: give models of the same"
            )
    picture, (panels,) = canvas(1, 3, 12, 4)
    numbers: dict[str, Any] = {"split": "validation", "models": []}
    for i, opened in enumerate(models):
        found, trained = _by_steps(opened), opened.model.config.fast_steps
        style = {"color": COLORS[i % len(COLORS)], "marker": MARKERS[i % len(MARKERS)], "label": opened.label}
        for panel, name in zip(panels, ("bound", "nll", "prefix")):
            _line(panel, found, name, trained, style)
        if "kl" in found:
            _line(panels[1], found, "kl", trained, style | {"label": None, "linestyle": "--"})
        numbers["models"].append(opened.about() | found)
    titles = "bound: NLL + KL", "its NLL (lines) and KL (dashes)", "NLL of the second half, inferred from the first"
    stepping = [step for model in numbers["models"] for step in model["steps"] if step is not None]
    for panel, title in zip(panels, titles):
        panel.set(title=title, xscale="log", xlabel="fast steps at test time")
        ticks_at(panel.xaxis, stepping)
        panel.xaxis.set_major_formatter("{x:.0f}")
    panels[0].set_ylabel("nats a token")
    panels[0].legend()
    note = f"{numbers['models'][0]['rows']} validation rows; rings: training's T_fast; bands: 95% over rows"
    footnote(picture, note)
    return picture, numbers


def _by_steps(opened: _Opened) -> dict[str, Any]:
    """Nats a token and their 95% intervals over rows, by the number of fast steps; `None`: it takes none."""
    import torch

    from mentalese.evaluation.statistics import bootstrap_ratio
    from mentalese.nn.loss import IGNORED

    model, trained = opened.model, opened.model.config.fast_steps
    at = sorted({max(1, round(times * trained)) for times in TIMES}) if opened.takes_steps else [None]
    nats: dict[str, list[Tensor]] = {}
    tokens: dict[str, list[Tensor]] = {}
    for batch in opened.rows(ROWS, "Scoring with"):
        each = [_row_nats(model, batch, steps) for steps in at]
        for name in each[0]:
            scored = model.scored_labels(batch, "prefix" if name == "prefix" else model.estimators[0])
            counted = (scored != IGNORED).sum(1, keepdim=True).expand(-1, len(at))
            tokens.setdefault(name, []).append(counted.cpu().double())
            nats.setdefault(name, []).append(torch.stack([row[name] for row in each], dim=1).cpu().double())
    found: dict[str, Any] = {"steps": at, "rows": sum(map(len, nats["bound"])), "interval": {}}
    for name in nats:
        total, size = torch.cat(nats[name]).numpy(), torch.cat(tokens[name]).numpy()
        interval = bootstrap_ratio(total, size)
        found[name] = (total.sum(0) / size.sum(0)).tolist()
        found["interval"][name] = None if interval is None else interval.tolist()
    return found


def _row_nats(model: Any, batch: Batch, steps: int | None) -> dict[str, Tensor]:
    """Nats of each row [B]: the bound and its parts (without thoughts the likelihood), and of `prefix`."""
    options = {} if steps is None else {"fast_steps": steps}
    parts = model.nll_parts(batch, **options)
    prefix = model.nll_parts(batch, "prefix", **options)["nll"]
    return {name: part.sum(1) for name, part in (parts | {"bound": sum(parts.values()), "prefix": prefix}).items()}


def _line(panel: Any, found: dict[str, Any], name: str, trained: int, style: dict[str, Any]) -> None:
    """One number by fast steps, ringed at training's; a line across where there are none."""
    steps, values, interval = found["steps"], found[name], found["interval"][name]
    if steps == [None]:
        panel.axhline(values[0], **style | {"marker": None, "linestyle": ":" if name == "kl" else "-."})
        return
    panel.plot(steps, values, **style)
    ring = {"marker": "o", "markersize": 12, "markerfacecolor": "none", "color": style["color"]}
    panel.plot(trained, values[steps.index(trained)], **ring)
    if interval is not None:
        panel.fill_between(steps, *interval, color=style["color"], alpha=0.12, linewidth=0)


FIGURES = {
    "reconstruction": Figure(
        description="tokens that come back from the thoughts of the first layers", takes="MODEL", draw=reconstruction
    ),
    "words": Figure(
        description="words of a text that come back from the thoughts of the first layers",
        takes="MODEL",
        draw=words,
        reads_text=True,
    ),
    "inference": Figure(
        description="the bound and its parts over fast steps, and the KL by layer", takes="MODEL", draw=inference
    ),
    "steps": Figure(
        description="the bound and the prefix-conditioned likelihood by fast steps at test time",
        takes="MODEL ...",
        draw=steps,
    ),
}

"""Figures of Latent Thought Models: the text that thoughts of each layer encode, and the effect of fast steps.

Texts are non-overlapping rows of the validation split, of the length used in training, the longest first. Each row is
a separate text, and its first token is not predicted. Thoughts are inferred by Algorithm 1, or by the encoder of a
model that has one.
"""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, cast

import numpy as np

from mentalese.analyses.drawing import (
    COLORS,
    MARKERS,
    Drawing,
    Figure,
    Numbers,
    band,
    batches,
    canvas,
    count_axis,
    drawable,
    footnote,
    in_rows,
    interval_band,
    line_style,
    mean_and_std,
    percent_axis,
    plain_ticks,
    read_result,
    ticks_at,
)
from mentalese.errors import require
from mentalese.formatting import model_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture
    from torch import Tensor

    from mentalese.data.batch import Batch
    from mentalese.families.latent_thought.model import LTMForCausalLM
    from mentalese.models.saved import Saved

SEQUENCES = 200  # rows to reconstruct (appendix B)
ROWS = 32  # rows for the figure of inference
BEYOND = 4  # fast steps for this figure, in units of T_fast
TIMES = (0.5, 1, 2, 4)  # T_fast at test time, in units of training's
WIDTH = 100  # characters of a line


# -- a model with thoughts, and its validation split -------------------------------------------------------------------


def _open(path: str) -> tuple[Saved, LTMForCausalLM]:
    """Return a Latent Thought Model, or a decoder without thoughts, that reads rows of the length used in training."""
    from mentalese.models.saved import load

    saved = load(path)
    config = saved.model.config
    require(config.model_type == "ltm", "the figure's path", path, "use a Latent Thought Model")
    saved = in_rows(saved, config.max_position_embeddings)
    return saved, cast("LTMForCausalLM", saved.model)


def _one(paths: list[str], *, layered: bool = False) -> tuple[Saved, LTMForCausalLM, str]:
    """Return the only model, which must have thoughts, and its name; `layered`: with thoughts for each layer."""
    [path] = paths
    saved, model = _open(path)
    config = model.config
    require(config.num_latents > 0, "the figure's path", path, "it has no thoughts, use a model with thoughts")
    remedy = "it has one set of thoughts for all layers, use a model whose layers have their own"
    require(not (layered and config.shared_latents), "the figure's path", path, remedy)
    return saved, model, model_names([path])[0]


def _about(saved: Saved, label: str) -> Numbers:
    fields = ("num_hidden_layers", "num_latents", "fast_steps", "fast_learning_rate", "fast_schedule")
    return {"path": saved.path, "label": label} | {name: getattr(saved.model.config, name) for name in fields}


# -- progressive reconstruction (appendix B, Figures 10 and 11) --------------------------------------------------------


def _reconstruct(model: LTMForCausalLM, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return free-running and teacher-forced tokens [layers + 1, B, N] from the thoughts of the first 0, 1 .. layers.

    Thoughts are the posterior means; the thoughts of the other layers are the prior mean, zero. Free-running generates
    greedily from the first token of a row, teacher-forced reads the row. Position 0 has the token of the row.

    This costs T_fast fast steps on the rows, `layers` + 1 passes over them, and as many cached decodings in one batch:
    N passes over (`layers` + 1) B tokens.
    """
    import torch

    from mentalese.families.latent_thought.inference import infer

    ids, mask = batch["input_ids"], batch.get("attention_mask")
    z = model.first_thoughts(infer(model, batch, inference=model.config.scoring).mu)
    with torch.no_grad():
        forced = torch.stack([model(ids, mask, z=some, use_cache=False).logits.argmax(-1) for some in z])
    free = model.continue_greedily(ids[:, :1].repeat(len(z), 1), z.flatten(0, 1), ids.shape[1])
    return free.view_as(forced), torch.cat((ids[None, :, :1].expand(len(z), -1, -1), forced[..., :-1]), dim=-1)


def reconstruction(paths: list[str]) -> Drawing:
    """Draw the share of a text's tokens that the thoughts of only the first layers reconstruct at their positions."""
    import torch

    saved, model, label = _one(paths, layered=True)
    shares: dict[str, list[Tensor]] = {"free-running": [], "teacher-forced": []}
    for batch in batches(saved, saved.split("validation"), f"Reconstructing with {label}", SEQUENCES):
        counted = torch.nn.functional.pad(batch["labels"][:, 1:] != -100, (1, 0))
        for values, predicted in zip(shares.values(), _reconstruct(model, batch)):
            right = (predicted == batch["input_ids"]) & counted
            values.append((right.sum(-1) / counted.sum(-1)).cpu())
    picture, ((panel,),) = canvas(1, 1, 6.5, 4)
    accuracy, layers = {}, range(model.thought_layers + 1)
    for i, (name, parts) in enumerate(shares.items()):
        share = torch.cat(parts, dim=1).double().numpy()
        mean, (low, median, high) = share.mean(1), np.quantile(share, (0.25, 0.5, 0.75), axis=1)
        panel.plot(layers, mean, color=COLORS[i], marker=MARKERS[i], label=name)
        interval_band(panel, layers, (low, high), COLORS[i])
        quartiles = np.stack((low, median, high))
        accuracy[name] = {"mean": mean.tolist(), "quartiles": quartiles.tolist(), "each": share.tolist()}
    sequences = share.shape[1]
    panel.set(title=f"progressive reconstruction, {label}", ylim=(0, None), xticks=layers)
    panel.set(xlabel="layers whose thoughts are kept, from the first", ylabel="tokens right")
    percent_axis(panel.yaxis)
    panel.legend()
    footnote(picture, f"{sequences} validation sequences, greedy; bands: quartiles; other layers: the prior mean")
    return picture, _about(saved, label) | {"split": "validation", "accuracy": accuracy, "sequences": sequences}


def words(paths: list[str], text: str) -> Drawing:
    """Draw the words of a text that the thoughts of only the first layers reconstruct, free-running; others are dots.

    White space separates words. A word is correct if all its tokens are correct and at their positions.
    """
    from mentalese.data.batch import to_device
    from mentalese.data.tokenizers import corpus_encoder

    saved, model, label = _one(paths, layered=True)
    batch = saved.layout.encode_prompts([text], saved.tokenizer, saved.data)
    ids, length = batch["input_ids"], saved.evaluation.context_length or 0
    remedy = f"it has {ids.shape[1]} tokens with its start, and the model reads {length}: shorten it"
    require(ids.shape[1] <= length, "the text", f"{text[:20]} ..", remedy)
    free, _ = _reconstruct(model, to_device(batch | {"labels": ids}, saved.device))
    right = (free.cpu() == ids)[1:, 0, 1:].numpy()
    spans = corpus_encoder(saved.tokenizer).encode(text, add_special_tokens=False).offsets
    places = [match.span() for match in re.finditer(r"\S+", text)]
    inside = np.array([[a < end and b > start for a, b in spans] for start, end in places])
    whole = (right[:, None] | ~inside).all(2)
    numbers = _about(saved, label) | {
        "text": text,
        "words": [text[start:end] for start, end in places],
        "right": whole.tolist(),
        "words_right": whole.mean(1).tolist(),
        "tokens_right": right.mean(1).tolist(),
    }
    return _draw_words(numbers), numbers


def _draw_words(numbers: Numbers) -> Picture:
    """Draw the reconstruction by number of layers and the text itself, with aligned words; wrong words are dots."""
    every, right = [drawable(word, len(word), "monospace") for word in numbers["words"]], numbers["right"]
    rows = [
        (f"thoughts of {i} of {len(right)} layers", f"{words:.0%} of words, {tokens:.0%} of tokens", correct)
        for i, words, tokens, correct in zip(
            range(1, len(right) + 1), numbers["words_right"], numbers["tokens_right"], right
        )
    ]
    rows.append(("the text", "", [True] * len(every)))
    lines = textwrap.wrap(" ".join(every), WIDTH, break_on_hyphens=False, break_long_words=False)
    ends = np.cumsum([len(line.split()) for line in lines]).tolist()
    picture, panels = canvas(len(rows), 1, 0.3 + 0.067 * WIDTH, 0.4 + len(rows) * (0.33 + 0.137 * len(lines)))
    for (panel,), (name, share, correct) in zip(panels, rows):
        panel.set_axis_off()
        panel.set_title(name, fontsize=9, fontweight="bold")
        panel.set_title(share, fontsize=8, color="0.4", loc="right")
        # Two texts on top of each other in a monospaced font give two colours in a line with aligned words.
        black = [word if good else " " * len(word) for word, good in zip(every, correct)]
        gray = [" " * len(word) if good else "·" * len(word) for word, good in zip(every, correct)]
        for color, parts in (("black", black), ("0.65", gray)):
            cut = "\n".join(" ".join(parts[a:b]) for a, b in zip([0, *ends], ends))
            panel.text(
                0, 1, cut, transform=panel.transAxes, va="top", family="monospace", fontsize=8, color=color,
                parse_math=False, in_layout=False,
            )  # fmt: skip
    title = f"words reconstructed from the thoughts of the first layers, {numbers['label']}"
    picture.suptitle(title, fontsize=10, x=0.01, ha="left")
    return picture


# -- fast steps (Figures 1 and 4) --------------------------------------------------------------------------------------


def inference(paths: list[str]) -> Drawing:
    """Draw the bound and its parts over `BEYOND` times T_fast steps, in nats per token, and the final KL by layer.

    A schedule that is not constant extends over all steps, so its first T_fast steps differ from training.
    """
    import torch

    from mentalese.families.latent_thought.inference import infer
    from mentalese.nn.loss import IGNORED

    saved, model, label = _one(paths)
    config = model.config
    remedy = "it has an encoder and takes no fast steps, use a model without an encoder"
    require(config.scoring == "variational", "the figure's path", saved.path, remedy)
    curves: dict[str, list[Tensor]] = {"NLL + KL": [], "NLL": [], "KL": []}
    layers: dict[int, list[Tensor]] = {config.fast_steps: [], BEYOND * config.fast_steps: []}
    for batch in batches(saved, saved.split("validation"), f"Inferring thoughts with {label}", ROWS):
        targets = (batch["labels"][:, 1:] != IGNORED).sum(1)
        for steps, parts in layers.items():
            posterior = infer(model, batch, inference="variational", fast_steps=steps)
            parts.append((posterior.kl_by_layer(model.thought_layers) / targets[:, None]).cpu())
        for parts, nats in zip(curves.values(), (-posterior.elbo, posterior.nll, posterior.kl)):
            parts.append((nats / targets).cpu())
    by_step = {name: mean_and_std(torch.cat(parts, dim=1).T) for name, parts in curves.items()}
    by_layer = {str(steps): mean_and_std(torch.cat(parts)) for steps, parts in layers.items()}
    rows = sum(map(len, layers[config.fast_steps]))
    picture, ((left, right),) = canvas(1, 2, 10, 3.8, width_ratios=(3, 2))
    for color, (name, series) in zip(COLORS, by_step.items()):
        band(left, range(len(series["mean"])), series, color=color, label=name)
    places = np.arange(model.thought_layers)
    for i, (count, series) in enumerate(by_layer.items()):
        style = {"yerr": series["std"], "ecolor": "0.4", "color": COLORS[3 + i], "label": f"after {count} steps"}
        right.bar(places + 0.4 * (i - 0.5), series["mean"], 0.38, **style)
    left.axvline(config.fast_steps, color="0.5", linestyle=":", linewidth=1)
    left.annotate(
        "T_fast of training", (config.fast_steps, 1), xycoords=("data", "axes fraction"), xytext=(3, -3),
        textcoords="offset points", va="top", fontsize=7, color="0.4",
    )  # fmt: skip
    left.set(title=f"inference of {label}", xlabel="fast steps", ylabel="nats per token", ylim=(0, None))
    left.legend(ncols=3)
    right.set(xlabel="layer (from 0)", ylabel="KL, nats per token", ylim=(0, None))
    right.set_xticks(places, ["all"] if config.shared_latents else [str(layer) for layer in places])
    right.grid(visible=False, axis="x")
    right.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    schedule = f"{config.fast_optimizer}, learning rate {config.fast_learning_rate:g}, {config.fast_schedule}"
    footnote(picture, f"{rows} validation rows; bands, lines: one standard deviation; {schedule}")
    numbers = {"split": "validation", "curves": by_step, "kl_by_layer": by_layer, "rows": rows}
    return picture, _about(saved, label) | numbers


def steps(paths: list[str]) -> Drawing:
    """Draw the bound, its parts and the prefix-conditioned NLL, nats per token, by fast steps at test time.

    The fast learning rate is the one of training. Models without fast steps are lines: models with an encoder, and
    models without thoughts, whose likelihood is exact and is also drawn for the same second halves.
    """
    from mentalese.data.tokenizers import tokenizer_fingerprint

    models = [_open(path) for path in paths]
    read = [(m.data.source, tokenizer_fingerprint(m.tokenizer), m.evaluation.context_length) for m, _ in models]
    for path, other in zip(paths, read):
        remedy = f"it has another text, tokenizer or length than {paths[0]}, use models with the same"
        require(other == read[0], "the figure's path", path, remedy)
    picture, (panels,) = canvas(1, 3, 12, 4)
    numbers = []
    for i, ((saved, model), label) in enumerate(zip(models, model_names(paths))):
        nats, style = _by_steps(saved, model, label), line_style(i) | {"label": label}
        lines = [*zip(panels, ("bound", "nll", "prefix"))] + [(panels[1], "kl")] * ("kl" in nats)
        for panel, name in lines:
            dashed = {"label": None, "linestyle": "--"} if name == "kl" else {}
            _line(panel, nats, name, model.config.fast_steps, style | dashed)
        numbers.append(_about(saved, label) | nats)
    titles = "bound: NLL + KL", "its NLL (lines) and KL (dashes)", "NLL of the second half given thoughts of the first"
    for panel, title in zip(panels, titles):
        panel.set(title=title, xscale="log", xlabel="fast steps at test time")
        ticks_at(panel.xaxis, [step for each in numbers for step in each["steps"] if step is not None])
        panel.xaxis.set_major_formatter("{x:.0f}")
    panels[0].set_ylabel("nats per token")
    panels[0].legend()
    footnote(picture, f"{numbers[0]['rows']} validation rows; rings: T_fast of training; bands: 95% over rows")
    return picture, {"split": "validation", "models": numbers}


def _by_steps(saved: Saved, model: LTMForCausalLM, label: str) -> Numbers:
    """Return nats per token with 95% intervals over rows by number of fast steps; `None`: no fast steps."""
    import torch

    from mentalese.evaluation.statistics import bootstrap_ratio
    from mentalese.nn.loss import IGNORED

    config = model.config
    at: list[int | None] = [None]
    if config.num_latents and config.scoring == "variational":
        at = [*sorted({max(1, round(times * config.fast_steps)) for times in TIMES})]
    nats: dict[str, list[Tensor]] = {}
    tokens: dict[str, list[Tensor]] = {}
    for batch in batches(saved, saved.split("validation"), f"Scoring with {label}", ROWS):
        each = []
        for count in at:
            parts = model.nll_parts(batch, fast_steps=count)
            prefix = model.nll_parts(batch, "prefix", fast_steps=count)["nll"]
            each.append(parts | {"bound": torch.stack([*parts.values()]).sum(0), "prefix": prefix})
        for name in each[0]:
            scored = model.scored_labels(batch, "prefix" if name == "prefix" else model.estimators[0])
            counted = (scored != IGNORED).sum(1, keepdim=True).expand(-1, len(at))
            tokens.setdefault(name, []).append(counted.cpu().double())
            nats.setdefault(name, []).append(torch.stack([row[name].sum(1) for row in each], dim=1).cpu().double())
    scores: Numbers = {"steps": at, "rows": sum(map(len, nats["bound"])), "interval": {}}
    for name in nats:
        total, size = torch.cat(nats[name]).numpy(), torch.cat(tokens[name]).numpy()
        interval = bootstrap_ratio(total, size)
        scores[name] = (total.sum(0) / size.sum(0)).tolist()
        scores["interval"][name] = None if interval is None else interval.tolist()
    return scores


def _line(panel: Axes, scores: Numbers, name: str, trained: int, style: Numbers) -> None:
    """Draw a number by fast steps with a ring at the steps of training, or a horizontal line without steps."""
    steps, values, interval = scores["steps"], scores[name], scores["interval"][name]
    if steps == [None]:
        panel.axhline(values[0], **style | {"marker": None, "linestyle": ":" if name == "kl" else "-."})
        return
    panel.plot(steps, values, **style)
    ring = {"marker": "o", "markersize": 12, "markerfacecolor": "none", "color": style["color"]}
    panel.plot(trained, values[steps.index(trained)], **ring)
    interval_band(panel, steps, interval, style["color"])


# -- scaling of training (Figures 1 and 4) -----------------------------------------------------------------------------


def scaling(paths: list[str]) -> Drawing:
    """Draw test perplexity by T_fast, and validation perplexity over tokens and FLOPs, of finished runs.

    Runs without thoughts are dashed; they and VAEs, which take no steps, are level lines. All runs were scored on the
    same tokens, and with thoughts by one estimator.
    """
    runs = [_trained(path) for path in paths]
    for run in runs:
        remedy = f"it was scored on another text than {runs[0]['path']}, use runs of the same text"
        require(run["text"] == runs[0]["text"], "the figure's path", run["path"], remedy)
    estimators = {run["estimator"] for run in runs if run["latents"]}
    remedy = f"their perplexities are {' and '.join(sorted(estimators))}, use runs of the same estimator"
    require(len(estimators) < 2, "the figure's path", " ".join(paths), remedy)
    picture, ((by_steps, by_tokens, by_flops),) = canvas(1, 3, 14, 3.8)
    models: dict[str, list[Numbers]] = {}
    for run in runs:
        models.setdefault(run["model"], []).append(run)
    every = sorted({run["fast_steps"] for run in runs} - {None})
    for i, (name, series) in enumerate(models.items()):
        style, dashes = line_style(i), "-" if series[0]["latents"] else "--"
        series.sort(key=lambda run: run["fast_steps"] or 0)
        if steps := [(run["fast_steps"], run["test_perplexity"]) for run in series if run["fast_steps"] is not None]:
            by_steps.plot(*zip(*steps), label=name, **style)
        for run in series:
            if run["fast_steps"] is None:
                by_steps.axhline(run["test_perplexity"], color=style["color"], linestyle=dashes, label=name)
                label, mark = name, None
            else:
                label = f"{name}, T {run['fast_steps']}"
                mark = MARKERS[every.index(run["fast_steps"]) % len(MARKERS)]
            line = {"color": style["color"], "marker": mark, "markersize": 4, "linestyle": dashes}
            for panel, axis in ((by_tokens, "tokens"), (by_flops, "flops")):
                panel.plot(run["curve"][axis], run["curve"]["perplexity"], label=label, **line)
    if every:
        by_steps.set_xscale("log", base=2)
        by_steps.set_xticks(every, [str(steps) for steps in every])
    by_steps.set(title="test perplexity", xlabel="T_fast of training", yscale="log")
    by_steps.legend(fontsize=7)
    for panel, label in ((by_tokens, "training tokens"), (by_flops, "training FLOPs")):
        panel.set(title="validation perplexity", yscale="log")
        count_axis(panel.xaxis, label)
    by_flops.set_xscale("log")
    by_flops.xaxis.set_major_formatter("{x:.0e}")
    for panel in (by_steps, by_tokens, by_flops):
        plain_ticks(panel.yaxis)
    handles, names = by_tokens.get_legend_handles_labels()
    picture.legend(handles, names, loc="outside right center", fontsize=7)
    if estimators:
        kind = "upper bounds" if estimators == {"elbo-bound"} else f"of the estimator {''.join(estimators)}"
        footnote(picture, f"perplexities of runs with thoughts are {kind}")
    return picture, {"runs": runs}


def _trained(path: str) -> Numbers:
    """Return the numbers of a finished run of this family."""
    from mentalese.families.latent_thought.config import LTMConfig

    result = read_result(path)
    fields = result["config"]["model"]
    require(fields["model_type"] == "ltm", "the figure's path", path, "use runs of Latent Thought Models")
    config = LTMConfig(**{name: value for name, value in fields.items() if name != "model_type"})
    curve = [point for point in result["curve"] if "validation_perplexity" in point]
    about = ["without thoughts"]
    if config.has_thoughts:
        kind = {"variational": [], "langevin": ["Langevin"], "amortised": ["VAE"]}[config.inference]
        about = [f"N_z {config.num_latents}", *["shared"] * config.shared_latents, *kind]
        choices = ("slow_grad", "noise", "fast_optimizer", "fast_schedule", "thought_control")
        about += [str(value) for name in choices if (value := getattr(config, name)) != getattr(LTMConfig, name)]
    takes_steps = config.has_thoughts and config.inference != "amortised"
    return {
        "path": path,
        "model": ", ".join([f"{config.num_hidden_layers} layers of {config.hidden_size}", *about]),
        "recipe": result["recipe"],
        "text": [result["data_hash"], result["test"]["tokens"]],
        "estimator": result["test"]["protocol"]["estimator"],
        "layers": config.num_hidden_layers,
        "latents": config.num_latents,
        "fast_steps": config.fast_steps if takes_steps else None,
        "test_perplexity": result["test"]["perplexity"],
        "curve": {axis: [point[axis] for point in curve] for axis in ("tokens", "flops")}
        | {"perplexity": [point["validation_perplexity"] for point in curve]},
    }


FIGURES = {
    "scaling": Figure("perplexity by T_fast, and over training tokens and FLOPs", "RESULT ...", scaling),
    "reconstruction": Figure("tokens reconstructed from the thoughts of the first layers", "MODEL", reconstruction),
    "words": Figure("words of a text reconstructed from the thoughts of the first layers", "MODEL", words),
    "inference": Figure("the bound and its parts over fast steps, and the KL by layer", "MODEL", inference),
    "steps": Figure("the bound and the prefix-conditioned likelihood by fast steps at test time", "MODEL ...", steps),
}

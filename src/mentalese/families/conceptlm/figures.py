"""Figures of ConceptLM: the use of codes over training, and the concepts of a text.

Concepts appear one segment at a time: u of chunk j in the channels of that segment, its nearest code, and its
prediction p_{j-1} (section 2.2).
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, cast

from mentalese.analyses.drawing import (
    COLORS,
    Drawing,
    Figure,
    Numbers,
    batches,
    canvas,
    count_axis,
    drawable,
    footnote,
    in_rows,
    line_style,
    percent_axis,
    read_result,
    read_run,
)
from mentalese.errors import require
from mentalese.formatting import model_names
from mentalese.model_fields import config_class
from mentalese.models.config import LatentThoughtConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture
    from torch import Tensor

    from mentalese.data.batch import Batch
    from mentalese.families.conceptlm.model import ConceptLMForCausalLM, Concepts
    from mentalese.models.saved import Saved

CURVES = {
    "codebook_utilisation": "codes in use",
    "codebook_perplexity": "perplexity of codes",
    "ncp": "next-concept loss",
    "concept_r2": "R² of predicted concepts",
}
CHUNKS = 20_000  # first chunks of the validation split
NEAREST = 3  # similar chunks next to each chunk
SHOWN = 40  # chunks of a text in the picture; the numbers contain all
WIDTH = 24  # characters per chunk


# -- codes over training (appendix E.3) --------------------------------------------------------------------------------


def codebook(paths: list[str]) -> Drawing:
    """Draw the share of codes nearest to a concept of a training batch, their perplexity, and the next-concept loss.

    For codes: the mean and the minimum over segments. A batch with fewer concepts uses fewer codes. Next to the loss is
    the share of the concepts' variance that predictions explain; 0 means no better than the mean concept. The share is
    missing if not all runs have logged it.
    """
    runs = [[record for record in read_run(path) if "codebook_utilisation" in record] for path in paths]
    for path, records in zip(paths, runs):
        remedy = "it has logged no codebook_utilisation, use a run of a ConceptLM with a codebook"
        require(bool(records), "the figure's path", path, remedy)
    curves = {name: title for name, title in CURVES.items() if all(name in record for of in runs for record in of)}
    picture, (panels,) = canvas(1, len(curves), 3.7 * len(curves), 3.6)
    numbers = []
    for i, (path, label, records) in enumerate(zip(paths, model_names(paths), runs)):
        style = line_style(i) | {"markersize": 3}
        least = [f"{name}.least" for name in curves if name.startswith("codebook")]
        series = {name: [record[name] for record in records] for name in ("tokens", *curves, *least)}
        for panel, name in zip(panels, curves):
            panel.plot(series["tokens"], series[name], label=label, **style)
        for panel, name in zip(panels, least):
            panel.plot(series["tokens"], series[name], linestyle="--", linewidth=1, **(style | {"marker": None}))
        numbers.append({"path": path, "label": label} | series)
    for panel, title in zip(panels, curves.values()):
        panel.set_title(title)
        count_axis(panel.xaxis, "training tokens")
    panels[0].set_ylim(0, 1.03)
    percent_axis(panels[0].yaxis)
    panels[1].set_ylim(1, None)
    panels[2].set_ylim(0, None)
    panels[2].ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
    if "concept_r2" in curves:
        panels[3].axhline(0, color="gray", linewidth=1)
        panels[3].set_ylim(-1, 1)
    panels[0].legend()
    footnote(picture, "codes nearest to a concept of a training batch; mean over segments, dashed: minimum")
    return picture, {"runs": numbers}


# -- what the baseline's perplexity costs (Figure 1) -------------------------------------------------------------------


def shares(paths: list[str]) -> Drawing:
    """Return the shares of tokens, FLOPs and parameters with which ConceptLM reaches the largest plain decoder.

    Tokens and FLOPs are counted until the validation perplexity of the largest ConceptLM first equals the decoder's
    best. Parameters (non-embedding) are the size at which the best perplexity of ConceptLMs equals it. Both are
    interpolated between logarithms; `null` if not reached, or reached from the first validation or the smallest size
    on. A decaying learning rate makes the first two shares too large, because the decoder's best is annealed and the
    perplexities compared with it are not.
    """

    def size(result: Numbers) -> int:
        return result["parameters"]["non_embedding"]

    def validated(result: Numbers) -> list[Numbers]:
        return [point for point in result["curve"] if "validation_perplexity" in point]

    results = [read_result(path) for path in paths]
    conceptual: list[Numbers] = []
    plain: list[Numbers] = []
    for path, result in zip(paths, results):
        model = result["config"]["model"]
        is_conceptual = model["model_type"] == "conceptlm" and model.get("codebook", "mlp") is not None
        is_plain = not issubclass(config_class(model["model_type"]), LatentThoughtConfig)
        remedy = "it is neither ConceptLM with a codebook nor a plain decoder, leave it out"
        require(is_conceptual or is_plain, "the figure's path", path, remedy)
        (conceptual if is_conceptual else plain).append(result)
    both = bool(conceptual and plain)
    require(both, "the figure's paths", paths, "use results of ConceptLM and of a plain decoder")
    one_text = len({r["data_hash"] for r in results}) == 1
    require(one_text, "the figure's paths", paths, "the runs were trained on different texts, use runs on one text")
    largest, base = (max(group, key=size) for group in (conceptual, plain))
    curve, best = validated(largest), min(validated(base), key=lambda point: point["validation_perplexity"])
    target, scores = best["validation_perplexity"], [point["validation_perplexity"] for point in curve]
    ends = sorted((size(r), min(p["validation_perplexity"] for p in validated(r))) for r in conceptual)
    reached = {axis: (_reached([p[axis] for p in curve], scores, target), best[axis]) for axis in ("tokens", "flops")}
    reached["parameters"] = _reached([x for x, _ in ends], [score for _, score in ends], target), size(base)
    numbers: Numbers = {"model": largest["recipe"], "baseline": base["recipe"], "perplexity": target}
    for axis, (needed, whole) in reached.items():
        numbers[axis] = {"needed": needed, "baseline": whole, "share": None if needed is None else needed / whole}
    picture, ((left, right),) = canvas(1, 2, 9.5, 3.8)
    for i, result in enumerate((largest, base)):
        line = [(point["tokens"], point["validation_perplexity"]) for point in validated(result)]
        left.plot(*zip(*line), label=result["recipe"], **line_style(i) | {"markersize": 3})
    right.plot(*zip(*ends), label="ConceptLM", **line_style(0))
    right.plot(size(base), target, linestyle="", label=base["recipe"], **line_style(1))
    for panel, unit in ((left, "training tokens"), (right, "non-embedding parameters")):
        panel.axhline(target, color="0.5", linewidth=1)
        panel.set(yscale="log", ylabel="validation perplexity")
        count_axis(panel.xaxis, unit)
        panel.legend()
    stated = [f"{axis} {needed / whole:.0%}" for axis, (needed, whole) in reached.items() if needed is not None]
    otherwise = "reached before the first validation" if scores[0] <= target else "not reached"
    sentence = f"needs of its {', '.join(stated)}" if stated else f"is {otherwise}"
    footnote(picture, f"the decoder's perplexity {sentence}")
    return picture, numbers


def _reached(x: list[float], y: list[float], target: float) -> float | None:
    """Return the first x at which y falls to the target, by a line between logarithms.

    `None` if y never reaches the target or starts below it.
    """
    for before, after in pairwise(range(len(x))):
        if y[before] > target >= y[after]:
            part = math.log(y[before] / target) / math.log(y[before] / y[after])
            return x[before] * (x[after] / x[before]) ** part
    return None


# -- concepts of a text ------------------------------------------------------------------------------------------------


def _open(path: str) -> tuple[Saved, ConceptLMForCausalLM]:
    """Return a ConceptLM with codes that reads rows of the length used in training."""
    from mentalese.models.saved import load

    saved = load(path)
    config = saved.model.config
    has_codes = config.model_type == "conceptlm" and config.codebook is not None
    require(has_codes, "the figure's path", path, "use a ConceptLM with a codebook")
    return in_rows(saved), cast("ConceptLMForCausalLM", saved.model)


def _read(model: ConceptLMForCausalLM, batch: Batch) -> tuple[Tensor, Concepts]:
    """Return the tokens of complete chunks of a batch [n, k], row by row, and their concepts."""
    import torch

    ids, mask, size = batch["input_ids"], batch.get("attention_mask"), model.config.chunk_size
    rows = ids if mask is None else [row[real.bool()] for row, real in zip(ids, mask)]
    with torch.no_grad():
        concepts = model.encode(ids, mask).concepts
    assert concepts is not None
    return torch.cat([row[: len(row) // size * size].view(-1, size) for row in rows]).cpu(), concepts


def concepts(paths: list[str], text: str) -> Drawing:
    """Draw a text chunk by chunk: code in one segment, prediction error, and other chunks with the same code.

    The segment is the one whose codes the validation split uses most evenly. Next to a chunk are the chunks of that
    split with the same code that are nearest to it in the segment's channels. The error is the mean squared error over
    all channels (L_NCP, section 3), next to the error of the validation split's mean concept as a baseline.
    """
    import torch

    from mentalese.data.batch import to_device
    from mentalese.families.conceptlm.codebook import nearest_codes, usage

    [path] = paths
    saved, model = _open(path)
    config, source, size = model.config, saved.data.source, model.config.chunk_size
    batch = saved.layout.encode_prompts([text], saved.tokenizer, saved.data)
    count, length = batch["input_ids"].shape[1], saved.evaluation.context_length or 0
    remedy = f"it has {count} tokens with its start, use one of {size} (a chunk) to {length} (a row)"
    require(size <= count <= length, "the text", f"{text[:20]} ..", remedy)
    # The first chunks of the validation split: tokens [n, k], concepts [n, d] and codes [n, S].
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for rows in batches(saved, saved.split("validation"), "Reading the validation split"):
        chunk_tokens, rows_read = _read(model, rows)
        parts.append((chunk_tokens, rows_read.own.float().cpu(), rows_read.chosen.cpu()))
        if sum(len(part[0]) for part in parts) >= CHUNKS:
            break
    split_tokens, split_concepts, split_codes = (torch.cat(part)[:CHUNKS] for part in zip(*parts))
    remedy = f"no row of its validation split has {size} tokens, use a model of longer texts"
    require(len(split_tokens) > 0, "the model's source", source, remedy)
    used = usage(split_codes, config.num_codes)
    segment = int(used.perplexity.argmax())

    tokens, read = _read(model, to_device(batch, saved.device))
    assert read.codes is not None
    own, codes, predicted = read.own.float().cpu(), read.chosen.cpu(), read.predicted[0, : len(tokens) - 1].float()
    errors = (predicted.cpu() - own[1:]).square().mean(-1).tolist()
    guesses = nearest_codes(predicted, read.codes)[:, segment].tolist()
    of_mean = (split_concepts.mean(0) - own).square().mean(-1).tolist()
    channels, split_channels = (u.chunk(codes.shape[1], dim=-1)[segment] for u in (own, split_concepts))
    chunks = []
    for j, code in enumerate(codes[:, segment].tolist()):
        same = (split_codes[:, segment] == code).nonzero()[:, 0]
        by_distance = same[(split_channels[same] - channels[j]).square().mean(-1).argsort()]
        chunk_text = saved.tokenizer.decode(tokens[j].tolist())
        others: list[str] = []  # the nearest chunks with other texts, which differ
        for index in by_distance.tolist():
            other = str(saved.tokenizer.decode(split_tokens[index].tolist()))
            if other not in (chunk_text, *others):
                others.append(other)
            if len(others) == NEAREST:
                break
        chunks.append(
            {
                "text": chunk_text,
                "codes": codes[j].tolist(),
                "code": code,
                "predicted_code": guesses[j - 1] if j else None,
                "error": errors[j - 1] if j else None,
                "error_of_mean": of_mean[j],
                "same_code": len(same),
                "nearest": others,
            }
        )
    numbers = {
        "path": path,
        "label": model_names(paths)[0],
        "text": text,
        "source": source,
        "split": "validation",
        "split_chunks": len(split_tokens),
        "segment": segment,
        "segment_perplexity": float(used.perplexity[segment]),
        "chunk_size": size,
        "num_codes": config.num_codes,
        "chunks": chunks,
    }
    return _draw_concepts(numbers), numbers


def _draw_concepts(numbers: Numbers) -> Picture:
    """Draw one line per chunk: its text on the colour of its code, the predicted code, errors, and nearest chunks."""
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    chunks = numbers["chunks"][:SHOWN]
    seen = [code for chunk in chunks for code in (chunk["code"], chunk["predicted_code"]) if code is not None]
    distinct = list(dict.fromkeys(seen))
    palette = colormaps["hsv"]
    colors = {code: (*palette(i / len(distinct))[:3], 0.3) for i, code in enumerate(distinct)}
    widths = (2.6, 0.8, 2.2, 5.2)
    picture, ((left, guess, bars, right),) = canvas(
        1, 4, sum(widths) + 0.4, 1.1 + 0.23 * len(chunks), sharey=True, width_ratios=widths
    )
    mono: Numbers = {"family": "monospace", "fontsize": 7.5, "va": "center", "parse_math": False}
    for row, chunk in enumerate(chunks):
        for panel, name, x, side in ((left, "code", 0.98, "right"), (guess, "predicted_code", 0.5, "center")):
            code = chunk[name]
            if code is not None:
                panel.add_patch(Rectangle((0, row - 0.46), 1, 0.92, facecolor=colors[code], linewidth=0))
                panel.text(x, row, str(code), ha=side, **mono)
        left.text(0.02, row, drawable(chunk["text"], WIDTH, "monospace"), **mono)
        nearest = "  ".join(f"{drawable(other, WIDTH, 'monospace'):<{WIDTH}}" for other in chunk["nearest"])
        right.text(0, row, f"{chunk['same_code']:>5}  {nearest}".rstrip(), **mono)
    rows = [row for row, chunk in enumerate(chunks) if chunk["error"] is not None]
    bars.barh(rows, [chunks[row]["error"] for row in rows], 0.6, color=COLORS[0])
    means = [chunks[row]["error_of_mean"] for row in rows]
    bars.plot(means, rows, "|", color=COLORS[1], markersize=9, markeredgewidth=2)
    bars.grid(visible=False, axis="y")
    bars.set_xlim(0, None)
    bars.tick_params(axis="y", left=False, labelleft=False)
    bars.ticklabel_format(axis="x", style="sci", scilimits=(-2, 3))
    for panel in (left, guess, right):
        panel.set_axis_off()
        panel.set_xlim(0, 1)
    left.set_ylim(len(chunks) - 0.4, -0.6)
    left.set_title("chunk and its code")
    guess.set_title("predicted")
    bars.set_title("error (|: mean concept)")
    right.set_title("number of validation chunks with the code, and the nearest")
    cut = f"; the first {SHOWN} of {len(numbers['chunks'])} chunks" if len(numbers["chunks"]) > SHOWN else ""
    note = (
        f"{numbers['label']}, segment {numbers['segment']} (from 0) of {len(chunks[0]['codes'])}, "
        f"{numbers['num_codes']} codes, perplexity {numbers['segment_perplexity']:.1f} "
        f"on {numbers['split_chunks']:,} chunks{cut}"
    )
    footnote(picture, note)
    return picture


FIGURES = {
    "codebook": Figure("codes in use, their perplexity and the next-concept loss over training", "RUN ...", codebook),
    "shares": Figure(
        "share of a plain decoder's tokens, FLOPs and parameters that its perplexity needs", "RESULT ...", shares
    ),
    "concepts": Figure(
        "a text chunk by chunk: codes, errors of predicted concepts, and chunks that share a code", "MODEL", concepts
    ),
}

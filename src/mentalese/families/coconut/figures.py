"""Figures of Coconut and AGCLR: memory of the question, gates, and the tokens nearest to thoughts.

Passes are counted as latents are, from 1 to K. Pass t has

    h_t     the last hidden state (after the final norm) at the position before latent t: for t = 1 at the start marker
    h'_t    the input of latent t: h_t itself, or in AGCLR the gated state (Eq. 3)
    c_t     AGCLR's concept stream after latent t (Eq. 4)

Questions have the latents of the last stage of training. Thoughts come from the validation split, as in the paper
(appendix B.2). Accuracies by the number of latents come from the test split, because the model was selected on the
validation split with its own number. A figure takes the first `documents` questions of `source`, or of the source that
each model was trained on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from mentalese.analyses.drawing import (
    COLORS,
    MARKERS,
    Figure,
    band,
    canvas,
    drawable_token,
    footnote,
    line_style,
    mean_and_std,
    only_path,
    percent_axis,
)
from mentalese.errors import InputError
from mentalese.formatting import model_names

if TYPE_CHECKING:
    from torch import Tensor

    from mentalese.data.prosqa import Question as GraphQuestion
    from mentalese.data.split import Split
    from mentalese.evaluation.answers import AnswerRecord
    from mentalese.families.coconut.model import Thoughts
    from mentalese.models.saved import Saved
    from mentalese.suite.tasks.reachability import Reachability

DOCUMENTS = 100  # first questions of the split for figures of thoughts (appendix B.2)
ANSWERED = 500  # questions to answer
NEAREST = 5  # tokens
CASES = 3  # cases in the picture, as in Figure 4; the numbers contain all
WIDTH = 80  # characters of a line
SHOWN = 12  # tokens of an answer in a row
FEEDBACK = ("coconut", "agclr")  # modes whose latents are hidden states
COSINE = "cosine with the token's embedding"


# -- a model of latents, and its questions -----------------------------------------------------------------------------


def _load(path: str, source: str | None, documents: int | None) -> Saved:
    """Return a model with the first `documents` questions of `source`, or of the text that it was trained on."""
    from mentalese.models.saved import load

    saved = load(path).on(source).scored_by(max_documents=documents)
    if not saved.layout.questions:
        raise InputError(f"{saved.path} was not trained on questions (layout 'qa'): use a model that was")
    return saved


def _open(path: str, modes: Sequence[str] = FEEDBACK, source: str | None = None, documents: int | None = None) -> Saved:
    """Return a model of one of these modes with its questions; its last stage must have latents."""
    saved = _load(path, source, documents)
    config = saved.model.config
    if config.model_type != "coconut":
        raise InputError(f"{saved.path} is a {config.model_type} model: use one of the modes {', '.join(modes)}")
    if config.mode not in modes:
        why = "no concept stream" if modes == ("agclr",) else "nothing that is fed back"
        raise InputError(f"{saved.path} has the mode {config.mode!r}, {why}: use one of {', '.join(modes)}")
    if not _latents(saved):
        raise InputError(
            f"{saved.path} was last trained at stage {saved.layout.stage}, which has no latents: use a model "
            "whose recipe has layout.latents, or layout.latents_per_step at a later stage"
        )
    return saved


def _latents(saved: Saved) -> int:
    """Return K, the number of latents in the last stage of training."""
    return saved.layout.asked().get("latents") or 0


def _about(saved: Saved, label: str) -> dict[str, Any]:
    names = {"path": saved.path, "label": label, "mode": saved.model.config.mode}
    return names | {"stage": saved.layout.stage, "latents": _latents(saved)}


def _split(saved: Saved, name: str, latents: int | None = None) -> Split:
    """Return a split of questions that fit into the model's context with this number of latents."""
    from mentalese.evaluation.questions import check_room

    split = saved.split(name)
    check_room(saved.at(None, latents), split)
    return split


def _answered(saved: Saved, split: Split, latents: int | None = None) -> list[AnswerRecord]:
    """Return the greedy answer to each question, with this number of latents."""
    from mentalese.evaluation.answers import ask

    return ask(saved.at(None, latents), split, show=True).records


def _think(saved: Saved, rows: dict[str, Any]) -> Thoughts:
    import torch

    from mentalese.data.batch import to_device
    from mentalese.families.coconut.model import CoconutForCausalLM

    assert isinstance(saved.model, CoconutForCausalLM)
    with torch.no_grad():
        return saved.model.encode(**to_device(rows, saved.device)).thoughts


def _thinking(saved: Saved, split: Split, label: str) -> Iterator[tuple[list[int], Thoughts]]:
    """Yield, batch by batch, indices of questions in the split and the latents after these questions."""
    from mentalese.data.evaluation import question_batches
    from mentalese.screen import progress

    count = saved.evaluation.documents(len(split.document_bytes))
    with progress(f"Reading {label}", count, show=True) as bar:
        done = 0
        for batch in question_batches(split, saved.layout, saved.evaluation, saved.tokenizer):
            documents = batch.pop("documents").tolist()
            yield documents, _think(saved, batch)
            bar.update(done := done + len(documents))


def _similarity(saved: Saved, vectors: Sequence[Tensor]) -> Tensor:
    """Return the cosine [K, ..., v] of vectors [..., d] with the embedding of each token."""
    import torch
    from torch.nn.functional import normalize

    embeddings = saved.model.get_input_embeddings().weight.detach()[: len(saved.tokenizer)]
    return normalize(torch.stack(list(vectors)).float(), dim=-1) @ normalize(embeddings.float(), dim=-1).T


# -- drawing -----------------------------------------------------------------------------------------------------------


def _passes(title: str, label: str = "pass") -> tuple[Any, Any]:
    """Return a picture with a single panel, with passes from left to right."""
    from matplotlib.ticker import MaxNLocator

    picture, ((panel,),) = canvas(1, 1, 6.5, 4)
    panel.set(title=title, xlabel=label)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    return picture, panel


def _questions(models: Sequence[dict[str, Any]]) -> str:
    return " or ".join(map(str, sorted({model["questions"] for model in models})))


def _range(values: Sequence[np.ndarray]) -> dict[str, float]:
    return {"vmin": min(part.min() for part in values), "vmax": max(part.max() for part in values)}


def _heat_map(panel: Any, values: np.ndarray, texts: Sequence[Sequence[str]], scale: dict[str, float]) -> Any:
    """Draw values [rows, columns] with a text in each cell; the first row is on top."""
    image = panel.pcolormesh(values, cmap="Blues", edgecolors="white", linewidth=1, **scale)
    span = scale["vmax"] - scale["vmin"] or 1.0
    for (row, column), value in np.ndenumerate(values):
        dark = (value - scale["vmin"]) / span > 0.6
        panel.text(
            column + 0.5, row + 0.5, texts[row][column].replace("-", "−"), ha="center", va="center", fontsize=7,
            color="white" if dark else "0.1", parse_math=False,
        )  # fmt: skip
    panel.invert_yaxis()
    panel.tick_params(length=0)
    panel.grid(visible=False)
    panel.spines[:].set_visible(False)
    return image


def _ticks(panel: Any, columns: Sequence[str], rows: Sequence[str], **style: Any) -> None:
    panel.set_xticks(np.arange(len(columns)) + 0.5, columns, **style)
    panel.set_yticks(np.arange(len(rows)) + 0.5, rows)


def _short(text: str, width: int = WIDTH) -> str:
    """Return the end of a text, where the question itself stands."""
    return text if len(text) <= width else f"… {text[2 - width :]}"


# -- memory retention (Figure 3) ---------------------------------------------------------------------------------------


def retention(paths: list[str], *, source: str | None = None, documents: int = DOCUMENTS) -> tuple[Any, dict[str, Any]]:
    """Draw how close each pass stays to the first one: cosine of h_1 and h_t, and for AGCLR also of h'_1 and h'_t.

    The paper does not state which states it compares; both models have h. In Coconut h' is the same.
    """
    import torch
    from torch.nn.functional import cosine_similarity

    models = [_open(path, FEEDBACK, source, documents) for path in paths]
    for saved in models:
        if _latents(saved) < 2:
            raise InputError(f"{saved.path} has one latent, and no pass after the first: use a model with more")
    splits = [_split(saved, "validation") for saved in models]
    picture, panel = _passes("cosine of each pass's hidden state with the first one's")
    numbers: dict[str, Any] = {"split": "validation", "models": []}
    for i, (saved, label, split) in enumerate(zip(models, model_names(paths), splits)):
        cosines: dict[str, list[Tensor]] = {"h": [], "h'": []}
        for _, thoughts in _thinking(saved, split, label):
            for name, passes in (("h", thoughts.states), ("h'", thoughts.latents)):
                states = torch.stack(passes, dim=1).float()
                cosines[name].append(cosine_similarity(states[:, :1], states, dim=-1).cpu())
        series = {name: mean_and_std(torch.cat(parts)) for name, parts in cosines.items()}
        numbers_of_passes, style = range(1, _latents(saved) + 1), line_style(i)
        band(panel, numbers_of_passes, series["h"], label=label, **style)
        if saved.model.config.mode == "agclr":
            gated = {"linestyle": "--", "markerfacecolor": "white", "linewidth": 1, "label": f"{label}, gated"}
            panel.plot(numbers_of_passes, series["h'"]["mean"], **(style | gated))
        questions = sum(map(len, cosines["h"]))
        numbers["models"].append(_about(saved, label) | {"questions": questions, "source": saved.data.source} | series)
    panel.set(ylim=(None, 1.04))
    panel.legend()
    footnote(picture, f"{_questions(numbers['models'])} validation questions; bands: one standard deviation")
    return picture, numbers


# -- gates (Eq. 2, Table 3) --------------------------------------------------------------------------------------------


def gates(paths: list[str], *, source: str | None = None, documents: int = DOCUMENTS) -> tuple[Any, dict[str, Any]]:
    """Draw the mean of each gate's channels by pass: mean and standard deviation over questions."""
    import torch

    from mentalese.families.coconut.config import GATES

    saved = _open(only_path(paths, "coconut/gates"), ("agclr",), source, documents)
    [label], config = model_names(paths), saved.model.config
    values: dict[str, list[Tensor]] = {name: [] for name in GATES if name in config.gates}
    if not values:
        raise InputError(f"{saved.path} has no gates (coconut.gates is empty): use an AGCLR model with gates")
    for _, thoughts in _thinking(saved, _split(saved, "validation"), label):
        for name, parts in values.items():
            parts.append(torch.stack([gate[name].float().mean(-1).cpu() for gate in thoughts.gates], dim=1))
    questions = sum(map(len, next(iter(values.values()))))
    picture, panel = _passes(f"gates of {label}, mean over channels")
    numbers: dict[str, Any] = _about(saved, label) | {"split": "validation", "source": saved.data.source, "gates": {}}
    numbers["questions"] = questions
    for name, bias, color, marker in zip(GATES, config.gate_biases, COLORS, MARKERS):
        if name in values:
            start, series = 1 / (1 + math.exp(-bias)), mean_and_std(torch.cat(values[name]))
            band(panel, range(1, _latents(saved) + 1), series, label=name, color=color, marker=marker)
            panel.axhline(start, color=color, linestyle=":", linewidth=1)
            numbers["gates"][name] = series | {"at_the_start": start}
    panel.set(ylim=(0, 1))
    panel.legend(ncols=len(values))
    footnote(picture, f"{questions} validation questions; bands: one standard deviation; dotted: before training")
    return picture, numbers


# -- nearest tokens (section 5.3) --------------------------------------------------------------------------------------


def tokens(paths: list[str], text: str) -> tuple[Any, dict[str, Any]]:
    """Draw the tokens whose embeddings are nearest to the input of each latent, and to the concept stream after it.

    Below each pass is the mean cosine of all tokens, as a reference for the nearest ones.
    """
    from mentalese.models.build import context_length

    saved = _open(only_path(paths, "coconut/tokens"))
    [label] = model_names(paths)
    batch = saved.layout.encode_prompts([text], saved.tokenizer, saved.data)
    length, context = batch["input_ids"].shape[1], context_length(saved.model.config)
    if context is not None and length > context:
        raise InputError(f"the text has {length} tokens, latents included, and the context is {context}: shorten it")
    thoughts = _think(saved, batch)
    numbers: dict[str, Any] = _about(saved, label) | {"text": text, "streams": {}}
    for name, vectors in (("latent", thoughts.latents), ("concept", thoughts.concepts)):
        if vectors:
            similarity = _similarity(saved, [vector[0] for vector in vectors])
            near = similarity.topk(min(NEAREST, similarity.shape[1]))
            numbers["streams"][name] = {
                "tokens": [[saved.tokenizer.decode([i]) for i in ids] for ids in near.indices.tolist()],
                "similarity": near.values.tolist(),
                "mean_similarity": similarity.mean(1).tolist(),
            }
    return _draw_nearest(numbers), numbers


def _draw_nearest(numbers: dict[str, Any]) -> Any:
    """Draw passes from left to right, the nearest token above the others."""
    streams, passes = numbers["streams"], numbers["latents"]
    titles = {"latent": "input of latents", "concept": "concept stream"}
    similarities = [np.array(stream["similarity"]) for stream in streams.values()]
    rows = similarities[0].shape[1]
    picture, panels = canvas(len(streams), 1, max(7.0, 1.6 + 1.05 * passes), 0.8 + len(streams) * (0.8 + 0.4 * rows))
    for (panel,), (name, stream), similarity in zip(panels, streams.items(), similarities):
        texts = [[f"{drawable_token(t)}\n{s:.2f}" for t, s in zip(*each)] for each in zip(stream["tokens"], similarity)]
        image = _heat_map(panel, similarity.T, list(zip(*texts)), _range(similarities))
        means = [f"pass {i}\nall: {mean:.2f}".replace("-", "−") for i, mean in enumerate(stream["mean_similarity"], 1)]
        _ticks(panel, means, [str(i + 1) for i in range(rows)])
        panel.set_title(f"{titles[name]}: nearest tokens")
    picture.colorbar(image, ax=list(panels[:, 0]), fraction=0.04, pad=0.02, label=COSINE)
    title = f"{numbers['label']}\n{_short(' '.join(numbers['text'].split()))}"
    picture.suptitle(title, fontsize=8, x=0.01, ha="left", parse_math=False)
    footnote(picture, "all: mean cosine of all tokens")
    return picture


# -- questions that only one model answers (Table 4, Figure 4) ---------------------------------------------------------


def contrast(paths: list[str], *, source: str | None = None, documents: int = ANSWERED) -> tuple[Any, dict[str, Any]]:
    """Draw questions that only the first model, AGCLR, answers correctly, and what its memory contained.

    For each token of the answer and each pass: the cosine of the concept stream with the token's embedding, and the
    token's rank by it among all tokens (1: the nearest). The model does not read the answer, and no case is selected
    by its cosines.
    """
    if len(paths) != 2:
        raise InputError(f"the figure coconut/contrast needs an AGCLR model and one other, and {len(paths)} were given")
    names, agclr = model_names(paths), _open(paths[0], ("agclr",), source, documents)
    other = _load(paths[1], source, documents)
    if agclr.data.source != other.data.source:
        raise InputError(
            f"{agclr.path} was trained on {agclr.data.source} and {other.path} on {other.data.source}: use two models "
            "of the same questions"
        )
    split, other_split = _split(agclr, "validation"), _split(other, "validation")
    answers = list(zip(_answered(agclr, split), _answered(other, other_split), strict=True))
    outcomes = {(True, True): "both", (True, False): "first", (False, True): "second", (False, False): "neither"}
    counts = dict.fromkeys(outcomes.values(), 0)
    for a, b in answers:
        counts[outcomes[a.correct, b.correct]] += 1
    cases = {
        a.document: {"document": a.document, "expected": a.expected, "answers": [a.answer, b.answer]}
        for a, b in answers
        if a.correct and not b.correct
    }
    if not cases:
        raise InputError(
            f"{names[0]} answers none of {len(answers)} questions right that {names[1]} answers wrong "
            f"(both right {counts['both']}, neither {counts['neither']}): use other models or more documents"
        )
    for indices, thoughts in _thinking(agclr, split, names[0]):
        similarity = _similarity(agclr, thoughts.concepts)  # [K, B, v]
        for row, document in enumerate(indices):
            if document in cases:
                cases[document] |= _stored(agclr, split, document, similarity[:, row])
    numbers = {
        "models": [agclr.path, other.path],
        "labels": names,
        "split": "validation",
        "source": agclr.data.source,
        "questions": len(answers),
        "right": counts,
        "latents": _latents(agclr),
        "cases": list(cases.values()),
    }
    return _draw_cases(numbers), numbers


def _question(saved: Saved, split: Split, document: int) -> str:
    return str(saved.tokenizer.decode(split.segment(split.document_segments[document]).tolist())).strip()


def _stored(saved: Saved, split: Split, document: int, similarity: Tensor) -> dict[str, Any]:
    """Return a question and, for each token of its answer, similarity and rank among similarities [K, v]."""
    answer = split.segment(split.document_segments[document + 1] - 1).tolist()
    markers = set(saved.layout.special_ids(saved.tokenizer).values())
    ids = [i for i in dict.fromkeys(answer) if i not in markers and str(saved.tokenizer.decode([i])).strip(" #")]
    of_answer = similarity[:, ids]
    return {
        "question": _question(saved, split, document),
        "tokens": [saved.tokenizer.decode([i]) for i in ids],
        "similarity": of_answer.tolist(),
        "rank": ((similarity[:, None] > of_answer[..., None]).sum(-1) + 1).tolist(),
    }


def _draw_cases(numbers: dict[str, Any]) -> Any:
    """Draw the first few cases: passes from top to bottom, the answer's tokens from left to right."""
    cases, passes, labels = numbers["cases"][:CASES], numbers["latents"], numbers["labels"]
    similarities = [np.array(case["similarity"])[:, :SHOWN] for case in cases]
    width = max(part.shape[1] for part in similarities)
    picture, panels = canvas(len(cases), 1, max(7.5, 1.6 + 0.85 * width), 0.6 + len(cases) * (1.1 + 0.26 * passes))
    for (panel,), case, similarity in zip(panels, cases, similarities):
        texts = [[f"{value:.2f} #{rank}" for value, rank in zip(*row)] for row in zip(similarity, case["rank"])]
        image = _heat_map(panel, similarity, texts, _range(similarities))
        names = [drawable_token(token) for token in case["tokens"][:SHOWN]]
        _ticks(panel, names, [f"pass {i + 1}" for i in range(passes)], fontsize=8, parse_math=False)
        panel.set_xlim(0, width)
        answers = [f"{label}: {_short(answer, WIDTH - len(label))}" for label, answer in zip(labels, case["answers"])]
        panel.set_title("\n".join([_short(case["question"]), *answers]), fontsize=8, parse_math=False)
    picture.colorbar(image, ax=list(panels[:, 0]), fraction=0.04, pad=0.02, label=COSINE)
    right = numbers["right"]
    footnote(
        picture,
        f"the first {len(cases)} of {len(numbers['cases'])} cases; #: rank by cosine among all tokens\n"
        f"right answers of {numbers['questions']}: both {right['both']}, only {labels[0]} {right['first']}, "
        f"only {labels[1]} {right['second']}",
    )
    return picture


# -- search on graphs --------------------------------------------------------------------------------------------------


def frontier(paths: list[str], *, source: str | None = None, documents: int = ANSWERED) -> tuple[Any, dict[str, Any]]:
    """Draw whether latent t contains the nodes that breadth-first search reaches in step t.

    For each latent and each distance from the root: the chance that its input is closer (by cosine) to the
    name of a node at this distance than to the name of another node of the same graph, averaged over questions. 50% is
    no information. In breadth-first search, the nodes at distance t stand out in latent t (Zhu et al., "Reasoning by
    Superposition", arXiv 2505.12514, see them there). A name is the mean of its tokens' embeddings. Where a fact is one
    word (`facts=words`), the facts into a node are its names, and their mean is compared; people have none.
    """
    import torch

    saved = _open(only_path(paths, "coconut/frontier"), FEEDBACK, source, documents)
    [label], (task, graphs), split = model_names(paths), _search(saved.data.source), _split(saved, "validation")
    embeddings = saved.model.get_input_embeddings().weight.detach().float().cpu()
    chances: dict[int | None, list[np.ndarray]] = {}  # by distance, for each question [K]

    def vector(names: list[str]) -> Tensor:
        ids = [saved.tokenizer.encode(f" {name}", add_special_tokens=False) for name in names]
        return torch.stack([embeddings[of_name].mean(0) for of_name in ids]).mean(0)

    for indices, thoughts in _thinking(saved, split, label):
        latents = torch.stack(thoughts.latents, dim=1).float().cpu()  # [B, K, d]
        for row, document in enumerate(indices):
            graph = graphs[_question(saved, split, document)]
            nodes = [(d, names) for node, d in enumerate(graph.distances()) if (names := task.names(graph, node))]
            vectors = torch.stack([vector(names) for _, names in nodes])
            cosine = torch.cosine_similarity(latents[row][:, None], vectors, dim=-1).numpy()  # [K, nodes]
            for distance in {distance for distance, _ in nodes}:
                inside = np.array([other == distance for other, _ in nodes])
                a, b = cosine[:, inside, None], cosine[:, None, ~inside]
                chances.setdefault(distance, []).append(((a > b) + (a == b) / 2).mean((1, 2)))
    numbers = _about(saved, label) | {"split": "validation", "source": saved.data.source, "questions": len(chances[1])}
    numbers["distances"] = {
        "never" if d is None else str(d): {"questions": len(chances[d])} | mean_and_std(chances[d])
        for d in sorted(chances, key=lambda d: math.inf if d is None else d)
    }
    return _draw_frontier(numbers), numbers


def _search(source: str) -> tuple[Reachability, dict[str, GraphQuestion]]:
    """Return the task of a source of graphs, and its validation questions by their text."""
    from mentalese.suite.tasks import task
    from mentalese.suite.tasks.reachability import Reachability

    spec = source.removeprefix("builtin:")
    graphs = task(spec) if spec.partition(":")[0] == Reachability.name else None
    if not isinstance(graphs, Reachability):
        raise InputError(f"the figure coconut/frontier needs graphs, and {source} has none: use builtin:reachability")
    return graphs, {one.question: one for one in islice(graphs.questions("validation"), graphs.size("validation"))}


def _draw_frontier(numbers: dict[str, Any]) -> Any:
    """Draw latents from left to right, distances from top to bottom."""
    distances, passes = numbers["distances"], numbers["latents"]
    values = np.array([series["mean"] for series in distances.values()])
    picture, ((panel,),) = canvas(1, 1, max(5.0, 2 + 0.9 * passes), 1.6 + 0.45 * len(distances))
    spread = max(0.1, float(np.abs(values - 0.5).max()))
    texts = [[f"{value:.0%}" for value in row] for row in values]
    image = _heat_map(panel, values, texts, {"vmin": 0.5 - spread, "vmax": 0.5 + spread})
    _ticks(panel, [str(i) for i in range(1, passes + 1)], list(distances))
    panel.set(xlabel="latent", ylabel="steps from the root", title=f"{numbers['label']}: closer than other nodes")
    picture.colorbar(image, ax=panel, fraction=0.04, pad=0.02)
    footnote(picture, "50%: no information; breadth-first search would raise the diagonal")
    return picture


# -- the number of latents at test time --------------------------------------------------------------------------------


def latents(paths: list[str], *, source: str | None = None, documents: int = ANSWERED) -> tuple[Any, dict[str, Any]]:
    """Draw greedy accuracy with 0 to 2K latents, where K is the number in the last stage; learned pauses count."""
    from mentalese.evaluation.statistics import bootstrap_questions

    models = [_open(path, (*FEEDBACK, "pause"), source, documents) for path in paths]
    splits = [_split(saved, "test", 2 * _latents(saved)) for saved in models]
    picture, panel = _passes("test accuracy by the number of latents", "latents at test time")
    numbers: dict[str, Any] = {"split": "test", "models": []}
    for i, (saved, label, split) in enumerate(zip(models, model_names(paths), splits)):
        trained, style = _latents(saved), line_style(i)
        counts = range(2 * trained + 1)
        right = np.array([[each.correct for each in _answered(saved, split, count)] for count in counts]).T
        accuracy, interval = right.mean(0), bootstrap_questions(right.astype(float), 0.0, 1.0)
        panel.plot(counts, accuracy, label=label, **style)
        panel.plot(trained, accuracy[trained], color=style["color"], marker="o", markersize=12, markerfacecolor="none")
        if interval is not None:
            panel.fill_between(counts, *interval, color=style["color"], alpha=0.12, linewidth=0)
        of_model = {"source": saved.data.source, "questions": len(right), "at": list(counts)}
        of_model |= {"accuracy": accuracy.tolist(), "interval": None if interval is None else interval.tolist()}
        numbers["models"].append(_about(saved, label) | of_model)
    panel.set(ylim=(0, None))
    percent_axis(panel.yaxis)
    panel.legend()
    note = f"{_questions(numbers['models'])} questions; ring: number in training; bands: 95% over questions"
    footnote(picture, note)
    return picture, numbers


FIGURES = {
    "retention": Figure(
        description="cosine of each pass's hidden state with the first one's",
        takes="MODEL ...",
        draw=retention,
        reads_source=True,
    ),
    "gates": Figure(description="AGCLR's gates by pass", takes="MODEL", draw=gates, reads_source=True),
    "tokens": Figure(
        description="the tokens nearest to each latent and to the concept stream",
        takes="MODEL",
        draw=tokens,
        reads_text=True,
    ),
    "contrast": Figure(
        description="questions that only AGCLR answers right, and the answer's tokens in its memory",
        takes="AGCLR OTHER",
        draw=contrast,
        reads_source=True,
    ),
    "frontier": Figure(
        description="which nodes of a graph each latent is close to, by their distance from the root",
        takes="MODEL",
        draw=frontier,
        reads_source=True,
    ),
    "latents": Figure(
        description="accuracy by the number of latents at test time", takes="MODEL ...", draw=latents, reads_source=True
    ),
}

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
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from mentalese.analyses.drawing import (
    COLORS,
    MARKERS,
    Drawing,
    Figure,
    Numbers,
    band,
    canvas,
    drawable_token,
    footnote,
    heat_map,
    interval_band,
    line_style,
    mean_and_std,
    percent_axis,
)
from mentalese.data.tokenizers import question_text, user_turn
from mentalese.errors import InputError, require
from mentalese.formatting import model_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.figure import Figure as Picture
    from torch import Tensor

    from mentalese.data.batch import Batch
    from mentalese.data.generated import Question as GraphQuestion
    from mentalese.data.split import Split
    from mentalese.evaluation.answers import AnswerRecord
    from mentalese.families.coconut.model import CoconutEncoded
    from mentalese.models.saved import Saved
    from mentalese.suite.tasks.base import Task
    from mentalese.suite.tasks.reachability import Reachability

TaskOfKind = TypeVar("TaskOfKind", bound="Task")
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


def _open(
    path: str, source: str | None, documents: int | None, modes: Sequence[str] = FEEDBACK, latents: int = 1
) -> Saved:
    """Return a model of one of these modes with its questions; its last stage must have this many latents."""
    saved = _load(path, source, documents)
    kind = saved.model.config.model_type
    mode = saved.model.config.mode if kind == "coconut" else kind
    if mode not in modes:
        raise InputError(f"{saved.path} is a {mode} model: use one of the modes {', '.join(modes)}")
    if _latents(saved) < latents:
        raise InputError(
            f"{saved.path} has {_latents(saved)} latents at stage {saved.layout.stage}, its last: use a model with at "
            f"least {latents} (layout.latents, or layout.latents_per_step at a later stage)"
        )
    return saved


def _latents(saved: Saved) -> int:
    """Return K, the number of latents in the last stage of training."""
    return saved.layout.asked().get("latents") or 0


def _about(saved: Saved, label: str) -> Numbers:
    names = {"path": saved.path, "label": label, "mode": saved.model.config.mode}
    return names | {"stage": saved.layout.stage, "latents": _latents(saved)}


def _split(saved: Saved, name: str = "validation", latents: int | None = None) -> Split:
    """Return a split of questions that fit into the model's context with this number of latents."""
    from mentalese.evaluation.questions import check_room

    split = saved.split(_part(saved, name))
    check_room(saved.at(None, latents), split)
    return split


def _part(saved: Saved, name: str) -> str:
    """Return the split that is read: all of a file that the model was not trained on."""
    return "all" if saved.part == "all" else name


def _which(part: str) -> str:
    """Return the split's name before the noun `questions`."""
    return "" if part == "all" else f"{part} "


def _task(source: str, kind: type[TaskOfKind]) -> TaskOfKind | None:
    """Return the generated task of a source, if it is of this kind."""
    from mentalese.suite.tasks import task

    spec = source.removeprefix("builtin:")
    found = task(spec) if spec.partition(":")[0] == kind.name else None
    return found if isinstance(found, kind) else None


def _answers(saved: Saved, split: Split, latents: int | None = None) -> list[AnswerRecord]:
    """Return the greedy answer to each question, with this number of latents."""
    from mentalese.evaluation.answers import ask

    return ask(saved.at(None, latents), split, show=True).records


def _think(saved: Saved, rows: Batch) -> CoconutEncoded:
    import torch

    from mentalese.data.batch import to_device
    from mentalese.families.coconut.model import CoconutForCausalLM

    assert isinstance(saved.model, CoconutForCausalLM)
    with torch.no_grad():
        return saved.model.encode(**to_device(rows, saved.device))


def _thinking(saved: Saved, split: Split, label: str) -> Iterator[tuple[list[int], CoconutEncoded]]:
    """Yield, batch by batch, indices of questions in the split and the latents after these questions."""
    from mentalese.data.evaluation import question_batches
    from mentalese.screen import progress

    done = 0
    with progress(f"Reading {label}", saved.evaluation.documents(len(split.document_bytes))) as bar:
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


def _question(saved: Saved, split: Split, document: int) -> str:
    question = split.segment(int(split.document_segments[document])).tolist()
    return question_text(question, saved.tokenizer, user_turn(saved.tokenizer)).strip()


# -- drawing -----------------------------------------------------------------------------------------------------------


def _by_pass(title: str, label: str = "pass") -> tuple[Picture, Axes]:
    """Return a picture with a single panel, with passes from left to right."""
    from matplotlib.ticker import MaxNLocator

    picture, ((panel,),) = canvas(1, 1, 6.5, 4)
    panel.set(title=title, xlabel=label)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    return picture, panel


def _questions(numbers: Numbers) -> str:
    return " or ".join(map(str, sorted({model["questions"] for model in numbers["models"]})))


def _cells(
    panel: Axes,
    values: np.ndarray,
    texts: Sequence[Sequence[str]],
    names: tuple[Sequence[str], Sequence[str]],
    scale: Sequence[np.ndarray],
) -> QuadMesh:
    """Draw values [rows, columns] with a text in each cell, the first row on top.

    `names` are of rows and of columns. The smallest and the largest value in `scale` have the lightest and the
    darkest colour.
    """
    low, high = min(part.min() for part in scale), max(part.max() for part in scale)
    image = heat_map(panel, values, *names, cmap="Blues", vmin=low, vmax=high)
    for (row, column), value in np.ndenumerate(values):
        panel.text(
            column + 0.5, row + 0.5, texts[row][column].replace("-", "−"), ha="center", va="center", fontsize=7,
            color="white" if value - low > 0.6 * ((high - low) or 1.0) else "0.1", parse_math=False,
        )  # fmt: skip
    panel.invert_yaxis()
    return image


def _short(text: str, width: int = WIDTH) -> str:
    """Return the end of a text, where the question itself stands."""
    return text if len(text) <= width else f"… {text[2 - width :]}"


# -- figures of passes -------------------------------------------------------------------------------------------------


def retention(paths: list[str], *, source: str | None = None, documents: int = DOCUMENTS) -> Drawing:
    """Draw the cosine of h_1 and h_t, for AGCLR also of h'_1 and h'_t: memory retention (Figure 3).

    The paper does not state which states it compares; both models have h. In Coconut h' is the same.
    """
    import torch
    from torch.nn.functional import cosine_similarity

    models = [_open(path, source, documents, latents=2) for path in paths]
    splits = [_split(saved) for saved in models]
    picture, panel = _by_pass("cosine of each pass's hidden state with the first one's")
    numbers: Numbers = {"split": _part(models[0], "validation"), "models": []}
    for i, (saved, label, split) in enumerate(zip(models, model_names(paths), splits)):
        cosines: dict[str, list[Tensor]] = {"h": [], "h'": []}
        for _, thoughts in _thinking(saved, split, label):
            for name, vectors in (("h", thoughts.states), ("h'", thoughts.latents)):
                states = torch.stack(vectors, dim=1).float()
                cosines[name].append(cosine_similarity(states[:, :1], states, dim=-1).cpu())
        series = {name: mean_and_std(torch.cat(parts)) for name, parts in cosines.items()}
        passes, style = range(1, _latents(saved) + 1), line_style(i)
        band(panel, passes, series["h"], label=label, **style)
        if saved.model.config.mode == "agclr":
            gated = {"linestyle": "--", "markerfacecolor": "white", "linewidth": 1, "label": f"{label}, gated"}
            panel.plot(passes, series["h'"]["mean"], **(style | gated))
        questions = sum(map(len, cosines["h"]))
        numbers["models"].append(_about(saved, label) | {"questions": questions, "source": saved.data.source} | series)
    panel.set(ylim=(None, 1.04))
    panel.legend()
    read = f"{_questions(numbers)} {_which(numbers['split'])}questions"
    footnote(picture, f"{read}; bands: one standard deviation")
    return picture, numbers


def gates(paths: list[str], *, source: str | None = None, documents: int = DOCUMENTS) -> Drawing:
    """Draw the mean of each gate's channels by pass (Eq. 2, Table 3): mean and standard deviation over questions."""
    import torch

    from mentalese.families.coconut.config import GATES

    [label], saved = model_names(paths), _open(paths[0], source, documents, ("agclr",))
    config = saved.model.config
    values: dict[str, list[Tensor]] = {name: [] for name in GATES if name in config.gates}
    if not values:
        raise InputError(f"{saved.path} has no gates (coconut.gates is empty): use an AGCLR model with gates")
    for _, thoughts in _thinking(saved, _split(saved), label):
        for name, parts in values.items():
            parts.append(torch.stack([gate[name].float().mean(-1).cpu() for gate in thoughts.gates], dim=1))
    questions = sum(map(len, next(iter(values.values()))))
    picture, panel = _by_pass(f"gates of {label}, mean over channels")
    numbers = _about(saved, label) | {"split": _part(saved, "validation"), "source": saved.data.source, "gates": {}}
    numbers["questions"] = questions
    for name, bias, color, marker in zip(GATES, config.gate_biases, COLORS, MARKERS):
        if name in values:
            start, series = 1 / (1 + math.exp(-bias)), mean_and_std(torch.cat(values[name]))
            band(panel, range(1, _latents(saved) + 1), series, label=name, color=color, marker=marker)
            panel.axhline(start, color=color, linestyle=":", linewidth=1)
            numbers["gates"][name] = series | {"at_the_start": start}
    panel.set(ylim=(0, 1))
    panel.legend(ncols=len(values))
    read = f"{questions} {_which(numbers['split'])}questions"
    footnote(picture, f"{read}; bands: one standard deviation; dotted: before training")
    return picture, numbers


def latents(paths: list[str], *, source: str | None = None, documents: int = ANSWERED) -> Drawing:
    """Draw greedy accuracy with 0 to 2K latents, where K is the number in the last stage; learned pauses count."""
    from mentalese.evaluation.statistics import bootstrap_questions

    models = [_open(path, source, documents, (*FEEDBACK, "pause")) for path in paths]
    splits = [_split(saved, "test", 2 * _latents(saved)) for saved in models]
    picture, panel = _by_pass("test accuracy by the number of latents", "latents at test time")
    numbers: Numbers = {"split": _part(models[0], "test"), "models": []}
    for i, (saved, label, split) in enumerate(zip(models, model_names(paths), splits)):
        trained, style = _latents(saved), line_style(i)
        counts = range(2 * trained + 1)
        answers = [_answers(saved, split, count) for count in counts]
        right = np.array([[each.correct for each in of_count] for of_count in answers]).T
        accuracy = right.mean(0)
        interval = bootstrap_questions(right.astype(float), [each.question for each in answers[0]], 0.0)
        panel.plot(counts, accuracy, label=label, **style)
        panel.plot(trained, accuracy[trained], color=style["color"], marker="o", markersize=12, markerfacecolor="none")
        interval_band(panel, counts, interval, style["color"])
        of_model = {"source": saved.data.source, "questions": len(right), "at": list(counts)}
        of_model |= {"accuracy": accuracy.tolist(), "interval": None if interval is None else interval.tolist()}
        numbers["models"].append(_about(saved, label) | of_model)
    panel.set(ylim=(0, None))
    percent_axis(panel.yaxis)
    panel.legend()
    footnote(picture, f"{_questions(numbers)} questions; ring: number in training; bands: 95% over questions")
    return picture, numbers


# -- figures of tokens and nodes ---------------------------------------------------------------------------------------


def tokens(paths: list[str], text: str) -> Drawing:
    """Draw the tokens nearest to the input of each latent, and to the concept stream after it (section 5.3).

    Below each pass is the mean cosine of all tokens, as a reference for the nearest ones.
    """
    [label], saved = model_names(paths), _open(paths[0], None, None)
    thoughts = _think(saved, saved.layout.encode_prompts([text], saved.tokenizer, saved.data))
    streams = {}
    for name, vectors in (("latent", thoughts.latents), ("concept", thoughts.concepts)):
        if vectors:
            similarity = _similarity(saved, [vector[0] for vector in vectors])
            near = similarity.topk(min(NEAREST, similarity.shape[1]))
            streams[name] = {
                "tokens": [[saved.tokenizer.decode([i]) for i in ids] for ids in near.indices.tolist()],
                "similarity": near.values.tolist(),
                "mean_similarity": similarity.mean(1).tolist(),
            }
    titles = {"latent": "input of latents", "concept": "concept stream"}
    cosines = [np.array(stream["similarity"]) for stream in streams.values()]
    passes, rows = cosines[0].shape
    picture, panels = canvas(len(streams), 1, max(7.0, 1.6 + 1.05 * passes), 0.8 + len(streams) * (0.8 + 0.4 * rows))
    for (panel,), (name, stream), cosine in zip(panels, streams.items(), cosines):
        texts = [[f"{drawable_token(t)}\n{s:.2f}" for t, s in zip(*each)] for each in zip(stream["tokens"], cosine)]
        means = [f"pass {i}\nall: {mean:.2f}".replace("-", "−") for i, mean in enumerate(stream["mean_similarity"], 1)]
        image = _cells(panel, cosine.T, list(zip(*texts)), ([str(i + 1) for i in range(rows)], means), cosines)
        panel.set_title(f"{titles[name]}: nearest tokens")
    picture.colorbar(image, ax=list(panels[:, 0]), fraction=0.04, pad=0.02, label=COSINE)
    picture.suptitle(f"{label}\n{_short(' '.join(text.split()))}", fontsize=8, x=0.01, ha="left", parse_math=False)
    footnote(picture, "all: mean cosine of all tokens")
    return picture, _about(saved, label) | {"text": text, "streams": streams}


def contrast(paths: list[str], *, source: str | None = None, documents: int = ANSWERED) -> Drawing:
    """Draw questions that only the first model, AGCLR, answers correctly, and its memory (Table 4, Figure 4).

    For each token of the answer and each pass: the cosine of the concept stream with the token's embedding, and the
    token's rank by it among all tokens (1: the nearest). The model does not read the answer, and no case is selected
    by its cosines.
    """
    from mentalese.evaluation.questions import check_room
    from mentalese.models.saved import on_one_text

    agclr, other = _open(paths[0], source, documents, ("agclr",)), _load(paths[1], source, documents)
    if agclr.data.source != other.data.source:
        raise InputError(
            f"{agclr.path} was trained on {agclr.data.source} and {other.path} on {other.data.source}: use two models "
            "of the same questions"
        )
    agclr, other = on_one_text((agclr, other), agclr.data.source)
    part = "all" if agclr.part == other.part == "all" else "validation"
    names, split, other_split = model_names(paths), agclr.split(part), other.split(part)
    check_room(agclr, split)
    check_room(other, other_split)
    asked = _answers(agclr, split), _answers(other, other_split)
    alike = [a.question for a in asked[0]] == [b.question for b in asked[1]]
    require(alike, "figure paths", paths, "the models are asked different questions (layout.too_long), use two others")
    answers = list(zip(*asked, strict=True))
    outcomes = Counter((a.correct, b.correct) for a, b in answers)
    right = {"both": outcomes[True, True], "first": outcomes[True, False]}
    right |= {"second": outcomes[False, True], "neither": outcomes[False, False]}
    cases: dict[int, Numbers] = {
        a.document: {"document": a.document, "expected": a.expected, "answers": [a.answer, b.answer]}
        for a, b in answers
        if a.correct and not b.correct
    }
    if not cases:
        raise InputError(
            f"{names[0]} answers none of {len(answers)} questions right that {names[1]} answers wrong "
            f"(both right {right['both']}, neither {right['neither']}): use other models or more documents"
        )
    for indices, thoughts in _thinking(agclr, split, names[0]):
        similarity = _similarity(agclr, thoughts.concepts)  # [K, B, v]
        for row, document in enumerate(indices):
            if document in cases:
                cases[document] |= _stored(agclr, split, document, similarity[:, row])
    picture = _draw_cases(list(cases.values())[:CASES], names)
    footnote(
        picture,
        f"the first {min(CASES, len(cases))} of {len(cases)} cases; #: rank by cosine among all tokens\n"
        f"right answers of {len(answers)}: both {right['both']}, only {names[0]} {right['first']}, "
        f"only {names[1]} {right['second']}",
    )
    return picture, {
        "models": [agclr.path, other.path],
        "labels": names,
        "split": part,
        "source": agclr.data.source,
        "questions": len(answers),
        "right": right,
        "latents": _latents(agclr),
        "cases": list(cases.values()),
    }


def _stored(saved: Saved, split: Split, document: int, similarity: Tensor) -> Numbers:
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


def _draw_cases(cases: list[Numbers], labels: list[str]) -> Picture:
    """Draw cases: passes from top to bottom, the answer's tokens from left to right."""
    cosines = [np.array(case["similarity"])[:, :SHOWN] for case in cases]
    width, passes = max(part.shape[1] for part in cosines), len(cosines[0])
    picture, panels = canvas(len(cases), 1, max(7.5, 1.6 + 0.85 * width), 0.6 + len(cases) * (1.1 + 0.26 * passes))
    for (panel,), case, cosine in zip(panels, cases, cosines):
        texts = [[f"{value:.2f} #{rank}" for value, rank in zip(*row)] for row in zip(cosine, case["rank"])]
        columns = [drawable_token(token) for token in case["tokens"][:SHOWN]]
        image = _cells(panel, cosine, texts, ([f"pass {i + 1}" for i in range(passes)], columns), cosines)
        panel.set_xlim(0, width)
        answers = [f"{label}: {_short(answer, WIDTH - len(label))}" for label, answer in zip(labels, case["answers"])]
        panel.set_title("\n".join([_short(case["question"]), *answers]), fontsize=8, parse_math=False)
    picture.colorbar(image, ax=list(panels[:, 0]), fraction=0.04, pad=0.02, label=COSINE)
    return picture


def frontier(paths: list[str], *, source: str | None = None, documents: int = ANSWERED) -> Drawing:
    """Draw whether latent t contains the nodes that breadth-first search reaches in step t.

    For each latent and each distance from the root: the chance that its input is closer (by cosine) to the
    name of a node at this distance than to the name of another node of the same graph, averaged over questions. 50% is
    no information. In breadth-first search, the nodes at distance t stand out in latent t (Zhu et al., "Reasoning by
    Superposition", arXiv 2505.12514, see them there). A name is the mean of its tokens' embeddings. Where a fact is one
    word (`facts=words`), the facts into a node are its names, and their mean is compared; people have none.
    """
    import torch

    [label], saved = model_names(paths), _open(paths[0], source, documents)
    (task, graphs), split = _search(saved.data.source), _split(saved)
    embeddings = saved.model.get_input_embeddings().weight.detach().float().cpu()
    chances: dict[float, list[np.ndarray]] = {}  # by distance, for each question [K]

    def vector(names: list[str]) -> Tensor:
        ids = [saved.tokenizer.encode(f" {name}", add_special_tokens=False) for name in names]
        return torch.stack([embeddings[of_name].mean(0) for of_name in ids]).mean(0)

    for indices, thoughts in _thinking(saved, split, label):
        inputs = torch.stack(thoughts.latents, dim=1).float().cpu()  # [B, K, d]
        for row, document in enumerate(indices):
            graph = graphs[_question(saved, split, document)]
            named = [(d, names) for node, d in enumerate(graph.distances()) if (names := task.names(graph, node))]
            distances = np.array([math.inf if d is None else d for d, _ in named])
            vectors = torch.stack([vector(names) for _, names in named])
            cosine = torch.cosine_similarity(inputs[row][:, None], vectors, dim=-1).numpy()  # [K, nodes]
            for distance in set(distances.tolist()):
                inside = distances == distance
                a, b = cosine[:, inside, None], cosine[:, None, ~inside]
                chances.setdefault(distance, []).append(((a > b) + (a == b) / 2).mean((1, 2)))
    by_distance = {
        "never" if d == math.inf else f"{d:.0f}": {"questions": len(chances[d])} | mean_and_std(chances[d])
        for d in sorted(chances)
    }
    values = np.array([series["mean"] for series in by_distance.values()])
    rows, columns = values.shape
    picture, ((panel,),) = canvas(1, 1, max(5.0, 2 + 0.9 * columns), 1.6 + 0.45 * rows)
    spread = max(0.1, float(np.abs(values - 0.5).max()))
    texts = [[f"{value:.0%}" for value in row] for row in values]
    latent_names, scale = [str(i + 1) for i in range(columns)], np.array([0.5 - spread, 0.5 + spread])
    image = _cells(panel, values, texts, (list(by_distance), latent_names), [scale])
    panel.set(xlabel="latent", ylabel="steps from the root", title=f"{label}: closer than other nodes")
    picture.colorbar(image, ax=panel, fraction=0.04, pad=0.02)
    footnote(picture, "50%: no information; breadth-first search would raise the diagonal")
    about = {"split": _part(saved, "validation"), "source": saved.data.source, "questions": len(chances[1])}
    return picture, _about(saved, label) | about | {"distances": by_distance}


def _search(source: str) -> tuple[Reachability, dict[str, GraphQuestion]]:
    """Return the task of a source of graphs, and its validation questions by their text."""
    from mentalese.suite.tasks.reachability import Reachability

    graphs = _task(source, Reachability)
    if graphs is None:
        raise InputError(f"the figure coconut/frontier needs graphs, and {source} has none: use builtin:reachability")
    return graphs, {one.question: one for one in islice(graphs.questions("validation"), graphs.size("validation"))}


def products(paths: list[str], *, source: str | None = None, documents: int = ANSWERED) -> Drawing:
    """Draw which running product a latent stands for, on `builtin:composition`: swap only it, and see the answer.

    Latent t of a question is replaced by latent t of another one. If it stands for the product of the first k
    permutations, the answer is the other question's product of these, times the permutations of its own that are left.
    Cells have the share of such answers for the longest questions, of those where it is not the right one; a guess has
    the share of one product among all.
    """
    models = [_open(path, source, documents).scored_in_pairs() for path in paths]
    picture, (panels,) = canvas(1, len(models), 1 + 3.6 * len(models), 3.0)
    numbers: Numbers = {"split": _part(models[0], "test"), "models": []}
    for panel, saved, label in zip(panels, models, model_names(paths)):
        chances, counts = _answers_by_product(saved)
        latents, moves = chances.shape
        remedy = "too few of the longest questions have another one in their batch, use more documents"
        require(bool(counts.all()), "the figure's documents", documents, remedy)
        texts = [[f"{share:.0%}" for share in row] for row in chances]
        names = [str(i + 1) for i in range(latents)], [str(i + 1) for i in range(moves)]
        _cells(panel, chances, texts, names, [np.array([0.0, 1.0])])
        panel.set(title=label, xlabel="permutations in the product", ylabel="the latent swapped")
        about = {"source": saved.data.source, "answers": chances.tolist(), "questions": counts.tolist()}
        numbers["models"].append(_about(saved, label) | about)
    footnote(
        picture, "share of answers that follow if this latent has another question's product of the first permutations"
    )
    return picture, numbers


def _answers_by_product(saved: Saved) -> tuple[np.ndarray, np.ndarray]:
    """Return the share of answers that follow from each product of the other question, [latents, permutations].

    And the number of questions of each share.
    """
    from mentalese.evaluation.ablation import neighbours
    from mentalese.nn.controls import OneThought
    from mentalese.suite.tasks.composition import Composition
    from mentalese.values import temporarily

    group = _task(saved.data.source, Composition)
    if group is None:
        raise InputError(f"the figure coconut/products needs {Composition.name}, use --data builtin:composition")
    split = _split(saved, "test")
    donors = neighbours(saved, split)
    longest = group.length[1]
    followed, counts = np.zeros((2, _latents(saved), longest), dtype=int)
    for number in range(_latents(saved)):
        with temporarily(saved.model.config, thought_control=OneThought(number, "swapped")):
            records = {record.document: record for record in _answers(saved, split)}
        for document, record in records.items():
            own, other = (records[i].question.split()[:-1] for i in (document, donors[document]))
            if len(own) != longest or len(other) != longest:
                continue
            for done in range(longest):
                follows = group.product([*other[: done + 1], *own[done + 1 :]])
                if follows != record.expected:
                    counts[number, done] += 1
                    followed[number, done] += record.answer == follows
    return followed / counts.clip(min=1), counts


FIGURES = {
    "retention": Figure("cosine of each pass's hidden state with the first one's", "MODEL ...", retention),
    "gates": Figure("AGCLR's gates by pass", "MODEL", gates),
    "tokens": Figure("the tokens nearest to each latent and to the concept stream", "MODEL", tokens),
    "contrast": Figure(
        "questions that only AGCLR answers right, and the answer's tokens in its memory", "AGCLR OTHER", contrast
    ),
    "frontier": Figure(
        "which nodes of a graph each latent is close to, by their distance from the root", "MODEL", frontier
    ),
    "products": Figure(
        "which running product of permutations a latent stands for, found by swapping it", "MODEL ...", products
    ),
    "latents": Figure("accuracy by the number of latents at test time", "MODEL ...", latents),
}

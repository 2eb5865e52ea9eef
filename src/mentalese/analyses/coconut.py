"""Figures of Coconut and AGCLR: what passes keep of the question, what the gates do, and what thoughts are close to.

Passes are counted as latents are, from 1 to K. Pass t has

    h_t     the last hidden state (after the final norm) at the position before latent t: for t = 1 at the start marker
    h'_t    what latent t reads: h_t itself, or of AGCLR the gated state (Eq. 3)
    c_t     AGCLR's concept stream after latent t (Eq. 4)

Questions are asked as the model was trained last, with the latents of that stage. Thoughts are looked at on the
validation split, as in the paper (appendix B.2); accuracies by the number of latents on the test split, since the model
was chosen on the other one by the number that it was trained with.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mentalese.analyses.drawing import COLORS, MARKERS, Figure, canvas, drawable, footnote, labels
from mentalese.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from mentalese.data.store import Split
    from mentalese.families.coconut.model import Thoughts

DOCUMENTS = 100  # questions whose thoughts are looked at, the first so many (appendix B.2)
ANSWERED = 500  # questions that are answered
NEAREST = 5  # tokens
CASES = 3  # shown, as in Figure 4; the numbers hold all
WIDTH = 80  # characters of a line
SHOWN = 12  # tokens of an answer beside each other


# -- a model of latents, and its questions -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Opened:
    """A model, and how its recipe asks it."""

    path: str
    label: str
    model: Any
    tokenizer: Any
    data: Any
    layout: Any
    protocol: Any
    device: Any

    @property
    def latents(self) -> int:
        return self.layout.latents_at(self.layout.stage)

    def saved(self, latents: int | None = None) -> Any:
        """The same as one object, asked with so many latents."""
        from mentalese.models.saved import Saved

        return Saved(
            path=self.path,
            model=self.model,
            tokenizer=self.tokenizer,
            data=self.data,
            layout=self.layout.at(None, latents),
            evaluation=self.protocol,
        )

    def about(self) -> dict[str, Any]:
        mode = self.model.config.mode
        return {
            "path": self.path,
            "label": self.label,
            "mode": mode,
            "stage": self.layout.stage,
            "latents": self.latents,
        }


def _open(paths: Sequence[str], source: str | None = None, documents: int | None = None) -> list[_Opened]:
    """Models that were trained on questions, each asked the first so many of `source`, or of its own."""
    from mentalese.evaluation.tasks import open_evaluation
    from mentalese.training.parallel import setup

    device = setup("auto").device
    found = []
    for path, label in zip(paths, labels(paths)):
        model, tokenizer, data, layout, protocol = open_evaluation(path, source, device)
        if not layout.questions:
            raise InputError(f"{path} was not trained on questions (layout 'qa'): use a model that was")
        protocol = dataclasses.replace(protocol, max_documents=documents)
        found.append(_Opened(path, label, model, tokenizer, data, layout, protocol, device))
    return found


def _with_latents(opened: _Opened, modes: Sequence[str] = ("coconut", "agclr")) -> None:
    """Raises `InputError` for a model of another mode, or one that was last trained without latents."""
    config = opened.model.config
    if config.model_type != "coconut":
        raise InputError(f"{opened.path} is a {config.model_type} model: give one of the modes {', '.join(modes)}")
    if config.mode not in modes:
        why = "no concept stream" if modes == ("agclr",) else "nothing that is fed back"
        raise InputError(f"{opened.path} has the mode {config.mode!r}, {why}: give one of {', '.join(modes)}")
    if not opened.latents:
        raise InputError(
            f"{opened.path} was last trained at stage {opened.layout.stage}, which has no latents: use a model "
            "whose recipe has layout.latents, or layout.latents_per_step at a later stage"
        )


def _one(paths: list[str], name: str) -> _Opened:
    if len(paths) != 1:
        raise InputError(f"the figure coconut/{name} shows one model, and {len(paths)} were given")
    return _open(paths)[0]


def _split(opened: _Opened, name: str, latents: int | None = None) -> Split:
    """A split whose questions, with so many latents, the model has room for."""
    from mentalese.evaluation.answers import check_room
    from mentalese.evaluation.tasks import open_text

    split = open_text(opened.tokenizer, opened.data, opened.layout, name, show=False).splits[name]
    check_room(opened.saved(latents), split)
    return split


def _think(opened: _Opened, rows: dict[str, Any]) -> tuple[Tensor, Thoughts]:
    """h [B, K, d] in float32, and what else the passes had, of rows that have K latents each in the same columns."""
    import torch

    from mentalese.data.batch import to_device

    with torch.no_grad():
        encoded = opened.model.encode(**to_device(rows, opened.device), trace=True)
    columns = (rows["input_ids"][0] == opened.model.config.latent_token_id).nonzero()[:, 0]
    return encoded.hidden[:, columns - 1].float(), encoded.thoughts


def _thinking(opened: _Opened, split: Split) -> Iterator[tuple[list[int], Tensor, Thoughts]]:
    """Numbers of questions in the split, and `_think` of them, batch by batch."""
    from mentalese.data.evaluation import question_batches
    from mentalese.screen import progress

    count = opened.protocol.documents(len(split.document_bytes))
    with progress(f"Reading {opened.label}", count, show=True) as bar:
        done = 0
        for batch in question_batches(split, opened.layout, opened.protocol, opened.tokenizer):
            documents = batch.pop("documents").tolist()
            yield documents, *_think(opened, batch)
            bar.update(done := done + len(documents))


def _similarity(opened: _Opened, vectors: Sequence[Tensor]) -> Tensor:
    """Cosine [K, ..., v] of vectors [..., d] with the embedding of each token."""
    import torch
    from torch.nn.functional import normalize

    embeddings = opened.model.get_input_embeddings().weight.detach()[: len(opened.tokenizer)]
    return normalize(torch.stack(list(vectors)).float(), dim=-1) @ normalize(embeddings.float(), dim=-1).T


def _mean_and_spread(values: np.ndarray) -> dict[str, list[float]]:
    """Over questions, of [questions, K]."""
    return {"mean": values.mean(0).tolist(), "std": values.std(0).tolist()}


def _band(panel: Any, passes: Sequence[int], series: dict[str, list[float]], **style: Any) -> None:
    """A line, and a standard deviation to either side of it."""
    mean, std = np.array(series["mean"]), np.array(series["std"])
    panel.plot(passes, mean, **style)
    panel.fill_between(passes, mean - std, mean + std, color=style["color"], alpha=0.12, linewidth=0)


# -- memory retention (Figure 3) ---------------------------------------------------------------------------------------


def retention(paths: list[str], *, source: str | None = None, documents: int = DOCUMENTS) -> tuple[Any, dict[str, Any]]:
    """How close each pass stays to the first one: cosine of h_1 and h_t, and for AGCLR also of h'_1 and h'_t.

    The paper does not say which states it compares; h is what both models have. Of Coconut h' is the same.

    Args:
        source: the questions; `None`: those that each model was trained on.
        documents: so many of them.
    """
    import torch
    from matplotlib.ticker import MaxNLocator
    from torch.nn.functional import cosine_similarity

    models = _open(paths, source, documents)
    for opened in models:
        _with_latents(opened)
        if opened.latents < 2:
            raise InputError(f"{opened.path} has one latent, and no pass after the first: give a model of more")
    splits = [_split(opened, "validation") for opened in models]
    picture, ((panel,),) = canvas(1, 1, 6.5, 4)
    numbers: dict[str, Any] = {"split": "validation", "models": []}
    for i, (opened, split) in enumerate(zip(models, splits)):
        cosines: dict[str, list[Tensor]] = {"h": [], "h'": []}
        for _, states, thoughts in _thinking(opened, split):
            read = torch.stack(thoughts.latents, dim=1).float()
            for name, part in (("h", states), ("h'", read)):
                cosines[name].append(cosine_similarity(part[:, :1], part, dim=-1).cpu())
        series = {name: _mean_and_spread(torch.cat(parts).numpy()) for name, parts in cosines.items()}
        passes = range(1, opened.latents + 1)
        style = {"color": COLORS[i % len(COLORS)], "marker": MARKERS[i % len(MARKERS)]}
        _band(panel, passes, series["h"], label=opened.label, **style)
        if opened.model.config.mode == "agclr":
            gated = {"linestyle": "--", "markerfacecolor": "white", "linewidth": 1, "label": f"{opened.label}, gated"}
            panel.plot(passes, series["h'"]["mean"], **(style | gated))
        questions = sum(map(len, cosines["h"]))
        numbers["models"].append(opened.about() | {"questions": questions, "source": opened.data.source} | series)
    panel.set(title="cosine of each pass's hidden state with the first one's", xlabel="pass", ylim=(None, 1.04))
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.legend()
    asked = sorted({model["questions"] for model in numbers["models"]})
    note = f"{' or '.join(map(str, asked))} validation questions; bands: one standard deviation"
    footnote(picture, note)
    return picture, numbers


# -- gates (Eq. 2, Table 3) --------------------------------------------------------------------------------------------


def gates(paths: list[str], *, source: str | None = None, documents: int = DOCUMENTS) -> tuple[Any, dict[str, Any]]:
    """The mean of each gate's channels by pass: mean and standard deviation over questions."""
    import torch
    from matplotlib.ticker import MaxNLocator

    from mentalese.families.coconut.config import GATES

    if len(paths) != 1:
        raise InputError(f"the figure coconut/gates shows one model, and {len(paths)} were given")
    (opened,) = _open(paths, source, documents)
    _with_latents(opened, ("agclr",))
    config = opened.model.config
    values: dict[str, list[Tensor]] = {name: [] for name in GATES if name in config.gates}
    if not values:
        raise InputError(f"{opened.path} has no gates (coconut.gates is empty): give an AGCLR model that has some")
    for _, _, thoughts in _thinking(opened, _split(opened, "validation")):
        for name, parts in values.items():
            by_pass = [gate[name].float().mean(-1).cpu() for gate in thoughts.gates]
            parts.append(torch.stack(by_pass, dim=1))
    starts = dict(zip(GATES, config.gate_biases))
    passes = range(1, opened.latents + 1)
    picture, ((panel,),) = canvas(1, 1, 6.5, 4)
    numbers: dict[str, Any] = opened.about() | {"split": "validation", "source": opened.data.source, "gates": {}}
    for name, color, marker in zip(GATES, COLORS, MARKERS):
        if name not in values:
            continue
        start = 1 / (1 + math.exp(-starts[name]))
        series = _mean_and_spread(torch.cat(values[name]).numpy())
        _band(panel, passes, series, label=name, color=color, marker=marker)
        panel.axhline(start, color=color, linestyle=":", linewidth=1)
        numbers["gates"][name] = series | {"at_the_start": start}
        numbers["questions"] = sum(map(len, values[name]))
    panel.set(title=f"gates of {opened.label}, mean over channels", xlabel="pass", ylim=(0, 1))
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.legend(ncols=len(values))
    note = f"{numbers['questions']} validation questions; bands: one standard deviation; dotted: before training"
    footnote(picture, note)
    return picture, numbers


# -- nearest tokens (section 5.3) --------------------------------------------------------------------------------------


def tokens(paths: list[str], text: str) -> tuple[Any, dict[str, Any]]:
    """The tokens whose embeddings are nearest to what each latent reads, and to the concept stream after it.

    Beside each pass's nearest stands the mean cosine of all tokens: what a token's cosine is to be held to.
    """
    from mentalese.models.build import context_length

    opened = _one(paths, "tokens")
    _with_latents(opened)
    batch = opened.layout.encode_prompts([text], opened.tokenizer, opened.data)
    length, context = batch["input_ids"].shape[1], context_length(opened.model.config)
    if context is not None and length > context:
        raise InputError(f"the text has {length} tokens, latents included, and the context is {context}: shorten it")
    _, thoughts = _think(opened, batch)
    streams = {"latent": thoughts.latents}
    if opened.model.config.mode == "agclr":
        streams["concept"] = thoughts.concepts
    numbers: dict[str, Any] = opened.about() | {"text": text, "streams": {}}
    for name, vectors in streams.items():
        similarity = _similarity(opened, [vector[0] for vector in vectors])
        near = similarity.topk(min(NEAREST, similarity.shape[1]))
        numbers["streams"][name] = {
            "tokens": [[opened.tokenizer.decode([i]) for i in ids] for ids in near.indices.tolist()],
            "similarity": near.values.tolist(),
            "mean_similarity": similarity.mean(1).tolist(),
        }
    return _draw_nearest(numbers), numbers


def _draw_nearest(numbers: dict[str, Any]) -> Any:
    """Passes from left to right, the nearest token above the others."""
    streams, passes = numbers["streams"], numbers["latents"]
    titles = {"latent": "what latents read", "concept": "concept stream"}
    found = [np.array(stream["similarity"]) for stream in streams.values()]
    rows = found[0].shape[1]
    picture, panels = canvas(len(streams), 1, max(7.0, 1.6 + 1.05 * passes), 0.8 + len(streams) * (0.8 + 0.4 * rows))
    scale = {"vmin": min(part.min() for part in found), "vmax": max(part.max() for part in found)}
    for (panel,), (name, stream), similarity in zip(panels, streams.items(), found):
        shown = [
            [f"{_visible(t)}\n{s:.2f}".replace("-", "−") for t, s in zip(*pair)]
            for pair in zip(stream["tokens"], similarity)
        ]
        image = _heat_map(panel, similarity.T, list(zip(*shown)), scale)
        means = [f"pass {i}\nall: {mean:.2f}".replace("-", "−") for i, mean in enumerate(stream["mean_similarity"], 1)]
        panel.set_xticks(np.arange(passes) + 0.5, means)
        panel.set_yticks(np.arange(rows) + 0.5, [str(i + 1) for i in range(rows)])
        panel.set_title(f"{titles[name]}: nearest tokens")
    picture.colorbar(image, ax=list(panels[:, 0]), fraction=0.04, pad=0.02, label="cosine with the token's embedding")
    title = f"{numbers['label']}\n{_short(' '.join(numbers['text'].split()))}"
    picture.suptitle(title, fontsize=8, x=0.01, ha="left", parse_math=False)
    footnote(picture, "all: the mean cosine of all tokens")
    return picture


def _heat_map(panel: Any, values: np.ndarray, shown: Sequence[Sequence[str]], scale: dict[str, float]) -> Any:
    """Values [rows, columns], the first row above, with a text in each."""
    image = panel.pcolormesh(values, cmap="Blues", edgecolors="white", linewidth=1, **scale)
    span = scale["vmax"] - scale["vmin"] or 1.0
    for row, texts in enumerate(shown):
        for column, text in enumerate(texts):
            dark = (values[row, column] - scale["vmin"]) / span > 0.6
            panel.text(
                column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=7, color="white" if dark else "0.1",
                parse_math=False,
            )  # fmt: skip
    panel.invert_yaxis()
    panel.tick_params(length=0)
    panel.grid(visible=False)
    panel.spines[:].set_visible(False)
    return image


def _visible(token: str) -> str:
    """A token's text with white space to be seen, a dot for a space."""
    return drawable(token.replace(" ", "·"), 12)


# -- where one is right and the other wrong (Table 4, Figure 4) --------------------------------------------------------


def contrast(paths: list[str], *, source: str | None = None, documents: int = ANSWERED) -> tuple[Any, dict[str, Any]]:
    """Questions that the first model, AGCLR, answers right and the second one wrong, and what was in its memory.

    For each token of the answer and each pass: the cosine of the concept stream with the token's embedding, and the
    token's rank by it among all tokens (1: the nearest). The answer is not read, and nothing is chosen by its cosine.

    Args:
        source: the questions; `None`: those that both models were trained on.
        documents: so many of them are asked.
    """
    from mentalese.evaluation.answers import answer_records

    if len(paths) != 2:
        raise InputError(f"the figure coconut/contrast takes an AGCLR model and one other, and {len(paths)} were given")
    models = _open(paths, source, documents)
    own, other = models
    _with_latents(own, ("agclr",))
    if own.data.source != other.data.source:
        raise InputError(
            f"{own.path} was trained on {own.data.source} and {other.path} on {other.data.source}: give two models of "
            "the same questions"
        )
    splits = [_split(opened, "validation") for opened in models]
    given = [answer_records(m.saved(), split, show=True) for m, split in zip(models, splits)]
    outcomes = {(True, True): "both", (True, False): "first", (False, True): "second", (False, False): "neither"}
    counts = dict.fromkeys(outcomes.values(), 0)
    for a, b in zip(*given, strict=True):
        counts[outcomes[a.correct, b.correct]] += 1
    pairs = {a.document: (a, b) for a, b in zip(*given) if a.correct and not b.correct}
    if not pairs:
        raise InputError(
            f"of {len(given[0])} questions {own.label} answers none right that {other.label} answers wrong ("
            f"both right {counts['both']}, neither {counts['neither']}): give other models"
        )
    found = {}
    for asked, _, thoughts in _thinking(own, splits[0]):
        similarity = _similarity(own, thoughts.concepts)  # [K, B, v]
        for row, document in enumerate(asked):
            if document in pairs:
                found[document] = _stored(own, splits[0], document, similarity[:, row])
    cases = [
        {"document": document, "expected": a.expected, "answers": [a.answer, b.answer]} | found[document]
        for document, (a, b) in pairs.items()
    ]
    about = {"models": [opened.path for opened in models], "labels": [opened.label for opened in models]}
    numbers = about | {
        "split": "validation",
        "source": own.data.source,
        "questions": len(given[0]),
        "right": counts,
        "latents": own.latents,
        "cases": cases,
    }
    return _draw_cases(numbers), numbers


def _stored(opened: _Opened, split: Split, document: int, similarity: Tensor) -> dict[str, Any]:
    """A question, its answer's tokens, and the similarity [K, v] and rank of each."""
    first, last = split.document_segments[document : document + 2]
    question, answer = (
        split.tokens[split.segments[i] : split.segments[i + 1]].astype("int64").tolist() for i in (first, last - 1)
    )
    markers = set(opened.layout.special_ids(opened.tokenizer).values())
    ids = [i for i in dict.fromkeys(answer) if i not in markers and opened.tokenizer.decode([i]).strip(" #")]
    own = similarity[:, ids]
    return {
        "question": opened.tokenizer.decode(question).strip(),
        "tokens": [opened.tokenizer.decode([i]) for i in ids],
        "similarity": own.tolist(),
        "rank": ((similarity[:, None] > own[..., None]).sum(-1) + 1).tolist(),
    }


def _draw_cases(numbers: dict[str, Any]) -> Any:
    """The first few, one below the other: passes downwards, the answer's tokens from left to right."""
    cases, passes = numbers["cases"][:CASES], numbers["latents"]
    shown = [np.array(case["similarity"])[:, :SHOWN] for case in cases]
    width = max(part.shape[1] for part in shown)
    picture, panels = canvas(len(cases), 1, max(7.5, 1.6 + 0.85 * width), 0.6 + len(cases) * (1.1 + 0.26 * passes))
    scale = {"vmin": min(part.min() for part in shown), "vmax": max(part.max() for part in shown)}
    for (panel,), case, similarity in zip(panels, cases, shown):
        ranked = [
            [f"{value:.2f} #{rank}".replace("-", "−") for value, rank in zip(*row)]
            for row in zip(similarity, case["rank"])
        ]
        image = _heat_map(panel, similarity, ranked, scale)
        names = [_visible(token) for token in case["tokens"][:SHOWN]]
        panel.set_xticks(np.arange(len(names)) + 0.5, names, fontsize=8, parse_math=False)
        panel.set_yticks(np.arange(passes) + 0.5, [f"pass {i + 1}" for i in range(passes)])
        panel.set_xlim(0, width)
        said = [
            f"{label}: {_short(answer, WIDTH - len(label))}"
            for label, answer in zip(numbers["labels"], case["answers"])
        ]
        panel.set_title("\n".join([_short(case["question"]), *said]), fontsize=8, parse_math=False)
    picture.colorbar(image, ax=list(panels[:, 0]), fraction=0.04, pad=0.02, label="cosine with the token's embedding")
    right = numbers["right"]
    first, second = numbers["labels"]
    note = (
        f"{len(cases)} of {len(numbers['cases'])} cases, the first; #: rank by cosine among all tokens\n"
        f"right of {numbers['questions']}: both {right['both']}, only {first} {right['first']}, "
        f"only {second} {right['second']}"
    )
    footnote(picture, note)
    return picture


def _short(text: str, width: int = WIDTH) -> str:
    """The end of a text, where a question stands behind what it is about."""
    return text if len(text) <= width else f"… {text[2 - width :]}"


# -- so many latents at test time --------------------------------------------------------------------------------------


def latents(paths: list[str], *, source: str | None = None, documents: int = ANSWERED) -> tuple[Any, dict[str, Any]]:
    """Accuracy with 0 to twice as many latents as a model was trained with last, greedy; learned pauses are taken too.

    Args:
        source: the questions; `None`: those that each model was trained on.
        documents: so many of them are asked.
    """
    from matplotlib.ticker import MaxNLocator

    from mentalese.evaluation.answers import answer_records
    from mentalese.evaluation.statistics import bootstrap_ratio

    models = _open(paths, source, documents)
    for opened in models:
        _with_latents(opened, ("coconut", "agclr", "pause"))
    splits = [_split(opened, "test", 2 * opened.latents) for opened in models]
    picture, ((panel,),) = canvas(1, 1, 6.5, 4)
    numbers: dict[str, Any] = {"split": "test", "models": []}
    for i, (m, split) in enumerate(zip(models, splits)):
        counts = range(2 * m.latents + 1)
        right = np.array(
            [[each.correct for each in answer_records(m.saved(count), split, show=True)] for count in counts]
        ).T
        accuracy, interval = right.mean(0), bootstrap_ratio(right.astype(float), np.ones(right.shape))
        color, marker = COLORS[i % len(COLORS)], MARKERS[i % len(MARKERS)]
        panel.plot(counts, accuracy, color=color, marker=marker, label=m.label)
        panel.plot(m.latents, accuracy[m.latents], color=color, marker="o", markersize=12, markerfacecolor="none")
        if interval is not None:
            panel.fill_between(counts, *interval, color=color, alpha=0.12, linewidth=0)
        numbers["models"].append(
            m.about()
            | {
                "source": m.data.source,
                "questions": len(right),
                "at": list(counts),
                "accuracy": accuracy.tolist(),
                "interval": None if interval is None else interval.tolist(),
            }
        )
    panel.set(title="test accuracy by the number of latents", xlabel="latents at test time", ylim=(0, None))
    panel.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.legend()
    asked = sorted({model["questions"] for model in numbers["models"]})
    note = f"{' or '.join(map(str, asked))} questions; ring: as trained; bands: 95% over questions"
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
        description="questions that AGCLR alone answers right, and the answer's tokens in its memory",
        takes="AGCLR OTHER",
        draw=contrast,
        reads_source=True,
    ),
    "latents": Figure(
        description="accuracy by the number of latents at test time", takes="MODEL ...", draw=latents, reads_source=True
    ),
}

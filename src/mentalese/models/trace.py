"""The thoughts of a model about a text, as data: scores, vectors, links and curves; saved, loaded and displayed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mentalese.errors import InputError, require
from mentalese.files import read_json

if TYPE_CHECKING:
    import pandas


@dataclass
class Thought:
    """A latent vector and the half-open span of tokens `[start, end)` that it represents.

    Attributes:
        label: kind of the thought, if a model has several.
        layer: the block that it belongs to.
        codes: its nearest codes, one per codebook.
        nearest: token ids and their probabilities when the output embedding reads the vector or, in CoLaR, the state
            that predicts it; best first.
    """

    vector: Tensor
    start: int
    end: int
    label: str = ""
    layer: int | None = None
    codes: tuple[int, ...] = ()
    nearest: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Shown:
    """The words for a score, a link or a curve of a trace.

    Attributes:
        title: title for people; in a name that ends in a dot, `{}` stands for the rest (`streams.` of `streams.3`).
        about: one sentence.
        unit: `nats`, `share`, `count` or another word; empty if there is none.
        along: dimension of a curve's numbers: `layer`, `pass`, `step`, `thought`, `chunk`, `stream`.
    """

    title: str
    about: str = ""
    unit: str = ""
    along: str = ""


@dataclass(frozen=True)
class Knob:
    """A setting of a model at inference, for a page: an option of `mentalese generate`.

    Attributes:
        name: of the option, or of a field of the config if `field`.
        own: the value without the option.
        start: the value that a page starts with; `None`: `own`.
        least, most, step: of its slider; without `most` a number is typed.
    """

    name: str
    label: str
    info: str
    own: float
    least: float
    most: float | None = None
    step: float = 1
    start: float | None = None
    field: bool = False


INFLUENCE = "influence"
"""The name of the influence of thoughts on later tokens: a curve by thought, a link, or a score."""

SHOWN = {
    "surprisal": Shown("surprisal", "Minus the log of the probability that the model gave to the token.", "nats"),
    "entropy": Shown("entropy", "Entropy of the prediction of the token, whichever token follows.", "nats"),
    INFLUENCE: Shown(INFLUENCE, "What later tokens lose if only this thought is replaced.", "nats", along="thought"),
    "predicted": Shown("most likely token", "The most likely token at each place, given the text before it."),
}
"""Contents of every model's trace."""

ALONG_TEXT = ("chunk", "stream")
"""Values of `Shown.along` of curves that follow the text."""


@dataclass
class ThoughtTrace:
    """The thoughts of a model about one row of text; every family fills in the fields that its paper studies.

    Attributes:
        input_ids: [length].
        scores: name -> [length], one number per token, NaN where a token has none. Every model has `surprisal` and (all
            but models that read in both directions) `entropy`, in nats, of the prediction of the token.
        thoughts: latent vectors with the tokens that each represents, in order.
        links: name -> [len(thoughts), len(thoughts)], how much thought i read of thought j.
        curves: name -> [n], numbers along another dimension than tokens (gate by layer, ELBO by step).
        places: name -> int [n], the place of each number of a curve along its dimension, counted from 0; without an
            entry a curve has a number at every place.
        readings: name -> [length], token ids that the model would write in the text's place; `predicted` is the most
            likely next token.
        streams: columns of a table [m], a row for each candidate at each forking layer and for each stream at the end:
            `layer`, `token` (its place in the row), `parent` (the row of the table from which it forked, -1: none),
            `weight` (its score, 0 to 1), `kept` (bool, the selection kept it), `fork` (bool, it is a fork).
        tokens: the text of each token; empty if the tokenizer was unknown.
        special: true for tokens that are not text: markers, latents.
        vocabulary: the text of other ids, in `readings` and `Thought.nearest`.
        model: the model type.
        control: the model's `thought_control`, which replaced its thoughts; `None`: no control.
        written: the place of the first token of an answer that the model wrote itself; `None`: it only read.
        windows: (start, first, stop) of each window of a text longer than the model's context: the model read tokens
            `start` to `stop - 1` at once, and the trace contains the tokens from `first` on. Empty: it was read at
            once.
        draw: function that makes the HTML that notebooks show; set if a module that draws traces is imported, else
            notebooks show a table.
    """

    VERSION = 3
    draw: ClassVar[Callable[[ThoughtTrace], str] | None] = None

    input_ids: Tensor
    scores: dict[str, Tensor] = field(default_factory=dict)
    thoughts: list[Thought] = field(default_factory=list)
    links: dict[str, Tensor] = field(default_factory=dict)
    curves: dict[str, Tensor] = field(default_factory=dict)
    places: dict[str, Tensor] = field(default_factory=dict)
    readings: dict[str, Tensor] = field(default_factory=dict)
    streams: dict[str, Tensor] = field(default_factory=dict)
    tokens: list[str] = field(default_factory=list)
    special: list[bool] = field(default_factory=list)
    vocabulary: dict[int, str] = field(default_factory=dict)
    model: str = ""
    control: str | None = None
    written: int | None = None
    windows: list[tuple[int, int, int]] = field(default_factory=list)

    _PLAIN: ClassVar = ("model", "control", "tokens", "special", "vocabulary", "written", "windows")
    _GROUPS: ClassVar = ("scores", "links", "curves", "places", "readings", "streams")

    def save(self, folder: str | Path) -> None:
        """Write `trace.safetensors` and `trace.json` into `folder`."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {"input_ids": self.input_ids}
        for group in self._GROUPS:
            tensors |= {f"{group}.{name}": value for name, value in getattr(self, group).items()}
        if self.thoughts:
            tensors["thoughts"] = torch.stack([thought.vector for thought in self.thoughts])
        save_file(
            {name: value.detach().cpu().contiguous() for name, value in tensors.items()}, folder / "trace.safetensors"
        )
        described = {name: getattr(self, name) for name in self._PLAIN}
        described["names"] = {group: list(getattr(self, group)) for group in self._GROUPS}  # in their order
        described["thoughts"] = [{k: v for k, v in vars(t).items() if k != "vector"} for t in self.thoughts]
        (folder / "trace.json").write_text(json.dumps({"version": self.VERSION} | described), encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> ThoughtTrace:
        """Return a trace that `save` wrote; raise `InputError` if there is none, or one of another version."""
        folder = Path(folder)
        if not (folder / "trace.json").is_file():
            raise InputError(f"{folder} contains no trace.json: use a folder that `ThoughtTrace.save` wrote")
        described = read_json(folder / "trace.json")
        version, remedy = described.get("version"), f"this library reads {cls.VERSION}, make the trace again"
        require(version == cls.VERSION, f"the version of the trace in {folder}", version, remedy)
        tensors = load_file(folder / "trace.safetensors")
        fields = {name: described[name] for name in cls._PLAIN}
        fields["vocabulary"] = {int(token): text for token, text in fields["vocabulary"].items()}
        fields["windows"] = [tuple(window) for window in fields["windows"]]
        for group, names in described["names"].items():
            fields[group] = {name: tensors[f"{group}.{name}"] for name in names}
        fields["thoughts"] = []
        for vector, about in zip(tensors.get("thoughts", ()), described["thoughts"]):
            about["codes"], about["nearest"] = tuple(about["codes"]), tuple(map(tuple, about["nearest"]))
            fields["thoughts"].append(Thought(vector, **about))
        return cls(input_ids=tensors["input_ids"], **fields)

    def to_pandas(self) -> pandas.DataFrame:
        """Return a row per token: `token` (or its id), every score, and `thoughts`, the numbers of its thoughts."""
        import pandas

        stand: list[list[int]] = [[] for _ in self.input_ids]
        for number, thought in enumerate(self.thoughts):
            for place in range(thought.start, thought.end):
                stand[place].append(number)
        scores = {name: values.float().cpu().numpy() for name, values in self.scores.items()}
        return pandas.DataFrame({"token": self.tokens or self.input_ids.tolist(), **scores, "thoughts": stand})

    def _repr_html_(self) -> str:
        draw = type(self).draw
        return self.to_pandas()._repr_html_() if draw is None else draw(self)

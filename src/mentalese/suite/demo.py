"""`mentalese demo`: five small models trained in minutes, their thoughts, and their scores without thoughts.

Each model is the mechanism of a task of the suite, at settings that learn it quickly. It is scored with its own
thoughts, without them, and with the thoughts of another text, and shown on a page of its own (`mentalese.viewer`).
The page begins with a pretrained chat model that thinks, if its base is in the cache.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import statistics
from pathlib import Path
from typing import Any

import torch

from mentalese import provenance
from mentalese.compare.jobs import Job, run_jobs
from mentalese.evaluation.answers import ask
from mentalese.files import check_page, write_json, write_text
from mentalese.html import render
from mentalese.models.base import count_parameters
from mentalese.models.saved import Saved, load
from mentalese.models.trace import ThoughtTrace
from mentalese.packaged import PREFIX, SMOLLM2, cached_models, packaged_models
from mentalese.suite.demo_models import DEMO, DemoModel
from mentalese.suite.judge import levels_of, scored_nats
from mentalese.suite.tasks import task
from mentalese.suite.tasks.recall import Recall
from mentalese.viewer.page import think_page

CONTROLS: dict[str, str | None] = {"own thoughts": None, "no thoughts": "removed", "another text's": "swapped"}
Entry = dict[str, Any]
"""A part of `demo.json`."""
EXAMPLES = 6
SCORED = 200  # documents or questions
PRETRAINED = f"{PREFIX}{SMOLLM2}-words-colar"
ASKED = 60  # questions to the pretrained model
TRIED = 40  # first documents or questions of the test split, the candidates for examples


def run_demo(out: Path, *, jobs: int = 1) -> Entry:
    """Train the models of `DEMO` that `out` does not contain yet, and write `demo.json` and `index.html` into it.

    Args:
        out: the folder of all runs and pages, with a folder and a page per model.
        jobs: trainings at once, each in a process with one thread or one GPU.

    Returns:
        The content of `demo.json`.

    Raises:
        InputError: `out` contains other runs or another `index.html`, or cannot be written.
    """
    check_page(out / "index.html", "demo.json")
    results = run_jobs([Job(part.recipe, out / name) for name, part in DEMO.items()], count=jobs)
    pretrained = _pretrained(out)  # writes a page into the folder that trainings make
    rows = []
    torch.set_num_threads(1)  # as in training: scores are the same on every number of cores
    for (name, part), result in zip(DEMO.items(), results):
        assert result is not None  # these may not diverge
        rows.append(_shown(name, part, out / name) | {"seconds": result["seconds"], "tokens": result["tokens"]})
    page: Entry = {
        "version": 2,
        "pretrained": pretrained,
        "models": rows,
        "command": provenance.command(),
        "commit": provenance.commit(),
    }
    write_json(out / "demo.json", page)
    write_text(out / "index.html", render("demo.html.j2", **page))
    return page


def _pretrained(out: Path) -> Entry | None:
    """Return the entry of the chat model and write its page; `None` if the model, its base or PEFT is missing."""
    name, has_base = PRETRAINED.removeprefix(PREFIX), (cached_models() / SMOLLM2).is_dir()
    if not has_base or name not in packaged_models() or importlib.util.find_spec("peft") is None:
        return None
    models = _controlled(PRETRAINED, ASKED)
    scores, examples = _asked(models)
    return {
        "name": name,
        "title": "SmolLM2 thinks in latents, in English",
        "about": "A chat model of 135 million parameters, with adapters that replace the written steps of a word "
        "problem by vectors. Its page shows each of them beside the tokens that it stands for.",
        "page": _page(out / f"{name}.html", models, examples[0], f"mentalese think {PRETRAINED} ..").name,
        "scores": scores,
        "levels": {"unit": "accuracy", "optimum": 1.0, "chance": 0.0},
        "examples": examples,
        "streams": [],
    }


def _shown(name: str, part: DemoModel, folder: Path) -> Entry:
    """Return a model's scores and examples; its page is written next to its folder."""
    models = _controlled(folder, SCORED)
    thinker, without = models["own thoughts"], models["no thoughts"]
    if thinker.layout.questions:
        scores, examples = _asked(models)
    else:
        scores = {label: float(scored_nats(saved, part.task).mean()) for label, saved in models.items()}
        examples = _predicted(thinker, without, part)
    return {
        "name": name,
        "family": part.task.methods[0].family,
        "title": part.title,
        "about": part.about,
        "page": _page(folder.with_suffix(".html"), models, examples[0], f"mentalese think {folder} ..").name,
        "recipe": part.recipe.name,
        "parameters": count_parameters(thinker.model)["non_embedding"],
        "scores": scores,
        "levels": dataclasses.asdict(levels_of(part.task)),
        "examples": examples,
        "streams": _streams(thinker.think(examples[0]["text"])),
    }


def _controlled(path: str | Path, documents: int) -> dict[str, Saved]:
    """Return a model with its own thoughts and under each control, to be scored on the first documents."""
    return {
        label: load(path, config={"thought_control": control}).scored_by(max_documents=documents)
        for label, control in CONTROLS.items()
    }


def _asked(models: dict[str, Saved]) -> tuple[dict[str, float], list[Entry]]:
    """Return the shares of right answers, and examples."""
    split = models["own thoughts"].split()
    answers = {label: ask(saved, split).records for label, saved in models.items()}
    scores = {label: statistics.fmean(record.correct for record in records) for label, records in answers.items()}
    examples: dict[str, Entry] = {}  # different questions
    for a, b in zip(*(answers[label][:TRIED] for label in ("own thoughts", "no thoughts")), strict=True):
        question = a.question.strip()
        examples[question] = {"text": question, "right": a.expected, "with": a.answer, "without": b.answer}
    return scores, sorted(examples.values(), key=_worth)[:EXAMPLES]


def _page(file: Path, models: dict[str, Saved], example: Entry, command: str) -> Path:
    """Write the page of a model's thoughts about an example, beside the model without them; return its file."""
    thinker, without = models["own thoughts"], models["no thoughts"]
    right = example.get("right") if thinker.layout.questions else None
    shown = think_page(thinker, example["text"], against=without, answer=right, command=command, influence=True)
    write_text(file, shown)
    return file


def _streams(trace: ThoughtTrace) -> list[tuple[str, int]]:
    """Return each token with its number of streams at the end; none if the model does not fork."""
    if not trace.streams:
        return []
    layer, attention = trace.streams["layer"], trace.streams["kept"]
    tokens = trace.streams["token"][(layer == layer.max()) & attention].tolist()
    return [(text, tokens.count(i)) for i, text in enumerate(trace.tokens) if not trace.special[i]]


def _predicted(own: Saved, without: Saved, part: DemoModel) -> list[Entry]:
    """Return texts with the worth of thoughts at each token; if answers count, with the tokens that both predict."""
    examples = []
    generator = task(part.task.spec)
    for document in list(generator.documents("test"))[: TRIED // 4]:
        traces = [saved.think(document.text) for saved in (own, without)]
        places = [i for i, special in enumerate(traces[0].special) if not special]
        tokens = [traces[0].tokens[i] for i in places]
        a, b = (trace.scores["surprisal"][places].float() for trace in traces)
        example: Entry = {
            "text": document.text,
            "tokens": tokens,
            "gain": [round(x, 3) for x in (b - a).tolist()],
        }
        if isinstance(generator, Recall):
            i = generator.answer(document)
            words = [trace.vocabulary[int(trace.readings["predicted"][places[i]])].strip() for trace in traces]
            example |= {"text": "".join(tokens[:i]).strip(), "right": tokens[i].strip()}
            example |= {"with": words[0], "without": words[1]}
        examples.append(example)
    return sorted(examples, key=_worth)[:EXAMPLES]


def _worth(example: Entry) -> tuple[bool, bool]:
    """Return a key that sorts answers that only thoughts get right first; texts keep their order."""
    return example.get("right") != example.get("with"), example.get("right") == example.get("without")

"""What every model asks of a GPU, counted without one: `waits` of the host, and `kernels`, of a training step, of the
scoring of a batch, and of a generated token of four prompts.

`device.json` holds the numbers. A number that rises is refused; one that falls is to be lowered there:

    PYTHONPATH=benchmarks python tests/contract/test_device.py [RECIPE ..]

which also writes the table of docs/training.md.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from mentalese import recipes
from mentalese.data.batch import to_device
from mentalese.recipe import Recipe
from mentalese.registry import families, get_recipe, load
from mentalese.testing import MODES, contract_cache  # noqa: F401 (a fixture)
from mentalese.testing.cases import PROMPTS, TESTED, write_corpus
from mentalese.training.loop import Run
from mentalese.training.parallel import Parallel
from pretended_device import DEVICE, Counts, PretendedDevice
from support import by_hand, quiet_run, shrink

pytestmark = pytest.mark.slow

TABLE = Path(__file__).with_name("device.json")
RECIPES = [*(name for name in recipes() if name.endswith("/tiny")), *MODES]
GPT2 = get_recipe("gpt2/tiny").model | {"num_hidden_layers": 6}
LARGE: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT-2, 6 layers": ("gpt2/tiny", GPT2),
    "Thought Gestalt, 6 layers, 30 sentences": ("thought_gestalt/tiny", {"num_hidden_layers": 6, "memory_size": 40}),
    "Thoughtbubbles, 6 layers": ("thoughtbubbles/tiny", {"num_hidden_layers": 6, "fork_layers": [1, 2, 3]}),
    "AGCLR on GPT-2, 6 layers, 6 latents": ("coconut/tiny", {"backbone": GPT2}),
    "LTM, 6 layers, 16 fast steps": (
        "latent_thought/tiny",
        {"num_hidden_layers": 6, "num_latents": 6, "fast_steps": 16},
    ),
    "ConceptLM on GPT-2, 6 layers": ("conceptlm/tiny", {"backbone": GPT2}),
}
"""Training steps of models as deep as those that people train, on longer rows: a recipe, and fields of its model."""
ROWS: dict[str, dict[str, Any]] = {
    "packed": {"sequence_length": 256},
    "sentence_streams": {"max_sentences": 30, "tokens_per_batch": 1600},
    "qa": {"latents": 6, "uniform_prob": 0.0},
}
"""Their rows by layout: four of 256 tokens, as many streams of 30 sentences, or questions with 6 latents."""
NEW = (2, 10)  # tokens; what a second, longer text costs beyond the first is that of the tokens between
DOCUMENT = Path(__file__).parents[2] / "docs" / "training.md"
HEADERS = (
    "| | waits, step | kernels, step | waits, token | kernels, token |\n|---|---|---|---|---|\n",
    "| | waits, step | kernels, step |\n|---|---|---|\n",
)
"""Of the tables of `RECIPES` and of `LARGE`."""
ROUNDING = 0.02  # versions of torch and transformers differ by a few kernels


def counted(name: str, corpus: Path) -> dict[str, tuple[Counts, int]]:
    """Of each piece of work, what it asks of the device and among how many it is to be divided.

    Scores and texts must be those of the host: what is done otherwise on a device, so as not to wait, is the same.
    """
    run, device, step = _trained(name, corpus)
    recipe, model = run.recipe, run.model
    found = {"step": (step, 1)}
    if name in LARGE:
        return found

    batch, scores = run.plan.batch(0), []
    model.eval()
    with device:
        there = to_device(batch, DEVICE)
        found["score"] = device.count(lambda: scores.append(model.token_nll(there))), 1
    torch.testing.assert_close(scores[0], model.token_nll(batch), atol=1e-4, rtol=1e-4)

    for field, value in TESTED.get(name, {}).get("causal", {}).items():
        setattr(model.config, field, value)
    prompts, texts, counts = recipe.layout.encode_prompts(PROMPTS, run.tokenizer, recipe.data), [], []
    for new in NEW:
        options = {"do_sample": False, "pad_token_id": run.tokenizer.pad_token_id}
        options |= {"min_new_tokens": new, "max_new_tokens": new}
        with device:
            there = to_device(prompts, DEVICE)
            counts.append(device.count(lambda: texts.append(model.generate(**there, **options))))  # noqa: B023
    assert torch.equal(texts[-1], model.generate(**prompts, **options))
    return found | {"token": (counts[1] - counts[0], NEW[1] - NEW[0])}


def _trained(name: str, corpus: Path, **train: int) -> tuple[Run, PretendedDevice, Counts]:
    """A run on the device, and what its second step asks for; the first one also makes the optimiser's moments."""
    large = name in LARGE
    run = quiet_run(_large(name, corpus), corpus.with_name("run")) if large else by_hand(name, corpus, **train)
    device = PretendedDevice()
    with device:
        run.model.to(DEVICE)
        run.parallel = Parallel(0, 1, DEVICE)
        steps = [device.count(run.one_step) for _ in range(2)]
    return run, device, steps[1]


def _large(name: str, corpus: Path) -> Recipe:
    """One of `LARGE`, on documents of the corpus that are joined ten by ten, so that streams are long."""
    recipe, fields = LARGE[name]
    large = shrink(get_recipe(recipe), corpus)
    large = dataclasses.replace(
        large, model=large.model | fields, layout=dataclasses.replace(large.layout, **ROWS[large.layout.kind])
    )
    if large.layout.questions:
        return large
    texts = [json.loads(line)["text"] for line in corpus.read_text().splitlines()]
    path = corpus.with_name("long.jsonl")
    path.write_text("".join(json.dumps({"text": " ".join(texts[i : i + 10])}) + "\n" for i in range(0, len(texts), 10)))
    return dataclasses.replace(large, data=dataclasses.replace(large.data, source=f"file:{path}"))


def _is_ours(name: str) -> bool:
    """Whether a recipe is of a family in this repository."""
    for family in families().values():
        if name in (recipe.name for recipe in load(family.recipes)):
            return family.recipes.startswith("mentalese.families.")
    return True


def numbers(found: dict[str, tuple[Counts, int]]) -> dict[str, dict[str, float]]:
    return {
        work: {kind: round(getattr(counts, kind).total() / among, 2) for kind in ("waits", "kernels")}
        for work, (counts, among) in found.items()
    }


@pytest.mark.parametrize("name", [*RECIPES, *LARGE])
@pytest.mark.usefixtures("contract_cache")
def test_a_model_asks_no_more_of_a_device_than_it_did(name: str, corpus: Path) -> None:
    table = json.loads(TABLE.read_text())
    found = counted(name, corpus)
    if name not in table:
        assert not _is_ours(name), f"{TABLE.name} has no {name}: write it with python {Path(__file__).name} {name}"
        pytest.skip("a family of another package, of which the table has no numbers")
    for work, now in numbers(found).items():
        counts, _ = found[work]
        for kind, value in now.items():
            held = table[name][work][kind]
            room = ROUNDING * held if kind == "kernels" else 0
            listed = "\n".join(f"{n:4} {what}" for what, n in getattr(counts, kind).most_common(20))
            assert value <= held + room, f"{kind} of a {work} of {name} rose from {held} to {value}:\n{listed}"
            assert value >= held - room, f"{kind} of a {work} of {name} fell from {held} to {value}: lower {TABLE.name}"


def document(text: str) -> str:
    """The text with the numbers of `device.json` in its tables."""
    table = json.loads(TABLE.read_text())
    for header, large in zip(HEADERS, (False, True)):
        before, after = text.split(header)
        lines = [
            f"| {name if large else f'`{name}`'} | "
            + " | ".join(f"{row[work][kind]:,g}" for work in ("step", "token") if work in row for kind in row[work])
            + " |"
            for name, row in table.items()
            if (name in LARGE) == large
        ]
        text = before + header + "\n".join(lines) + after[after.index("\n\n") :]
    return text


def test_the_tables_of_the_document_are_those_of_the_test() -> None:
    assert document(DOCUMENT.read_text()) == DOCUMENT.read_text(), f"run python {Path(__file__).name}"


@pytest.mark.usefixtures("contract_cache")
def test_micro_batches_wait_no_more_than_a_batch_each(corpus: Path) -> None:
    one, two = (_trained("gpt2/tiny", corpus, gradient_accumulation_steps=n)[2].waits for n in (1, 2))
    assert two.total() == 2 * one.total(), two


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        corpus = write_corpus(Path(folder))
        table = json.loads(TABLE.read_text()) if TABLE.is_file() else {}
        for name in sys.argv[1:] or [*RECIPES, *LARGE]:
            table[name] = numbers(counted(name, corpus))
            print(name, table[name])
    ordered = {name: table[name] for name in [*RECIPES, *LARGE] if name in table}
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in ordered.items())
    TABLE.write_text(f"{{\n{lines}\n}}\n")
    DOCUMENT.write_text(document(DOCUMENT.read_text()))

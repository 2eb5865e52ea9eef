"""`MentaleseTrainer` trains what the library's own loop trains."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, TrainingArguments

import mentalese
from mentalese import MentaleseTrainer, Phase, Recipe, get_recipe
from mentalese.errors import InputError
from mentalese.training.loop import train
from mentalese.training.trainer import DECIDED
from support import losses, shrink

FAMILIES = [
    "gpt2/tiny",
    "thought_gestalt/tiny",
    "coconut/tiny",
    "conceptlm/tiny",
    "thoughtbubbles/tiny",
    "latent_thought/tiny",
    "mdlm/tiny",
    "looped/tiny",
    "codi/tiny",
]


def arguments(out: Path, **settings: Any) -> TrainingArguments:
    quiet = {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "use_cpu": True, "logging_steps": 1}
    return TrainingArguments(str(out), **(quiet | settings))


def small(name: str, corpus: Path, **settings: Any) -> Recipe:
    recipe = shrink(get_recipe(name), corpus, steps=4, **settings)
    return dataclasses.replace(recipe, optimizer=dataclasses.replace(recipe.optimizer, warmup=2))


def logged(trainer: MentaleseTrainer, name: str = "loss") -> list[float]:
    return [record[name] for record in trainer.state.log_history if name in record]


@pytest.mark.slow
@pytest.mark.parametrize("micros", [1, 4])
@pytest.mark.parametrize("name", FAMILIES)
def test_its_losses_are_those_of_the_loop(name: str, micros: int, corpus: Path, tmp_path: Path) -> None:
    recipe = small(name, corpus, gradient_accumulation_steps=micros)
    train(recipe, tmp_path / "loop", show=False)
    trainer = MentaleseTrainer(recipe, arguments(tmp_path / "trainer"))
    trainer.train()
    records = [json.loads(line) for line in (tmp_path / "loop" / "metrics.jsonl").read_text().splitlines()]
    records = [record for record in records if "loss" in record]
    assert logged(trainer) == pytest.approx([record["loss"] for record in records], rel=2e-5)
    assert logged(trainer, "grad_norm") == pytest.approx([record["grad_norm"] for record in records], rel=1e-3)
    assert logged(trainer, "learning_rate") == pytest.approx([record["learning_rate"] for record in records])
    assert len(logged(trainer)) == 4


@pytest.mark.slow
def test_phases_act_at_their_steps(corpus: Path, tmp_path: Path) -> None:
    recipe = small("thought_gestalt/tiny", corpus)
    phases = (Phase(start=2, reset_optimizer=True, model={"eos_weight": 0.05, "token_dropout": 0.3}),)
    recipe = dataclasses.replace(recipe, phases=phases)
    train(recipe, tmp_path / "loop", show=False)
    trainer = MentaleseTrainer(recipe, arguments(tmp_path / "trainer"))
    trainer.train()
    assert logged(trainer) == pytest.approx(losses(tmp_path / "loop"), rel=2e-5)
    untouched = MentaleseTrainer(dataclasses.replace(recipe, phases=()), arguments(tmp_path / "plain"))
    untouched.train()
    assert logged(untouched)[:2] == logged(trainer)[:2]
    assert logged(untouched)[2:] != logged(trainer)[2:]


def test_bf16_is_the_recipes(corpus: Path, tmp_path: Path) -> None:
    recipe = small("coconut/tiny", corpus, precision="bf16")
    train(recipe, tmp_path / "loop", show=False)
    trainer = MentaleseTrainer(recipe, arguments(tmp_path / "trainer"))
    trainer.train()
    assert logged(trainer) == pytest.approx(losses(tmp_path / "loop"), rel=1e-3)
    exact = MentaleseTrainer(small("coconut/tiny", corpus), arguments(tmp_path / "exact"))
    exact.train()
    assert logged(exact) != logged(trainer)


@pytest.mark.filterwarnings("ignore:.*pin_memory")
def test_resumed_trainer_run_equals_a_whole_one(corpus: Path, tmp_path: Path) -> None:
    recipe = small("conceptlm/tiny", corpus)
    whole = MentaleseTrainer(recipe, arguments(tmp_path / "run", save_strategy="steps", save_steps=2))
    whole.train()
    whole.save_model()
    again = MentaleseTrainer(recipe, arguments(tmp_path / "again"))
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    assert logged(again)[-2:] == logged(whole)[-2:]
    opened = mentalese.load(tmp_path / "run", "cpu")
    assert opened.recipe == recipe
    assert opened.tokenizer.get_vocab() == whole.processing_class.get_vocab()
    for other in (AutoModelForCausalLM.from_pretrained(tmp_path / "run"), again.model, whole.model):
        for name, value in opened.model.state_dict().items():
            assert torch.equal(other.state_dict()[name], value), name


@pytest.mark.filterwarnings("ignore:.*pin_memory")
def test_a_trainer_that_was_interrupted_goes_on_as_a_whole_run(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = small("gpt2/tiny", corpus)
    whole = MentaleseTrainer(recipe, arguments(tmp_path / "whole"))
    whole.train()
    trainer = MentaleseTrainer(recipe, arguments(tmp_path / "run", save_strategy="steps", save_steps=1))
    backward, count = trainer.accelerator.backward, 0

    def interrupted(*args: Any, **options: Any) -> None:
        nonlocal count
        count += 1
        if count == 2:
            raise KeyboardInterrupt
        backward(*args, **options)

    monkeypatch.setattr(trainer.accelerator, "backward", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert trainer.sums
    trainer.train(resume_from_checkpoint=True)
    assert logged(trainer)[-2:] == logged(whole)[-2:]


def test_a_recipe_can_be_a_file(corpus: Path, tmp_path: Path) -> None:
    recipe = small("gpt2/tiny", corpus)
    (tmp_path / "mine.json").write_text(json.dumps(recipe.to_dict()))
    assert MentaleseTrainer(tmp_path / "mine.json", arguments(tmp_path / "run")).recipe == recipe


@pytest.mark.parametrize(
    "settings",
    [
        {"learning_rate": 1e-3},
        {"gradient_accumulation_steps": 2},
        {"num_train_epochs": 1},
        {"fp16": True},
        {"data_seed": 3},
        {"optim": "adafactor"},
        {"neftune_noise_alpha": 5.0},
        {"lr_scheduler_kwargs": {"a": 1}},
        {"ignore_data_skip": True},
        {"label_smoothing_factor": 0.1},
    ],
)
def test_arguments_that_the_recipe_decides_are_refused(settings: dict[str, Any], corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"^args\.{next(iter(settings))} is "):
        MentaleseTrainer(small("gpt2/tiny", corpus), arguments(tmp_path / "run", **settings))


@pytest.mark.parametrize(
    "settings",
    [{"early_stopping_patience": 3}, {"parallel": "fsdp"}, {"lora_rank": 4, "init": "x"}, {"device": "cuda"}],
)
def test_recipes_that_only_the_loop_can_train_are_refused(
    settings: dict[str, Any], corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainingArguments, "world_size", 2)
    recipe = small("gpt2/tiny", corpus)
    changed = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, **({"parallel": "ddp"} | settings)))
    with pytest.raises(InputError, match=rf"^train\.{next(iter(settings))} is "):
        MentaleseTrainer(changed, arguments(tmp_path / "run"))


def test_every_refused_argument_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    assert [name for name in DECIDED if f"`{name}`" not in page] == []


WORKER = """
import json, sys
from pathlib import Path
from transformers import TrainingArguments
from mentalese import MentaleseTrainer, Recipe
for out in map(Path, sys.argv[1:]):
    recipe = Recipe.from_dict(json.loads((out / "recipe.json").read_text()))
    args = TrainingArguments(out, report_to=[], save_strategy="no", disable_tqdm=True, use_cpu=True, logging_steps=1)
    trainer = MentaleseTrainer(recipe, args)
    trainer.train()
    if trainer.is_world_process_zero():
        found = [record["loss"] for record in trainer.state.log_history if "loss" in record]
        (out / "losses.json").write_text(json.dumps(found))
"""


@pytest.mark.slow
def test_two_processes_equal_one(corpus: Path, tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("thought_gestalt/tiny", "coconut/tiny")}
    for name, folder in folders.items():
        recipe = small(name, corpus, gradient_accumulation_steps=2)
        train(recipe, folder / "loop", show=False)
        (folder / "recipe.json").write_text(json.dumps(recipe.to_dict()))
    (tmp_path / "worker.py").write_text(WORKER)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    files = [str(path) for path in (tmp_path / "worker.py", *folders.values())]
    done = subprocess.run([sys.executable, *torchrun, *files], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    for folder in folders.values():
        two = json.loads((folder / "losses.json").read_text())
        assert two == pytest.approx(losses(folder / "loop"), rel=2e-4)

"""From questions to answers: a curriculum is trained, asked at its stage, resumed, evaluated and compared."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import statistics
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from mentalese import DataConfig, EvaluationConfig, Phase, Recipe, TrainConfig, answer, cli
from mentalese.compare.compare import Match, _cost, _with_flops, compare
from mentalese.compare.report import print_comparison
from mentalese.data.layouts import Layout, PerDocument, QuestionAnswer
from mentalese.errors import InputError
from mentalese.evaluation.answers import AnswerMetrics
from mentalese.models.checkpoints import saved_recipe
from mentalese.models.saved import Saved
from mentalese.models.scoring import Perplexity
from mentalese.training import loop, validation
from mentalese.training.loop import train
from mentalese.training.parallel import Parallel
from support import assert_same, checkpoint, finish, launch, losses, metrics, power_cut, weights

GPT2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}
EPOCH = 8  # steps


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 64 + 8 + 8 questions: `3+4+1?`, two steps and an answer."""
    folder = tmp_path_factory.mktemp("sums")
    rows = []
    for a in range(80):
        b, c = (7 * a) % 10, (3 * a) % 10
        steps = [f"{a}+{b}={a + b}", f"{a + b}+{c}={a + b + c}"]
        rows.append({"question": f"{a}+{b}+{c}?", "steps": steps, "answer": str(a + b + c)})
    for name, some in (("train", rows[16:]), ("validation", rows[:8]), ("test", rows[8:16])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
    return folder


@pytest.fixture
def recipe(sums: Path) -> Recipe:
    return curriculum(sums)


def curriculum(sums: Path) -> Recipe:
    """Two steps of text, then one and a latent, then two latents; an epoch each."""
    return Recipe(
        name="sums/latents",
        description="sums in latent steps",
        model=GPT2,
        data=DataConfig(
            source=f"file:{sums}", tokenizer="bpe:280",
        ),
        layout=QuestionAnswer(sequence_length=40, batch_size=8, stages=2, latents_per_step=1),
        train=TrainConfig(epochs=3, eval_every=EPOCH // 2, log_every=1, checkpoint_every=5, device="cpu"),
        evaluation=EvaluationConfig(metric="accuracy", answer_tokens=6, sample_tokens=6),
        phases=tuple(Phase(start=s, clock="epochs", layout={"stage": s}, reset_optimizer=True) for s in (1, 2)),
    )  # fmt: skip


def changed(recipe: Recipe, section: str, **fields: object) -> Recipe:
    return dataclasses.replace(recipe, **{section: dataclasses.replace(getattr(recipe, section), **fields)})


def test_a_curriculum_is_asked_at_the_stage_that_training_is_at(recipe: Recipe, tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = train(recipe, out, show=False)
    validations = [record for record in metrics(out) if "validation" in record]
    assert [(v["step"], v["validation"]["stage"]) for v in validations] == [
        (4, 0), (8, 0), (12, 1), (16, 1), (20, 2), (24, 2)
    ]  # fmt: skip
    for record in validations:
        figure = record["validation"]
        assert figure["questions"] == 8
        assert figure["protocol"]["latents"] == figure["stage"]
        assert figure["perplexity"] == pytest.approx(math.exp(figure["nll"]))
    assert len({v["validation"]["tokens"] for v in validations}) == 3, "each stage leaves fewer steps to score"

    assert result["best_step"] in (20, 24)
    assert result["validation"] == next(v["validation"] for v in validations if v["step"] == result["best_step"])
    assert (result["test"]["stage"], result["test"]["questions"]) == (2, 8)
    points = [p for p in result["curve"] if "validation_accuracy" in p]
    assert [(p["step"], p["stage"]) for p in points] == [(v["step"], v["validation"]["stage"]) for v in validations]
    assert [sample["prompt"] for sample in result["samples"]] == ["8+6+4?", "9+3+7?"]
    assert all(sample["text"].startswith(f"{sample['prompt']}\n") for sample in result["samples"])

    saved = saved_recipe(out)
    assert saved == changed(recipe, "layout", stage=2)
    tokenizer = AutoTokenizer.from_pretrained(out / "model")
    assert tokenizer.convert_ids_to_tokens(tokenizer("8+6+4?")["input_ids"]).count("<|latent|>") == 2
    assert Recipe.from_dict(json.loads((out / "config.json").read_text())["recipe"]) == recipe
    assert train(recipe, out, resume=True, show=False) == result


def test_a_model_that_has_learnt_the_answer_says_it_and_stops(recipe: Recipe, tmp_path: Path) -> None:
    """At first it has to write a step before the answer, then a latent stands in the place of the step."""
    rows = [{"question": f"{n}?", "steps": ["so"], "answer": "Yes, sir"} for n in range(200)]
    source = tmp_path / "numbers.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = changed(recipe, "data", source=f"file:{source}", tokenizer="bpe:300")
    recipe = changed(recipe, "layout", stages=1)
    recipe = changed(recipe, "optimizer", learning_rate=5e-3, schedule="constant")
    recipe = changed(recipe, "evaluation", answer_tokens=12)
    phase = dataclasses.replace(recipe.phases[0], start=2)
    recipe = dataclasses.replace(recipe, phases=(phase,), train=TrainConfig(epochs=4, device="cpu"))
    result = train(recipe, tmp_path / "run", show=False)
    found = [point["validation_accuracy"] for point in result["curve"] if "validation_accuracy" in point]
    assert (found[1], found[3]) == (1.0, 1.0)
    assert result["test"]["accuracy"] == 1.0
    assert [s["text"] for s in result["samples"]] == [f"{s['prompt']}\n### Yes, sir" for s in result["samples"]]
    out = tmp_path / "steps.json"
    assert mentalese("answer", tmp_path / "run", "--out", out) == 0
    assert json.loads(out.read_text())["accuracy"] == 1.0
    lines = [json.loads(line) for line in (tmp_path / "steps.answers.jsonl").read_text().splitlines()]
    assert len(lines) == result["test"]["questions"]
    assert lines[0].items() >= {
        "question": result["samples"][0]["prompt"] + "\n", "expected": "Yes, sir", "answer": "Yes, sir",
        "text": "### Yes, sir", "correct": True, "asked": True, "finished": True, "latents": 1,
    }.items()  # fmt: skip
    assert lines[0]["seconds"] > 0
    kept = [json.loads(line) for line in (tmp_path / "run/answers.jsonl").read_text().splitlines()]
    own = {"seconds": 0, "checksum": ""}
    assert [line | own for line in kept] == [line | own for line in lines]
    found = json.loads(out.read_text())
    for name in ("tokens", "seconds"):
        assert found[f"{name}_per_question"] == pytest.approx(statistics.fmean(line[name] for line in lines))
    only = tmp_path / "only.jsonl"
    answer(tmp_path / "run", out=only, show=False)
    assert len(only.read_text().splitlines()) == len(lines)
    assert not (tmp_path / "only.json").exists()


def test_the_test_after_training_can_be_bounded(recipe: Recipe, tmp_path: Path) -> None:
    recipe = changed(recipe, "train", epochs=None, steps=2)
    recipe = dataclasses.replace(changed(recipe, "evaluation", max_documents=2, max_test_documents=3), phases=())
    result = train(recipe, tmp_path / "run", show=False)
    for split, count in (("validation", 2), ("test", 3)):
        assert result[split]["questions"] == result[split]["protocol"]["documents"] == count
    assert len((tmp_path / "run/answers.jsonl").read_text().splitlines()) == 3
    assert answer(tmp_path / "run", show=False)["questions"] == 8
    with pytest.raises(InputError, match=r"evaluation.max_test_documents is 0: it should be"):
        changed(recipe, "evaluation", max_test_documents=0)


def test_long_steps_raise_the_limit_of_answers(
    recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = dataclasses.replace(changed(recipe, "evaluation", answer_tokens=3), phases=())
    run = loop.Run(recipe, tmp_path / "never", Parallel(0, 1, torch.device("cpu")), show=True)
    longest = max(int(recipe.layout.answer_lengths(split).max()) for split in run.store.splits.values())
    assert longest > 10
    assert f"the longest steps and answer have {longest} tokens" in capsys.readouterr().err
    recipe = changed(recipe, "train", steps=1, epochs=None, eval_every=1)
    assert cli.main(["train", str(written(recipe, tmp_path)), "--out", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    result = json.loads((tmp_path / "run/result.json").read_text())
    for figure in (result["validation"], result["test"]):
        assert figure["protocol"]["answer_tokens"] == longest
        assert figure["unfinished"] == 8
    assert "questions, 8 unfinished" in shown
    # Questions without steps are answered with as many tokens as in training.
    saved = saved_recipe(tmp_path / "run")
    assert saved is not None
    assert saved.evaluation.answer_tokens == longest
    assert "test unfinished | 8" in (tmp_path / "run/model/README.md").read_text()


def written(recipe: Recipe, folder: Path) -> Path:
    """The recipe as a file."""
    path = folder / "recipe.json"
    path.write_text(json.dumps(recipe.to_dict()))
    return path


def test_an_interrupted_curriculum_resumes_bit_for_bit(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The power fails at step 13, after the first validation of stage 1; the checkpoint is from stage 0."""
    recipe = changed(recipe, "train", checkpoint_every=10)
    whole = train(recipe, tmp_path / "whole", show=False)
    with power_cut(monkeypatch, at_step=13):
        train(recipe, tmp_path / "cut", show=False)
    resumed = train(recipe, tmp_path / "cut", resume=True, show=False)
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    assert_same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))
    assert_same(checkpoint(tmp_path / "cut"), checkpoint(tmp_path / "whole"))
    for name in ("best_step", "validation", "test", "flops"):
        assert resumed[name] == whole[name]
    validations = [[r["validation"] for r in metrics(tmp_path / n) if "validation" in r] for n in ("cut", "whole")]
    assert validations[0] == validations[1]


@pytest.mark.parametrize(
    ("figures", "options", "end", "best"),
    [
        ([(0.9, 1), (0.8, 1), (0.7, 1), (0.6, 1), (0.2, 1), (0.1, 1)], {}, 24, 20),  # the last stage's best
        ([(0.9, 1), (0.8, 1), (0.7, 1), (0.6, 1), (0.2, 1), (0.3, 1)], {}, 24, 24),
        ([(0.0, 1), (0.0, 1), (0.0, 1), (0.0, 1), (0.2, 2), (0.2, 1)], {}, 24, 24),  # as many right, and likelier
        ([(0.0, 1), (0.0, 1), (0.0, 1), (0.0, 1), (0.2, 1), (0.2, 2)], {}, 24, 20),
        ([(0.9, 1), (0.9, 2), (0.3, 1), (0.2, 1), (0.2, 1), (0.2, 2)], {"early_stopping_patience": 2}, 24, 20),
        # Patience ends nothing before the last stage.
        ([(0.5, 1), (0.55, 1), (0.3, 1), (0.6, 1)], {"early_stopping_patience": 1}, 24, 20),
        # Nor does what the stage before has left of it.
        ([(0.5, 1), (0.5, 1), (0.6, 1), (0.6, 1), (0.2, 1)], {"early_stopping_patience": 1}, 24, 20),
        # A gain of five points counts.
        ([(0.5, 1)] * 8 + [(0.2, 1), (0.25, 1), (0.3, 1)], {"early_stopping_patience": 1, "eval_every": 2}, 24, 22),
    ],
)
def test_the_best_model_is_the_best_of_the_last_stage(
    recipe: Recipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    figures: list[tuple[float, float]],
    options: dict[str, Any],
    end: int,
    best: int,
) -> None:
    asked: list[Layout] = []

    def answers(saved: Saved, split: Any, **options: Any) -> Any:
        asked.append(saved.layout)
        metrics = AnswerMetrics(figures[min(len(asked), len(figures)) - 1][0], 0.0, 0.0, 8, {})
        return SimpleNamespace(metrics=lambda: metrics, write=lambda path: None)

    def perplexity(*args: Any, **options: Any) -> Perplexity:
        return Perplexity(figures[min(len(asked), len(figures) - 1)][1], 1, 1, 9.0, 1.0, {})

    monkeypatch.setattr(validation, "ask", answers)
    monkeypatch.setattr(Saved, "perplexity", perplexity)
    result = train(changed(recipe, "train", **options), tmp_path / "run", show=False)
    assert (result["steps"], result["best_step"]) == (end, best)
    assert asked[-1].stage == (best - 1) // EPOCH, "the test split is asked as the best model was"


def test_offloaded_weights_and_full_questions_are_refused(recipe: Recipe, tmp_path: Path) -> None:
    shared = Parallel(0, 2, torch.device("cpu"))
    with pytest.raises(InputError, match=r"train.parallel is 'fsdp': FSDP cannot generate answers"):
        loop.Run(changed(recipe, "train", parallel="fsdp"), tmp_path / "run", shared, show=False)

    def longest(answer_tokens: int) -> int:
        with pytest.raises(InputError, match=r"evaluation.answer_tokens is \d+: the longest question has") as refused:
            train(changed(recipe, "evaluation", answer_tokens=answer_tokens), tmp_path / "run", show=False)
        return int(str(refused.value).partition("has ")[2].partition(" ")[0])

    first = longest(63)
    assert longest(64 - first) == first + 1, "there was room at stage 0, and stage 1 brings a latent"
    assert not (tmp_path / "run").exists()


def test_too_long_test_question_is_refused_before_writing(sums: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sums"
    shutil.copytree(sums, folder)
    with (folder / "test.jsonl").open("a") as file:
        file.write(json.dumps({"question": "+".join("123456789" * 9), "steps": ["1"], "answer": "2"}) + "\n")
    recipe = dataclasses.replace(curriculum(folder), evaluation=EvaluationConfig(metric="perplexity"))
    with pytest.raises(InputError, match=r"layout.sequence_length is 40"):
        train(recipe, tmp_path / "run", show=False)
    assert not (tmp_path / "run").exists()


# -- commands ----------------------------------------------------------------------------------------------------------


def mentalese(*arguments: str | Path) -> int:
    return cli.main([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def run(sums: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "run"
    recipe = dataclasses.replace(curriculum(sums), train=TrainConfig(epochs=3, device="cpu"))
    train(recipe, out, show=False)
    return out


def test_answer_finds_the_accuracy_that_training_found(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, result = tmp_path / "answer.json", json.loads((run / "result.json").read_text())
    assert mentalese("answer", run, "--out", out) == 0
    found = json.loads(out.read_text())
    for name in ("accuracy", "exact_match", "f1", "questions"):
        assert found[name] == result["test"][name]
    assert f"{result['test']['f1']:,.4f}" in capsys.readouterr().out
    assert found["protocol"] | {"stage": 2, "latents": 2} == found["protocol"]
    single = answer(run, batch_size=1, show=False)
    assert single.pop("seconds_per_question") > found.pop("seconds_per_question")
    assert single == found
    assert mentalese("eval", run, "--out", out) == 0
    perplexity = json.loads(out.read_text())["perplexity"]
    assert perplexity["nll"] == pytest.approx(result["test"]["nll"], rel=1e-6)
    origin = ("split", "source", "detokenizer", "data_hash")
    assert [perplexity[name] for name in origin] == [found[name] for name in origin]


@pytest.mark.parametrize(
    ("options", "stage", "latents"),
    [("", 2, 2), ("--latents 5", 2, 5), ("--stage 1", 1, 1), ("--stage 0 --latents 0", 0, 0)],
)
def test_the_number_of_thoughts_is_a_knob(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: str, stage: int, latents: int
) -> None:
    out, more = tmp_path / "eval.json", options.split()
    assert mentalese("answer", run, "--documents", "3", "--out", out, *more) == 0
    protocol = json.loads(out.read_text())["protocol"]
    assert (protocol["stage"], protocol["latents"], protocol["documents"]) == (stage, latents, 3)
    capsys.readouterr()
    assert mentalese("generate", run, "--prompt", "3+4+1?", "--max-new-tokens", "4", *more) == 0
    assert capsys.readouterr().out.startswith("3+4+1?\n")


def test_another_set_of_questions_needs_nothing_to_train_on(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "set", tmp_path / "eval.json"
    folder.mkdir()
    rows = [{"question": f"{'1+' * 12}{i}?", "steps": ["a long step"] * 9, "answer": str(12 + i)} for i in range(4)]
    for name in ("sums_valid", "sums_test"):
        (folder / f"{name}.json").write_text(json.dumps([row | {"question": name + row["question"]} for row in rows]))
    asked = ("answer", run, "--data", f"file:{folder}", "--out", out)
    assert mentalese(*asked, "--answer-tokens", "3") == 0
    result = json.loads(out.read_text())
    assert result["protocol"]["answer_tokens"] == 3
    assert (result["questions"], result["split"], result["source"]) == (4, "test", f"file:{folder}")
    assert mentalese(*asked, "--split", "train") == 2
    assert "has validation, test" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("eval --tasks reversal --latents 2", "latents is 2: reversal cannot use it, remove it"),
        ("answer --estimators exact", "--estimators"),
        ("eval --tasks perplexity --answer-tokens 4", "--answer-tokens"),
        ("answer --latents -1", "latents is -1: it should be greater than"),
        ("answer --latents 50", "answer_tokens is 6: the shortest question has"),
    ],
)
def test_what_evaluation_cannot_use_is_refused(
    run: Path, capsys: pytest.CaptureFixture[str], options: str, says: str
) -> None:
    command, *words = options.split()
    assert mentalese(command, run, *words) == 2
    assert says in capsys.readouterr().err


def test_a_model_of_texts_is_asked_what_it_can_read(
    sums: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = Recipe(
        name="sums/text",
        description="the same as text",
        model=GPT2,
        data=DataConfig(source=f"file:{sums}", tokenizer="bpe:280"),
        layout=PerDocument(sequence_length=40),
        train=TrainConfig(steps=1, device="cpu"),
    )
    train(plain, tmp_path / "run", show=False)
    out = tmp_path / "asked.json"
    asked = ("answer", tmp_path / "run", "--answer-tokens", "4", "--documents", "3")
    assert mentalese(*asked, "--shots", "1", "--answer-samples", "2", "--seed", "1", "--out", out) == 0
    result = json.loads(out.read_text())
    assert (result["questions"], result["protocol"]["attempts"]["k"], result["protocol"]["shots"]["seed"]) == (3, 2, 1)
    assert 0 <= result["pass_at_k"] <= 1
    assert mentalese(*asked, "--data", "builtin:stdlib") == 2
    assert "source is 'builtin:stdlib': it contains texts" in capsys.readouterr().err
    assert mentalese("generate", tmp_path / "run", "--prompt", "3", "--latents", "2") == 2
    assert "latents is 2: the layout 'per_document' has no latents; remove it" in capsys.readouterr().err


# -- comparison --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.3, 0.6, 2.0])
def test_a_curriculum_is_as_long_as_its_flops_allow(recipe: Recipe, share: float) -> None:
    """Its cost per token is several times higher in the last stage, so that it depends on the length."""
    stages = tuple(dataclasses.replace(phase, start=10 * phase.start) for phase in recipe.phases)
    layout = dataclasses.replace(recipe.layout, latents_per_step=6)
    recipe = changed(dataclasses.replace(recipe, phases=stages, layout=layout), "train", epochs=30)
    budget = int(share * _cost(recipe, "flops", show=False))
    assert _cost(_with_flops(recipe, budget, show=False), "flops", show=False) == pytest.approx(budget, rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("match", [None, "tokens", "flops"])
def test_curricula_are_compared_by_their_answers(
    recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str], match: Match | None
) -> None:
    """Against answers without any step, which cost fewer tokens an epoch: at equal cost there are more epochs."""
    direct = changed(
        dataclasses.replace(recipe, name="sums/direct", phases=()), "layout", stage=1, latents_per_step=None
    )
    direct = changed(changed(direct, "layout", stages=0), "train", epochs=1)
    compared = compare([recipe, direct], tmp_path / "out", match=match, show=False)
    first, second = compared["rows"]
    if match:  # counted before the first step, and the same
        assert _cost(recipe, match, show=False) == first["runs"][0][match]
    assert (first["runs"][0]["test"]["stage"], second["runs"][0]["test"]["stage"]) == (2, 1)
    assert second["difference"] == second["accuracy"]["mean"] - first["accuracy"]["mean"]
    if match:
        assert second["runs"][0]["steps"] > EPOCH
        assert second[match]["mean"] == pytest.approx(first[match]["mean"], rel=0.15)
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Validation accuracy by training steps" in page
    assert first["answers"] == ["sums-latents/seed-0/answers.jsonl"]
    assert 'href="sums-latents/seed-0/answers.jsonl"' in page
    assert page.count('<path class="stage m0"') == 2 * 3
    assert '<path class="stage m1"' not in page
    print_comparison(compared)
    printed = capsys.readouterr().out
    assert "test accuracy, %" in printed
    assert "Unfinished answers, cut at the limit of new tokens: sums/latents " in printed


@pytest.mark.slow
def test_two_processes_answer_as_one_does(recipe: Recipe, tmp_path: Path) -> None:
    without_dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    recipe = dataclasses.replace(recipe, model=GPT2 | without_dropout)
    one = train(recipe, tmp_path / "one", show=False)
    two = finish(launch(recipe, tmp_path / "two", processes=2), tmp_path / "two")
    assert two["best_step"] == one["best_step"]
    for split in ("validation", "test"):
        assert two[split]["accuracy"] == one[split]["accuracy"]
        assert two[split]["nll"] == pytest.approx(one[split]["nll"], rel=1e-4)


def test_records_that_are_too_long_are_left_out_and_counted(
    recipe: Recipe, sums: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "sums"
    folder.mkdir()
    for part in ("train", "validation", "test"):
        text = (sums / f"{part}.jsonl").read_text()
        long = {"question": f"3+4? ({part})", "steps": ["3+4=7"] * 30, "answer": "7"}
        (folder / f"{part}.jsonl").write_text(text if part == "validation" else f"{text}{json.dumps(long)}\n")
    recipe = changed(changed(recipe, "data", source=f"file:{folder}"), "train", epochs=None, steps=2)
    with pytest.raises(InputError, match=r"1 of 65 questions are longer.* or layout.too_long=skip"):
        train(recipe, tmp_path / "refused", show=False)
    result = train(changed(recipe, "layout", too_long="skip"), tmp_path / "run", show=True)
    assert "1 of 65 questions of train were left out" in capsys.readouterr().err
    assert result["left_out"] == {"train": 1, "test": 1}
    assert result["test"]["questions"] == 8
    assert json.loads((tmp_path / "run" / "config.json").read_text())["left_out"] == {"train": 1, "test": 1}
    assert answer(tmp_path / "run", split="test")["questions"] == 8

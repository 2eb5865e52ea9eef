"""Options become a recipe; whatever is wrong with them is one sentence and exit code 2."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tyro

from mentalese import Recipe, cli, get_recipe, open_recipe, override, recipes
from mentalese.commands.generate import _lines as prompts_of
from mentalese.data.layouts import Packed, PerDocument
from mentalese.models.generate_options import GenerateOptions


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Recipe, Path, bool]]:
    """Every run that `mentalese train` would start."""
    calls: list[tuple[Recipe, Path, bool]] = []

    def train(recipe: Recipe, out: Path, *, resume: bool = False, show: bool = True) -> dict[str, Any]:
        calls.append((recipe, out, resume))
        test = {"perplexity": 12.5, "bits_per_byte": 1.25, "protocol": {}}
        return {"test": test, "steps": 3, "tokens": 3000, "seconds": 1.0}

    monkeypatch.setattr("mentalese.training.loop.train", train)
    return calls


def refusal(arguments: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    """Return the message that refuses a command in an empty folder; nothing else is printed or written."""
    monkeypatch.chdir(folder)
    assert cli.main(arguments.split()) == 2
    output = capsys.readouterr()
    assert not output.out
    assert not list(folder.iterdir())
    return output.err


def test_a_recipe_runs_as_it_is(trained: list[tuple[Recipe, Path, bool]], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "gpt2/tiny"]) == 0
    assert trained == [(get_recipe("gpt2/tiny"), Path("runs/gpt2-tiny"), False)]
    assert "test perplexity 12.50" in capsys.readouterr().out


def test_fields_become_options(trained: list[tuple[Recipe, Path, bool]]) -> None:
    arguments = (
        "train gpt2/tiny --out somewhere --resume --seed 7 --data file:a.txt --layout.batch-size 8 "
        "--optimizer.learning-rate 1e-4 --optimizer.betas 0.9 0.99 --optimizer.max-grad-norm None "
        "--evaluation.max_documents 5 --model.resid-pdrop 0.2 --train.precision bf16"
    )
    assert cli.main(arguments.split()) == 0
    [(recipe, out, resume)] = trained
    assert (out, resume) == (Path("somewhere"), True)
    assert (recipe.train.seed, recipe.train.precision) == (7, "bf16")
    assert recipe.train.tokens == get_recipe("gpt2/tiny").train.tokens
    assert (recipe.data.source, recipe.layout) == ("file:a.txt", Packed(batch_size=8))
    assert (recipe.optimizer.learning_rate, recipe.optimizer.betas) == (1e-4, (0.9, 0.99))
    assert recipe.optimizer.max_grad_norm is None
    assert recipe.evaluation.max_documents == 5
    assert recipe.model == get_recipe("gpt2/tiny").model | {"resid_pdrop": 0.2}


def test_settings_and_options_say_the_same(trained: list[tuple[Recipe, Path, bool]]) -> None:
    for arguments in (
        "optimizer.learning_rate=1e-4 train.steps=10 model.hidden_size=128 --seed 3",
        "optimizer.learning-rate=1e-4 train.steps=10 model.n_embd=128 --train.seed 3",
        "--optimizer.learning-rate 1e-4 --train.steps=10 --model.n_embd 128 train.seed=3",
        "train.steps=10 --seed 3 model.n_embd=128 --optimizer.learning-rate=1e-4",
        "optimizer.learning_rate=1e-4 train.steps=10 train.seed=3 --train.no-compile model.n_embd=128",
    ):
        assert cli.main(["train", "gpt2/tiny", *arguments.split()]) == 0
    assert all(one == trained[0] for one in trained)
    assert trained[0][0].model["n_embd"] == 128


def test_a_recipe_comes_from_a_file(trained: list[tuple[Recipe, Path, bool]], tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("base: gpt2/tiny\ntrain: {steps: 5}\n")
    assert cli.main(["train", str(path), "--train.log-every", "1"]) == 0
    recipe, out, _ = trained[0]
    assert recipe == override(open_recipe(path), "train.log_every=1")
    assert out == Path("runs/mine")


def test_the_model_inside_a_model_has_options(trained: list[tuple[Recipe, Path, bool]]) -> None:
    assert cli.main(["train", "coconut/tiny", "--model.backbone.hidden-size", "32"]) == 0
    assert trained[0][0].model["backbone"]["hidden_size"] == 32


def test_one_length_replaces_the_recipes(trained: list[tuple[Recipe, Path, bool]]) -> None:
    assert cli.main(["train", "gpt2/tiny", "--train.steps", "10"]) == 0
    length = trained[0][0].train
    assert (length.steps, length.epochs, length.tokens) == (10, None, None)


@pytest.mark.parametrize("start", ["--", ""])
def test_a_given_value_stays_where_another_would_reset_it(start: str, trained: list[tuple[Recipe, Path, bool]]) -> None:
    before = get_recipe("gpt2/table2-12m")
    rows, tokens, epochs = before.layout.batch_size, before.data.train_tokens, before.train.epochs
    words = "data.source=file:a.txt layout.kind=per_document "
    words += f"{start}data.train_tokens={tokens} {start}layout.batch-size={rows}"
    assert cli.main(["train", before.name, *words.split()]) == 0
    assert (trained[0][0].data.train_tokens, trained[0][0].layout) == (tokens, PerDocument(batch_size=rows))
    assert cli.main(["train", before.name, f"{start}train.epochs={epochs:g}", f"{start}train.steps=9"]) == 2


@pytest.mark.parametrize("name", ["--model.hidden-size", "--model.n-embd"])
def test_a_models_fields_have_their_own_and_their_usual_name(
    name: str, trained: list[tuple[Recipe, Path, bool]]
) -> None:
    assert cli.main(["train", "gpt2/tiny", name, "128"]) == 0
    assert trained[0][0].model == get_recipe("gpt2/tiny").model | {"n_embd": 128}


def test_every_recipe_offers_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    model_types = {recipe.model["model_type"]: name for name, recipe in recipes().items()}
    for name in model_types.values():
        assert cli.main(["train", name, "--help"]) == 0
        shown = capsys.readouterr().out
        own = {field.name.replace("_", "-") for field in dataclasses.fields(recipes()[name].layout)}
        for option in {
            "--model.hidden-size",
            "--data.tokenizer",
            "--optimizer.betas",
            "--train.steps",
            "--resume",
        } | {f"--layout.{field}" for field in own}:
            assert option in shown, (name, option)
        assert set(re.findall(r"--layout\.(?!no-)([a-z-]+)", shown)) == own, "and no other layout's"


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[Recipe], Path, dict[str, Any]]]:
    calls: list[tuple[list[Recipe], Path, dict[str, Any]]] = []
    monkeypatch.setattr("mentalese.compare.report.print_comparison", lambda comparison: None)
    monkeypatch.setattr(
        "mentalese.compare.compare.compare", lambda found, out, **options: calls.append((found, out, options))
    )
    return calls


def test_compare_changes_every_recipe(compared: list[tuple[list[Recipe], Path, dict[str, Any]]]) -> None:
    arguments = "compare gpt2/340k gpt2-rope/340k --data file:a.txt --match tokens --seeds 3 --train.steps 5"
    assert cli.main(arguments.split()) == 0
    [(found, out, options)] = compared
    assert [r.name for r in found] == ["gpt2/340k", "gpt2-rope/340k"]
    assert {r.data.source for r in found} == {"file:a.txt"}
    assert {r.train.steps for r in found} == {5}
    rest = {"tuned_fields": {}, "tune_seeds": 1, "jobs": None, "executor": None, "ablate": False}
    assert (out, options) == (Path("runs/compare"), {"match": "tokens", "seeds": 3, **rest})


def test_compare_reads_files_and_settings(
    compared: list[tuple[list[Recipe], Path, dict[str, Any]]], tmp_path: Path
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("base: gpt2/tiny\nmodel: {n_layer: 3}\n")
    assert cli.main(["compare", "gpt2/tiny", str(path), "train.steps=5"]) == 0
    [(found, _, _)] = compared
    assert [(r.name, r.train.steps) for r in found] == [("gpt2/tiny", 5), ("mine", 5)]


@pytest.mark.parametrize(
    "words",
    [
        "gpt2/tiny gpt2-gist/tiny --ablate train.steps=5 --tune optimizer.warmup=0.1,0.2 model.n_layer=2,3",
        "--ablate --seeds 1 gpt2/tiny gpt2-gist/tiny train.steps=5 --tune optimizer.warmup=0.1,0.2 model.n_layer=2,3",
    ],
)
def test_settings_are_told_from_values_to_tune(
    words: str, compared: list[tuple[list[Recipe], Path, dict[str, Any]]]
) -> None:
    assert cli.main(["compare", *words.split()]) == 0
    [(found, _, options)] = compared
    assert [(recipe.name, recipe.train.steps) for recipe in found] == [("gpt2/tiny", 5), ("gpt2-gist/tiny", 5)]
    assert options["tuned_fields"] == {"optimizer.warmup": ("0.1", "0.2"), "model.n_layer": ("2", "3")}
    assert options["ablate"]


def test_bench_prints_nothing_but_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def bench(families: list[str], out: Path | None) -> dict[str, Any]:
        print("a library's greeting")
        return {"families": {name: {} for name in families}}

    monkeypatch.setattr("mentalese.compare.bench.bench", bench)
    assert cli.main(["bench", "coconut", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"families": {"coconut": {}}}


def test_a_pattern_brings_the_baselines_along(compared: list[tuple[list[Recipe], Path, dict[str, Any]]]) -> None:
    assert cli.main(["compare", "gpt2*/tiny", "*thought*/tiny", "conceptlm/tiny"]) == 0
    names = [recipe.name for recipe in compared[0][0]]
    assert {recipe.baseline for recipe in compared[0][0] if recipe.baseline} <= set(names)
    assert len(set(names)) == len(names)
    assert names[0] == "gpt2/tiny"


def test_list_names_families_recipes_and_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "--json"]) == 0
    everything = json.loads(capsys.readouterr().out)
    assert set(everything["recipes"]) == set(recipes())
    assert {"builtin:stdlib", "builtin:families"} <= set(everything["data"])
    assert cli.main(["list", "--all"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in recipes())
    assert cli.main(["list"]) == 0
    shown = capsys.readouterr().out
    assert {"curves", "thought_gestalt/gates"} <= set(everything["figures"])
    assert all(name in shown for name in everything["figures"])


@pytest.mark.parametrize("command", ["", *cli.COMMANDS])
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*command.split(), "--help"]) == 0
    shown = capsys.readouterr()
    assert f"usage: mentalese {command}".strip() in shown.out
    assert not shown.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("frain", "did you mean 'train'"),
        ("train gpt2/tyni", "did you mean 'gpt2/tiny'"),
        ("train gpt2/tiny more", "'more' is not a change: use section.field=value"),
        ("train gpt2/tiny train.stesp=3", "did you mean 'steps'"),
        ("train gpt2/tiny trian.steps=3 --resume", "did you mean 'train'"),
        ("train gpt2/tiny train.steps=ten", "train.steps is 'ten'"),
        ("train --seed 3 gpt2/tiny", "--seed depends on the recipe: write the recipe's name before it"),
        ("train gpt2/tiny --optimizer.betas 0.9 0.9 --optimizer.betas 0.9 0.95", "--optimizer.betas is given 2 times"),
        ("compare gpt2/tiny --tune train.seed=1,2 --tune optimizer.eps=1,2", "--tune is given 2 times"),
        ("train gpt2/tiny --train.steps 3 train.steps=5", "train.steps is set twice, at last to '5'"),
        ("train gpt2/tiny train.steps=3 train.steps=5", "train.steps is set twice"),
        (
            "generate model --prompt a --prompt b",
            "--prompt is given 2 times: write it once, and all values after it",
        ),
        ("generate model --prompt a --config n_layer=1 n_layer=2", "--config has n_layer twice"),
        ("grow base --family coconut --out grown --mode pause --config mode=coconut", "--config has it too, keep one"),
        ("train mine.yaml", "mine.yaml: it cannot be read"),
        ("compare gpt2/tiny mine.toml", "mine.toml: it cannot be read"),
        ("show gpt2/tyni", "did you mean 'gpt2/tiny'"),
        ("train gpt2/tiny --train.steps 0", "train.steps is 0"),
        ("train gpt2/tiny --train.steps 3 --train.epochs 1", "exactly one of the three"),
        ("train gpt2/tiny --optimizer.learning-rate -1", "optimizer.learning_rate is -1.0"),
        ("compare no-such/*", "no recipe matches"),
        ("generate model", "there is no prompt"),
        ("generate model --file no-such-file", "--file is 'no-such-file': use a UTF-8 text file"),
        (f"generate model --file {__file__}/below", "use a UTF-8 text file"),
        ("list --table=", "--table is '': use 'Table 1'"),
        (f"generate model --file {'a' * 300}", "use a path, whose names have at most 255 bytes"),
        ("generate model --prompt a --greedy --top-k 5", "contradict"),
        ("generate model --prompt a --file b.txt", "--prompt and --file are both given"),
        ("play model --host=", "--host is '': use an address of this machine"),
        ("figure curve results/run --out a.svg", "did you mean 'curves'"),
        ("figure curves --out a.svg", "use RESULT ..."),
        ("figure curves results/run --out a.gif", "a file that ends in .svg, .png, .pdf"),
        ("figure curves results/run --out no/where.svg", "its folder does not exist"),
        ("figure curves results/run --out a.svg --text b", "remove --text"),
        ("figure curves results/run --out a.svg --text b --file c", "--text and --file are both given"),
        ("figure curves results/run --out a.svg", "'results/run'"),
        ("figure thought_gestalt/gates results/run --out a.svg", "contains metrics.jsonl"),
        ("figure coconut/tokens results/run --out a.svg", "needs a text"),
        ("figure coconut/tokens results/run --out a.svg --file no-such-file", "--file is 'no-such-file'"),
        ("figure coconut/tokens results/run --out a.svg --text b", "contains no model"),
        ("bench no_such_family", "families is"),
        ("eval model --estimators ,", "use one or more names, joined by commas"),
        ("eval model --tasks perplexity,reversal,perplexity", "name perplexity once"),
        ("grow base --family coconut --out grown --seed -1", "seed is -1"),
        ("generate model --prompt a --top-p 1.5", "top_p is 1.5"),
        ("generate model --prompt a --temperature 0", "temperature is 0"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: str, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    message = refusal(arguments, capsys, monkeypatch, tmp_path)
    assert message.startswith("mentalese: error: ")
    assert message.count("\n") == 1
    assert says in message


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("train", "RECIPE"),
        ("train gpt2/tiny --layout.batch-siz 3", "--layout.batch-size"),
        ("train gpt2/tiny --layout.latents 3", "--layout.latents"),
        ("train gpt2/tiny --train.steps ten", "--train.steps"),
        ("train gpt2/tiny --optimizer.betas 0.9", "--optimizer.betas"),
        ("train coconut/tiny --layout.removal stepps", "steps"),
        ("show", "RECIPE"),
        ("compare", "recipes"),
        ("compare gpt2/tiny gpt2/small --match money", "params"),
        ("eval", "MODEL"),
        ("figure", "NAME"),
        ("figure curves results/run", "--out"),
        ("completion bahs", "bash"),
        ("data", "prepare"),
        ("data prepare builtin:stdlib", "--out"),
    ],
)
def test_tyro_refuses_words_that_are_no_options(
    arguments: str, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    message = refusal(arguments, capsys, monkeypatch, tmp_path)
    assert says in " ".join(message.replace("│", " ").split())


@pytest.mark.parametrize(
    ("options", "keywords"),
    [
        ("", {}),
        ("--top-k 5", {"top_k": 5, "do_sample": True}),
        ("--top-k 0", {"top_k": 0, "do_sample": True}),
        ("--temperature 0.7 --top-p 0.9", {"temperature": 0.7, "top_p": 0.9, "do_sample": True}),
        ("--do-sample", {"do_sample": True}),
        ("--greedy", {"do_sample": False}),
        ("--num-beams 3", {"num_beams": 3}),
        ("--num-beams 1", {"num_beams": 1}),
    ],
)
def test_generation_options_are_hugging_faces(options: str, keywords: dict[str, Any]) -> None:
    parsed = tyro.cli(GenerateOptions, args=options.split())
    assert parsed.generation() == keywords


def test_a_prompt_of_a_file_ends_where_its_line_does(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes("a b\fc\r\n \nd\u2028e\x85f\n".encode())
    assert prompts_of(path) == ["a b\fc", "d\u2028e\x85f"]


class _Stopped(KeyboardInterrupt):
    exit_code = 143


@pytest.mark.parametrize(
    ("raised", "code", "says"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (_Stopped("stopped at step 3"), 143, "stopped at step 3"),
        (FloatingPointError("the loss is nan at step 2"), 1, "the loss is nan"),
        (OSError(28, "No space left on device", "runs/x"), 2, "runs/x: No space left on device"),
    ],
)
def test_what_ends_a_run_is_said_without_a_traceback(
    raised: BaseException, code: int, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise raised

    monkeypatch.setattr("mentalese.training.loop.train", fail)
    assert cli.main(["train", "gpt2/tiny"]) == code
    assert says in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="there is no /dev/full")
@pytest.mark.parametrize(
    ("target", "code", "says"), [("> /dev/full", 2, "No space left"), ("| true", 0, ""), (">&-", 0, "")]
)
def test_output_that_cannot_be_written_ends_in_a_sentence(target: str, code: int, says: str) -> None:
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = f"set -o pipefail; {sys.executable} -m mentalese models {target}"
    done = subprocess.run(["bash", "-c", command], env=buffered, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert says in done.stderr
    assert "Exception ignored" not in done.stderr


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("mentalese.training.loop.train", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main(["train", "gpt2/tiny"])

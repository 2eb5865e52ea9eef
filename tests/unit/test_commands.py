"""What commands show without training anything: help, fields, lists, completions, and what a run will cost."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from mentalese import cli, get_recipe, recipes
from mentalese.commands.measure import text_read
from mentalese.formatting import signed
from mentalese.model_fields import field_docs
from mentalese.recipe_files import section_fields, sections
from mentalese.registry import families
from mentalese.screen import print_table, progress


def out(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert cli.main([str(argument) for argument in arguments]) == 0
    shown = capsys.readouterr()
    assert not shown.err
    return shown.out


def test_help_of_a_recipe_shows_all_of_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    shown = out(capsys, "train", "gpt2/tiny", "--help")
    for flag in ("--data", "--seed", "--resume", "--dry-run", "--model.n-embd", "--train.keep-checkpoints"):
        assert f" {flag}" in shown
    assert "lm-eval" in out(capsys, "eval", "--help")


def test_every_section_of_every_recipe_is_documented() -> None:
    for section in {type(section) for recipe in recipes().values() for section in sections(recipe).values()}:
        assert section_fields(section).keys() <= field_docs(section).keys()


def test_show_explains_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = get_recipe("conceptlm/tiny")
    shown = json.loads(out(capsys, "show", "conceptlm/tiny", "--json"))
    assert shown["name"] == "conceptlm/tiny"
    written = recipe.to_dict()
    for section in sections(recipe):
        assert {name: entry["value"] for name, entry in shown["fields"][section].items()} == written[section]
    rate = shown["fields"]["optimizer"]["learning_rate"]
    assert rate["value"] == recipe.optimizer.learning_rate
    assert rate["differs_from_default"] == (rate["value"] != rate["default"])
    assert rate["baseline"] == get_recipe(recipe.baseline or "").optimizer.learning_rate
    assert shown["fields"]["model"]["chunk_size"]["doc"] == "k, tokens a concept stands for."
    assert shown["fields"]["model.backbone"]["n_embd"]["value"] == recipe.model["backbone"]["n_embd"]
    assert "hidden_size" not in shown["fields"]["model"], "the backbone's"
    text = out(capsys, "show", "conceptlm/tiny")
    assert "\n*  learning_rate = 0.003   (default 0.001)\n" in text
    assert "not as in" in text


def test_show_marks_what_is_not_the_baselines(capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys, "show", "coconut/tiny")
    assert "\n*+ mode = agclr   (default coconut, baseline coconut)\n" in text
    assert "\nphases[0]\n" in text


def test_show_says_that_a_baseline_does_not_exist(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("base: coconut/tiny\nbaseline: coconut/tyni\n")
    text = out(capsys, "show", path)
    assert "\nbaseline: coconut/tyni (no recipe is called that here)\n* not the default\n" in text


def test_show_reads_files_and_settings(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("base: gpt2/tiny\ntrain: {steps: 7}\n")
    text = out(capsys, "show", path, "optimizer.warmup=0.5")
    assert text.startswith("mine: ")
    assert "steps = 7 " in text
    assert "warmup = 0.5 " in text


def test_a_table_on_a_narrow_terminal_is_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    names = ["recall/thought_gestalt-twin", "recall/thought_gestalt-swapped"]
    print_table(("model", "tokens/s", "test perplexity"), [(name, "1,234,567", "12.345 ± 0.001") for name in names])
    printed = capsys.readouterr().out
    assert "…" not in printed
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines() if "│" in line]
    assert "".join(cell for cell, *_ in cells) == "".join(names)
    assert max(len(line) for line in printed.splitlines() if "│" in line) <= 40


def test_brackets_and_colons_on_a_terminal_are_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    print_table(("model", "value"), [("my[b]:book:", "1")], title="Test perplexity on file:texts/[a-z]*.txt")
    with progress("Training my[b]", 1) as bar:
        bar.update(1, "loss[b]")
    printed, drawn = capsys.readouterr()
    assert "my[b]:book:" in printed
    assert "file:texts/[a-z]*.txt" in printed
    assert "my[b]" in drawn
    assert "loss[b]" in drawn


def test_list_fits_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    shown = out(capsys, "list")
    assert len(shown.splitlines()) <= 25 + 3 * len(families())
    assert all(f"  {name}: " in shown for name in families())
    assert {f"{name}/tiny" for name in families()} & recipes().keys() <= set(shown.split())
    assert all(len(line) <= 120 for line in shown.splitlines())
    assert not any(recipe.paper and name in shown.split() for name, recipe in recipes().items())


def test_the_list_fits_a_narrow_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in ("30", "3"):
        monkeypatch.setenv("COLUMNS", columns)
        assert "masked_diffusion" in out(capsys, "list")


def test_the_line_about_scores_names_what_they_share() -> None:
    one = {
        "split": "test",
        "source": "builtin:x",
        "documents": 3,
        "tokens": 192,
        "protocol": {"context": "windows of 9"},
    }
    bound = one | {"protocol": {"context": "windows of 9", "estimator": "elbo-bound"}}
    prefix = bound | {"tokens": 96, "protocol": {"context": "windows of 9", "estimator": "prefix"}}
    assert text_read(one) == "scored: the test split of builtin:x, 3 documents, 192 tokens, in windows of 9"
    assert text_read(bound).endswith("192 tokens, in windows of 9 (elbo-bound)")
    assert text_read(bound, prefix) == "scored: the test split of builtin:x, 3 documents, in windows of 9"
    whole_documents = prefix | {"protocol": {"context": "whole documents"}}
    assert text_read(bound, whole_documents) == "scored: the test split of builtin:x, 3 documents"
    whole = one | {"reference_protocol": {"context": "whole documents"}}
    assert text_read(whole) == "scored: the test split of builtin:x, 3 documents, 192 tokens"


def test_zero_has_no_minus() -> None:
    assert [signed(value, 1) for value in (-0.01, 0.0, 0.26, -0.26)] == ["+0.0", "+0.0", "+0.3", "-0.3"]


def test_list_narrows_down(capsys: pytest.CaptureFixture[str]) -> None:
    def names(*arguments: str) -> set[str]:
        return {line.split()[0] for line in out(capsys, "list", *arguments).splitlines() if line.startswith("  ")}

    assert names("*/tiny") == {name for name in recipes() if name.endswith("/tiny")}
    assert {"coconut", "coconut/tiny", "coconut/gates"} <= names("coconut")
    own = names("--family", "coconut")
    assert own == {n for n, r in recipes().items() if n.startswith("coconut/") and not r.paper}
    papers = {name: recipe.paper or "" for name, recipe in recipes().items()}
    assert names("--table", "table 4") == {n for n, paper in papers.items() if re.search(r"Tables? 4\b", paper)}
    assert names("--table", "Table 2") == {
        n for n, paper in papers.items() if re.search(r"Table 2\b|Tables 1, 2", paper)
    }
    assert names("--table", "figure 4") == {n for n, p in papers.items() if "Figure 4" in p or "Figures 1 and 4" in p}
    assert names("--table", "4 and 17") == names("--table", "tables 4 and 17")
    assert names("--table", "17") == names("--table", "table 17")
    for dash in ("-", "\N{EN DASH}", " to "):
        assert names("--table", f"Tables 1{dash}3") == names("--table", "tables 1 to 3") > names("--table", "table 1")
    assert names("--table", "tables 4 and 17") == names("--table", "table 4") | names("--table", "table 17")
    assert names("--table", "table 17") == {n for n, paper in papers.items() if "15 to 18" in paper}
    assert names("--table", "section 2.1") == {n for n, paper in papers.items() if "Section 2.1" in paper}
    assert names("--all") >= set(recipes())
    both = names("--family", "thought_gestalt", "--table", "table 1")
    assert both == {n for n in names("--table", "table 1") if n.startswith("thought_gestalt/")}
    for arguments in (["coconut"], ["--table", "table 4"], ["--family", "coconut"], ["--all"]):
        listed = json.loads(out(capsys, "list", *arguments, "--json")).values()
        assert {name for entries in listed for name in entries} == names(*arguments)
    for arguments, says in (
        (["gpt2/tyni"], "did you mean 'gpt2/tiny'"),
        (["--family", "coconutt"], "did you mean 'coconut'"),
        (["--table", "Table 99"], "nothing in the list"),
    ):
        assert cli.main(["list", *arguments]) == 2
        assert says in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_knows_commands_and_options(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = out(capsys, "completion", shell)
    for name in (*cli.COMMANDS, "--flops-per-second"):
        assert name in script
    if program := shutil.which(shell):
        subprocess.run([program, "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize("speed", [[], ["--flops-per-second", "1e9"]])
@pytest.mark.parametrize("name", ["gpt2/tiny", "coconut/tiny"])
def test_a_dry_run_says_what_a_run_costs_and_writes_nothing(
    name: str,
    speed: list[str],
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    text = corpus.with_name("questions.jsonl") if name.startswith("coconut") else corpus
    arguments = ["--data", f"file:{text}", "--data.tokenizer", "bpe:512", "--layout.sequence-length", "128"]
    arguments += ["--out", "run", "train.steps=20", "train.device=cpu"]
    assert cli.main(["train", name, "--dry-run", *speed, *arguments]) == 0
    said = capsys.readouterr().out
    assert ("the run ends before" in said) == (name == "coconut/tiny"), "its curriculum is longer"
    rows = dict(line.split("  ", 1) for line in said.splitlines() if "  " in line)
    assert rows["steps"].strip() == "20"
    assert re.fullmatch(
        r"\d, each of \d+ of \d+ (documents|questions, at most \d+ new tokens each)", rows["validations"].strip()
    )
    assert re.fullmatch(r"(\d+) of \1 (documents|questions, .*)", rows["test"].strip())
    assert ("peak memory" in rows) == (not speed)
    assert ("as given" in rows["speed"]) == bool(speed)
    assert {"parameters", "tokens", "training FLOPs", "time", "weights", "gradients", "memory in all"} <= rows.keys()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--flops-per-second 1e9", "it is for --dry-run, remove it"),
        ("--dry-run --flops-per-second 0", "flops_per_second is 0"),
        ("--dry-run --flops-per-second fast", "--flops-per-second"),
    ],
)
def test_the_speed_of_a_dry_run_is_checked(options: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "gpt2/tiny", *options.split()]) == 2
    assert says in capsys.readouterr().err

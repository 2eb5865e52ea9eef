"""Figures: the picture is there, and the numbers beside it are those of the runs."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil
import sys
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest

from mentalese import get_recipe
from mentalese.analyses.figures import FORMATS, figures, write_figure
from mentalese.errors import InputError
from mentalese.families.thought_gestalt.figures import _holder, gates
from mentalese.files import read_json
from mentalese.formatting import model_names
from mentalese.training.loop import train
from support import saved, shrink


def draw(name: str, *paths: Path, out: Path, text: str | None = None) -> dict[str, Any]:
    """The numbers that were written; the picture has to be there, of its format, and alone with them."""
    numbers = write_figure(name, [str(path) for path in paths], out, text)
    written = json.loads(out.with_suffix(".json").read_text())
    assert written["figure"] == name
    assert written["paths"] == [str(path) for path in paths]
    for key in numbers:
        assert written[key] == json.loads(json.dumps(numbers[key]))
    begins = {".svg": b"<?xml", ".png": b"\x89PNG", ".pdf": b"%PDF"}[out.suffix]
    assert out.read_bytes().startswith(begins)
    assert out.stat().st_size > 5_000
    assert sorted(path.name for path in out.parent.glob(f"*{out.stem}*")) == [f"{out.stem}.json", out.name]
    return written


def metrics(folder: Path, records: list[dict[str, Any]], recipe: str) -> Path:
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "config.json").write_text(json.dumps({"recipe": {"name": recipe}}))
    return folder


def validation(step: int, perplexity: float) -> dict[str, Any]:
    return {"step": step, "tokens": 100 * step, "validation": {"perplexity": perplexity}}


# -- from what runs have logged ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("clocked", [True, False])
def test_gate_curves_cover_sentence_steps_or_tokens(tmp_path: Path, clocked: bool) -> None:
    def record(step: int) -> dict[str, Any]:
        clock = {"sentence_steps": 30 * step} if clocked else {}
        gates = {"memory_gate.1": 1 - step / 100, "memory_gate.11": 1 + step / 100}
        return {"step": step, "tokens": 100 * step, "loss": 5.0} | clock | gates

    records = [record(1), record(2), validation(2, 9.0), record(3), record(4), validation(4, 10.0)]
    run = metrics(tmp_path / "run", records, "thought_gestalt/x")
    written = draw("thought_gestalt/gates", run, out=tmp_path / "gates.svg")
    [found] = written["runs"]
    clock, unit = ("sentence_steps", 30) if clocked else ("tokens", 100)
    assert written["clock"] == clock
    assert found[clock] == [unit, 2 * unit, 3 * unit, 4 * unit]
    assert found["gates"]["memory_gate.11"] == [1.01, 1.02, 1.03, 1.04]
    assert found["best"] == 2 * unit
    assert found["gates_at_best"] == {"memory_gate.1": 0.98, "memory_gate.11": 1.02}


def test_gradient_shares_are_means_up_to_the_best_validation(tmp_path: Path) -> None:
    def record(step: int, memory: float) -> dict[str, Any]:
        shares = {"self_attention": 0.9 - memory, "memory": memory, "mlp": 0.1}
        return {"step": step, "tokens": 100 * step} | {f"gradient_share.{k}": v for k, v in shares.items()}

    records = [record(1, 0.1), record(2, 0.3), validation(2, 9.0), record(3, 0.8), validation(3, 9.5)]
    run = metrics(tmp_path / "run", records, "thought_gestalt/x")
    [found] = draw("thought_gestalt/gradient-share", run, out=tmp_path / "share.png")["runs"]
    assert found["mean_share"] == pytest.approx({"self_attention": 0.7, "memory": 0.2, "mlp": 0.1})
    assert found["share"]["memory"] == [0.1, 0.3, 0.8]


def test_runs_with_other_layers_share_a_legend_and_colours(tmp_path: Path) -> None:
    def run(name: str, *layers: int) -> Path:
        gates = {f"memory_gate.{layer}": 1.0 for layer in layers}
        shares = {"gradient_share.self_attention": 0.6, "gradient_share.mlp": 0.4}
        record = {"step": 1, "tokens": 9} | gates | shares
        return metrics(tmp_path / name, [record, validation(1, 9.0)], f"thought_gestalt/{name}")

    runs = [run("a", 1, 3), run("b", 0, 1, 2, 3)]
    picture, _ = gates([str(path) for path in runs])
    first, second = picture.axes
    colors = [line.get_color() for line in first.lines[:2]]
    assert colors == [second.lines[1].get_color(), second.lines[3].get_color()]
    assert [text.get_text() for text in second.get_legend().get_texts()] == ["3", "2", "1", "0"]
    [found, _] = draw("thought_gestalt/gradient-share", *runs, out=tmp_path / "share.svg")["runs"]
    assert found["mean_share"] == {"self_attention": 0.6, "memory": 0.0, "mlp": 0.4}, "a model without memory"


def test_a_run_without_gates_is_refused(tmp_path: Path) -> None:
    run = metrics(tmp_path / "run", [{"step": 1, "tokens": 5, "loss": 1.0}], "gpt2/x")
    with pytest.raises(InputError, match="has logged no memory_gate"):
        write_figure("thought_gestalt/gates", [str(run)], tmp_path / "gates.svg")
    assert not list(tmp_path.glob("*gates*"))


# -- from results ------------------------------------------------------------------------------------------------------


def result(
    folder: Path, recipe: str, perplexity: float, *, tokens: int | None = 50_000_000, parameters: int = 1000
) -> Path:
    baseline = recipe.replace("thought_gestalt", "gpt2") if recipe.startswith("thought") else None
    path = folder / f"{recipe.replace('/', '-')}.json"
    content = {
        "recipe": recipe,
        "data_hash": "same",
        "parameters": {"non_embedding": parameters},
        "test": {"nll": math.log(perplexity), "perplexity": perplexity},
        "curve": [
            {"step": 1, "tokens": 500, "loss": 7.0},
            {"step": 2, "tokens": 1000, "loss": 6.0},
            {"step": 2, "tokens": 1000, "validation_perplexity": 400.0},
        ],
        "config": {"data": {"train_tokens": tokens}, "baseline": baseline, "model": {"model_type": "x"}},
    }
    path.write_text(json.dumps(content))
    return path


TABLE_2 = {12_000_000: (50.9, 49.5), 20_000_000: (38.1, 37.1), 30_000_000: (30.9, 29.8), 50_000_000: (24.0, 23.2)}


def test_the_papers_table_gives_its_laws_and_multipliers(tmp_path: Path) -> None:
    both = [
        [result(tmp_path, f"{model}/{tokens}", found[i], tokens=tokens) for tokens, found in TABLE_2.items()]
        for i, model in enumerate(("gpt2", "thought_gestalt"))
    ]
    written = draw("thought_gestalt/scaling", *both[1], *both[0], out=tmp_path / "scaling.svg")
    assert (written["axis"], written["reference"]) == ("D", "gpt2")
    laws = {name: model["law"]["exponent"] for name, model in written["models"].items()}
    assert laws == pytest.approx({"gpt2": 0.149, "thought_gestalt": 0.152}, abs=5e-4)
    multipliers = written["models"]["thought_gestalt"]["multipliers"]
    assert [round(m["value"], 2) for m in multipliers] == [1.05, 1.06, 1.07, 1.08]
    assert all(m["interval"][0] < m["value"] < m["interval"][1] for m in multipliers)
    assert written["models"]["gpt2"]["multipliers"] == []


def test_the_sentence_with_the_answer_has_the_whole_key() -> None:
    earlier = [["fast", "frog", "owns", "axe", "."], ["kind", "frog", "owns", "bell", "."]]
    assert _holder(earlier, ["kind", "frog", "?", "bell", "."]) == 1
    assert _holder(earlier, ["kind", "toad", "?", "bell", "."]) is None


def test_a_size_is_the_text_that_was_read_not_its_limit(tmp_path: Path) -> None:
    paths = []
    for limit, read, perplexity in ((1000, 999, 100), (10**9, 5000, 60)):
        path = result(tmp_path, f"gpt2/{limit}", perplexity, tokens=limit)
        path.write_text(json.dumps(json.loads(path.read_text()) | {"train_tokens": read}))
        paths.append(path)
    written = draw("thought_gestalt/scaling", *paths, out=tmp_path / "scaling.svg")
    assert [point["D"] for point in written["models"]["gpt2"]["points"]] == [999, 5000]


def test_sizes_are_parameters_where_those_vary(tmp_path: Path) -> None:
    paths = [
        result(tmp_path, f"{model}/{size}", perplexity, tokens=None, parameters=size)
        for model, factor in (("gpt2", 1.0), ("thought_gestalt", 0.95))
        for size, perplexity in ((1000, factor * 100), (4000, factor * 60))
    ]
    written = draw("thought_gestalt/scaling", *paths, out=tmp_path / "scaling.png")
    assert written["axis"] == "N"
    assert [m["interval"] for m in written["models"]["thought_gestalt"]["multipliers"]] == [None, None]
    assert all(m["value"] > 1 for m in written["models"]["thought_gestalt"]["multipliers"])


def test_methods_of_a_suites_tasks_have_laws_of_their_own(tmp_path: Path) -> None:
    sizes = {"table2-340k": 340_000, "table2-1.3m": 1_300_000}
    paths = [
        result(tmp_path, f"{task}/{method}", factor * 50 / size**0.1, tokens=None, parameters=size)
        for task, size in sizes.items()
        for method, factor in (("gpt2", 1.0), ("thought_gestalt", 0.9))
    ]
    written = draw("thought_gestalt/scaling", *paths, out=tmp_path / "scaling.svg")
    assert list(written["models"]) == ["gpt2", "thought_gestalt"]
    assert [[point["N"] for point in model["points"]] for model in written["models"].values()] == [
        [*sizes.values()]
    ] * 2


def test_runs_that_show_no_law_are_refused(tmp_path: Path) -> None:
    small = result(tmp_path, "gpt2/a", 100, tokens=1000, parameters=10)
    more_text = result(tmp_path, "gpt2/b", 90, tokens=2000, parameters=10)
    larger = result(tmp_path, "gpt2/c", 80, tokens=1000, parameters=20)
    single = result(tmp_path, "llama/a", 80, tokens=1000, parameters=10)
    unknown = result(tmp_path, "gpt2/d", 80, tokens=None, parameters=10)
    control = result(tmp_path, "gpt2/f", 80, tokens=2000, parameters=10)
    content = json.loads(control.read_text())
    content["config"]["model"]["thought_control"] = "removed"
    control.write_text(json.dumps(content))
    other_tokens = result(tmp_path, "gpt2/e", 80, tokens=2000, parameters=10)
    content = json.loads(other_tokens.read_text())
    other_tokens.write_text(json.dumps(content | {"test": content["test"] | {"tokens": 169_639, "bytes": 636_024}}))
    for paths, says in (
        ([small, other_tokens], "were tested on different tokens"),
        ([small, control], "its model is of another kind than other runs of gpt2"),
        ([small], "all sizes are the same"),
        ([small, more_text, larger], "both training tokens and parameters vary"),
        ([small, more_text, single], "llama: sizes is"),
        ([small, unknown], "does not say how many tokens"),
    ):
        with pytest.raises(InputError, match=says):
            write_figure("thought_gestalt/scaling", [str(path) for path in paths], tmp_path / "scaling.svg")


@pytest.mark.parametrize("suffix", FORMATS)
def test_learning_curves_are_those_of_the_results(tmp_path: Path, suffix: str) -> None:
    paths = [result(tmp_path, "gpt2/a", 100), result(tmp_path, "gpt2/b", 90)]
    [first, _] = draw("curves", *paths, out=tmp_path / f"picture{suffix}")["runs"]
    assert first["loss"] == [[500, 7.0], [1000, 6.0]]
    assert first["validation_perplexity"] == [[1000, 400.0]]


def test_learning_curves_name_scores_that_are_no_likelihoods(tmp_path: Path) -> None:
    path = result(tmp_path, "gpt2/a", 100)
    content = json.loads(path.read_text())
    content["test"]["protocol"] = {"estimator": "elbo-bound"}
    path.write_text(json.dumps(content))
    [run] = draw("curves", path, out=tmp_path / "curves.svg")["runs"]
    assert run["label"] == "gpt2/a, test 100.0 (elbo-bound)"


def test_learning_curves_say_where_they_are_cut(tmp_path: Path) -> None:
    path = result(tmp_path, "gpt2/a", 2000)
    assert draw("curves", path, out=tmp_path / "whole.svg")["cut_at"] == {"validation_perplexity": None, "loss": None}
    content = json.loads(path.read_text())
    content["curve"] = [{"step": 1, "tokens": 500, "loss": 10.0, "validation_perplexity": 40_000.0}, *content["curve"]]
    path.write_text(json.dumps(content))
    assert draw("curves", path, out=tmp_path / "cut.svg")["cut_at"] == {"validation_perplexity": 1600.0, "loss": 9.0}


def test_ticks_of_close_values_have_all_their_digits(tmp_path: Path) -> None:
    from mentalese.analyses.drawing import canvas, percent_axis

    def ticks(name: str) -> list[str]:
        left, *_ = (tmp_path / f"{name}.svg").read_text().split('id="axes_2"')
        return re.findall(r'id="ytick_\d+">.*?<!-- (\S+) -->', left, re.DOTALL)

    path = result(tmp_path, "gpt2/a", 2.16)
    content = json.loads(path.read_text())
    points = [{"step": step, "tokens": step, "validation_perplexity": 2.6 / step**0.1, "loss": 1} for step in (1, 2, 4)]
    path.write_text(json.dumps(content | {"curve": points}))
    draw("curves", path, out=tmp_path / "curves.svg")
    assert "<!-- gpt2/a, test 2.16 -->" in (tmp_path / "curves.svg").read_text()
    paths = [
        result(tmp_path, name.format(size), base - size / 1e7, tokens=size)
        for size in (10_000_000, 20_000_000, 40_000_000)
        for name, base in (("gpt2/{}", 150.0), ("thought_gestalt/{}", 149.0))
    ]
    draw("thought_gestalt/scaling", *paths, out=tmp_path / "scaling.svg")
    picture, ((panel,),) = canvas(1, 1, 4, 4)
    panel.plot([0.501, 0.512])
    percent_axis(panel.yaxis)
    picture.savefig(tmp_path / "shares.svg")
    for name in ("curves", "scaling", "shares"):
        assert len(ticks(name)) == len({*ticks(name)}) > 2, name


def test_learning_curves_show_only_the_next_token_loss(tmp_path: Path) -> None:
    path = result(tmp_path, "conceptlm/a", 100)
    content = json.loads(path.read_text())
    content["curve"][0]["ntp"], content["curve"][1]["ntp"] = 5.0, 4.0
    path.write_text(json.dumps(content))
    [drawn] = draw("curves", path, out=tmp_path / "curves.svg")["runs"]
    assert drawn["loss"] == [[500, 5.0], [1000, 4.0]]


def test_learning_curves_of_answers_show_their_stages(tmp_path: Path) -> None:
    def answers(name: str) -> Path:
        path = result(tmp_path, name, 100)
        content = json.loads(path.read_text())
        content["test"] |= {"accuracy": 0.75}
        content["curve"][2] |= {"validation_accuracy": 0.25, "stage": 0}
        later = [{"validation_accuracy": 0.5, "stage": 0}, {"validation_accuracy": 0.375, "stage": 3}]
        content["curve"] += [{"step": 4 * i, "tokens": 2000 * i} | point for i, point in enumerate(later, 1)]
        path.write_text(json.dumps(content))
        return path

    written = draw("curves", answers("coconut/a"), answers("coconut/b"), out=tmp_path / "curves.svg")
    for name, run in zip("ab", written["runs"]):
        assert (run["recipe"], run["test_accuracy"]) == (f"coconut/{name}", 0.75)
        assert run["validation_accuracy"] == [[2, 0.25], [4, 0.5], [8, 0.375]]
        assert run["stages"] == [[4, 0], [8, 3]]
        assert run["loss"] == [[1, 7.0], [2, 6.0]]
    paths = [result(tmp_path, "gpt2/text", 100), answers("coconut/b")]
    with pytest.raises(InputError, match=r"metric of .*b\.json is 'accuracy': .* draw them separately"):
        write_figure("curves", [str(path) for path in paths], tmp_path / "both.svg")


def test_the_same_numbers_give_the_same_file(tmp_path: Path) -> None:
    path = result(tmp_path, "gpt2/a", 100)
    for name in ("one", "two"):
        draw("curves", path, out=tmp_path / f"{name}.svg")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


@pytest.mark.parametrize("content", ["no json", "[]", '{"recipe": "x"}'])
def test_what_is_no_result_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "result.json").write_text(content)
    with pytest.raises(InputError, match=r"use (an intact copy|the result\.json)"):
        write_figure("curves", [str(tmp_path)], tmp_path / "curves.svg")


# -- from models -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps whose vocabulary has some names, with two checkpoints."""
    recipe = shrink(get_recipe("thought_gestalt/tiny"), corpus, steps=4, checkpoint_every=2, eval_every=4)
    recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, tokenizer="bpe:600"))
    out = tmp_path_factory.mktemp("figures") / "run"
    train(recipe, out, show=False)
    return out


@pytest.mark.slow
def test_the_probe_is_drawn_over_the_checkpoints(run: Path, tmp_path: Path) -> None:
    [model, saved] = draw("thought_gestalt/reversal", run, run / "model", out=tmp_path / "reversal.svg")["models"]
    assert [point["step"] for point in model["points"]] == [2, 4]
    assert [point["tokens"] for point in saved["points"]] == [None]
    assert saved["trends"] == {}
    for condition in ("normal", "reversed"):
        first, last = (point[condition]["target_nll"]["mean"] for point in model["points"])
        decades = math.log10(model["points"][1]["tokens"] / model["points"][0]["tokens"])
        slope, start = (last - first) / decades, model["trends"][condition]["at_one_token"]
        assert model["trends"][condition]["slope"] == pytest.approx(slope)
        assert start + slope * math.log10(model["points"][0]["tokens"]) == pytest.approx(first)
        assert saved["points"][0][condition] == model["points"][1][condition]  # the best model is the last one


@pytest.mark.slow
def test_the_best_model_is_probed_even_if_its_checkpoint_is_gone(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    shutil.rmtree(max((copy / "checkpoints").glob("step-*")))
    [model] = draw("thought_gestalt/reversal", copy, out=tmp_path / "reversal.svg")["models"]
    [whole] = draw("thought_gestalt/reversal", run, out=tmp_path / "whole.svg")["models"]
    assert model["points"] == whole["points"]
    assert model["points"][1]["step"] == 4


@pytest.mark.slow
def test_the_probe_is_drawn_over_sizes_of_the_training_text(run: Path, tmp_path: Path) -> None:
    """A curve per model, of the best model of each run."""
    larger = tmp_path / "larger"
    shutil.copytree(run, larger)
    result = read_json(larger / "result.json")
    size = result["train_tokens"]
    (larger / "result.json").write_text(json.dumps(result | {"train_tokens": 10 * size}))
    [model] = draw("thought_gestalt/reversal-by-size", larger, run, out=tmp_path / "sizes.svg")["models"]
    assert model["label"] == "thought_gestalt"
    assert [point["tokens"] for point in model["points"]] == [size, 10 * size]
    assert model["trends"]["normal"]["slope"] == pytest.approx(0, abs=1e-9)  # the same model twice
    with pytest.raises(InputError, match="all sizes are the same"):
        write_figure("thought_gestalt/reversal-by-size", [str(run)], tmp_path / "one.svg")
    paths = [larger, run / "model", run]  # as GPT-2 XL and Mistral 7B beside the runs of Figure 5
    [model, other] = draw("thought_gestalt/reversal-by-size", *paths, out=tmp_path / "both.svg")["models"]
    assert [point["tokens"] for point in model["points"]] == [size, 10 * size]
    assert (other["path"], other["trends"], [point["tokens"] for point in other["points"]]) == (
        str(run / "model"),
        {},
        [None],
    )
    assert other["points"][0]["reversed"] == model["points"][0]["reversed"]
    with pytest.raises(InputError, match="use at least two finished runs that differ in"):
        write_figure("thought_gestalt/reversal-by-size", [str(run / "model")], tmp_path / "none.svg")


# -- what all of them share --------------------------------------------------------------------------------------------


def test_every_figure_says_what_it_is() -> None:
    for figure in figures().values():
        assert figure.description
        assert figure.takes


def test_runs_of_one_recipe_go_by_their_folders(tmp_path: Path) -> None:
    a, b = (metrics(tmp_path / name, [], "gpt2/x") for name in "ab")
    other = metrics(tmp_path / "c", [], "gpt2/y")
    assert model_names([str(a), str(b), str(other), "hub:gpt2"]) == ["a", "b", "gpt2/y", "gpt2"]


def test_without_matplotlib_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"pip install 'mentalese\[figures\]"):
        write_figure("curves", [str(result(tmp_path, "gpt2/a", 100))], tmp_path / "curves.svg")


def test_the_suite_is_drawn_from_its_file(tmp_path: Path) -> None:
    closed = {"mean": 0.7, "interval": [0.2, 1.2], "seeds": [0.5, 0.7, 0.9]}
    methods = [
        {"name": "topics/a", "role": "mechanism", "closed": closed},
        {"name": "topics/b", "role": "twin", "closed": {"mean": -3.0, "interval": None, "seeds": [-3.0]}},
    ]
    path = tmp_path / "suite.json"
    path.write_text(json.dumps({"tasks": [{"name": "topics", "spec": "topics", "methods": methods}]}))
    with pytest.raises(InputError, match=r"the numbers would replace .*suite\.json, which no figure has written"):
        write_figure("suite", [str(path)], tmp_path / "suite.svg")
    numbers = write_figure("suite", [str(path)], tmp_path / "closed.svg")
    assert write_figure("suite", [str(path)], tmp_path / "closed.svg") == numbers
    assert numbers["tasks"] == [{"name": "topics", "methods": methods}]
    picture = (tmp_path / "closed.svg").read_text()
    groups = fromstring(picture).iterfind(".//{*}g[@id]")
    assert len(picture.splitlines()) == 1 + len([*groups]), "a line for each group, not for each point"
    assert picture.count("topics/") == 0
    assert picture.count("<!-- a (mechanism) -->") == picture.count("<!-- b (twin) -->") == 1
    assert picture.count("what lies beyond -25% and 110% is drawn there") == 1
    methods[0] |= {"family": "a", "against": {"topics/b": {"conclusive": True, "difference": 0.5}}}
    path.write_text(json.dumps({"tasks": [{"name": "topics", "spec": "topics", "methods": methods}]}))
    cell = {"task": "topics", "family": "a", "closed": 0.7, "verdict": "undecided"}  # it has no control
    assert write_figure("suite-matrix", [str(path)], tmp_path / "matrix.svg") == {"cells": [cell]}
    assert "<!-- 70% ? -->" in (tmp_path / "matrix.svg").read_text()
    later = tmp_path / "later.json"
    better = methods[0] | {"closed": closed | {"mean": 0.8}}
    tasks = [{"name": name, "spec": name, "methods": [better, methods[1]]} for name in ("recall", "topics")]
    later.write_text(json.dumps({"tasks": tasks}))
    cells = [cell | {"closed": 0.8}, cell | {"task": "recall", "closed": 0.8}]
    assert write_figure("suite-matrix", [str(path), str(later)], tmp_path / "matrix.svg") == {"cells": cells}
    for content in ({"tasks": [{"name": "text", "spec": "file:a", "methods": methods}]}, {}):
        path.write_text(json.dumps(content))
        with pytest.raises(InputError, match="with a task with an optimum"):
            write_figure("suite", [str(path)], tmp_path / "closed.svg")


@pytest.mark.slow
def test_positions_are_of_one_part_for_all_models(corpus: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text("".join(reversed(corpus.read_text().splitlines(keepends=True)[:20])))
    recipe = shrink(get_recipe("gpt2/tiny"), corpus)
    first = saved(tmp_path / "first", recipe)
    data = dataclasses.replace(recipe.data, source=f"file:{other}", tokenizer=str(first / "model"))
    second = saved(tmp_path / "second", dataclasses.replace(recipe, data=data))
    third = tmp_path / "third.jsonl"
    third.write_text("".join(corpus.read_text().splitlines(keepends=True)[5:9]))
    for source, part in (("file:" + str(corpus), "test"), ("file:" + str(other), "test"), (f"file:{third}", "all")):
        paths, out = [str(first), str(second)], tmp_path / "positions.svg"
        runs = write_figure("positions", paths, out, source=source)["runs"]
        assert [run["split"] for run in runs] == [part, part]
        assert [run["spans"][0]["tokens"] for run in runs] == [runs[0]["spans"][0]["tokens"]] * 2

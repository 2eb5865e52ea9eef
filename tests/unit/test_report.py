"""The report is one page that needs nothing else, runs nothing but its own script, and shows all that was measured."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import math
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comparisons import HOSTILE, comparison, questions, run
from mentalese.compare.charts import (
    ACCURACY,
    LOSS,
    PERPLEXITY,
    POINTS,
    STOPS,
    Curve,
    Point,
    counted,
    curve,
    frontier,
    line_chart,
    scatter,
    spread,
    stops,
)
from mentalese.compare.comparison import Comparison, Row, paired_test
from mentalese.compare.report import contexts_note, ends_note, print_comparison, report, results, unfinished_note
from mentalese.evaluation.statistics import summary
from mentalese.formatting import short_count, short_names


def read(rows: list[dict[str, Any]]) -> list[Row]:
    return [Row.from_json(row) for row in rows]


def together(rows: list[dict[str, Any]]) -> Comparison:
    return Comparison("a text", "a tokenizer", read(rows), {"by": None}, seeds=len(rows[0]["runs"]))


class Page(HTMLParser):
    """The page as a browser reads it: its elements, and that each is closed."""

    VOID = ("meta", "br", "wbr", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.scripts = "", []
        self.feed(text)
        self.text = " ".join(self.text.split())
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"]:
            self.scripts.append(data)
        else:
            self.text += data


@pytest.mark.parametrize(("models", "seeds"), [(2, 1), (2, 3), (5, 4), (12, 1)])
def test_from_two_to_twelve_models_the_page_is_whole(models: int, seeds: int) -> None:
    page = Page(report(comparison(models, seeds)))
    tags = [tag for tag, _ in page.elements]
    assert tags.count("figure") == 4 + 4  # by FLOPs, time, memory, parameters; over tokens, FLOPs and time, and loss
    assert tags.count("article") == models  # samples
    lines = [a for tag, a in page.elements if tag == "path" and (a.get("class") or "").startswith("line ")]
    assert len(lines) == 4 * models
    bands = [a for tag, a in page.elements if tag == "path" and (a.get("class") or "").startswith("band ")]
    assert bool(bands) == (seeds > 1)


def test_page_makes_no_request_and_runs_only_its_script() -> None:
    text = report(comparison())
    page = Page(text)
    assert not {"link", "img", "iframe", "object", "base"} & {tag for tag, _ in page.elements}
    for _, attributes in page.elements:
        assert not {"src", "href", "xlink:href", "action"} & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]
    assert "url(" not in text
    assert "@import" not in text
    assert "default-src 'none'" in text  # and if anything did slip through, the browser would refuse it
    data, script = page.scripts
    assert list(json.loads(data)) == ["charts"]
    assert f"script-src 'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in text


def test_text_of_others_is_shown_never_run() -> None:
    compared = comparison()
    compared["rows"][1]["name"] = HOSTILE
    text = report(compared)
    assert "<img" not in text
    page = Page(text)
    assert len(page.scripts) == 2
    assert f"The function of family0/tiny {HOSTILE}" in page.text
    assert json.loads(page.scripts[0])["charts"][0]["lines"][1]["name"] == HOSTILE
    assert "model number 0 <b>" in page.text
    assert "mentalese compare a <b>" in page.text


def test_phones_and_dark_rooms_are_thought_of() -> None:
    text = report(comparison())
    assert '<meta name="viewport" content="width=device-width,initial-scale=1">' in text
    assert "prefers-color-scheme:dark" in text
    assert '<div class="scroll"><table' in text


def test_curves_end_where_their_labels_say() -> None:
    text = report(comparison(3))
    assert not re.search(r"\bnan\b|\binf\b", text)
    for value in ("100.0", "98.0", "96.0"):
        assert f"<b>{value}</b> family" in text


def test_a_run_that_diverged_leaves_a_page_all_the_same() -> None:
    broken = comparison()
    for point in broken["rows"][1]["runs"][0]["curve"]:
        if "validation_perplexity" in point:
            point["validation_perplexity"] = math.inf
    assert not re.search(r"\bnan\b|\binf\b", report(broken))


def test_infinite_perplexity_has_no_bar() -> None:
    diverged, others = comparison(models=3), comparison(models=3)
    row = diverged["rows"][1]
    row["perplexity"]["mean"] = row["runs"][0]["test"]["perplexity"] = row["ratio"] = math.inf
    bars = [re.findall(r'<i class="bar" style="width:([^"]*)%"></i>', report(page)) for page in (diverged, others)]
    assert bars == [["100.0", "96.0"], ["100.0", "98.0", "96.0"]]


def test_what_was_measured_and_how_can_be_read() -> None:
    text = Page(report(comparison(2, 3))).text
    for expected in (
        "training tokens, 50k per run", "1.31M", "100.1 ± 0.1", "0.980", "n = 3", "as family1/tiny reads", "512 MiB",
        "fedcba9876543210", "0123abc", "torch 2.13.0", "mentalese compare a",
        "mentalese train family1/tiny --seed 2 --out runs/seed-2",
    ):  # fmt: skip
        assert expected in text


def test_models_that_scored_different_tokens_carry_a_warning() -> None:
    uneven = comparison()
    assert "compare bits per byte" not in report(uneven)
    uneven["rows"][1]["runs"][0]["test"]["tokens"] += 1
    assert "compare bits per byte" in report(uneven)
    asked = questions()
    assert "different questions" not in report(asked)
    asked["rows"][1]["runs"][0]["test"]["questions"] -= 1
    assert "The models answered different questions." in report(asked)


def test_models_that_scored_different_tokens_are_not_ranked() -> None:
    rows = comparison(3, 3)["rows"]
    for one in rows[2]["runs"]:
        one["test"]["tokens"] //= 2  # a bound of the second halves alone
    assert together(rows).winner() is None
    assert paired_test(rows[2]["runs"], rows[0]["runs"]) is None
    assert together(rows).headline() == (
        "3 models that were scored on different tokens, and so are not ranked: test perplexity from 96.3 to 100.1."
    )


def test_commits_and_machines_of_all_runs_are_told() -> None:
    compared = comparison(3)
    compared["rows"][1]["runs"][0] |= {"commit": "9876fed", "hardware": {"device": "cuda"}}
    text = Page(report(compared)).text
    assert "0123abc (family0/tiny, family2/tiny); 9876fed (family1/tiny)" in text
    assert "device cpu (family0/tiny, family2/tiny); device cuda (family1/tiny)" in text


def test_the_headline_names_a_winner_only_if_the_seeds_show_one() -> None:
    rows = comparison(3, 3)["rows"]
    assert together(rows).headline() == (
        "family2/tiny has the best test perplexity, 96.3, 1.9% below family1/tiny (95% 1.7% to 2.2%, p = 0.001, n = 3)."
    )
    best = together(rows).winner()
    assert best is not None
    assert best.name == rows[2]["name"]
    for one, nll in zip(rows[2]["runs"], (4.4, 4.55, 4.7)):  # the same mean, seeds far apart
        one["test"] = one["test"] | {"nll": nll}
    assert (
        together(rows).headline() == "No model is ahead in test perplexity: family2/tiny has 96.3, family1/tiny 98.2."
    )
    assert together(rows).winner() is None


def test_a_winner_is_better_than_every_other_model() -> None:
    rows = comparison(3, 3)["rows"]
    for one, nll in zip(rows[0]["runs"], (4.0, 4.6, 5.2)):  # the worst mean, but unknown within a factor of two
        one["test"] = one["test"] | {"nll": nll}
    assert together(rows).winner() is None


def test_a_winner_of_the_mean_alone_is_none() -> None:
    """One bad seed decides the mean perplexity, all seeds the test of its logarithms."""
    rows = comparison(2, 6)["rows"]
    for row, values in zip(rows, ((27, 28, 29, 30, 31, 600), (10, 10, 10, 10, 10, 1000))):
        for one, value in zip(row["runs"], values):
            one["test"] |= {"nll": math.log(value), "perplexity": float(value)}
        row["perplexity"] = summary([one["test"]["perplexity"] for one in row["runs"]])
    test = paired_test(rows[0]["runs"], rows[1]["runs"])
    assert test is not None
    assert test.conclusive
    assert test.difference > 0  # the second is better
    assert rows[0]["perplexity"]["mean"] < rows[1]["perplexity"]["mean"]
    assert together(rows).winner() is None
    assert together(rows).headline().startswith("No model is ahead in test perplexity")


@pytest.mark.parametrize(("seeds", "number"), [(1, "One seed"), (2, "Two seeds")])
def test_few_seeds_rank_nothing(seeds: int, number: str) -> None:
    compared = comparison(2, seeds)
    assert together(compared["rows"]).headline().startswith(f"{number} of each of 2 models: test perplexity from 98.")
    assert together(compared["rows"]).headline().endswith("Too few seeds to rank them.")
    assert "<strong>" not in report(compared)
    assert "<strong>" in report(comparison(2, 3))


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (7, "7"), (950, "950"), (1000, "1k"), (1_311_232, "1.31M"), (999_999, "1M"), (8.4e6, "8.4M"),
     (17.2e12, "17.2T"), (0.5, "0.5"), (124_439_808, "124M")],
)  # fmt: skip
def test_counts_have_three_digits_and_a_prefix(number: float, text: str) -> None:
    assert short_count(number) == text


def test_names_lose_what_all_share() -> None:
    assert short_names(["gpt2/tiny", "llama/tiny"]) == ["gpt2", "llama"]
    assert short_names(["gpt2/tiny", "gpt2/small"]) == ["tiny", "small"]
    assert short_names(["gpt2/tiny", "llama/small"]) == ["gpt2/tiny", "llama/small"]
    assert short_names(["gpt2/tiny", "llama/tiny", "llama/tiny-wide"]) == ["gpt2", "llama", "llama-wide"]
    assert short_names(["llama/tiny", "llama/tiny-wide"]) == ["llama", "llama-wide"]
    assert short_names(["a/tiny-b", "a-b/tiny"]) == ["a/tiny-b", "a-b/tiny"]  # which would be one name for two
    assert short_names(["a", "b"]) == ["a", "b"]


def test_long_curves_are_thinned_by_averaging() -> None:
    runs = [run("a", 50.0, seed=s, steps=20_000) for s in range(2)]
    thin = curve(0, "a", runs, "tokens", "loss")
    assert len(thin.x) <= POINTS
    assert thin.x == sorted(thin.x)
    losses = [p["loss"] for p in runs[0]["curve"] if "loss" in p]
    assert sum(thin.y) / len(thin.y) == pytest.approx(sum(losses) / len(losses))


def test_a_curve_ends_with_every_seeds_last_validation() -> None:
    """Seeds of sentence streams read their tokens in slightly different numbers of steps."""
    runs = [run("a", 50.0, seed=seed) for seed in range(2)]
    for number, one in enumerate(runs):
        one["curve"][-1]["step"] += number
        one["curve"][-1]["validation_perplexity"] = 10.0 + number
    drawn = curve(0, "a", runs, "tokens", "validation_perplexity")
    assert (drawn.y[-1], drawn.low[-1], drawn.high[-1]) == (10.5, 10.0, 11.0)


def test_training_curve_is_the_next_tokens_loss() -> None:
    one = run("a", 50.0)
    losses = [p["loss"] for p in one["curve"] if "loss" in p]
    one["curve"] = [p | {"loss": p["loss"] + 100, "ntp": p["loss"]} if "loss" in p else p for p in one["curve"]]
    assert curve(0, "a", [one], "tokens", "loss").y == losses


def test_a_curve_is_read_off_the_line_that_is_drawn() -> None:
    drawn = Curve(0, "a", [10.0, 20.0], [100.0, 400.0], [100.0, 400.0], [100.0, 400.0], [])
    before, *values = drawn.at([9.9, 15, 20, 30], PERPLEXITY)
    assert before is None
    assert values == pytest.approx([200, 400, 400])  # half way on a logarithmic scale, the end, and after it


def test_stops_are_measurements_that_stand_apart() -> None:
    few = curve(0, "a", [run("a", 50.0)], "tokens", "validation_perplexity")
    many = curve(1, "b", [run("b", 50.0, steps=20_000)], "tokens", "loss")
    assert stops([few]) == few.x
    assert len(stops([many])) <= STOPS + 1
    assert stops([few, many])[-1] == many.x[-1]


def test_labels_stand_apart_at_every_stop() -> None:
    curves = [curve(i, f"model {i}", [run("m", 50.0 + i, cost=1 + i)], "flops", "loss") for i in range(12)]
    readings = line_chart("Loss", curves, counted("FLOPs"), PERPLEXITY).readings
    assert readings["stops"][-1] == [1000.0, "6T FLOPs"]
    assert [line["runs"] < len(readings["stops"]) for line in readings["lines"]] == [True] * 11 + [False]
    for places in zip(*(line["place"] for line in readings["lines"])):
        begun = sorted(place for place in places if place is not None)
        assert all(b - a > 15.8 for a, b in itertools.pairwise(begun))
    assert readings["lines"][3]["text"][-1] == f"{math.log(53):.2f}"
    assert readings["lines"][11]["text"][0] is None  # the dearest model has its first loss last


def test_axes_start_at_zero_or_say_that_they_do_not() -> None:
    x, values = [1.0, 2.0, 3.0], [0.5, 0.6, 0.7]
    accuracy = line_chart("A", [Curve(0, "a", x, values, values, values, [])], counted("FLOPs"), ACCURACY)
    points = [Point(0, "a", 1.0, 0.5, []), Point(1, "b", 2.0, 0.7, [])]
    for chart in (accuracy, scatter("A", points, counted("FLOPs"), ACCURACY, best_is_low=False)):
        assert chart.scale == ""
        assert chart.y_ticks[0][1] == "0%"
    losses = [9.0, 4.0, 3.0]
    loss = line_chart("L", [Curve(0, "a", x, losses, losses, losses, [])], counted("FLOPs"), LOSS)
    assert loss.scale == "does not start at zero; its steep start is above"
    assert line_chart("P", [Curve(0, "a", x, x, x, x, [])], counted("FLOPs"), PERPLEXITY).scale == "log scale"


def test_the_frontier_is_what_no_other_beats_in_both() -> None:
    def points(*places: tuple[float, float]) -> list[Point]:
        return [Point(i, "", x, y, []) for i, (x, y) in enumerate(places)]

    found = points((3, 5), (1, 9), (2, 9), (4, 5), (5, 1), (1, 10))
    assert [p.model for p in frontier(found, best_is_low=True)] == [1, 0, 4]
    assert [p.model for p in frontier(found, best_is_low=False)] == [5]


def test_models_that_start_from_other_weights_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    compared = comparison()
    said = "different weights, whose training is not in their cost: family0/tiny, none; family1/tiny, runs/steps."
    assert said not in report(compared)
    for row, adapter in zip(compared["rows"], (None, "runs/steps"), strict=True):
        for one in row["runs"]:
            one["config"]["train"] = {"init": None, "adapter": adapter}
    assert said in report(compared)
    print_comparison(compared)
    assert said in capsys.readouterr().out


def test_a_cost_is_offered_where_all_runs_know_it() -> None:
    def costs(compared: dict[str, Any]) -> tuple[list[str | None], list[str | None]]:
        radios = [a for tag, a in Page(report(compared)).elements if a.get("type") == "radio"]
        return [a["value"] for a in radios], [a["value"] for a in radios if "checked" in a]

    compared = comparison()
    assert costs(compared) == (["flops", "seconds", "peak_memory_bytes", "parameters"], ["flops"])
    compared["match"] = {"by": "flops", "budget": 10**12}
    assert costs(compared)[1] == ["seconds"]  # what is the same for all tells nothing
    del compared["rows"][1]["runs"][0]["peak_memory_bytes"]
    assert costs(compared)[0] == ["flops", "seconds", "parameters"]


@given(st.lists(st.floats(0, 260), min_size=1, max_size=12))
@settings(max_examples=60, deadline=None)
def test_labels_never_overlap_and_keep_their_order(places: list[float]) -> None:
    found = spread(places, 16, 260)
    for (wanted, place), (next_wanted, next_place) in itertools.pairwise(sorted(zip(places, found))):
        assert next_place >= place + 16 - 1e-6 or wanted == next_wanted
    assert all(-1e-6 <= place <= 260 + 1e-6 for place in found)
    assert all(b - a >= 16 - 1e-6 for a, b in itertools.pairwise(sorted(found)))


def test_inexact_perplexity_is_labelled() -> None:
    compared = comparison()
    compared["rows"][1]["runs"][0]["test"]["protocol"]["estimator"] = "block-not-causal"
    assert "98.0 (block-not-causal)" in together(compared["rows"]).headline()
    text = report(compared)
    assert "98.0 (block-not-causal)" in text
    assert text.count("<b>98.0*</b> family1 <small>") == 4  # costs
    assert text.count("* Not an exact likelihood: family1 (block-not-causal).") == 2  # costs and curves
    assert "family1*" in text


def test_a_score_of_a_part_of_the_text_has_no_bits_a_byte() -> None:
    _, row = comparison(2)["rows"]
    assert results(together([row]))[0]["bits/byte"].text != "-"
    del row["bits_per_byte"]
    assert results(together([row]))[0]["bits/byte"].text == "-"


def test_given_ends_of_sentences_are_paid_for() -> None:
    compared = comparison(2)
    assert ends_note(read(compared["rows"])) == ""
    for number, row in enumerate(compared["rows"]):
        row["bits_per_byte_with_ends"] = summary([2.0 + number])
        row["runs"][0]["test"]["protocol"]["sentences"] = "sentencex" if number else None
    assert ends_note(read(compared["rows"])).endswith("paid for: family0/tiny 2.000, family1/tiny 3.000.")
    assert "family0/tiny 2.000, family1/tiny 3.000." in report(compared)
    compared["rows"][0]["runs"][0]["test"]["protocol"]["sentences"] = "sentencex"
    assert ends_note(read(compared["rows"])) == ""


def test_contexts_that_differ_are_listed() -> None:
    rows = comparison(2)["rows"]
    protocols = [row["runs"][0]["test"]["protocol"] for row in rows]
    for protocol in protocols:
        protocol["context"] = "sliding windows of 64 tokens"
    assert contexts_note(read(rows)) == ""
    protocols[1]["context"] = "sliding windows of 65 tokens"
    said = "Contexts differ: family0/tiny, sliding windows of 64 tokens; family1/tiny, sliding windows of 65 tokens."
    assert contexts_note(read(rows)) == said


def test_trials_are_shown_with_best_values_at_the_edge() -> None:
    compared = comparison(2)
    rates = [("1e-3", 120.0, False), ("3e-3", 99.0, False), ("0.009", None, True)]
    trials = [{"settings": {"optimizer.learning_rate": r}, "value": v, "extended": e, "seeds": 1} for r, v, e in rates]
    tuning = {"seed": 10_000, "chosen": {"optimizer.learning_rate": "3e-3"}, "at_edge": [], "trials": trials}
    for row in compared["rows"]:
        row["tuning"] = dict(tuning)
    more = {"settings": {"optimizer.learning_rate": "0.02"}, "value": 140.0, "value_stderr": 2.5}
    more |= {"extended": False, "seeds": 3, "nll": 4.9, "nll_stderr": 0.02}
    compared["rows"][1]["tuning"] |= {"at_edge": ["optimizer.learning_rate"], "trials": [*trials, more]}
    text = report(compared)
    assert re.findall(r'<th scope="col">([^<]*e-3|[\d.]+)</th>', text) == ["1e-3", "3e-3", "0.009", "0.02"]
    assert [
        re.findall(r"<td[^>]*>(.*?)</td>", line)[:4] for line in text.splitlines() if "loss not finite" in line
    ] == [
        ["120.0", "<strong>99.0</strong>", "loss not finite +", "–"],
        ["120.0", "<strong>99.0</strong>", "loss not finite +", "140.0 ± 2.50; 4.900 ± 0.020"],
    ]
    assert "still at the edge of what was tried for family1/tiny (optimizer.learning_rate)." in Page(text).text
    assert "Tuning" not in Page(report(comparison(2))).text


# -- questions ---------------------------------------------------------------------------------------------------------


def test_a_comparison_of_answers_speaks_of_accuracy_alone() -> None:
    text = report(questions(3, 3))
    page = Page(text)
    for expected in (
        "test accuracy, %", "51.0 ± 1.0", "73.0 ± 3.0", "+22.0", "vs family0/tiny", "n = 3", "500 questions", "greedy",
        "Validation accuracy by training steps", "validation uses the current stage of training",
    ):  # fmt: skip
        assert expected in page.text, expected
    assert "perplexity" not in page.text[page.text.index("Mentalese comparison") :].partition("command and recipe")[0]
    assert "bits" not in page.text
    assert not re.search(r"\bnan\b|\binf\b", text)


def test_wrong_answers_are_shown_first() -> None:
    compared = questions(2, 1)
    line = {"text": "### 4", "answer": "4", "asked": True, "finished": True}
    lines = [line | {"question": f"<b>{i}+1?", "expected": str(i + 1), "correct": i == 3} for i in range(30)]
    lines = [lines[3], *lines[:3], *lines[4:-1], lines[-1] | {"finished": False}]
    compared["rows"][0]["answers"] = ["a b/answers.jsonl"]
    compared["rows"][1]["answers"] = ["gone/answers.jsonl"]
    page = Page(report(compared, {"a b/answers.jsonl": lines}))
    assert "family0/tiny: 29 of 30 wrong" in page.text
    assert [about["href"] for tag, about in page.elements if tag == "a"] == ["a%20b/answers.jsonl"]
    shown = page.text.partition("Answers")[2]
    assert "<b>0+1?" in shown
    assert "<b>3+1?" not in shown  # the only right one
    assert "family1/tiny: 29" not in page.text


def test_unfinished_answers_are_named_with_their_limit() -> None:
    compared = questions(2, 2)
    assert unfinished_note(read(compared["rows"])) == ""  # results of earlier versions
    for row, cut in zip(compared["rows"], (40, 0)):
        for each in row["runs"]:
            each["test"] |= {"unfinished": cut, "protocol": {"answer_tokens": 64}}
    note = "family0/tiny 80 of 1,000 (limit 64 tokens); family1/tiny 0 of 1,000 (limit 64 tokens)."
    assert unfinished_note(read(compared["rows"])).endswith(note)
    assert note in Page(report(compared)).text
    assert unfinished_note(read(comparison()["rows"])) == ""


def test_stages_are_where_the_curriculum_changes() -> None:
    compared = questions()
    drawn = curve(0, "a", compared["rows"][0]["runs"], "step", "validation_accuracy")
    assert drawn.stages == [250]
    assert curve(0, "a", compared["rows"][0]["runs"], "step", "loss").stages == []
    lines = [a for _, a in Page(report(compared)).elements if (a.get("class") or "").startswith("stage ")]
    assert len(lines) == 2 * 3  # two models; steps, FLOPs and time
    assert lines[0]["d"] == "M500.0 0V260"
    assert 'class="stage' not in report(comparison())


def test_the_headline_names_who_answers_best() -> None:
    rows = questions(3, 3)["rows"]
    assert (
        together(rows)
        .headline()
        .startswith("family2/tiny has the best test accuracy, 73.0%, 11.0 points above family1/tiny (95%")
    )
    assert together(questions(2)["rows"]).headline() == (
        "One seed of each of 2 models: test accuracy from 60.0% to 50.0%. Too few seeds to rank them."
    )


def test_page_of_models_without_right_answers() -> None:
    compared = questions()
    for row in compared["rows"]:
        row["accuracy"] = {"mean": 0.0, "std": 0.0, "min": 0.0, "max": 0.0}
        for point in row["runs"][0]["curve"]:
            point |= {"validation_accuracy": 0.0} if "stage" in point else {}
    text = report(compared)
    assert "0.0%" in Page(text).text
    assert not re.search(r"\bnan\b|\binf\b", text)

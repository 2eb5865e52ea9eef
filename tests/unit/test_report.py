"""The report is one page that needs nothing else, runs nothing, and shows all that was measured."""

from __future__ import annotations

import itertools
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mentalese.compare.report import (
    POINTS,
    cells,
    curve,
    headline,
    report,
    short_count,
    short_names,
    spread,
    write_report,
)

HOSTILE = '</script><script>alert("1")</script><img src=x onerror=alert(2)> & "quoted"'


def run(name: str, final: float, *, seed: int = 0, steps: int = 500) -> dict[str, Any]:
    """A result like that of `train`, whose perplexity falls from 1,000 to `final`."""
    score = {
        "nll": math.log(final), "tokens": 4000, "bytes": 17000, "perplexity": final,
        "bits_per_byte": math.log2(final) * 4 / 17, "protocol": {"tokens": "lexical", "context": f"as {name} reads"},
    }  # fmt: skip
    curve = []
    for step in range(10, steps + 1, 10):
        point = {"step": step, "tokens": 100 * step, "flops": 10**9 * step, "seconds": step / 5}
        value = final * (1000 / final) ** (1 - step / steps)
        curve += [point | {"loss": math.log(value)}, *([point | {"validation_perplexity": value}] * (step % 50 == 0))]
    return {
        "parameters": {"total": 2_359_808, "non_embedding": 1_311_232}, "train_flops_per_token": 8.4e6,
        "tokens_per_second": 21000, "test": score, "validation": score, "curve": curve, "seed": seed,
        "samples": [{"prompt": "The function", "text": f"The function of {name} {HOSTILE}"}],
        "steps": steps, "tokens": 100 * steps, "flops": 10**9 * steps, "seconds": steps / 5,
        "config": {"name": name}, "commit": "0123abc", "data_hash": "fedcba9876543210ff", "hardware": {"device": "cpu"},
        "versions": {"torch": "2.13.0"},
    }  # fmt: skip


def comparison(models: int = 2, seeds: int = 1) -> dict[str, Any]:
    from mentalese.evaluate.statistics import paired_t_test, summary

    rows: list[dict[str, Any]] = []
    for index in range(models):
        name = f"family{index}/tiny"
        runs = [run(name, 100 - 2 * index + seed * (1 + index) / 10, seed=seed) for seed in range(seeds)]
        nll = [r["test"]["nll"] for r in runs]
        first = [r["test"]["nll"] for r in (rows[0]["runs"] if rows else runs)]
        rows.append({
            "name": name, "description": f"model number {index} <b>", "parameters": runs[0]["parameters"],
            "perplexity": summary([r["test"]["perplexity"] for r in runs]),
            "bits_per_byte": summary([r["test"]["bits_per_byte"] for r in runs]),
            **{key: summary([r[key] for r in runs]) for key in ("train_flops_per_token", "tokens_per_second")},
            "baseline": "family0/tiny" if index else None, "ratio": 1 - index / 50,
            "paired_test": paired_t_test(nll, first).to_dict() if index and seeds > 2 else None, "runs": runs,
        })  # fmt: skip
    return {
        "version": 1, "created": "2026-01-02T03:04:05+00:00", "source": "builtin:stdlib", "tokenizer": "bpe:4096",
        "rows": rows, "match": {"by": "tokens", "budget": 50000}, "seeds": seeds, "command": "mentalese compare a <b>",
    }  # fmt: skip


class Page(HTMLParser):
    """The page as a browser reads it: its elements, and that each is closed."""

    VOID = ("meta", "br", "wbr")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
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
        self.text += data


@pytest.mark.parametrize(("models", "seeds"), [(2, 1), (2, 3), (5, 4), (12, 1)])
def test_from_two_to_twelve_models_the_page_is_whole(models: int, seeds: int) -> None:
    page = Page(report(comparison(models, seeds)))
    tags = [tag for tag, _ in page.elements]
    assert tags.count("figure") == 4  # perplexity by tokens, FLOPs and time; loss
    assert tags.count("article") == models  # samples
    lines = [a for tag, a in page.elements if tag == "path" and (a.get("class") or "").startswith("line ")]
    assert len(lines) == 4 * models
    bands = [a for tag, a in page.elements if tag == "path" and (a.get("class") or "").startswith("band ")]
    assert bool(bands) == (seeds > 1)


def test_the_page_asks_the_network_for_nothing_and_runs_nothing() -> None:
    text = report(comparison())
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "object", "base"} & {tag for tag, _ in page.elements}
    for _, attributes in page.elements:
        assert not {"src", "href", "xlink:href", "action"} & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]
    assert "url(" not in text
    assert "@import" not in text
    assert "default-src 'none'" in text  # and if anything did slip through, the browser would refuse it


def test_generated_text_is_shown_never_run() -> None:
    text = report(comparison())
    assert "<script" not in text.lower()
    assert "<img" not in text
    page = Page(text)
    assert HOSTILE in page.text
    assert "model number 0 <b>" in page.text
    assert "mentalese compare a <b>" in page.text


def test_phones_and_dark_rooms_are_thought_of() -> None:
    text = report(comparison())
    assert '<meta name="viewport" content="width=device-width,initial-scale=1">' in text
    assert "prefers-color-scheme:dark" in text
    assert '<div class="scroll"><table' in text


def test_no_coordinate_is_missing_and_every_curve_ends_where_its_label_says() -> None:
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


def test_what_was_measured_and_how_can_be_read() -> None:
    text = Page(report(comparison(2, 3))).text
    for expected in (
        "training tokens, 50k a run", "1.31M", "100.1 ± 0.1", "0.980", "n = 3", "as family1/tiny reads",
        "fedcba9876543210", "0123abc", "torch 2.13.0", "mentalese compare a",
    ):  # fmt: skip
        assert expected in text


def test_models_that_scored_different_tokens_carry_a_warning() -> None:
    uneven = comparison()
    assert "compare bits a byte" not in report(uneven)
    uneven["rows"][1]["runs"][0]["test"]["tokens"] += 1
    assert "compare bits a byte" in report(uneven)


def test_a_page_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    write_report(comparison(), path)
    assert path.read_text().endswith("</html>\n")
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_the_headline_names_the_winner() -> None:
    rows = comparison(3, 3)["rows"]
    assert re.match(
        r"family2/tiny reaches a test perplexity of 96\.3, 4\.0% below family0/tiny \(p < 0\.001, n = 3\)\.",
        headline(rows),
    )
    lost = comparison(2)["rows"]
    lost[1]["perplexity"]["mean"] = 110.0
    assert (
        headline(lost)
        == "family0/tiny reaches the lowest test perplexity, 100.0; the next is family1/tiny, 10.0% above."
    )


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (7, "7"), (950, "950"), (1000, "1k"), (1_311_232, "1.31M"), (999_999, "1M"), (8.4e6, "8.4M"),
     (17.2e12, "17.2T"), (0.5, "0.5"), (124_439_808, "124M")],
)  # fmt: skip
def test_counts_have_three_digits_and_a_prefix(number: float, text: str) -> None:
    assert short_count(number) == text


def test_names_lose_the_half_that_all_share() -> None:
    assert short_names(["gpt2/tiny", "llama/tiny"]) == ["gpt2", "llama"]
    assert short_names(["gpt2/tiny", "gpt2/small"]) == ["tiny", "small"]
    assert short_names(["gpt2/tiny", "llama/small"]) == ["gpt2/tiny", "llama/small"]


def test_long_curves_are_thinned_by_averaging() -> None:
    runs = [run("a", 50.0, seed=s, steps=20_000) for s in range(2)]
    thin = curve(0, "a", runs, "tokens", "loss")
    assert len(thin.x) <= POINTS
    assert thin.x == sorted(thin.x)
    losses = [p["loss"] for p in runs[0]["curve"] if "loss" in p]
    assert sum(thin.y) / len(thin.y) == pytest.approx(sum(losses) / len(losses))


@given(st.lists(st.floats(0, 260), min_size=1, max_size=12))
@settings(max_examples=60, deadline=None)
def test_labels_never_overlap_and_keep_their_order(places: list[float]) -> None:
    found = spread(places, 16, 260)
    for (wanted, place), (next_wanted, next_place) in itertools.pairwise(sorted(zip(places, found))):
        assert next_place >= place + 16 - 1e-6 or wanted == next_wanted
    assert all(-1e-6 <= place <= 260 + 1e-6 for place in found)
    assert all(b - a >= 16 - 1e-6 for a, b in itertools.pairwise(sorted(found)))


def test_a_perplexity_that_is_no_likelihood_says_so_in_table_and_headline() -> None:
    compared = comparison()
    compared["rows"][1]["runs"][0]["test"]["protocol"]["estimator"] = "block-not-causal"
    assert "98.0 (block-not-causal)" in headline(compared["rows"])
    assert "98.0 (block-not-causal)" in report(compared)


def test_a_score_of_a_part_of_the_text_has_no_bits_a_byte() -> None:
    row = comparison(2)["rows"][1]
    assert cells(row)[6] != "-"
    del row["bits_per_byte"]
    assert cells(row)[6] == "-"


# -- questions ---------------------------------------------------------------------------------------------------------


def questions(models: int = 2, seeds: int = 1) -> dict[str, Any]:
    """A comparison of accuracies, 0.5 for the first model and 0.1 more for each next one, at two stages."""
    from mentalese.evaluate.statistics import paired_t_test, summary

    compared = comparison(models, seeds)
    first: list[float] = []
    for index, row in enumerate(compared["rows"]):
        values = [0.5 + index / 10 + seed * (1 + index) / 100 for seed in range(seeds)]
        first = first or values
        for run, value in zip(row["runs"], values):
            score = {"nll": 1.0, "perplexity": 2.718, "accuracy": value, "exact_match": value, "f1": value + 0.05}
            run["test"] = score | {"questions": 500, "protocol": {"decoding": "greedy", "latents": index}}
            for point in run["curve"]:
                if "validation_perplexity" in point:
                    point |= {"validation_accuracy": value * point["step"] / 500, "stage": int(point["step"] > 250)}
        for name in ("perplexity", "bits_per_byte", "ratio"):
            del row[name]
        row["accuracy"], row["f1"] = summary(values), summary([value + 0.05 for value in values])
        row["difference"] = sum(values) / seeds - sum(first) / seeds
        row["paired_test"] = paired_t_test(values, first).to_dict() if index and seeds > 2 else None
    return compared


def test_a_comparison_of_answers_speaks_of_accuracy_alone() -> None:
    text = report(questions(3, 3))
    page = Page(text)
    for expected in (
        "test accuracy, %", "51.0 ± 1.0", "73.0 ± 3.0", "+22.0", "on family0/tiny", "n = 3", "500 questions", "greedy",
        "Validation accuracy by training steps", "questions are asked at the stage that training is at",
    ):  # fmt: skip
        assert expected in page.text, expected
    recipes = text.index("<details>")
    assert "perplexity" not in text[:recipes]
    assert "bits" not in page.text
    assert not re.search(r"\bnan\b|\binf\b", text)


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
    assert headline(rows).startswith("family2/tiny reaches a test accuracy of 73.0%, 22.0 points above family0/tiny (p")
    lost = questions(2)["rows"]
    lost[1]["accuracy"]["mean"] = 0.25
    assert (
        headline(lost)
        == "family0/tiny reaches the highest test accuracy, 50.0%; the next is family1/tiny, 25.0 points below."
    )


def test_models_that_answer_nothing_right_leave_a_page_all_the_same() -> None:
    compared = questions()
    for row in compared["rows"]:
        row["accuracy"] = {"mean": 0.0, "std": 0.0, "min": 0.0, "max": 0.0}
        for point in row["runs"][0]["curve"]:
            point |= {"validation_accuracy": 0.0} if "stage" in point else {}
    text = report(compared)
    assert "0.0%" in Page(text).text
    assert not re.search(r"\bnan\b|\binf\b", text)

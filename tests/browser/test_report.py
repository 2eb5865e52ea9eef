"""In a browser: the report's tables sort, its curves are read off, costs and models are picked; all by keyboard too."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from comparisons import HOSTILE, comparison, questions
from mentalese.compare.report import report

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default::DeprecationWarning:playwright")]

Opened = Callable[..., "Page"]


def column(table: Locator, index: int) -> list[float]:
    """The numbers that a column is sorted by, as the table has them."""
    cells = table.locator(f"tbody td:nth-child({index + 1})")
    return [float(value) for value in cells.evaluate_all("cells => cells.map(cell => cell.dataset.number)")]


def boxes(elements: Locator) -> list[dict[str, float]]:
    return elements.evaluate_all("all => all.map(e => e.getBoundingClientRect().toJSON())")


def overlap(one: dict[str, float], other: dict[str, float]) -> bool:
    return (
        min(one["right"], other["right"]) - max(one["left"], other["left"]) > 0.5
        and min(one["bottom"], other["bottom"]) - max(one["top"], other["top"]) > 0.5
    )


@pytest.mark.parametrize("compared", [comparison(5, 3), questions(5, 3)], ids=["perplexity", "accuracy"])
def test_a_table_is_sorted_by_each_of_its_columns_best_first(opened: Opened, compared: dict[str, Any]) -> None:
    page = opened(report(compared))
    table = page.locator("table.result")
    names = table.locator("tbody .name")
    written = names.all_inner_texts()
    for index, header in enumerate(table.locator("thead th").all()):
        button = header.get_by_role("button")
        title = button.inner_text()
        down = title in ("tokens/s", "test accuracy, %", "F1, %", "points to baseline")
        for order, reverse in (("descending", True), ("ascending", False))[:: 1 if down else -1]:
            button.click()
            assert header.get_attribute("aria-sort") == order
            assert table.locator("[aria-sort]").count() == 1
            if index:
                assert column(table, index) == sorted(column(table, index), reverse=reverse), title
            else:
                assert names.all_inner_texts() == sorted(written, reverse=reverse)
        button.click()
        assert table.locator("[aria-sort]").count() == 0
        assert names.all_inner_texts() == written


def test_what_is_unknown_comes_last_either_way(opened: Opened) -> None:
    compared = comparison(3)
    del compared["rows"][0]["bits_per_byte"]
    page = opened(report(compared))
    button = page.locator("table.result").get_by_role("button", name="bits/byte")
    for _ in range(2):
        button.press("Enter")
        assert page.locator("table.result tbody tr").last.inner_text().startswith("family0/tiny")


def test_pointing_at_a_chart_reads_all_models_there(opened: Opened) -> None:
    page = opened(report(comparison(3)))
    figure = page.locator(".charts figure").first
    labels = figure.locator(".labels li")
    ends = labels.all_inner_texts()
    assert ends == ["100.0 family0", "98.0 family1", "96.0 family2"]
    slider = figure.get_by_role("slider")
    slider.hover(position={"x": 0.51 * boxes(slider)[0]["width"], "y": 40})
    at = {i: final * (1000 / final) ** 0.5 for i, final in enumerate((100, 98, 96))}
    assert labels.all_inner_texts() == [f"{value:.1f} family{i}" for i, value in at.items()]
    assert figure.locator("output").inner_text() == "25k tokens"
    assert figure.locator(".read").count() == 3
    page.mouse.move(0, 0)
    assert labels.all_inner_texts() == ends
    assert figure.locator("output, .read, .cross").count() == 0


def test_a_chart_is_read_with_arrow_keys_and_says_what_it_shows(opened: Opened) -> None:
    page = opened(report(comparison(2)))
    slider = page.get_by_role("slider", name="Validation perplexity by training tokens")
    assert slider.get_attribute("aria-valuetext") == "50k tokens: family0 100.0; family1 98.0"
    slider.press("Home")
    figure = page.locator(".charts figure").first
    assert figure.locator("output").inner_text() == "5k tokens"
    slider.press("ArrowRight")
    assert slider.get_attribute("aria-valuetext") == "10k tokens: family0 631.0; family1 628.4"
    slider.press("PageUp")
    assert slider.get_attribute("aria-valuenow") == "9"
    slider.press("Escape")
    assert figure.locator("output").count() == 0


def test_a_run_that_is_over_says_so(opened: Opened) -> None:
    page = opened(report(comparison(2)))  # the second costs half as much again
    slider = page.get_by_role("slider", name="Validation perplexity by training FLOPs")
    assert slider.get_attribute("aria-valuetext") == "750G FLOPs: family0 100.0, ended; family1 98.0"
    slider.press("Home")
    assert slider.get_attribute("aria-valuetext").endswith("; family1 not yet")
    assert page.locator(".charts figure").nth(1).locator(".labels li:visible").count() == 1


@pytest.mark.parametrize("java_script_enabled", [True, False])
def test_one_chooses_which_cost_quality_is_drawn_against(opened: Opened, java_script_enabled: bool) -> None:
    page = opened(report(comparison(3, 3)), java_script_enabled=java_script_enabled)
    shown = page.locator(".cost:visible figcaption")
    titles = ["training FLOPs", "training time", "peak memory", "parameters"]
    for title in titles:
        page.locator(".choice").get_by_text(title).click()
        assert shown.all_inner_texts() == [f"Test perplexity by {title} log scale across and up"]
    page.get_by_role("radio", name="parameters").press("ArrowLeft")
    assert "peak memory" in shown.inner_text()


def test_models_are_picked_out_of_all_figures(opened: Opened) -> None:
    page = opened(report(comparison(12)), reduced_motion="reduce")
    opacity = "lines => lines.map(line => getComputedStyle(line).opacity)"
    page.get_by_role("checkbox", name="family7").press("Space")
    assert page.locator(".plot .line.m7").evaluate_all(opacity) == ["1"] * 4
    assert set(page.locator(".plot .line:not(.m7)").evaluate_all(opacity)) == {"0.15"}
    page.get_by_role("checkbox", name="family2").press("Space")
    assert page.locator(".plot .line.m2").evaluate_all(opacity) == ["1"] * 4
    assert page.locator(".cost:visible .disc.m2, .cost:visible .ring.m7").evaluate_all(opacity) == ["1"] * 2


@pytest.mark.parametrize("width", [1200, 390])
@pytest.mark.parametrize(("models", "seeds"), [(2, 1), (12, 3)])
def test_nothing_overlaps_and_the_page_never_scrolls_sideways(
    opened: Opened, models: int, seeds: int, width: int
) -> None:
    page = opened(report(comparison(models, seeds)), width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for figure in page.locator("figure:visible").all():
        for group in (".labels li", ".x li", ".y li"):
            for one, other in itertools.combinations(boxes(figure.locator(group)), 2):
                assert not overlap(one, other), group
        inside = figure.bounding_box()
        assert inside
        for box in boxes(figure.locator(".labels li")):
            assert inside["x"] <= box["left"] < box["right"] <= inside["x"] + inside["width"] + 0.5
    for one, other in itertools.combinations(boxes(page.locator(".legend label")), 2):
        assert not overlap(one, other)


def test_on_paper_nothing_is_cut_off_and_all_is_dark_on_white(opened: Opened) -> None:
    page = opened(report(comparison(5, 3)), width=718, color_scheme="dark")  # A4 between margins of a centimetre
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth") <= 718
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.get_by_text("arrow keys").is_visible()


@pytest.mark.parametrize("color_scheme", ["light", "dark"])
def test_names_in_colour_stand_out_from_the_page(opened: Opened, color_scheme: str) -> None:
    """By 4.5 to 1, WCAG 2's least for small text."""
    page = opened(report(comparison(6)), color_scheme=color_scheme)
    ratios = page.locator(".charts .labels li").evaluate_all("""labels => {
        const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
        const luminance = color => {
            canvas.fillStyle = color;
            canvas.fillRect(0, 0, 1, 1);
            const linear = value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
            const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map(value => linear(value / 255));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const page = luminance(getComputedStyle(document.body).backgroundColor);
        return labels.map(label => {
            const [low, high] = [page, luminance(getComputedStyle(label).color)].sort((a, b) => a - b);
            return (high + 0.05) / (low + 0.05);
        });
    }""")
    assert len(ratios) == 24
    assert min(ratios) >= 4.5


def test_a_finger_reads_a_chart_and_what_it_read_stays(opened: Opened) -> None:
    page = opened(report(comparison(2)), 390, has_touch=True)
    slider = page.get_by_role("slider").first
    slider.tap(position={"x": 0.51 * boxes(slider)[0]["width"], "y": 40})
    assert page.locator(".charts output").all_inner_texts() == ["25k tokens"]
    page.locator("h1").tap()
    page.get_by_role("slider").nth(1).focus()
    assert page.locator(".charts figure").first.locator("output").count() == 0


def test_names_of_others_are_text_here_too(opened: Opened) -> None:
    compared = comparison(2)
    compared["rows"][1]["name"] = compared["rows"][1]["runs"][0]["samples"][0]["prompt"] = HOSTILE
    page = opened(report(compared))  # which fails on a dialog, a request and an error
    assert page.get_by_role("slider").first.get_attribute("aria-valuetext").endswith(f"{HOSTILE} 98.0")
    folded = page.locator("details", has=page.locator(".samples"))
    assert not folded.last.locator("article").first.is_visible(), "samples are folded"
    folded.last.locator("summary").click()
    assert page.locator("article h4").last.inner_text() == HOSTILE


def test_without_its_script_all_is_there(opened: Opened) -> None:
    page = opened(report(comparison(3, 3)), java_script_enabled=False)
    assert page.locator("table.result tbody tr").count() == 3
    assert page.locator(".charts .line").count() == 12
    assert page.get_by_role("slider").count() == page.locator("thead button").count() == 0
    assert page.get_by_text("arrow keys").is_visible() is False

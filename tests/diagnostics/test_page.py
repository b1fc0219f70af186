"""Pages: self-contained, safe against any text, with every plot's numbers as a table; drawn by a real browser."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from c4rl.diagnostics.page import Page, Plot, Series, number
from tests.diagnostics.browser import visit

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&"


def make_page(path: Path) -> Path:
    page = Page(f"page {HOSTILE}", "of a test")
    page.section(f"first {HOSTILE}", "A paragraph.")
    lines = [
        Series("rising", [1, 10, 100], [1.0, 2.0, 3.0], [0.5, 1.5, 2.5], [1.5, 2.5, 3.5]),
        Series(HOSTILE, [1, 10, 100], [3.0, None, float("nan")]),
    ]
    page.plots(
        Plot("Lines", "update", lines, log_x=True, marks=[(10, "here")]),
        Plot("Bars", "run", [Series("height", [0, 1], [2.0, -1.0])], kind="bars", names=["a", "b"]),
        Plot("Points", "x", [Series("cloud", [0.5, 1.5], [1.0, 2.0])], kind="points"),
        Plot("Nothing", "x", [Series("none", [], [])]),
    )
    page.table(("name", "value"), [["one", 1], ["two", None]], "A table")
    for i in range(12):  # far below the window
        page.section(f"section {i}")
        page.plots(Plot(f"Plot {i}", "update", [Series("line", [0, 1, 2], [0.0, 1.0, i])]))
    page.write(path)
    return path


def test_text_from_files_stays_text(tmp_path: Path) -> None:
    html = make_page(tmp_path / "page.html").read_text()
    assert "<img" not in html and "<script>alert" not in html
    assert html.count("</script>") == 2  # the data and the program


def test_a_page_names_nothing_outside_itself(tmp_path: Path) -> None:
    html = make_page(tmp_path / "page.html").read_text()
    addresses = re.findall(r'(?:src|href)="([^"]*)"', html)
    assert addresses and all(address.startswith(("#", "data:")) for address in addresses)
    assert "default-src 'none'" in html and "@import" not in html and "url(" not in html


def test_every_plot_has_its_numbers_as_a_table(tmp_path: Path) -> None:
    html = make_page(tmp_path / "page.html").read_text()
    data = json.loads(re.search(r'id="plots">(.*?)</script>', html, re.DOTALL)[1])  # type: ignore[index]
    assert [series["y"] for series in data[0]["series"]] == [[1.0, 2.0, 3.0], [3.0, None, None]]
    assert data[0]["xs"] == [[1, 10, 100]]  # once for both lines
    assert len(data) == 15 == html.count("<summary>numbers</summary>")  # a plot without points is left out
    assert '<th scope="row">10</th><td>2</td><td>–</td>' in html


def test_long_curves_are_thinned_in_tables_only() -> None:
    page = Page("long")
    page.plots(Plot("Long", "update", [Series("line", list(range(1000)), [float(i) for i in range(1000)])]))
    html = page.html()
    assert html.count("<tr>") == 25 and "<td>999</td>" in html and len(html) > 1000


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (float("inf"), "–"), (1234567, "1,234,567"), (0.000123456, "0.0001235"), (True, "True"), ("a", "a")],
)
def test_numbers_are_short(value: Any, text: str) -> None:
    assert number(value) == text


CONTROLS = r"""
const figures = [...document.querySelectorAll("figure[data-plot]")];
const drawn = figures.filter(f => f.querySelector("svg path, svg rect, svg circle"));
const first = figures[0], svg = first.querySelector("svg");
const key = k => svg.dispatchEvent(new KeyboardEvent("keydown", {key: k, bubbles: true}));
key("ArrowRight"); key("ArrowRight");
const second = first.querySelector(".readout").textContent;
key("End");
const last = first.querySelector(".readout").textContent;
const before = svg.querySelectorAll(".curve").length;
const dashes = [...svg.querySelectorAll(".curve")].map(line => line.getAttribute("stroke-dasharray"));
const keys = [...first.querySelectorAll(".legend path")].map(line => line.getAttribute("stroke-dasharray"));
const button = first.querySelector(".legend button");
button.click();
const after = svg.querySelectorAll(".curve").length, pressed = button.getAttribute("aria-pressed");
const ground = () => getComputedStyle(document.body).backgroundColor, light = ground();
document.getElementById("theme").click();
return {drawn: drawn.length, label: svg.getAttribute("aria-label"), tab: svg.tabIndex, second, last, before, after,
  dashes, keys, pressed, themes: [light, ground()], wide: document.documentElement.scrollWidth > innerWidth};
"""


@pytest.mark.parametrize("width", [1280, 500])
def test_a_browser_draws_it_without_errors_or_requests_and_its_controls_work(width: int, tmp_path: Path) -> None:
    seen = visit(make_page(tmp_path / "page.html"), CONTROLS, width)
    assert seen["errors"] == [] and seen["refused"] == [] and seen["requests"] == []
    found = seen["found"]
    assert found["drawn"] >= 4
    assert "Lines against update: rising" in found["label"] and found["tab"] == 0
    assert found["second"].startswith("update 10: rising 2 [1.5, 2.5]")
    assert found["last"].startswith("update 100: rising 3 [2.5, 3.5]")
    assert (found["before"], found["after"], found["pressed"]) == (2, 1, "false")
    assert found["dashes"] == found["keys"] and len(set(found["keys"])) == 2, "lines differ in grey, and in the legend"
    assert found["themes"][0] != found["themes"][1]
    assert not found["wide"]  # no sideways scrolling


PRINTED = """
const figures = [...document.querySelectorAll("figure[data-plot]")];
const empty = () => figures.filter(f => !f.querySelector("svg path, svg rect, svg circle")).length;
const before = empty();
dispatchEvent(new Event("beforeprint"));
dispatchEvent(new Event("beforeprint"));
const rules = [...document.styleSheets[0].cssRules].filter(rule => rule.media && rule.media.mediaText === "print");
const hidden = rules.flatMap(rule => [...rule.cssRules]).map(rule => rule.selectorText).join(", ");
const hides = name => document.querySelector(name).matches(hidden);
return {before, after: empty(), names: figures[0].querySelectorAll(".legend button").length,
  last: figures.at(-1).querySelectorAll(".legend button").length, hides: [hides(".legend button"), hides("#theme")]};
"""


def test_a_printed_page_has_every_plot_and_the_names_of_its_lines(tmp_path: Path) -> None:
    found = visit(make_page(tmp_path / "page.html"), PRINTED)["found"]
    assert found["before"] > 0 and found["after"] == 0
    assert (found["names"], found["last"]) == (2, 1)  # set up once each
    assert found["hides"] == [False, True]

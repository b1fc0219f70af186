"""Self-contained pages: one HTML file with text, tables and plots, which opens from disk and requests nothing.

The plots are drawn by `script.js` from numbers in the page; every plot has its numbers as a table too.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, TypeVar

from c4rl.core.files import replacing

TABLE_ROWS = 24  # of a plot's table; more points are thinned out
TABLE_SERIES = 12
# nothing but what is inside the file may be loaded or run
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"

Number = float | int | None
Point = TypeVar("Point", int, float)


@dataclass(frozen=True)
class Series:
    """A line of a plot. None where there is no value; low and high: its band."""

    name: str
    x: Sequence[float]
    y: Sequence[Number]
    low: Sequence[Number] | None = None
    high: Sequence[Number] | None = None
    colour: int | None = None  # the same for one thing in every plot; default: by place


@dataclass(frozen=True)
class Plot:
    title: str
    x_label: str
    series: Sequence[Series]
    kind: Literal["lines", "bars", "points"] = "lines"
    log_x: bool = False
    log_y: bool = False
    names: Sequence[str] | None = None  # of the places 0, 1, 2, ... on the x axis
    marks: Sequence[tuple[float, str]] = ()  # vertical lines
    table: bool = True


@dataclass
class Page:
    title: str
    subtitle: str = ""
    _body: list[str] = field(default_factory=list)
    _sections: list[str] = field(default_factory=list)
    _plots: list[dict[str, Any]] = field(default_factory=list)

    def section(self, title: str, *paragraphs: str) -> None:
        self._sections.append(title)
        self._body.append(f'<h2 id="section-{len(self._sections)}">{escape(title)}</h2>')
        self.text(*paragraphs)

    def text(self, *paragraphs: str, kind: str = "") -> None:
        mark = f' class="{kind}"' if kind else ""
        self._body += [f"<p{mark}>{escape(paragraph)}</p>" for paragraph in paragraphs]

    def listing(self, items: Sequence[tuple[str, str, str]]) -> None:
        """Items of a list: (class, word, sentence)."""
        lines = (f'<li><span class="{c}">{escape(word)}</span> {escape(text)}</li>' for c, word, text in items)
        self._body.append(f'<ul class="findings">{"".join(lines)}</ul>')

    def table(
        self, headings: Sequence[str], rows: Sequence[Sequence[Any]], caption: str = "", folded: str = ""
    ) -> None:
        """folded: the words that open it, where it is shut at first."""
        self._body.append(_folded(folded, _table(headings, rows, caption)))

    def plots(self, *plots: Plot) -> None:
        """Side by side where the window is wide enough."""
        figures = [self._figure(plot) for plot in plots if any(len(series.x) for series in plot.series)]
        if figures:
            self._body.append(f'<div class="plots">{"".join(figures)}</div>')

    def picture(self, svg_or_png: str, caption: str, alternative: str, wide: bool) -> None:
        """An image as a data: address. wide: it scrolls sideways in a narrow window."""
        width = "width:100%;min-width:44rem" if wide else "max-width:100%"
        image = f'<img src="{svg_or_png}" alt="{escape(alternative)}" style="{width}">'
        if wide:
            label = escape(f"{caption}; scrolls sideways")
            image = f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">{image}</div>'
        self._body.append(f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>")

    def _figure(self, plot: Plot) -> str:
        self._plots.append(_plot_data(plot))
        table = ""
        if plot.table:
            table = _folded("numbers", _table(*_plot_table(plot), f"{plot.title}, against {plot.x_label}"))
        return (
            f'<figure data-plot="{len(self._plots) - 1}"><figcaption>{escape(plot.title)}</figcaption>'
            f'<p class="readout" aria-live="polite">{_HINT[plot.kind]}</p><div class="legend" role="group" '
            f'aria-label="lines shown"></div>{table}</figure>'
        )

    def html(self) -> str:
        style, script = (files(__package__).joinpath(name).read_text("utf-8") for name in ("style.css", "script.js"))
        links = "".join(
            f'<li><a href="#section-{i}">{escape(title)}</a></li>' for i, title in enumerate(self._sections, 1)
        )
        data = json.dumps(self._plots, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
            '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
            f"<title>{escape(self.title)}</title><style>{style}</style></head><body>"
            f'<header><div><h1>{escape(self.title)}</h1><p class="faint">{escape(self.subtitle)}</p></div>'
            '<button id="theme" type="button">dark or light</button></header>'
            f'<nav aria-label="sections"><ul>{links}</ul></nav><main>{"".join(self._body)}</main>'
            f'<script type="application/json" id="plots">{data}</script><script>{script}</script></body></html>\n'
        )

    def write(self, path: Path) -> None:
        with replacing(path) as temporary:
            temporary.write_text(self.html(), "utf-8", "backslashreplace")  # names of files need not be UTF-8


_HINT = {
    "lines": "Point at the plot, or use the arrow keys.",
    "bars": "Point at the plot, or use the arrow keys.",
    "points": "",
}


def _rounded(value: Number) -> Number:
    """Five digits are more than a plot can show."""
    if value is None or not math.isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.5g}")


def _plot_data(plot: Plot) -> dict[str, Any]:
    series = []
    xs: list[list[Number]] = []  # lines mostly share theirs
    for one in plot.series:
        x = [_rounded(v) for v in one.x]
        if x not in xs:
            xs.append(x)
        item: dict[str, Any] = {"name": one.name, "x": xs.index(x), "y": [_rounded(v) for v in one.y]}
        if one.colour is not None:
            item["colour"] = one.colour
        if one.low is not None and one.high is not None:
            item |= {"low": [_rounded(v) for v in one.low], "high": [_rounded(v) for v in one.high]}
        series.append(item)
    names = ", ".join(one.name for one in plot.series[:8])
    return {
        "label": f"{plot.title} against {plot.x_label}: {names}. The numbers follow as a table.",
        "x_label": plot.x_label,
        "kind": plot.kind,
        "log_x": plot.log_x,
        "log_y": plot.log_y,
        "names": plot.names,
        "marks": [{"x": _rounded(x), "text": text} for x, text in plot.marks],
        "xs": xs,
        "series": series,
    }


def _plot_table(plot: Plot) -> tuple[list[str], list[list[Any]]]:
    """The numbers of a plot; of many points or lines a part, evenly chosen."""
    shown = plot.series[:TABLE_SERIES]
    xs = thinned(sorted({x for series in shown for x in series.x}), TABLE_ROWS)
    columns = [dict(zip(series.x, series.y, strict=True)) for series in shown]
    rows = [[plot.names[int(x)] if plot.names else x, *(column.get(x) for column in columns)] for x in xs]
    more = len(plot.series) - len(shown)
    last = f" (and {more} more lines in the plot)" if more > 0 else ""
    return [plot.x_label, *(series.name for series in shown[:-1]), *(s.name + last for s in shown[-1:])], rows


def thinned(values: list[Point], most: int) -> list[Point]:
    """At most so many of them, evenly chosen, the first and the last among them."""
    if len(values) <= most:
        return values
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def number(value: Any) -> str:
    """As tables show it."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, bool) or not isinstance(value, float | int):
        return str(value)
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}" if abs(value) < 1e7 else f"{value:.3g}"
    return f"{value:.4g}"


def _table(headings: Sequence[str], rows: Sequence[Sequence[Any]], caption: str) -> str:
    words = [any(isinstance(row[j], str) for row in rows) if rows else True for j in range(len(headings))]

    def cell(name: str, j: int, value: str, more: str = "") -> str:
        mark = ' class="words"' if words[j] else ""
        return f"<{name}{mark}{more}>{escape(value)}</{name}>"

    head = "".join(cell("th", j, heading, ' scope="col"') for j, heading in enumerate(headings))
    lines = []
    for row in rows:
        cells = [
            cell("th" if j == 0 else "td", j, number(v), ' scope="row"' if j == 0 else "") for j, v in enumerate(row)
        ]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    label = escape(caption or ", ".join(headings))
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table>{title}'
        f"<thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _folded(words: str, html: str) -> str:
    return f"<details><summary>{escape(words)}</summary>{html}</details>" if words else html

"""Tables as commands print them, and the pages that hold them.

A page names the command of each table in a comment; what stands between that and `<!-- end -->` is what it prints:

    <!-- c4rl table main --score last -->
    <!-- end -->
"""

import json
import os
import re
import shlex
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from c4rl.core.errors import InputError
from c4rl.core.files import read_bytes, replacing
from c4rl.results.catalogue import TABLES, get_table
from c4rl.results.differences import difference_rows
from c4rl.results.selection_criteria import criteria_rows
from c4rl.results.speed_tables import SPEED_TABLES, SpeedTable, read_speeds, speed_caption, speed_rows
from c4rl.results.store import Store
from c4rl.results.table_text import (
    MISSING,
    Rows,
    caption,
    csv,
    is_far,
    latex,
    markdown,
    mean_words,
    number,
    paper_mean,
    rows_of,
    run_rows,
    show,
)
from c4rl.results.tables import HERE, Filled, ResultTable, fill, overall

INDEX = "index"
BLOCK = re.compile(r"(?P<head><!-- c4rl (?P<command>[^>]*?) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)


def table_text(
    name: str,
    format: str,
    score: str,
    methods: Sequence[str] | None,
    sets: Sequence[str] | None,
    store: Path,
    speeds: Path,
    far: bool = False,
) -> str:
    """What `c4rl table` prints."""
    if far and name not in TABLES:
        raise InputError(f"--far: found with table {name}, expected one of {', '.join(TABLES)}")
    if name not in (*SPEED_TABLES, INDEX):
        table = get_table(name, (*SPEED_TABLES, INDEX)).only(methods).on(sets)
        if score in ("best", "selected", "criteria") and table.quantity != "score":
            raise InputError(f"--score: found {score}, expected late, last or curve: table {name} is not about scores")
        filled = fill(table, _opened(store))
        views = {"criteria": criteria_rows, "differences": difference_rows}
        if score in ("selected", "criteria") and all(m.job.get("select", "none") == "none" for m in table.methods):
            raise InputError(f"--score: found {score}, but no run of table {name} was trained with --select")
        if score == "differences" and not any(m.against in {n.label for n in table.methods} for m in table.methods):
            raise InputError(f"--score: found {score}, but no row of table {name} is compared with another")
        if far:
            return far_cells(table, filled)
        if format == "csv" and score in ("curve", *views):
            raise InputError(f"--format csv: found with --score {score}, expected late, last, best or selected")
        if format == "csv":
            return csv(run_rows(table, filled))
        words = caption(table, filled, score)
        rows = views[score](table, filled) if score in views else rows_of(table, filled, score)
    elif methods is not None or sets is not None:
        flag = "sets" if methods is None else "methods"
        raise InputError(f"--{flag}: found with table {name}, expected a table of scores")
    elif name in SPEED_TABLES:
        speed_table, measured = SPEED_TABLES[name], read_speeds(speeds)
        rows, words = speed_rows(speed_table, measured), speed_caption(speed_table, measured)
    else:
        rows = index_rows(_opened(store), speeds)
        words = f"Means over the sets that were measured [95% interval] / the paper's; {MISSING}: not measured."
    if format == "csv":
        return csv(rows)
    return f"% {words}\n{latex(rows)}" if format == "latex" else f"{words}\n\n{markdown(rows)}"


def _opened(path: Path) -> Store:
    if not path.is_dir() or not os.access(path, os.R_OK | os.X_OK):
        found = "cannot be read" if path.is_dir() else "no such folder"
        raise InputError(f"{path}: {found}, expected the results store of a clone of c4rl; name it with --store")
    return _store(path.absolute())


@cache
def _store(path: Path) -> Store:
    """The same for all blocks of a page: it reads each file once."""
    return Store(path)


def index_rows(store: Store, speeds: Path) -> Rows:
    """A line for each table that repeats one of the paper's."""
    rows = [["the paper's", "command", "sets, updates", "runs", "ours / the paper's"]]
    measured = read_speeds(speeds)
    for table in (table for table in TABLES.values() if table.shows):
        filled = fill(table, store)
        found = sum(len(cell.entries) for cell in filled.values())
        budget = f"{len(table.measured)}, {table.updates:,}"
        shown = "; ".join(_headline(table, filled))
        rows.append([table.shows, f"`c4rl table {table.name}`", budget, f"{found}/{table.runs}", shown])
    for speed_table in SPEED_TABLES.values():
        cases = {name for some in measured.values() for name in some}
        done = f"{sum(case.name in cases for case in speed_table.cases)}/{len(speed_table.cases)}"
        shown = "; ".join(_speed_headline(speed_table, speed_rows(speed_table, measured)))
        rows.append([speed_table.shows, f"`c4rl table {speed_table.name}`", MISSING, done, shown])
    return rows


def _headline(table: ResultTable, filled: Filled) -> list[str]:
    found = []
    for method in (method for method in table.methods if method.label in table.headline):
        scores, theirs = overall(table, filled, method, "late"), paper_mean(table, method)
        ours = MISSING if scores is None else mean_words(table, scores)
        found.append(f"{method.label}: {ours}" + ("" if theirs is None else f" / {number(table, theirs)}"))
    return found


def _speed_headline(table: SpeedTable, rows: Rows) -> list[str]:
    return [f"{row[0]}: {', '.join(row[1:-1])}" for row in rows[1:] if row[0] in table.headline]


def far_cells(table: ResultTable, filled: Filled) -> str:
    """A line for each cell whose late mean is far from the paper's: what is known of the reason."""
    known = json.loads((HERE / "explanations.json").read_text())
    lines = [
        f"- {method.label}, {task.removesuffix('-v2')}: {show(table, method, task, cell, 'late')}. "
        + known.get(f"{method.label} {task}", "Not explained yet.")
        for method in table.methods
        for task in table.tasks
        if (cell := filled.get((method.label, task))) and is_far(table, method, task, cell, "late")
    ]
    return "\n".join(lines) or "None."


def filled_page(text: str, command: Callable[[list[str]], str]) -> str:
    """The page with every block as its command prints it."""

    def words(line: str) -> list[str]:
        try:
            return shlex.split(line)
        except ValueError as error:
            raise InputError(f"found 'c4rl {line}' in a page ({error}), expected c4rl table NAME") from None

    return BLOCK.sub(lambda block: f"{block['head']}\n{command(words(block['command']))}\n\n{block['end']}", text)


def fill_page(path: Path, command: Callable[[list[str]], str], write: bool = True) -> bool:
    """Write the page anew where it is out of date; whether it was."""
    try:
        before = read_bytes(path, "a Markdown page").decode()
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8, expected a Markdown page") from None
    if not BLOCK.search(before):
        raise InputError(f"{path}: found no block, expected a page with <!-- c4rl table NAME --> ... <!-- end -->")
    after = filled_page(before, command)
    if write and after != before:
        with replacing(path) as temporary:
            temporary.write_text(after)
    return after != before

"""Tables as text: Markdown, LaTeX, CSV, with the paper's numbers and what is missing."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from c4rl.environments.tasks import PHYSICS
from c4rl.results.statistics import Interval, interquartile_mean, mean, mean_interval, weighted_interval
from c4rl.results.tables import OF_A_RUN, QUANTITIES, RECORDED, Cell, Filled, Method, ResultTable, left_out, overall
from c4rl.training.summary import MARK

MISSING = "–"
OF_MANY = {  # what a table shows of several runs -> what that is
    "curve": "mean over sets at each evaluation [95% interval] (Student)",
    "criteria": "means over seeds, by the rule that chooses the checkpoint; the gap is from last to best",
    "differences": f"{OF_A_RUN['late']}; a row's mean minus that of the row it is compared against, ± half a 95% "
    "interval, [95% interval] (Welch)",
}
FAR, FAR_MARK = 2, "‡"  # of the paper's standard deviations
Rows = list[list[str]]  # of words, the first row the headings


def caption(table: ResultTable, filled: Filled, which: str) -> str:
    """What is shown, how it was made and what the signs mean."""
    plain = which in OF_A_RUN
    counts = sorted({len(table.seeds_of(method)) for method in table.methods})
    compared = any(table.printed(method, task) for method in table.methods for task in table.tasks)
    evaluation = f", {table.episodes} episodes per evaluation" if table.quantity == "score" else ""
    parts = [
        QUANTITIES[table.quantity],
        f"{_either(counts)} seeds, {table.updates:,} updates{evaluation}",
        (OF_A_RUN | OF_MANY)[which],
        "± half a 95% interval, [95% interval] (Student)" if plain else "",
        "after the slash the paper's number, ± its standard deviation" if plain and compared else "",
        f"physics {PHYSICS}" if table.quantity == "score" else "",
        _precisions(table, filled),
        f"{MISSING}: not measured",
    ]
    cells = [(m, t, cell) for m in table.methods for t in table.tasks if (cell := filled.get((m.label, t)))]
    if plain and any(is_far(table, m, t, cell, which) for m, t, cell in cells):
        parts.append(f"{FAR_MARK}: more than {FAR} of the paper's standard deviations from its mean")
    # views of means over sets show no such cell
    shown = which if plain else "late" if which == "differences" else None
    if shown is not None and any(_all_equal(cell.values(shown, table.quantity)) for _, _, cell in cells):
        parts.append("± 0.0: all runs of the cell gave the same number, which does not make it exact")
    parts.append(left_out(table, filled))
    if len(evaluations := sorted({len(entry.updates) for _, _, cell in cells for entry in cell.entries})) > 1:
        parts.append(f"runs have {_either(evaluations)} evaluations")
    if any(entry.data["stopped"] for _, _, cell in cells for entry in cell.entries):
        parts.append(f"{MARK}: some runs failed and are scored as of their last good state")
    return f"{table.title}. {'; '.join(part for part in parts if part)}. {table.note}".rstrip()


def _all_equal(values: np.ndarray) -> bool:
    return len(values) > 1 and bool(np.ptp(values) == 0)


def _either(numbers: Sequence[int]) -> str:
    """1, 2 or 3."""
    *some, last = map(str, numbers)
    return f"{', '.join(some)} or {last}" if some else last


def _precisions(table: ResultTable, filled: Filled) -> str:
    """How matrix products were rounded: by method where two at most differ from the others, else by runs."""
    used: dict[str, Counter[str]] = {}  # method -> its runs of each precision
    for method in table.methods:
        entries = (e for task in table.tasks for e in filled.get((method.label, task), Cell(())).entries)
        if counts := Counter(entry.precision for entry in entries):
            used[method.label] = counts
    total = sum(used.values(), Counter())
    if not total:
        return ""
    (usual, _), *rarer = total.most_common()
    apart = {label: next(iter(counts)) for label, counts in used.items() if set(counts) != {usual}}
    if len(apart) <= 2 and all(len(used[label]) == 1 for label in apart):
        others = (f"{name} for '{label}'" for label, name in apart.items())
        return f"matrix products in {', '.join([usual, *others])}"
    return f"matrix products in {usual} ({', '.join(f'{count} runs in {name}' for name, count in rarer)})"


def rows_of(table: ResultTable, filled: Filled, which: str = "late") -> Rows:
    """A line per method (or column, where tasks are rows); which: a score, or curve."""
    if which == "curve":
        return curve_rows(table, filled)
    rows = [["", *(short(task) for task in table.tasks), *overall_heads(table), "runs"]]
    for method in table.methods:
        cells = [filled.get((method.label, task)) for task in table.tasks]
        words = [show(table, method, task, cell, which) for task, cell in zip(table.tasks, cells, strict=True)]
        found, wanted = sum(len(c.entries) for c in cells if c), len(table.measured) * len(table.seeds_of(method))
        rows.append([method.label, *words, *_overall(table, filled, method, which), f"{found}/{wanted}"])
    rows += effect_rows(table, filled, which)
    return [list(column) for column in zip(*rows, strict=True)] if table.tasks_are_rows else rows


def effect_rows(table: ResultTable, filled: Filled, which: str) -> Rows:
    """A line for each factor of a design: the mean with it minus the mean without, on each set and on all."""
    rows = []
    scores = [overall(table, filled, method, which) for method in table.methods]
    whole = [one for one in scores if one is not None]
    runs = min(map(len, whole), default=0)
    for name in table.methods[0].factors:
        on = np.array([method.factors[name] for method in table.methods])
        words = dict.fromkeys((*table.tasks, "all"), MISSING)
        if len(whole) == len(scores) and 0 < on.sum() < len(on):
            signs = np.where(on, len(on) / on.sum(), -len(on) / (~on).sum())
            for i, task in enumerate((*table.measured, "all")):
                own = np.concatenate([one[:runs] if task == "all" else one[:runs, i : i + 1] for one in whole], axis=1)
                weights = np.repeat(signs, own.shape[1] // len(signs))
                effect = float(mean(own * weights))
                words[task] = with_interval(table, effect, weighted_interval((own, weights)), "+")
        rows.append([f"effect of {name}", *words.values(), *([""] if table.quantity == "score" else []), ""])
    return rows


def overall_heads(table: ResultTable) -> list[str]:
    measured = len(table.measured)
    return [f"mean of {measured} [95%]", *(["IQM"] if table.quantity == "score" else [])]


def curve_rows(table: ResultTable, filled: Filled) -> Rows:
    """A line per method, a column per evaluation."""
    curves, steps = {}, set()
    for method in table.methods:
        if overall(table, filled, method, "last") is None:
            continue
        entries = [filled[method.label, task].entries for task in table.measured]
        runs = min(map(len, entries))
        own = [[dict(zip(*entry.curve(table.quantity), strict=True)) for entry in some[:runs]] for some in entries]
        common = set.intersection(*(set(curve) for some in own for curve in some))
        steps |= common
        curves[method.label] = {u: np.array([[curve[u] for curve in some] for some in own]).T for u in common}
    columns = sorted(steps)
    rows = [["", *(f"{int(update):,}" for update in columns)]]
    for method in table.methods:
        found = curves.get(method.label, {})
        words = [mean_words(table, found[u]) if u in found else MISSING for u in columns]
        rows.append([method.label, *words])
    return rows


def mean_words(table: ResultTable, scores: np.ndarray) -> str:
    centre = float(mean(scores))
    return with_interval(table, centre, mean_interval(scores)) if len(scores) > 1 else number(table, centre)


def paper_mean(table: ResultTable, method: Method) -> float | None:
    """The paper's mean over the sets that are measured here, where it has all of them."""
    found = [table.printed(method, task) for task in table.measured]
    return float(np.mean([one[0] for one in found if one])) if found and all(found) else None


def _overall(table: ResultTable, filled: Filled, method: Method, which: str) -> list[str]:
    scores, theirs = overall(table, filled, method, which), paper_mean(table, method)
    ours = MISSING if scores is None else mean_words(table, scores)
    found = [f"{ours} / {number(table, theirs)}" if theirs is not None else ours]
    if table.quantity == "score":
        found.append(MISSING if scores is None else number(table, float(interquartile_mean(scores))))
    return found


def show(table: ResultTable, method: Method, task: str, cell: Cell | None, which: str) -> str:
    ours, theirs = MISSING, table.printed(method, task)
    if cell is not None and len(values := cell.values(which, table.quantity)):
        low, high = mean_interval(values)
        ours = number(table, values.mean()) + (f" ± {number(table, (high - low) / 2)}" if len(values) > 1 else "")
        ours += MARK if any(entry.data["stopped"] for entry in cell.entries) else ""
        ours += f" {FAR_MARK}" if is_far(table, method, task, cell, which) else ""
    if not theirs:
        return ours
    return f"{ours} / {' ± '.join(number(table, value) for value in theirs)}"


def is_far(table: ResultTable, method: Method, task: str, cell: Cell, which: str) -> bool:
    """Whether the mean is far from the paper's, measured by the paper's standard deviation; not asked of other data."""
    theirs = table.printed(method, task)
    if theirs is None or len(theirs) < 2 or task.startswith(RECORDED):
        return False
    values = cell.values(which, table.quantity)
    return bool(len(values) and abs(values.mean() - theirs[0]) > FAR * theirs[1])


def number(table: ResultTable, value: float, sign: str = "") -> str:
    """sign: "+" of a difference."""
    digits = {"cross_covariance_trace_exact": ".3g", "variance_lead": ".2f"}
    return f"{value:{sign}{digits.get(table.quantity, '.1f')}}"


def with_interval(table: ResultTable, value: float, interval: Interval, sign: str = "") -> str:
    """As in 44.9 [42.3, 47.6]; of a single run without."""
    if not np.isfinite(interval.low):
        return number(table, value, sign)
    low, high = (number(table, end, sign) for end in interval)
    return f"{number(table, value, sign)} [{low}, {high}]"


ROBOTS = {"halfcheetah": "hc", "hopper": "hop", "walker2d": "w2d", "ant": "ant"}


def short(name: str) -> str:
    """halfcheetah-medium-replay-v2 -> hc-mr; c4rl/ stays: such rows are not D4RL's; other domains keep their words."""
    stem = name.rpartition("-v")[0]
    robot, _, quality = stem.removeprefix(RECORDED).partition("-")
    if robot not in ROBOTS:
        return stem
    return f"{RECORDED * name.startswith(RECORDED)}{ROBOTS[robot]}-{''.join(word[0] for word in quality.split('-'))}"


def markdown(rows: Rows) -> str:
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


LATEX = {"±": r"$\pm$", "–": "--", "&": r"\&", "%": r"\%", "_": r"\_", MARK: r"$^\dagger$", "‡": r"$^\ddagger$"}
LATEX |= {"λ": r"$\lambda$", "α": r"$\alpha$", "ε": r"$\epsilon$"}


def latex(rows: Rows) -> str:
    def escaped(word: str) -> str:
        return "".join(LATEX.get(letter, letter) for letter in word)

    lines = [" & ".join(map(escaped, row)) + r" \\" for row in rows]
    rules = [r"\begin{tabular}{l" + "c" * (len(rows[0]) - 1) + "}", r"\toprule", lines[0], r"\midrule"]
    return "\n".join([*rules, *lines[1:], r"\bottomrule", r"\end{tabular}"])


def csv(rows: Sequence[Sequence[object]]) -> str:
    def quoted(word: object) -> str:
        return f'"{word}"' if "," in str(word) else str(word)

    return "\n".join(",".join(map(quoted, row)) for row in rows)


def run_rows(table: ResultTable, filled: Filled) -> list[list[object]]:
    """Every run of the table, a line for each."""
    name = table.quantity
    heads = ["method", "task", "seed", "update", "precision", "failed_at", f"last_{name}", f"late_{name}"]
    rows: list[list[object]] = [[*heads, "best_in_simulator", "selected_by_held_out"]]
    for (label, task), cell in filled.items():
        columns = (cell.values(which, name) for which in ("last", "late", "best"))
        for entry, last, late, best in zip(cell.entries, *columns, strict=True):
            facts = [entry.seed, entry.updates[-1], entry.precision, (entry.data["stopped"] or {}).get("failed_at", "")]
            chosen = [best, entry.selected] if name == "score" else [None, None]
            words = ("" if value is None else f"{value:.5g}" for value in (last, late, *chosen))
            rows.append([label, task, *facts, *words])
    return rows

"""Tables: what their cells show, what is said about them, and pages that hold them."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from c4rl.cli.bench import page_command
from c4rl.cli.main import main
from c4rl.core.curves import late_mean
from c4rl.core.errors import InputError
from c4rl.data.loading import load_dataset
from c4rl.data.recording import record
from c4rl.jobs.presets.best import BEST, RECIPES, best_for
from c4rl.results import tables
from c4rl.results.catalogue import TABLES, get_table
from c4rl.results.pages import fill_page, table_text
from c4rl.results.speed_tables import SPEED_TABLES
from c4rl.results.statistics import mean_interval
from c4rl.results.store import Entry, Store
from c4rl.results.table_text import caption, csv, curve_rows, effect_rows, is_far, latex, markdown, rows_of, run_rows
from c4rl.results.tables import Cell, ResultTable, fill, identities
from tests.results.conftest import METHODS, TASKS, Trained, small_table

ROOT = Path(__file__).resolve().parents[2]


def test_cells_are_those_of_the_entries(trained: Trained) -> None:
    table, filled = small_table(), fill(small_table(), trained.store)
    curves = [entry.scores for entry in filled["BC", TASKS[0]].entries]
    for which, values in (
        ("late", [late_mean(curve) for curve in curves]),
        ("last", [curve[-1] for curve in curves]),
        ("best", [curve.max() for curve in curves]),
    ):
        low, high = mean_interval(np.array(values))
        rows = rows_of(table, filled, which)
        assert rows[1][1] == f"{np.mean(values):.1f} ± {(high - low) / 2:.1f}"
        assert [row[0] for row in rows[1:]] == [method.label for method in METHODS]
        assert [row[-1] for row in rows[1:]] == ["4/4"] * 4
    assert "chosen in the simulator" in caption(table, filled, "best") and "2 seeds" in caption(table, filled, "late")
    curve = rows_of(table, filled, "curve")
    both = [entry.scores[0] for task in TASKS for entry in filled["BC", task].entries]
    assert curve[0][1:] == ["10", "20"] and curve[1][1].startswith(f"{np.mean(both):.1f} [")
    sideways = rows_of(replace(table, tasks_are_rows=True), filled, "last")
    assert [list(column) for column in zip(*sideways, strict=True)] == rows_of(table, filled, "last")


def test_every_format_has_every_cell(trained: Trained) -> None:
    table, filled = small_table(), fill(small_table(), trained.store)
    rows = rows_of(table, filled)
    assert r"$\pm$" in latex(rows) and r"$\alpha$" in latex(rows) and len(markdown(rows).splitlines()) == 6
    lines = csv(run_rows(table, filled)).splitlines()
    assert len(lines) == 1 + 16 and '"TD3+BC, α 1.0",maze2d-open-dense-v0,0,20,fp32,,' in "\n".join(lines)


def test_missing_runs_leave_gaps(trained: Trained) -> None:
    table = small_table(seeds=3, tasks=(*TASKS, "maze2d-large-v1"))
    rows = rows_of(table, fill(table, trained.store))
    assert [row[-1] for row in rows[1:]] == ["4/6"] * 4
    assert [row[3:6] for row in rows[1:]] == [["–", "–", "–"]] * 4, "no data, no overall mean of some cells"
    alone = table.only(["BC"])
    assert len(rows_of(alone, fill(alone, trained.store))) == 2
    with pytest.raises(InputError, match="--methods: found 'CQL', expected some of BC; TD3"):
        table.only(["CQL"])
    assert table.on(["maze2d-open"]).runs == table.runs / 2 and table.on(None).runs == table.runs
    here = table.on(["maze2d-open", "maze2d-umaze"])
    whole = small_table(seeds=3)
    assert rows_of(here, fill(here, trained.store)) == rows_of(whole, fill(whole, trained.store)), "their own mean"
    with pytest.raises(InputError, match="--sets: found 'hopper', expected the start of maze2d"):
        table.on(["hopper"])


def test_the_papers_numbers_stand_beside_ours_and_far_cells_are_marked(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = small_table(methods=(replace(METHODS[0], paper="BC"),), paper="part")
    filled = fill(table, trained.store)
    ours = float(filled["BC", TASKS[0]].values("late").mean())
    for theirs, mark in (([ours + 10, 5.1], ""), ([ours + 10, 4.9], " ‡"), ([ours + 10], "")):
        monkeypatch.setattr(tables, "paper", lambda theirs=theirs: {"part": {TASKS[0]: {"BC": theirs}}})
        cell = rows_of(table, filled)[1][1]
        assert cell.endswith(f"{mark} / {' ± '.join(f'{v:.1f}' for v in theirs)}") and ("‡" in cell) == bool(mark)
        assert ("‡" in caption(table, filled, "late")) == bool(mark)
        assert "/" not in rows_of(table, filled)[1][3], "a mean of one of two"


def test_tables_say_which_runs_were_not_fp32_and_which_stopped(copied: Store, trained: Trained) -> None:
    for path in copied.folder.glob("bc/*"):
        entry = json.loads(path.read_text())
        entry["config"]["precision"], entry["made"]["device"] = "bf16x3", "cuda"
        entry["stopped"] = {"update": 10, "failed_at": 11, "reason": "nan"}
        path.write_text(json.dumps(entry))
    table, filled = small_table(), fill(small_table(), copied)
    assert "matrix products in fp32, bf16x3 for 'BC';" in caption(table, filled, "late")
    assert "†" in caption(table, filled, "late")
    assert ["†" in row[1] for row in rows_of(table, filled)[1:]] == [True, False, False, False]
    assert "†" not in caption(table, fill(table, trained.store), "late")


def test_a_caption_explains_equal_runs_where_cells_of_them_are_shown() -> None:
    table = get_table("antmaze")
    filled = fill(table, Store(Path("results/store")))
    for which, shown in (("late", True), ("differences", True), ("curve", False)):
        assert ("± 0.0: all runs" in caption(table, filled, which)) == shown


def test_a_caption_counts_runs_where_many_methods_differ_in_precision(copied: Store) -> None:
    for path in copied.folder.glob("*/*seed0*"):
        entry = json.loads(path.read_text())
        entry["config"]["precision"], entry["made"]["device"] = "bf16x3", "cuda"
        path.write_text(json.dumps(entry))
    assert "matrix products in bf16x3 (8 runs in fp32);" in caption(small_table(), fill(small_table(), copied), "late")


def test_tables_of_other_quantities_show_them(trained: Trained) -> None:
    table = small_table(quantity="c4_effective_K")
    filled = fill(table, trained.store)
    assert {label for label, _ in filled} == {"TD3+BC + C4"}
    cell = filled["TD3+BC + C4", TASKS[0]]
    expected = np.mean([late_mean(entry.curve("c4_effective_K")[1]) for entry in cell.entries])
    assert rows_of(table, filled)[-1][1].startswith(f"{expected:.1f} ±")
    heads, *rows = run_rows(table, filled)
    assert [len(row) for row in rows] == [len(heads)] * 4 and rows[0][-2:] == ["", ""], "no simulator chose"


def test_latex_has_a_command_for_every_symbol() -> None:
    labels = [method.label for table in TABLES.values() for method in table.methods]
    assert latex([labels]).isascii()


def test_effects_of_a_design_are_differences_of_means(trained: Trained) -> None:
    on, off = (replace(method, factors={"part": part}) for method, part in zip(METHODS[:2], (True, False), strict=True))
    table = small_table(methods=(on, off))
    filled = fill(table, trained.store)
    rows = rows_of(table, filled)
    assert rows[3][0] == "effect of part" and len(rows[3]) == len(rows[0])
    each = [np.mean(filled[on.label, t].values("late")) - np.mean(filled[off.label, t].values("late")) for t in TASKS]
    for words, expected in zip(rows[3][1:4], (*each, np.mean(each)), strict=True):
        assert words.startswith(f"{expected:+.1f} [")
    more = replace(table, seeds=3)
    assert rows_of(more, fill(more, trained.store))[3][1:4] == ["–"] * 3
    (row,) = effect_rows(table.only([on.label]), filled, "late")
    assert row[1:4] == ["–"] * 3, "nothing to compare with"
    another = replace(METHODS[2], factors={"part": False})
    three = replace(table, methods=(*table.methods, another))
    (row,) = effect_rows(three, fill(three, trained.store), "late")
    late = [np.mean([fill(three, trained.store)[m.label, t].values("late") for t in TASKS]) for m in three.methods]
    assert row[3].startswith(f"{late[0] - (late[1] + late[2]) / 2:+.1f} ["), "sides of other sizes"


def test_means_of_sets_with_other_numbers_of_runs(trained: Trained) -> None:
    """As many of each set, in every view; the caption says so."""
    factors = ({"part": True}, {"part": False})
    methods = tuple(replace(method, factors=own) for method, own in zip(METHODS[:2], factors, strict=True))
    table = small_table(methods=methods, seeds=4)
    filled = fill(table, trained.store)
    assert "equally many runs of each set, the first ones" not in caption(table, filled, "late")
    for (label, task), cell in filled.items():
        first, second = cell.entries
        fewer = label == methods[0].label and task == TASKS[0]
        filled[label, task] = Cell((first, second, second) if fewer else (first, second, second, first))
    assert "equally many runs of each set, the first ones" in caption(table, filled, "late")
    expected = np.mean([[e.scores for e in filled[methods[0].label, t].entries[:3]] for t in TASKS], axis=(0, 1))
    words = curve_rows(table, filled)[1][1:]
    assert [float(word.split()[0]) for word in words] == pytest.approx(expected, abs=0.06)
    (row,) = effect_rows(table, filled, "last")
    other = np.mean([entry.scores[-1] for t in TASKS for entry in filled[methods[1].label, t].entries[:3]])
    assert float(row[3].split()[0]) == pytest.approx(expected[-1] - other, abs=0.06)


def test_the_design_of_the_ingredients_tells_them_apart() -> None:
    """Factors are orthogonal to each other and to every pair of them."""
    signs = np.array([[1 if on else -1 for on in m.factors.values()] for m in TABLES["ingredients"].methods])
    pairs = np.array([signs[:, i] * signs[:, j] for i in range(6) for j in range(i)]).T
    assert (signs.T @ signs == 16 * np.eye(6)).all() and not (signs.T @ pairs).any()


@pytest.mark.parametrize("name", TABLES)
def test_every_declared_table_is_whole(name: str) -> None:
    """Labels, headlines and the names of the paper exist; no run stands for two methods; all are scored as often."""
    table = TABLES[name]
    labels = [method.label for method in table.methods]
    assert len(set(labels)) == len(labels) and set(table.headline) <= set(labels)
    task = table.measured[0]
    own = [method for method in table.methods if method.preset != BEST]  # best is one of its two recipes
    configs = [table.config(method, task) for method in own]
    assert len({identities(config, task, [0])[0] for config in configs}) == len(configs)
    scored = [config for method, config in zip(own, configs, strict=True) if "eval_every" not in method.job]
    assert {config.updates / config.eval_every for config in scored} <= {table.evaluations}
    if table.paper not in ("", "locomotion-10k"):
        named = [method for method in own if method.paper not in (None, "BC")]  # it has BC on a few sets alone
        assert named and all(any(table.printed(method, task) for task in table.tasks) for method in named)


def test_recorded_sets_are_not_taken_for_d4rls() -> None:
    """The same task, other rows: other files, other runs, and c4rl/ in the table."""
    table, method = TABLES["antmaze"], TABLES["antmaze"].methods[1]
    published, recorded = "antmaze-umaze-v0", "c4rl/antmaze-umaze-v2"
    configs = {name: table.config(method, name, Path("data")) for name in (published, recorded)}
    assert {config.task for config in configs.values()} == {("antmaze-umaze-v2",)}
    assert [str(config.dataset[0]) for config in configs.values()] == [f"data/{name}.npz" for name in configs]
    assert len({identities(config, name, [0])[0] for name, config in configs.items()}) == 2
    assert [row[0] for row in rows_of(table, {})][1:3] == ["antmaze-umaze", "c4rl/antmaze-umaze"]
    assert "other data" in caption(table, {}, "late")
    assert table.printed(method, recorded) == [20.9]
    entry = Entry({"run": {"task": "ant-medium-v2"}, "curve": [[1, [9e9]]], "watched": {}, "stopped": None}, "")
    cell = Cell((entry,))  # far from any number of the paper's
    main_table, td3_bc = TABLES["main"], TABLES["main"].methods[1]
    assert is_far(main_table, td3_bc, "ant-medium-v2", cell, "late")
    assert not is_far(main_table, td3_bc, "c4rl/ant-medium-v2", cell, "late")


def test_best_follows_the_rows_of_each_set(tmp_path: Path) -> None:
    """What datasets.json says that the preset's rule chooses; the sets themselves are recorded anew in miniature."""
    best = next(method for method in TABLES["maze2d"].methods if method.label == "best")
    for name, recipe in (("c4rl/maze2d-umaze-v1", "values"), ("c4rl/ant-medium-v2", "cloning")):
        config = TABLES["maze2d"].config(best, name)
        assert config.algorithm == RECIPES[recipe].algorithm and config.plugins == tuple(RECIPES[recipe].plugins)
        assert config.updates == RECIPES[recipe].training["updates"].value
    record("maze2d-umaze-v1", 1000, 0, tmp_path / "maze.npz")
    chosen, _ = best_for(load_dataset(tmp_path / "maze.npz"))
    assert chosen is RECIPES[tables.datasets()["c4rl/maze2d-umaze-v1"]["best"]]


def test_tables_share_their_runs() -> None:
    """The same setting in several tables is one run."""

    def runs(name: str) -> dict[str, str]:
        table, data = TABLES[name], "walker2d-medium-v2"
        return {m.label: identities(table.config(m, data), data, [0])[0] for m in table.methods}

    clusters, weights, often = runs("clusters"), runs("lambda"), runs("frequency")
    same = {clusters["CQL + C4, paper, K 5"], weights["CQL + C4, paper, λ 0.3"], often["CQL + C4, paper, every 200"]}
    same |= {runs("rows")["CQL + C4, paper, 10k rows"], runs("alpha")["CQL + C4, paper, α 10.0"]}
    assert len(same) == 1
    assert runs("effective-k")["CQL + C4, K 20"] == clusters["CQL + C4, paper, K 20"]
    assert runs("trace")["TD3+BC + C4"] == runs("c4-plugin")["TD3+BC + C4"]
    assert runs("trace")["CQL + C4, paper"] == runs("c4-plugin")["CQL + C4, paper"] == runs("main")["CQL + C4, paper"]
    assert runs("cql-plugins")["CQL"] == runs("c4-screen")["CQL"]


@pytest.mark.parametrize("name", [*TABLES, *SPEED_TABLES, "index"])
def test_every_table_prints_from_the_store_of_the_checkout(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for format in ("markdown", "latex") if name in ("main", "overhead") else ("markdown",):
        assert table_text(name, format, "late", None, None, Path("results/store"), Path("results/speed"))


def test_wrong_words_are_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.chdir(ROOT)
    for command, sentence in (
        ("table nothing", "table: found 'nothing', expected one of main, c4-plugin"),
        ("table trace --score best", "--score: found best, expected late, last or curve"),
        ("table main --sets ant", "--sets: found 'ant', expected the start of halfcheetah-expert-v2, "),
        ("table overhead --sets hopper", "--sets: found with table overhead, expected a table of scores"),
        ("bench table nothing --dry", ", overhead, runtime"),
        ("bench table main", "--data: not given, expected the folder of the datasets"),
        ("bench pages README.md", "README.md: found no block"),
        ("bench pages", "FILES: not given, expected Markdown pages"),
    ):
        assert main(command.split()) == 2
        assert sentence in capsys.readouterr().err, command


def test_a_page_holds_what_its_commands_print(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- c4rl table one --score 'a b' -->\nold\n<!-- end -->\nafter\n")
    assert fill_page(page, " ".join, write=False) and "old" in page.read_text()
    assert fill_page(page, " ".join) and not fill_page(page, " ".join)
    assert page.read_text() == (
        "before\n<!-- c4rl table one --score 'a b' -->\n\ntable one --score a b\n\n<!-- end -->\nafter\n"
    )
    with pytest.raises(InputError, match="'c4rl train --now' in a page, expected c4rl table"):
        page_command(["train", "--now"])


PAGES = ["PAPER.md", *(f"docs/{name}.md" for name in ("locomotion", "evidence", "recipe", "domains"))]


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_those_of_the_store(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert not fill_page(Path(page), page_command, write=False), f"out of date: c4rl bench pages {page}"


def test_explanations_are_of_cells_that_exist() -> None:
    compared = [TABLES[name] for name in ("main", "c4-screen")]
    cells = {f"{method.label} {task}" for table in compared for method in table.methods for task in table.tasks}
    assert json.loads((tables.HERE / "explanations.json").read_text()).keys() <= cells


def runs_of(table: ResultTable) -> set[str]:
    return {
        name
        for method, task, config in table.wanted()
        for name in identities(config, task, list(table.seeds_of(method)))
    }


@pytest.fixture(scope="module")
def parts() -> dict[str, set[str]]:
    """The runs of each part of evidence.sh."""
    found = {}
    for name in ("locomotion", "domains"):
        command = [ROOT / "benchmarks" / "evidence.sh", "list", name]
        for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
            where, *methods = line.split("|")
            table, _, sets = where.partition("@")
            found[line] = runs_of(get_table(table).only(methods or None).on([sets] if sets else None))  # known names
    return found


def test_the_parts_of_evidence_are_all_that_the_tables_lack(parts: dict[str, set[str]]) -> None:
    wanted, listed = set().union(*map(runs_of, TABLES.values())), set().union(*parts.values())
    assert wanted - listed <= set(Store(ROOT / "results" / "store").by_identity())


def test_no_missing_run_is_in_two_parts_of_evidence(parts: dict[str, set[str]]) -> None:
    """Parts train at once: each would train it, or find its folder in use and end."""
    known = set(Store(ROOT / "results" / "store").by_identity())
    owner: dict[str, str] = {}
    for part, runs in parts.items():
        for name in runs - known:
            assert owner.setdefault(name, part) == part

"""Figures: every kind is drawn from the store, says what it shows, and can be read without colours."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from c4rl.cli.main import main
from c4rl.core.errors import InputError
from c4rl.results import catalogue, speed_tables
from c4rl.results.catalogue import TABLES
from c4rl.results.speed_tables import SPEED_TABLES
from c4rl.results.tables import Cell, Method, fill
from tests.results.conftest import METHODS, TASKS, Trained, small_table

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

from matplotlib.backends.backend_agg import FigureCanvasAgg

from c4rl.results.figure_parts import AS_PRINTED, STYLES, add_legend, new_figure, styled
from c4rl.results.figures import FIGURES, draw

ROOT = Path(__file__).resolve().parents[2]


def words(figure) -> str:
    """All text of a figure."""
    axes = [text for axis in figure.axes for text in (axis.get_xlabel(), axis.get_ylabel(), axis.get_title())]
    legend = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    return " ".join(" ".join([figure.get_suptitle(), figure.get_supxlabel(), *axes, *legend]).split())


@pytest.mark.parametrize("name", ["curves", "profiles", "improvement", "radar", "alpha"])
def test_every_kind_of_figure_says_seeds_intervals_and_units(name: str, trained: Trained) -> None:
    table = small_table(x="coefficient α")
    drawing = replace(FIGURES[name], pairs=())
    figure = drawing.draw(drawing, table, fill(table, trained.store))
    text = words(figure)
    assert "16 of 16 runs" in text and "2 seeds each" in text and "score" in text and "not measured" not in text
    assert "95%" in text or (name == "radar" and "intervals: c4rl table small" in text)
    panels = [axis for axis in figure.axes if axis.get_visible()]
    assert len(panels) == (3 if name in ("curves", "alpha") else 1), "each set and their mean"
    lines = {"curves": 4, "profiles": 4, "radar": 4, "alpha": 1}
    assert name == "improvement" or len(figure.legends[0].get_texts()) == lines[name]


def test_curves_show_the_means_of_the_store(trained: Trained) -> None:
    table = small_table(methods=METHODS[:1])
    filled = fill(table, trained.store)
    figure = FIGURES["curves"].draw(FIGURES["curves"], table, filled)
    for axis, task in zip(figure.axes, TASKS, strict=False):
        (line,) = axis.lines
        assert list(line.get_xdata()) == [0.01, 0.02]
        expected = sum(entry.scores for entry in filled["BC", task].entries) / 2
        assert list(line.get_ydata()) == pytest.approx(list(expected))


def test_curves_have_the_mean_of_the_table(trained: Trained) -> None:
    """Also where sets have other numbers of runs; without any mean there is no panel for it."""
    table = small_table(methods=METHODS[:1], seeds=4)
    filled = fill(table, trained.store)
    assert len(FIGURES["curves"].draw(FIGURES["curves"], table, filled).axes) == 2, "two runs of four"
    for task, picked in zip(TASKS, ([0, 1, 1, 0], [0, 1, 1]), strict=True):
        filled["BC", task] = Cell(tuple(filled["BC", task].entries[i] for i in picked))
    figure = FIGURES["curves"].draw(FIGURES["curves"], table, filled)
    expected = np.mean([[entry.scores for entry in filled["BC", task].entries[:3]] for task in TASKS], axis=(0, 1))
    assert list(figure.axes[2].lines[0].get_ydata()) == pytest.approx(list(expected))
    assert "equally many runs of each set, the first ones" in words(figure)


def test_only_the_sets_of_the_chosen_methods_have_panels(trained: Trained, tmp_path, monkeypatch) -> None:
    table = small_table(methods=(*METHODS[:2], Method("CQL", "cql")))
    monkeypatch.setitem(catalogue.TABLES, "main", table)
    seen = []

    def drawn(drawing, table, filled):
        seen.append(set(filled))
        return new_figure(1, "", "")[0]

    monkeypatch.setitem(FIGURES, "curves", replace(FIGURES["curves"], draw=drawn))
    draw("curves", tmp_path / "a.png", None, ("BC",), None, trained.store.folder, Path())
    assert seen == [{("BC", task) for task in TASKS}]
    with pytest.raises(InputError, match="has no run of it"):
        draw("curves", tmp_path / "b.png", None, ("CQL",), None, trained.store.folder, Path())
    with pytest.raises(InputError, match="has no run of it"):  # BC has no critic whose cosines could be drawn
        draw("cosines", tmp_path / "b.png", "main", ("BC",), None, trained.store.folder, Path())


def test_a_radar_has_room_for_every_score_and_its_labels(trained: Trained) -> None:
    filled = fill(small_table(), trained.store)
    for times, size in ((1, 1), (4, 4)):
        table = small_table(methods=METHODS[:1])
        score = np.full(2, 100.0 * times)
        high = [replace(entry, data=entry.data | {"curve": []}) for entry in filled["BC", TASKS[0]].entries]
        for entry in high:
            entry.__dict__["scores"] = score
        (axis,) = FIGURES["radar"].draw(FIGURES["radar"], table, {("BC", t): Cell(tuple(high)) for t in TASKS}).axes
        assert axis.get_ylim() == (0, 115 * size) and axis.get_yticklabels()[-1].get_text() == str(100 * size)


def test_one_method_is_nothing_to_compare(trained: Trained) -> None:
    table = small_table(methods=METHODS[:1])
    with pytest.raises(InputError, match="found one method"):
        FIGURES["improvement"].draw(replace(FIGURES["improvement"], pairs=()), table, fill(table, trained.store))


def test_lines_of_text_break_between_a_symbol_and_its_value_never() -> None:
    figure, _ = new_figure(1, "K 5, λ 0.3; " * 20, "control: K 1, λ 0; " * 40)
    for text in (figure.get_suptitle(), figure.get_supxlabel()):
        lines = text.split("\n")
        assert len(lines) > 2 and not any(line.endswith(("K", "λ")) for line in lines)


def test_theorem_1s_terms_and_the_cosines_are_drawn_from_the_store(trained: Trained) -> None:
    table = small_table(methods=METHODS[1:])
    filled = fill(table, trained.store)
    figure = FIGURES["terms"].draw(FIGURES["terms"], table, filled)
    entries = filled[METHODS[1].label, TASKS[0]].entries
    for axis, quantity in zip(figure.axes, ("td_A", "td_B", "td_C", "score"), strict=True):
        assert len(axis.lines) == 3
        expected = sum(entry.curve(quantity)[1] for entry in entries) / 2
        assert len(expected) == 2 and list(axis.lines[0].get_ydata()) == pytest.approx(list(expected))
    assert "late score: td3_bc, 6 runs: A " in words(figure)
    partly = small_table(methods=(*METHODS[1:], Method("CQL", "cql")))  # of one algorithm there is nothing yet
    assert "late score: td3_bc, 6 runs: A " in words(FIGURES["terms"].draw(FIGURES["terms"], partly, filled))
    figure = FIGURES["cosines"].draw(FIGURES["cosines"], table, filled)
    for axis, method in zip(figure.axes, METHODS[1:], strict=False):
        assert axis.get_title() == method.label
        assert [len(line.get_ydata()) for line in axis.lines] == [2, 2]
    assert "∇Var[δ]" in words(figure)
    variance, mean = (np.array(line.get_ydata()) for line in figure.axes[0].lines)
    leads = [entry.curve("variance_lead")[1] for entry in entries]
    assert list(np.mean(leads, axis=0)) == pytest.approx(list(variance - mean))


@pytest.mark.parametrize("name", ["curves", "profiles", "improvement", "radar", "terms"])
def test_no_word_of_a_figure_is_cut_off(name: str, trained: Trained) -> None:
    """Long titles and feet leave a margin, and labels stay inside the figure."""
    table = small_table(methods=METHODS[1:], title="A long title, " * 12, note="A long note. " * 20)
    drawing = replace(FIGURES[name], pairs=())
    figure = drawing.draw(drawing, table, fill(table, trained.store))
    FigureCanvasAgg(figure).draw()
    width = figure.bbox.width
    for text in (figure._suptitle, figure._supxlabel):
        box = text.get_window_extent()
        assert box.x0 >= 0.01 * width and box.x1 <= 0.99 * width, text.get_text()
    if name == "radar":
        (axis,) = figure.axes
        ring, labels = axis.get_window_extent(), [label.get_window_extent() for label in axis.get_xticklabels()]
        corners = np.concatenate([box.corners() for box in labels])
        centre = [(ring.x0 + ring.x1) / 2, (ring.y0 + ring.y1) / 2]
        assert np.linalg.norm(corners - centre, axis=1).min() >= ring.width / 2, "outside of the outer ring"
        assert min(box.x0 for box in labels) >= 0
        assert max(box.x1 for box in labels) <= figure.legends[0].get_window_extent().x0
    if name == "terms":
        assert "A long note." in words(figure)


def test_the_papers_line_stands_last_in_a_legend() -> None:
    figure, (axis,) = new_figure(1, "", "")
    for label in (f"C4, {AS_PRINTED}", "BC", "CQL"):
        axis.plot([0, 1], [0, 1], label=label)
    add_legend(figure, [axis])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["BC", "CQL", f"C4, {AS_PRINTED}"]


def test_methods_without_runs_are_named(trained: Trained) -> None:
    table = small_table(methods=(*METHODS[:1], Method("CQL", "cql")))
    figure = FIGURES["curves"].draw(FIGURES["curves"], table, fill(table, trained.store))
    assert "4 of 8 runs are in the store" in words(figure) and "not measured: CQL" in words(figure)


@pytest.mark.parametrize("name", ["curves", "radar"])
def test_methods_with_runs_on_some_sets_are_named(name: str, trained: Trained) -> None:
    """Their means would be of other sets than those of the rest."""
    table = small_table()
    filled = fill(table, trained.store)
    assert "some sets" not in words(FIGURES[name].draw(FIGURES[name], table, filled))
    del filled["BC", TASKS[0]]
    assert "measured on some sets only, in no mean or ring: BC" in words(
        FIGURES[name].draw(FIGURES[name], table, filled)
    )


def test_lines_can_be_told_apart_in_grey() -> None:
    looks = [
        (str(style["linestyle"]), style["marker"]) for _, style in styled([str(i) for i in range(2 * len(STYLES))])
    ]
    assert len(set(looks)) == len(looks), "dashes and markers alone tell them apart"


def test_figures_become_new_files(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setitem(catalogue.TABLES, "small", small_table())
    monkeypatch.chdir(tmp_path)
    common = ["--table", "small", "--store", str(trained.store.folder)]
    assert main(["figure", "curves", *common]) == 0 and Path("curves.png").read_bytes()[:4] == b"\x89PNG"
    assert main(["figure", "profiles", *common, "--output", "new.svg"]) == 0 and "<svg" in Path("new.svg").read_text()
    few = [*common, "--methods", METHODS[1].label, METHODS[0].label]
    assert main(["figure", "improvement", *few, "--output", "few.svg"]) == 0
    assert "8 of 8 runs" in Path("few.svg").read_text()
    assert main(["figure", "curves", *common, "--sets", TASKS[0], "--output", "one.svg"]) == 0
    assert [task in Path("one.svg").read_text() for task in TASKS] == [True, False]
    capsys.readouterr()
    for command, sentence in (
        (["curves", *common], "curves.png: exists already"),
        (["curves", "--output", "curves.gif"], "found 'curves.gif', expected a name that ends in .png or .svg"),
        (["nothing"], "figure: found 'nothing', expected one of curves, "),
        (["trace", "--store", str(trained.store.folder)], "figure trace: the store has no run of it"),
        (["overhead"], "figure overhead: nothing was measured; `c4rl bench table overhead` does"),
        (["overhead", "--table", "main"], "--table: found main, expected none"),
        (["overhead", "--methods", "BC"], "--methods: found BC, expected none"),
        (["overhead", "--sets", "ant"], "--sets: found ant, expected none"),
        (["profiles", *common, "--methods", "BC", "nobody"], "--methods: found 'nobody', expected some of BC; "),
        (["curves", "--table", "nothing", "--output", "n.png"], "table: found 'nothing', expected one of main"),
    ):
        assert main(["figure", *command]) == 2
        error = capsys.readouterr().err
        assert sentence in error and error.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curves.png", "few.svg", "new.svg", "one.svg"]


def test_every_figure_is_of_a_table_and_its_methods() -> None:
    for drawing in FIGURES.values():
        labels = {method.label for method in TABLES[drawing.table].methods}
        assert set(drawing.methods or ()) <= labels and {label for pair in drawing.pairs for label in pair} <= labels


def test_speeds_are_measured_once_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Measured for an instant, on a small network."""
    monkeypatch.setattr(speed_tables, "SECONDS", 0.01)
    monkeypatch.setattr(speed_tables, "SHAPE", speed_tables.SHAPE | {"hidden_layers": 1, "hidden_width": 8})
    cases = (("overhead", "TD3+BC + C4", ((300, 1), (600, 1))), ("runtime", "BC", ((300, 1), (300, 2))))
    for name, label, columns in cases:
        table = SPEED_TABLES[name]
        methods = tuple(method for method in table.methods if method.label == label)
        monkeypatch.setitem(SPEED_TABLES, name, replace(table, methods=methods, columns=columns))
        common = [name, "--speeds", str(tmp_path / "speeds")]
        assert main(["bench", "table", *common, "--device", "cpu", "--dry"]) == 0
        assert "2 measurements: about" in capsys.readouterr().out
        assert main(["bench", "table", *common, "--device", "cpu"]) == 0
        assert main(["bench", "table", *common, "--device", "cpu", "--dry"]) == 0
        assert "\n0 measurements" in f"\n{capsys.readouterr().out.splitlines()[-1]}"
        assert main(["table", *common]) == 0
        row = capsys.readouterr().out.splitlines()[-1].split(" | ")
        assert float(row[1]) > 0 and float(row[2]) > 0 and "fp32" in row[-1]
        draw(name, tmp_path / f"{name}.png", None, None, None, tmp_path, tmp_path / "speeds")
    (spoiled, *_) = sorted((tmp_path / "speeds").glob("*/*.json"))
    spoiled.rename(spoiled.with_name("bc-none-300_rows-7_runs.json"))
    assert main(["table", *common]) == 2
    assert "expected bc-none-300_rows-7_runs" in capsys.readouterr().err

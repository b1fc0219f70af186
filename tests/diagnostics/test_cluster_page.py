"""`c4rl clusters`: gradient pairs on a plane."""

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from c4rl.diagnostics import cluster_page
from c4rl.diagnostics.cluster_page import on_a_plane, quarters
from tests.cli.support import SMALL, listing, run, save_npz


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clusters")
    data = save_npz(folder / "data.npz")
    usual = ["train", "--dataset", data, "--task", "none", "--updates", "4", "--eval-every", "4", *SMALL]
    assert run(*usual, "--sweep", "alpha=1,2", "--output", folder / "job", "--threads", "1") == 0
    return folder / "job"


def without_scikit_learn(name: str, *others: Any) -> Any:
    return None if name == "sklearn" else importlib.util.find_spec(name, *others)


@pytest.mark.parametrize("mode", ["exact", "proxy"])
def test_pictures_by_cluster_return_and_time(
    mode: str, job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cluster_page, "find_spec", without_scikit_learn)
    page = tmp_path / "page.html"
    assert run("clusters", job, "--output", page, "--K", "3", "--mode", mode, "--size", "100") == 0
    assert "clusters hold 2%" in capsys.readouterr().out
    text = page.read_text("utf-8")
    plots = json.loads(re.search(r'id="plots">(.*?)</script>', text, re.DOTALL)[1])  # type: ignore[index]
    assert len(plots) == 3
    for plot in plots:  # every row in each picture, once
        assert sum(len(series["y"]) for series in plot["series"]) == 100
    assert "principal components" in text and "alpha=1.0,seed=0" in text


def test_clusters_stay_apart_on_the_plane() -> None:
    truth = np.repeat([0, 1], 40)
    y = np.random.default_rng(0).normal(size=(80, 6)) + 30 * truth[:, None]
    plane, method = on_a_plane(y)
    centres = [plane[truth == z].mean(0) for z in (0, 1)]
    spread = max(plane[truth == z].std() for z in (0, 1))
    assert plane.shape == (80, 2) and np.linalg.norm(centres[0] - centres[1]) > 2 * spread
    assert method == ("t-SNE" if importlib.util.find_spec("sklearn") else "principal components")


def test_principal_components_keep_distances_of_flat_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_page, "find_spec", without_scikit_learn)
    y = np.random.default_rng(0).normal(size=(50, 2))
    plane, _ = on_a_plane(y)
    standard = (y - y.mean(0)) / y.std(0)
    distances = [np.linalg.norm(x[:, None] - x, axis=2) for x in (plane, standard)]
    assert distances[0] == pytest.approx(distances[1])


def test_quarters() -> None:
    assert np.bincount(quarters(np.arange(100))).tolist() == [25, 25, 25, 25]
    assert quarters(np.array([1.0, 1.0, 1.0])).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("flags", "words"),
    [(["--run", "seed_3"], "no run 'seed_3'"), (["--K", "0"], "at least 1"), (["--output", "JOB"], "exists already")],
)
def test_bad_input_is_one_sentence_and_writes_nothing(
    flags: list[str],
    words: str,
    job: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    before = listing(job)
    assert run("clusters", job, *(str(job) if flag == "JOB" else flag for flag in flags)) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
    assert listing(job) == before and listing(tmp_path) == {}

"""`c4rl clusters`: gradient pairs on a plane."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from c4rl.diagnostics import cluster_page
from c4rl.diagnostics.cluster_page import named_as, on_a_plane, quarters
from c4rl.diagnostics.tsne import PERPLEXITY, neighbour_probabilities, tsne
from tests.cli.support import SMALL, listing, run, save_npz, tensors


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clusters")
    data = save_npz(folder / "data.npz")
    usual = ["train", "--dataset", data, "--task", "none", "--updates", "4", "--eval-every", "4", *SMALL]
    usual += ["--keep-checkpoints", "2"]
    assert run(*usual, "--sweep", "alpha=1,2", "--output", folder / "job", "--threads", "1") == 0
    return folder / "job"


def plots_of(page: Path) -> list[dict[str, Any]]:
    return json.loads(re.search(r'id="plots">(.*?)</script>', page.read_text("utf-8"), re.DOTALL)[1])  # type: ignore[index]


@pytest.mark.parametrize("mode", ["exact", "proxy"])
def test_pictures_over_training_by_cluster_return_and_time(
    mode: str, job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert run("clusters", job, "--output", page, "--K", "3", "--mode", mode, "--size", "100") == 0
    assert "clusters hold 2%" in capsys.readouterr().out
    plots = plots_of(page)
    titles = [plot["label"].partition(" against")[0] for plot in plots]
    colourings = ("By cluster", "By return of the trajectory", "By time in the trajectory")
    assert titles == [f"{title}, update {update}" for title in colourings for update in (2, 4)]
    for plot in plots:  # every row in each picture, once
        assert sum(len(series["y"]) for series in plot["series"]) == 100
    text = page.read_text("utf-8")
    assert "t-SNE" in text and "alpha=1.0,seed=0" in text and "2 checkpoints" in text


def test_a_job_without_kept_checkpoints_shows_its_last(job: Path, tmp_path: Path) -> None:
    copy = tmp_path / "job"
    shutil.copytree(job, copy)
    for update in (2, 4):
        (copy / f"checkpoint_{update}.safetensors").unlink()
    assert run("clusters", copy, "--output", tmp_path / "page.html", "--size", "100") == 0
    assert len(plots_of(tmp_path / "page.html")) == 3


def test_a_kept_checkpoint_is_that_of_a_job_that_ended_there(job: Path, tmp_path: Path) -> None:
    assert run("train", "--config", job, "--updates", "2", "--eval-every", "2", "--output", tmp_path / "short") == 0
    kept, ended = tensors(job, "checkpoint_2"), tensors(tmp_path / "short")
    for name, values in ended.items():
        if "metrics/" not in name:
            assert kept[name].tobytes() == values.tobytes(), name


def test_clusters_stay_apart_on_the_plane() -> None:
    truth = np.repeat([0, 1], 40)
    y = np.random.default_rng(0).normal(size=(80, 6)) + 30 * truth[:, None]
    plane, method = on_a_plane(y)
    centres = [plane[truth == z].mean(0) for z in (0, 1)]
    spread = max(plane[truth == z].std() for z in (0, 1))
    assert plane.shape == (80, 2) and np.linalg.norm(centres[0] - centres[1]) > 2 * spread
    assert method == "t-SNE"


def divergence(y: np.ndarray, points: np.ndarray) -> float:
    """KL(p | q) of a picture: what t-SNE makes small."""
    p = neighbour_probabilities(torch.tensor(points - points.mean(0)), PERPLEXITY).numpy()
    kernel = 1 / (1 + np.square(y[:, None] - y).sum(2))
    np.fill_diagonal(kernel, 0)
    q = kernel / kernel.sum()
    return float((p * np.log(np.maximum(p, 1e-300) / np.maximum(q, 1e-300))).sum())


def test_t_sne_gets_as_low_as_scikit_learns() -> None:
    manifold = pytest.importorskip("sklearn.manifold", reason="scikit-learn is not installed")
    random = np.random.default_rng(0)
    points = random.normal(size=(200, 8)) + 5 * random.normal(size=(3, 8))[random.integers(0, 3, 200)]
    theirs = manifold.TSNE(2, method="exact", init="pca", max_iter=500, random_state=0).fit_transform(points)
    first = tsne(points)
    assert divergence(first, points) < 1.1 * divergence(theirs.astype(float), points)
    moved = points + 0.01 * random.normal(size=points.shape)
    again = tsne(moved, first)  # begins where the first one ended
    assert np.corrcoef(again[:, 0], first[:, 0])[0, 1] > 0.9


def test_principal_components_keep_distances_of_flat_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_page, "MOST_POINTS", 49)
    y = np.random.default_rng(0).normal(size=(50, 2))
    plane, method = on_a_plane(y)
    standard = (y - y.mean(0)) / y.std(0)
    distances = [np.linalg.norm(x[:, None] - x, axis=2) for x in (plane, standard)]
    assert distances[0] == pytest.approx(distances[1]) and method == "principal components"


def test_clusters_keep_their_numbers_over_training() -> None:
    before = np.repeat([0, 1, 2], [50, 30, 20])
    now = np.repeat([2, 0, 1], [48, 32, 20])
    assert (named_as(now, before, 3) == np.repeat([0, 1, 2], [48, 32, 20])).all()
    assert sorted(np.unique(named_as(now, np.zeros(100, int), 3))) == [0, 1, 2]  # never two under one number


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

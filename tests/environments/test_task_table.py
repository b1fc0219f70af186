"""The table of tasks: names, references, what can be run."""

import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import gymnasium
import mujoco
import numpy as np
import pytest
from rich.console import Console

from c4rl.core.errors import InputError
from c4rl.core.extras import installed, version_of
from c4rl.environments.making import make_environment
from c4rl.environments.tasks import PHYSICS, TASKS, get_task, missing, physics, simulator, tasks_list, tasks_table
from c4rl.training.summary import versions


def test_every_dataset_of_the_paper_is_there() -> None:
    counts = {domain: sum(t.domain == domain for t in TASKS.values()) for domain in {t.domain for t in TASKS.values()}}
    assert counts == {"locomotion": 20, "maze2d": 8, "antmaze": 8, "adroit": 12, "kitchen": 3}


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("hopper-medium", "hopper-medium-v2"),
        ("maze2d-umaze-dense", "maze2d-umaze-dense-v1"),
        ("maze2d-open", "maze2d-open-v0"),
        ("antmaze-ultra-play", "antmaze-ultra-play-v0"),
        ("pen-cloned", "pen-cloned-v1"),
    ],
)
def test_names_work_with_and_without_version(name: str, canonical: str) -> None:
    assert get_task(name) is get_task(canonical)
    assert get_task(canonical).name == canonical


def test_random_and_expert_returns_score_0_and_100() -> None:
    for task in TASKS.values():
        assert task.reference_min is not None and task.reference_max is not None
        np.testing.assert_allclose(task.normalise([task.reference_min, task.reference_max]), [0, 100], atol=1e-12)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("hopper-medium-v2", -20.272305, 3234.3),
        ("halfcheetah-medium-v2", -280.178953, 12135.0),
        ("walker2d-medium-v2", 1.629008, 4592.3),
        ("ant-medium-v2", -325.6, 3879.7),
        ("maze2d-open-v0", 0.01, 20.66),
        ("maze2d-umaze-v1", 23.85, 161.86),
        ("maze2d-medium-v1", 13.13, 277.39),
        ("maze2d-large-v1", 6.7, 273.99),
        ("pen-human-v1", 96.262799, 3076.833102),
        ("hammer-human-v1", -274.856578, 12794.134825),
        ("door-human-v1", -56.512833, 2880.569309),
        ("relocate-human-v1", -6.425911, 4233.877798),
        ("antmaze-umaze-v2", 0, 1),
        ("kitchen-mixed-v0", 0, 4),
    ],
)
def test_references_are_those_of_d4rls_infos(name: str, low: float, high: float) -> None:
    task = get_task(name)
    assert (task.reference_min, task.reference_max) == (pytest.approx(low, rel=1e-7), pytest.approx(high, rel=1e-7))


def test_sparse_and_dense_mazes_have_their_own_references() -> None:
    assert get_task("maze2d-umaze-v1").normalise(161.86) == pytest.approx(100)
    assert get_task("maze2d-umaze-dense-v1").normalise(193.66286) == pytest.approx(100)


def test_an_unknown_name_is_answered_with_close_ones() -> None:
    with pytest.raises(InputError, match=r"hoper-medium-v2.*hopper-medium-v2"):
        get_task("hoper-medium-v2")


def test_any_gymnasium_id_is_a_task_with_raw_returns() -> None:
    task = get_task("gym:Pendulum-v1")
    assert (task.observation_dim, task.action_dim, task.horizon) == (3, 1, 200)
    assert task.normalise(-123.0) == -123.0
    assert missing(task) is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gym:CartPole-v1", "action space is Discrete"),
        ("gym:NoSuch-v9", "cannot make it: .*doesn't exist; gym:MODULE:ID imports the module that registers it"),
        ("gym:no_such_module:X-v0", r"cannot make it: .*; with PYTHONPATH=\. modules in this folder are found"),
    ],
)
def test_unusable_gymnasium_ids_are_refused_by_name(name: str, why: str) -> None:
    with pytest.raises(InputError, match=rf"{name}.*{why}"):
        get_task(name)


def test_environments_that_raise_or_print_while_they_are_made(capsys: pytest.CaptureFixture[str]) -> None:
    def unplugged() -> gymnasium.Env:
        raise RuntimeError("the cable is missing")

    def leaving() -> gymnasium.Env:
        raise SystemExit(2)  # as a script without `if __name__ == "__main__"` may

    def greeting() -> gymnasium.Env:
        print("welcome")
        return make_environment(get_task("maze2d-open-v0"))

    gymnasium.register("Unplugged-v0", unplugged)
    with pytest.raises(InputError, match=r"Unplugged-v0.*cannot make it: RuntimeError: the cable is missing"):
        get_task("gym:Unplugged-v0")
    gymnasium.register("Leaving-v0", leaving)
    with pytest.raises(InputError, match=r"Leaving-v0.*cannot make it: SystemExit: 2"):
        get_task("gym:Leaving-v0")
    gymnasium.register("Greeting-v0", greeting)
    assert get_task("gym:Greeting-v0").horizon == 1000
    assert capsys.readouterr() == ("", "welcome\n")  # JSON on standard output stays JSON


def test_what_is_missing_is_said() -> None:
    assert missing(get_task("hopper-medium")) is None
    assert missing(get_task("maze2d-large")) is None
    assert missing(get_task("antmaze-umaze")) is None
    assert "no simulator" in str(missing(get_task("none")))


def test_tasks_without_their_models_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("c4rl.environments.tasks.installed", lambda module: module != "gymnasium_robotics")
    advice = "needs the package 'gymnasium_robotics': pip install 'c4rl[robotics]'"
    absent = {row["domain"]: row["missing"] for row in tasks_list()}
    assert absent == {"locomotion": None, "maze2d": None, "antmaze": None, "adroit": advice, "kitchen": advice}
    assert f"adroit, kitchen: {advice}" in str(tasks_table().caption)
    with pytest.raises(InputError, match=r"pen-human-v1.*c4rl\[robotics\]"):
        make_environment(get_task("pen-human"))


def test_scores_say_what_they_were_simulated_on() -> None:
    ours, theirs = f"{PHYSICS}, mujoco {mujoco.__version__}", f"Pendulum-v1, gymnasium {gymnasium.__version__}"
    hopper, maze, pendulum = map(get_task, ("hopper-medium", "maze2d-open", "gym:Pendulum-v1"))
    assert simulator(hopper) == simulator(hopper, maze) == ours
    assert simulator(pendulum) == theirs
    assert simulator(maze, pendulum) == f"{ours} and {theirs}"
    assert simulator(get_task("none")) is None
    assert {row["simulator"] for row in tasks_list()} <= {ours, None}


def test_the_table_is_there_for_people_and_machines() -> None:
    rows = json.loads(json.dumps(tasks_list()))
    console = Console(width=200, record=True, file=None, quiet=True)
    with console.capture() as captured:
        console.quiet = False
        console.print(tasks_table())
    for row in rows:
        assert row["name"] in captured.get()


def test_packages_without_metadata_have_an_unknown_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package whose folder was only copied is used; a finished training must not fail over its version."""
    (tmp_path / "copied_into_place").mkdir()
    (tmp_path / "copied_into_place" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert installed("copied_into_place") and version_of("copied_into_place") == "unknown"
    known = version_of("mujoco")
    monkeypatch.setattr("importlib.metadata.Distribution.from_name", classmethod(_not_found))
    assert known != "unknown" and set(versions()) >= {"mujoco", "gymnasium"} and versions()["mujoco"] == "unknown"
    assert physics(simulator(get_task("hopper-medium")) or "") == PHYSICS


def _not_found(_: type, name: str) -> None:
    raise PackageNotFoundError(name)

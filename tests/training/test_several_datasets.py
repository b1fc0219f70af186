"""Datasets of one shape in one job: their runs train together, and each is what it would have been alone."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import c4rl
from c4rl.cli import train as command_line
from c4rl.core.buffer import TransitionBuffer
from c4rl.data.assembly import number_trajectories
from c4rl.data.packing import Scaling, pack_datasets
from c4rl.jobs.config import TrainConfig
from c4rl.jobs.config_file import from_json, to_json
from c4rl.jobs.runs import dataset_labels, launch_groups, run_config, runs_of
from c4rl.plugins.c4.clustering import FIT_ROWS
from c4rl.plugins.c4.plugin import C4Config
from c4rl.results.speed import made_up_dataset
from c4rl.training.evaluation import HeldOutEvaluation
from c4rl.training.launch import Launch
from tests.cli.support import SMALL, assert_same_tensors, logged_arrays, metric_lines, run, save_npz, summary, tensors
from tests.helpers import CPU, advance, plain_scaling, small_config

GPU = torch.device("cuda")  # only asked for its name: there all runs that can go together do
PATHS = (Path("a.npz"), Path("b.npz"), Path("c.npz"))
LENGTHS = (150, 200, 90)
C4 = C4Config(K=3, period=4, directions=4)
FORMS: dict[str, tuple[str, C4Config | None]] = {
    "bc": ("bc", None),
    "td3_bc": ("td3_bc", None),
    "cql": ("cql", None),
    "sorl": ("sorl", None),
    "c4": ("td3_bc", C4),
    "c4 with a gated divergence": ("td3_bc", replace(C4, divergence="mse", divergence_weight=0.5, divergence_gate=0.2)),
    "c4 with hard clusters and tails": ("td3_bc", replace(C4, sampler="hard", trajectory_tails=True, directions=None)),
    "c4 that walks through its data": ("td3_bc", replace(C4, pool=64)),
}


def config_of(form: str, **values: Any) -> TrainConfig:
    algorithm, c4 = FORMS[form]
    plugins, options = (("c4",), (c4,)) if c4 is not None else ((), ())
    return small_config(algorithm, plugins, dataset=PATHS, plugin_options=options, **values)


def buffer_of(*places: int) -> TransitionBuffer:
    """Other rows, another number of trajectories and another scale in each dataset."""
    datasets = []
    for place in places:
        data, ends = made_up_dataset(LENGTHS[place], 5, 2, seed=place), np.arange(1, LENGTHS[place] + 1) % 10 == 0
        data = replace(data, timeouts=ends, trajectory_ids=number_trajectories(ends), next_action_valid=~ends)
        data = replace(data, next_actions=data.next_actions * ~ends[:, None])
        mean = np.full(5, 0.1 * place, np.float32)
        scaling = replace(plain_scaling(data), observation_mean=mean, reward_scale=1.0 + place)
        datasets.append((data, scaling))
    return pack_datasets(datasets, CPU, torch.float64)


@pytest.mark.parametrize("form", FORMS)
def test_a_stack_of_datasets_is_each_alone(form: str) -> None:
    config = config_of(form, seeds=(7, 2))
    together = launch_groups(config, runs_of(config), LENGTHS, GPU)
    assert len(together) == 1
    states = advance(Launch(config, together[0], buffer_of(0, 1, 2), CPU, torch.float64), 30).run_states()
    assert len(states) == 6
    for one in together[0]:
        launch = Launch(run_config(config, one), [one.seed], buffer_of(one.dataset), CPU, torch.float64)
        own = advance(launch, 30).run_states()[one.seed]
        assert states[one.key].keys() == own.keys()
        for key, tensor in own.items():
            if key.endswith("sampler.pool"):  # rows of a buffer in which the dataset begins elsewhere
                tensor = tensor + sum(LENGTHS[: one.dataset])
            torch.testing.assert_close(states[one.key][key], tensor, rtol=1e-9, atol=1e-12, msg=f"{one.key}: {key}")


def test_errors_are_means_over_the_rows_of_each_runs_own_dataset() -> None:
    config = config_of("td3_bc", seeds=(7,))
    buffer = buffer_of(0, 1, 2)
    runs = launch_groups(config, runs_of(config), LENGTHS, GPU)[0]
    together = HeldOutEvaluation((), buffer, lambda: None)([Launch(config, runs, buffer, CPU, torch.float64)])
    assert len(together) == 3
    for one in runs:
        own = buffer_of(one.dataset)
        launch = Launch(run_config(config, one), [7], own, CPU, torch.float64)
        assert together[one.key] == pytest.approx(HeldOutEvaluation((), own, lambda: None)([launch])[7])


def test_every_dataset_has_its_own_values() -> None:
    config = config_of("c4", by_dataset=("lambda=0.1,2,0.1", "K=2,3,1"), sweep=("alpha=1,2.5",))
    (together,) = launch_groups(config, runs_of(config), LENGTHS, GPU)
    assert [run.group for run in together[:3]] == [
        "a,lambda=0.1,K=2,alpha=1.0",
        "a,lambda=0.1,K=2,alpha=2.5",
        "b,lambda=2.0,K=3,alpha=1.0",
    ]
    states = advance(Launch(config, together, buffer_of(0, 1, 2), CPU, torch.float64), 20).run_states()
    for one in together:
        alone = run_config(config, one)
        assert alone.plugin_options[0].lambda_ == (0.1, 2.0, 0.1)[one.dataset]
        launch = Launch(alone, [one.seed], buffer_of(one.dataset), CPU, torch.float64)
        own = advance(launch, 20).run_states()[one.seed]
        for key in ("critic/mlp.weights.0", "actor/mlp.weights.0"):
            torch.testing.assert_close(states[one.key][key], own[key], rtol=1e-9, atol=1e-12, msg=f"{one.key}: {key}")


def test_a_preset_gives_each_dataset_its_own_options() -> None:
    tasks = ["hopper-medium-v2", "hopper-expert-v2", "hopper-medium-replay-v2"]
    flags = ["--dataset", "a.npz", "b.npz", "c.npz", "--task", *tasks, "--output", "new"]
    paper = command_line.config_of(["--preset", "paper", *flags])
    published = command_line.config_of(["--preset", "published", "--algorithm", "a2pr", *flags])
    given = command_line.config_of(["--preset", "published", "--algorithm", "a2pr", "--discount", "0.9", *flags])
    assert paper.by_dataset == ("lambda=0.3,0.1,0.5",)
    assert published.by_dataset == (
        "discount=0.995,0.99,0.99",
        "reconstruction_weight=1.0,1.0,1.5",
        "cloning_weight=0.4,4.0,0.5",
    )
    assert given.by_dataset == published.by_dataset[1:] and given.options.discount == 0.9, "flags override a preset"
    assert from_json(to_json(published), "here") == published


PAPER_LAMBDA = "lambda=0.3,0.5"


@pytest.mark.parametrize(
    ("given", "by_dataset", "sweep"),
    [
        ([], (PAPER_LAMBDA,), ()),
        (["--lambda", "0.2"], (), ()),
        (["--by-dataset", "cql_weight=5,10"], (PAPER_LAMBDA, "cql_weight=5,10"), ()),
        (["--by-dataset", "lambda=0.1,0.2"], ("lambda=0.1,0.2",), ()),
        (["--sweep", "lambda=0.1,0.2"], (), ("lambda=0.1,0.2",)),
    ],
)
def test_an_option_that_is_given_replaces_only_its_own_values_of_a_preset(
    given: list[str], by_dataset: tuple[str, ...], sweep: tuple[str, ...]
) -> None:
    tasks = ["hopper-medium-v2", "hopper-medium-replay-v2"]
    config = command_line.config_of(["--preset", "paper", "--dataset", "a.npz", "b.npz", "--task", *tasks, *given])
    assert (config.by_dataset, config.sweep) == (by_dataset, sweep)


def test_a_switch_turned_off_replaces_a_presets_values() -> None:
    flags = ["--preset", "published", "--algorithm", "bppo", "--dataset", "a.npz", "b.npz"]
    flags += ["--task", "pen-human-v1", "hammer-human-v1"]
    assert command_line.config_of(flags).by_dataset == ("output_relu=True,False",)
    config = command_line.config_of([*flags, "--no-output-relu"])
    assert config.by_dataset == () and not config.options.output_relu


@pytest.mark.parametrize(
    ("given", "by_dataset", "sweep"),
    [
        ([], ("K=2,3",), ("alpha=1,2",)),
        (["--alpha", "7"], ("K=2,3",), ()),
        (["--K", "4"], (), ("alpha=1,2",)),
        (["--sweep", "K=1,2"], (), ("K=1,2",)),
        (["--by-dataset", "alpha=3,4"], ("K=2,3", "alpha=3,4"), ()),
        (["--plugins", "none"], (), ()),
    ],
)
def test_flags_win_over_what_a_stored_job_swept(
    given: list[str], by_dataset: tuple[str, ...], sweep: tuple[str, ...], tmp_path: Path
) -> None:
    flags = ["--algorithm", "td3_bc", "--plugins", "c4", "--dataset", "a.npz", "b.npz", "--output", "old"]
    stored = command_line.config_of([*flags, "--by-dataset", "K=2,3", "--sweep", "alpha=1,2"])
    file = tmp_path / "config.json"
    file.write_text(json.dumps(to_json(stored)))
    config = command_line.config_of(["--config", str(file), "--output", "new", *given])
    assert (config.by_dataset, config.sweep) == (by_dataset, sweep)


@pytest.mark.parametrize("form", ["c4", "sorl"])
def test_runs_go_on_in_any_company(form: str) -> None:
    config = config_of(form)
    buffer = buffer_of(0, 1, 2)
    straight = advance(Launch(config, runs_of(config), buffer, CPU, torch.float64), 9)
    states = straight.run_states()
    expected = advance(straight, 9, start=9).run_states()
    runs = runs_of(config)
    for company in (*([one] for one in runs), runs[:2], runs[1:]):
        launch = Launch(config, company, buffer, CPU, torch.float64)
        launch.load(states)
        for name, state in advance(launch, 9, start=9).run_states().items():
            for key, tensor in state.items():
                torch.testing.assert_close(tensor, expected[name][key], rtol=1e-9, atol=1e-12, msg=f"{name}: {key}")


def test_datasets_that_clustering_treats_differently_stay_apart() -> None:
    """A pool of which every second row is fitted, one that is fitted whole, and two larger than any pool."""
    config = replace(config_of("c4"), dataset=(*PATHS, Path("d.npz")))
    rows = (FIT_ROWS + 1, FIT_ROWS, 10 * C4.pool, 20 * C4.pool)
    found = [[one.dataset for one in some] for some in launch_groups(config, runs_of(config), rows, GPU)]
    assert found == [[0], [1], [2, 3]]
    plain = replace(config_of("td3_bc"), dataset=config.dataset)
    assert len(launch_groups(plain, runs_of(plain), rows, GPU)) == 1


def test_labels_tell_datasets_apart() -> None:
    def labels(*names: str) -> list[str]:
        return dataset_labels([Path(name) for name in names])

    assert labels("data/hopper-medium-v2.hdf5", "other/hopper-expert-v2.hdf5") == [
        "hopper-medium-v2",
        "hopper-expert-v2",
    ]
    assert labels("minari:mujoco/hopper/medium-v0", "minari:mujoco/walker2d/medium-v0") == [
        "hopper-medium-v0",
        "walker2d-medium-v0",
    ]
    assert labels("x/my data.npz", "x/other,data.npz") == ["my_data", "other_data"]
    assert labels("x.npz", "x.hdf5") == ["dataset_0", "dataset_1"]


# -- whole jobs

EVERY = ["--updates", "30", "--log-every", "10", "--eval-every", "15", "--checkpoint-every", "7", "--threads", "1"]


def command(output: Path, *flags: object) -> list[object]:
    return ["train", "--output", output, *SMALL, *EVERY, "--device", "cpu", *flags]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("data")
    short = {name: values[:160] for name, values in logged_arrays(seed=1).items()}
    return [save_npz(folder / "long.npz"), save_npz(folder / "short.npz", **short)]


def cut_at(update: int) -> pytest.MonkeyPatch:
    """From now on the power fails before this update."""
    monkeypatch, original = pytest.MonkeyPatch(), Launch.update

    def cut(self: Launch, step: int) -> None:
        if step == update:
            raise RuntimeError("power cut")
        original(self, step)

    monkeypatch.setattr(Launch, "update", cut)
    return monkeypatch


def test_a_job_on_two_files(files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--task", "none", "--seeds", "0", "4", "--plugins", "c4", "--period", "10", "--sweep", "lambda=0.1,0.5"]
    folder = tmp_path / "job"
    assert run(*command(folder, "--dataset", *files, *flags)) == 0
    result = summary(folder)
    assert [group["name"] for group in result["groups"]] == [
        f"{label},lambda={value}" for label in ("long", "short") for value in (0.1, 0.5)
    ]
    assert [facts["path"] for facts in result["dataset"]] == [str(path) for path in files]
    assert result["dataset"][0]["sha256"] != result["dataset"][1]["sha256"]
    shown = capsys.readouterr().out
    assert all(f"{group['name']}: held out td rmse per seed: " in shown for group in result["groups"])
    for place, path in enumerate(files):
        alone = tmp_path / path.stem
        assert run(*command(alone, "--dataset", path, *flags[:-2], "--lambda", "0.5")) == 0
        ours, networks = tensors(folder), [key for key in tensors(alone) if "/mlp." in key]
        assert networks
        for key in networks:  # a mixture's parameters answer to the last bit of float32
            seed = key.split("/")[0].removeprefix("seed_")
            own = ours[key.replace(f"seed_{seed}/", f"{path.stem},lambda=0.5,seed={seed}/")]
            np.testing.assert_allclose(own, tensors(alone)[key], rtol=1e-3, atol=1e-5, err_msg=key)
        last = result["groups"][2 * place + 1]["last"]
        for name, values in summary(alone)["last"].items():
            np.testing.assert_allclose(last[name], values, rtol=1e-4)
        observations = logged_arrays()["observations"][:9]
        ours_act = c4rl.load_policy(folder, run=f"{path.stem},lambda=0.5,seed=4").act(observations)
        np.testing.assert_allclose(ours_act, c4rl.load_policy(alone, seed=4).act(observations), rtol=1e-3, atol=1e-4)
    resumed = tmp_path / "resumed"
    power = cut_at(18)
    with pytest.raises(RuntimeError, match="power cut"):
        run(*command(resumed, "--dataset", *files, *flags))
    power.undo()
    assert run("train", "--resume", resumed) == 0
    assert_same_tensors(resumed, folder)
    assert metric_lines(resumed) == metric_lines(folder)


def test_each_run_is_scored_in_the_task_of_its_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = ["maze2d-open-dense-v0", "maze2d-umaze-v1"]
    files = [tmp_path / f"{task}.npz" for task in tasks]
    for task, file in zip(tasks, files, strict=True):
        assert run("data", "record", task, "--output", file, "--size", "300") == 0
    folder, flags = tmp_path / "job", ["--eval-episodes", "1", "--eval-every", "30"]
    assert run(*command(folder, "--dataset", *files, "--task", *tasks, *flags)) == 0
    result = summary(folder)
    assert [entry["task"] for entry in result["runs"]] == tasks and result["task"] == tasks
    assert f"td3_bc on {tasks[0]} and {tasks[1]}" in " ".join(capsys.readouterr().out.split())
    for place, (task, file) in enumerate(zip(tasks, files, strict=True)):
        alone = tmp_path / f"alone {place}"
        assert run(*command(alone, "--dataset", file, "--task", task, *flags)) == 0
        expected = summary(alone)["last"]
        np.testing.assert_allclose(result["groups"][place]["last"]["returns"], expected["returns"], rtol=1e-3)
        assert result["runs"][place]["last"] == pytest.approx(expected["mean"], rel=1e-3, abs=1e-3)
    output = tmp_path / "scores.json"
    assert run("evaluate", folder, "--episodes", "1", "--seed", "10000", "--json", output) == 0
    scored = json.loads(output.read_text())
    assert [row["task"] for row in scored["runs"]] == tasks
    assert [row["run"] for row in scored["runs"]] == [f"{task},seed=0" for task in tasks]
    for row, entry in zip(scored["runs"], result["runs"], strict=True):
        assert row["mean"] == pytest.approx(entry["last"])


def test_one_task_may_serve_all_datasets() -> None:
    config = small_config("td3_bc", dataset=PATHS, task="hopper-medium-v2")
    assert config.tasks == ("hopper-medium-v2",) * 3
    assert from_json(to_json(config), "here") == config
    assert [one.key for one in runs_of(config)] == ["a,seed=0", "b,seed=0", "c,seed=0"]


BAD: dict[str, tuple[list[str], list[str]]] = {
    "two shapes": (
        ["--dataset", "LONG", "WIDE", "--task", "none"],
        ["wide.npz", "6 observations and 2 actions", "expected 5 and 2", "long.npz"],
    ),
    "the same twice": (["--dataset", "LONG", "LONG", "--task", "none"], ["--dataset", "each dataset once"]),
    "tasks for some": (
        ["--dataset", "LONG", "SHORT", "WIDE", "--task", "hopper-medium-v2", "hopper-expert-v2"],
        ["--task", "hopper-medium-v2 hopper-expert-v2", "one for all datasets, or one for each"],
    ),
    "a simulator for some": (
        ["--dataset", "LONG", "SHORT", "--task", "none", "hopper-medium-v2"],
        ["--task", "a simulator for all datasets, or none for all"],
    ),
    "a preset of two minds": (
        ["--dataset", "LONG", "SHORT", "--task", "hopper-medium-v2", "antmaze-umaze-v2", "--preset", "paper"],
        ["--preset paper", "hopper-medium-v2 and antmaze-umaze-v2", "a job for each"],
    ),
    "too few values": (
        ["--dataset", "LONG", "SHORT", "--task", "none", "--by-dataset", "alpha=1"],
        ["--by-dataset alpha=1", "1 values for 2 datasets", "one for each"],
    ),
    "an option swept and given for each": (
        ["--dataset", "LONG", "SHORT", "--task", "none", "--by-dataset", "alpha=1,2", "--sweep", "alpha=1,2"],
        ["--by-dataset", "alpha in --sweep too", "in one of them"],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_datasets_that_do_not_go_together_are_refused(
    name: str, files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wide = save_npz(tmp_path / "wide.npz", **logged_arrays(observation_dim=6))
    flags, fragments = BAD[name]
    places = {"LONG": files[0], "SHORT": files[1], "WIDE": wide}
    assert run(*command(tmp_path / "job", *(places.get(word, word) for word in flags))) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    missing = [fragment for fragment in fragments if fragment not in err]
    assert not missing, f"{missing} not in: {err}"
    assert not (tmp_path / "job").exists()


def test_a_dataset_that_changed_is_named(files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = save_npz(tmp_path / "other.npz")
    folder = tmp_path / "job"
    assert run(*command(folder, "--dataset", files[0], other, "--task", "none", "--algorithm", "bc")) == 0
    save_npz(other, rewards=logged_arrays()["rewards"] + 1)
    capsys.readouterr()
    assert run("train", "--resume", folder) == 2
    assert f"{other}: its bytes changed since the job began" in capsys.readouterr().err


def test_scalings_follow_the_datasets() -> None:
    """A policy answers in the units of its own dataset."""
    config = config_of("td3_bc")
    launch = Launch(config, runs_of(config), buffer_of(0, 1, 2), CPU)
    zero, one = np.zeros(5, np.float32), np.ones(5, np.float32)
    scalings = [Scaling(zero, one, -np.ones(2) * (i + 1), np.ones(2) * (i + 1)) for i in range(3)]
    for i, policy in enumerate(launch.policies(scalings).values()):
        np.testing.assert_array_equal(policy.action_high, np.ones(2) * (i + 1))

"""Whole small flows through the command line: record, describe, train, repeat, score, take the policy away."""

import hashlib
import json
import re
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

import c4rl
from c4rl.environments.tasks import PHYSICS
from c4rl.training.restore import restore
from tests.cli.support import (
    SMALL,
    assert_same_tensors,
    assert_tensorboard_shows_the_metrics,
    listing,
    logged_arrays,
    metric_lines,
    run,
    save_npz,
    summary,
    tensors,
)

TASK = "maze2d-open-dense-v0"
PAPER_TABLE = {
    *(f"maze2d-{maze}" for maze in ("open", "umaze", "medium", "large")),
    *(f"antmaze-{maze}" for maze in ("umaze", "umaze-diverse", "medium-play", "medium-diverse")),
    *(f"antmaze-{maze}" for maze in ("large-play", "large-diverse", "ultra-play", "ultra-diverse")),
    *(
        f"{robot}-{quality}"
        for robot in ("hopper", "halfcheetah", "walker2d", "ant")
        for quality in ("expert", "medium", "medium-replay", "medium-expert", "full-replay")
    ),
    *(f"{hand}-{kind}" for hand in ("pen", "hammer", "door", "relocate") for kind in ("human", "cloned", "expert")),
}


@pytest.fixture(scope="module")
def maze(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "maze.npz"
    assert run("data", "record", TASK, "--output", path, "--size", "600") == 0
    return path


def train_on_maze(maze: Path, output: Path) -> list[object]:
    chosen = ["--algorithm", "td3_bc", "--plugins", "none", "--task", TASK, "--dataset", maze, "--size", "400"]
    length = ["--updates", "60", "--seeds", "0", "1", "2", "--eval-every", "20", "--eval-episodes", "2"]
    return ["train", *chosen, *length, "--device", "auto", "--output", output, *SMALL, "--log-every", "10"]


@pytest.fixture(scope="module")
def job(maze: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "deep" / "job"
    assert run(*train_on_maze(maze, folder)) == 0
    return folder


class TestData:
    def test_recording_twice_gives_the_same_bytes(
        self, maze: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for name, seed in (("again", 0), ("other", 1)):
            output = tmp_path / f"{name}.npz"
            assert run("data", "record", TASK, "--output", output, "--size", "600", "--seed", seed) == 0
            assert f"wrote 600 transitions of {TASK} to {output}" in capsys.readouterr().out
        assert (tmp_path / "again.npz").read_bytes() == maze.read_bytes()
        assert (tmp_path / "other.npz").read_bytes() != maze.read_bytes()

    def test_info_for_people(self, maze: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("data", "info", maze, "--task", TASK) == 0
        out = capsys.readouterr().out
        for fragment in ("maze.npz", "600 in", "4 observations, 2 actions", "[-1, 1]", "normalised return", TASK):
            assert fragment in out

    def test_info_for_machines(self, maze: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("data", "info", maze, "--json") == 0
        facts = json.loads(capsys.readouterr().out)
        assert facts["rows"] == 600 and facts["observation_dim"] == 4 and facts["action_dim"] == 2
        assert re.fullmatch(r"maze2d-\S+, seed \d+, d4rl-1, mujoco \S+, c4rl \S+", facts["recorded"])
        assert facts["sha256"] == hashlib.sha256(maze.read_bytes()).hexdigest()
        with np.load(maze) as arrays:
            assert facts["timeouts"] == arrays["timeouts"][:-1].sum() + 1  # the last row ends by the end of the file
            assert facts["ranges"]["rewards"]["max"] == pytest.approx(arrays["rewards"].max())

    def test_tasks_hold_the_papers_table(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("tasks", "--json") == 0
        tasks = json.loads(capsys.readouterr().out)
        assert {task["name"].rpartition("-v")[0] for task in tasks} >= PAPER_TABLE
        runnable = {task["domain"] for task in tasks if task["missing"] is None}
        assert runnable >= {"locomotion", "maze2d"}
        assert run("tasks") == 0
        shown = capsys.readouterr().out
        assert all(task["name"] in shown for task in tasks)


class TestTraining:
    def test_the_summary_has_the_promised_fields(self, job: Path, maze: Path) -> None:
        result = summary(job)
        assert result.keys() == {
            *("task", "algorithm", "plugins", "seeds", "updates", "dataset", "timing", "versions"),
            *(
                "last",
                "late",
                "best",
                "curve",
                "score",
                "late_rule",
                "failed",
                "best_rule",
                "stopped",
                "runs",
                "device",
                "environment",
            ),
        }
        assert result["environment"] == f"{PHYSICS}, mujoco {result['versions']['mujoco']}"
        assert (result["task"], result["algorithm"], result["plugins"]) == (TASK, "td3_bc", [])
        assert result["seeds"] == [0, 1, 2] and result["updates"] == 60 and result["stopped"] == {}
        (subset,) = result["dataset"].pop("subset")
        assert subset.startswith("400 of 600 rows: ")
        assert result["dataset"] == {
            "name": "c4rl/maze2d-open-dense",
            "path": str(maze),
            "rows": 400,
            "file_rows": 600,
            "sha256": hashlib.sha256(maze.read_bytes()).hexdigest(),
        }
        timing = {"run_updates_per_second", "clustering_seconds", "evaluation_seconds", "total_seconds"}
        assert result["timing"].keys() == timing
        assert result["timing"]["run_updates_per_second"] > 0 and result["timing"]["total_seconds"] > 0
        assert result["versions"]["c4rl"] == c4rl.__version__ and result["versions"]["torch"] == torch.__version__
        for which in ("last", "best"):
            part = result[which]
            assert part.keys() == {"scores", "mean", "std", "returns", "updates"}
            assert np.shape(part["scores"]) == (3,) and np.shape(part["returns"]) == (3, 2)
            assert part["mean"] == pytest.approx(np.mean(part["scores"]))
            assert part["std"] == pytest.approx(np.std(part["scores"], ddof=1))
            low, high = 11.17817, 27.16654  # D4RL's references of the dense open maze
            scores = 100 * (np.mean(part["returns"], axis=1) - low) / (high - low)
            np.testing.assert_allclose(part["scores"], scores)
        assert result["last"]["updates"] == [60, 60, 60]

    def test_last_and_best_are_those_of_the_metrics(self, job: Path) -> None:
        lines = metric_lines(job)
        assert {line["update"] for line in lines if "critic_loss" in line} == set(range(10, 61, 10))
        for place, seed in enumerate((0, 1, 2)):
            scores = {line["update"]: line["score"] for line in lines if line["seed"] == seed and "score" in line}
            assert list(scores) == [20, 40, 60]
            assert summary(job)["last"]["scores"][place] == scores[60]
            assert summary(job)["late"]["scores"][place] == pytest.approx((scores[40] + scores[60]) / 2)
            assert summary(job)["curve"]["updates"] == [20, 40, 60]
            assert summary(job)["curve"]["scores"][place] == list(scores.values())
            assert summary(job)["best"]["scores"][place] == max(scores.values())
            assert scores[summary(job)["best"]["updates"][place]] == max(scores.values())

    def test_the_folder_holds_whole_files_only(self, job: Path) -> None:
        top = {name for name in listing(job) if "/" not in name}
        files = {"config.json", "metrics.jsonl", "summary.json", "tensorboard", ".lock"}
        assert top == files | {f"{name}.safetensors" for name in ("checkpoint", "policy_last", "policy_best")}

    def test_tensorboard_shows_the_metrics(self, job: Path) -> None:
        assert_tensorboard_shows_the_metrics(job)

    def test_the_stored_config_repeats_the_job(self, job: Path, tmp_path: Path) -> None:
        again = tmp_path / "again"
        assert run("train", "--config", job / "config.json", "--output", again) == 0
        assert_same_tensors(again, job)
        assert_same_tensors(again, job, "policy_best")
        assert metric_lines(again) == metric_lines(job)
        stored, repeated = (json.loads((folder / "config.json").read_text()) for folder in (job, again))
        assert repeated == stored | {"output": str(again)}

    def test_flags_beside_a_config_win(self, job: Path, maze: Path, tmp_path: Path) -> None:
        output = tmp_path / "other"
        flags = ["--algorithm", "bc", "--seeds", "7", "--updates", "5", "--task", "none"]
        assert run("train", f"--config={job}/config.json", "--output", output, *flags) == 0
        stored = json.loads((output / "config.json").read_text())
        assert (stored["algorithm"], stored["seeds"], stored["updates"]) == ("bc", [7], 5)
        assert (stored["size"], stored["log_every"]) == (400, 10)  # from the config
        assert stored["options"]["hidden_width"] == 256  # the options of another algorithm do not carry over

    @pytest.mark.parametrize("method", ["bc none", "td3_bc none", "cql none", "td3_bc c4", "cql c4 layer_norm"])
    def test_config_and_resume_work_for_every_method(self, method: str, tmp_path: Path) -> None:
        algorithm, *plugins = method.split()
        flags = ["--algorithm", algorithm, "--plugins", *plugins, "--task", "none", *SMALL]
        data = save_npz(tmp_path / "d.npz")
        assert run("train", *flags, "--dataset", data, "--updates", "3", "--output", tmp_path / "a") == 0
        assert run("train", "--config", tmp_path / "a", "--output", tmp_path / "b") == 0
        assert_same_tensors(tmp_path / "a", tmp_path / "b")
        assert run("train", f"--resume={tmp_path / 'b'}") == 0

    def test_without_a_simulator_held_out_numbers_are_printed(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        data = save_npz(tmp_path / "plain.npz")
        flags = ["--dataset", data, "--task", "none", "--hold-out", "0.25", "--updates", "4", "--seeds", "0", "1"]
        assert run("train", *flags, *SMALL, "--output", tmp_path / "job") == 0
        out = capsys.readouterr().out
        result = summary(tmp_path / "job")
        assert result["best"] is None and result["dataset"]["rows"] == 180  # 9 of 12 trajectories
        assert result["environment"] is None
        for name in ("held_out_td_rmse", "held_out_action_rmse"):
            assert np.shape(result["last"][name]) == (2,) and np.all(np.array(result["last"][name]) > 0)
            cells = " ".join(f"{value:.4g}" for value in result["last"][name])
            assert f"{name.replace('_', ' ')} per seed: {cells}" in out


def by_hand(path: Path, observations: np.ndarray) -> np.ndarray:
    """The exported policy, with NumPy alone."""
    with np.load(path, allow_pickle=False) as file:
        x = (observations - file["observation_mean"]) / file["observation_std"]
        last = int(file["layers"]) - 1
        for i in range(last):
            x = np.maximum(x @ file[f"w{i}"] + file[f"b{i}"], 0)
        x = np.tanh(x @ file[f"w{last}"] + file[f"b{last}"])
        return file["action_low"] + (x + 1) / 2 * (file["action_high"] - file["action_low"])


class TestPolicies:
    def test_evaluate_repeats_the_training_scores(
        self, job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for which in ("last", "best"):
            output = tmp_path / f"{which}.json"
            flags = ["--episodes", "2", "--seed", "10000", "--checkpoint", which, "--json", output]
            assert run("evaluate", job, *flags) == 0
            result, trained = json.loads(output.read_text()), summary(job)[which]
            assert [row["seed"] for row in result["runs"]] == [0, 1, 2]
            assert result["environment"] == summary(job)["environment"]
            np.testing.assert_allclose([row["returns"] for row in result["runs"]], trained["returns"])
            np.testing.assert_allclose([row["mean"] for row in result["runs"]], trained["scores"])
            assert f"{TASK}: {which} checkpoint, 2 episodes" in " ".join(capsys.readouterr().out.split())

    def test_exported_loaded_and_trained_policies_agree(self, job: Path, maze: Path, tmp_path: Path) -> None:
        with np.load(maze) as arrays:
            observations = arrays["observations"][:50]
        launch, preparation, _ = restore(job)
        scaling = preparation.scaling
        normalised = torch.tensor((observations - scaling.observation_mean) / scaling.observation_std)
        torch_actions = launch.algorithm.act(normalised.expand(3, -1, -1)).numpy()
        for place, seed in enumerate((0, 1, 2)):
            output = tmp_path / f"{seed}.npz"
            assert run("export", job, "--seed", seed, "--output", output) == 0
            loaded = c4rl.load_policy(job, seed=seed).act(observations)
            np.testing.assert_allclose(by_hand(output, observations), loaded, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(torch_actions[place], loaded, rtol=1e-4, atol=1e-5)
        one = c4rl.load_policy(job).act(observations[3])
        assert one.shape == (2,)
        np.testing.assert_allclose(one, c4rl.load_policy(job, seed=0).act(observations)[3], rtol=1e-5, atol=1e-6)

    def test_the_default_name_tells_which_policy_it_is(
        self, job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        copy = tmp_path / "copy"
        copy.mkdir()
        for name in ("config.json", "policy_last.safetensors", "policy_best.safetensors"):
            (copy / name).write_bytes((job / name).read_bytes())
        assert run("export", copy, "--checkpoint", "best", "--seed", "2") == 0
        assert f"wrote {copy}/policy_best_seed_2.npz" in capsys.readouterr().out.replace("\n", "")
        observations = np.ones((1, 4), np.float32)
        expected = c4rl.load_policy(job, "best", seed=2).act(observations)
        np.testing.assert_allclose(by_hand(copy / "policy_best_seed_2.npz", observations), expected, rtol=1e-5)


class TestActionBounds:
    """Actions logged in [0, 40] x [-3, -1]: the policy answers in these units, whatever it sees."""

    LOW, HIGH = np.array([0, -3], np.float32), np.array([40, -1], np.float32)

    @pytest.fixture
    def actions(self) -> np.ndarray:
        """A function of the state that fills most of the bounds."""
        share = 0.5 + 0.4 * np.tanh(logged_arrays()["observations"][:, :2])
        return (self.LOW + share * (self.HIGH - self.LOW)).astype(np.float32)

    def check(self, folder: Path, actions: np.ndarray) -> None:
        policy = c4rl.load_policy(folder)
        np.testing.assert_array_equal([policy.action_low, policy.action_high], [self.LOW, self.HIGH])
        observations = logged_arrays()["observations"]
        error = np.abs(policy.act(observations) - actions).mean(0) / (self.HIGH - self.LOW)
        assert np.all(error < 0.1)
        extreme = policy.act(1e4 * observations)
        assert np.all(extreme >= self.LOW) and np.all(extreme <= self.HIGH)

    def command(self, data: Path, output: Path) -> list[object]:
        small = [*SMALL, "--actor-lr", "3e-3", "--updates", "300"]
        return ["train", "--algorithm", "bc", "--dataset", data, "--task", "none", "--output", output, *small]

    def test_from_flags(self, actions: np.ndarray, tmp_path: Path) -> None:
        data = save_npz(tmp_path / "d.npz", actions=actions)
        bounds = ["--action-low", "0", "-3", "--action-high", "40", "-1"]
        assert run(*self.command(data, tmp_path / "job"), *bounds) == 0
        self.check(tmp_path / "job", actions)

    def test_from_the_file(self, actions: np.ndarray, tmp_path: Path) -> None:
        data = save_npz(tmp_path / "d.npz", actions=actions, action_low=self.LOW, action_high=self.HIGH)
        assert run(*self.command(data, tmp_path / "job")) == 0
        self.check(tmp_path / "job", actions)

    def test_clipping(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        actions = logged_arrays()["actions"]
        actions[3], actions[9] = (1.5, 0), (-7, 1)
        data = save_npz(tmp_path / "d.npz", actions=actions)
        assert run("data", "info", data, "--clip-actions", "--json") == 0
        facts = json.loads(capsys.readouterr().out)
        assert facts["ranges"]["actions"]["min"] == -1 and facts["ranges"]["actions"]["max"] == 1
        assert any("clipped" in note for note in facts["notes"])
        command = ["train", "--dataset", data, "--task", "none", "--updates", "2", *SMALL, "--output", tmp_path / "job"]
        assert run(*command) == 2
        assert run(*command, "--clip-actions") == 0
        assert np.all(np.abs(c4rl.load_policy(tmp_path / "job").act(1e4 * logged_arrays()["observations"])) <= 1)


def test_any_gymnasium_environment_with_its_own_bounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Pendulum's torque lies in [-2, 2], which the file does not say; its returns have no reference scores."""
    environment = gymnasium.make("Pendulum-v1")
    environment.action_space.seed(0)
    observation, _ = environment.reset(seed=0)
    rows: dict[str, list] = {
        name: [] for name in ("observations", "actions", "rewards", "next_observations", "timeouts")
    }
    for _ in range(400):
        action = environment.action_space.sample()
        following, reward, _, cut, _ = environment.step(action)
        for name, value in zip(rows, (observation, action, reward, following, cut), strict=True):
            rows[name].append(value)
        observation = environment.reset()[0] if cut else following
    data = tmp_path / "pendulum.npz"
    np.savez(data, allow_pickle=False, **{name: np.array(values) for name, values in rows.items()})
    assert np.abs(rows["actions"]).max() > 1.5
    folder = tmp_path / "job"
    flags = ["--dataset", data, "--task", "gym:Pendulum-v1", "--updates", "10", "--eval-episodes", "1"]
    assert run("train", *flags, *SMALL, "--output", folder) == 0
    result = summary(folder)
    assert result["score"] == "raw return"
    assert result["last"]["scores"] == result["last"]["returns"][0] and -2000 < result["last"]["mean"] < 0
    policy = c4rl.load_policy(folder)
    assert (policy.action_low, policy.action_high) == ([-2], [2])
    assert "gym:Pendulum-v1 (raw return)" in " ".join(capsys.readouterr().out.split())


def test_the_version_and_the_commands_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"c4rl {c4rl.__version__}\n"
    for arguments in ([], ["--help"]):
        assert run(*arguments) == 0
        out = capsys.readouterr().out
        assert all(
            f"c4rl {name}" in out for name in ("train", "evaluate", "export", "data record", "data info", "tasks")
        )


def test_help_shows_the_flags_of_the_chosen_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {}
    for algorithm in ("bc", "td3_bc"):
        with pytest.raises(SystemExit) as stop:
            run("train", "--algorithm", algorithm, "--help")
        assert stop.value.code == 0
        shown[algorithm] = capsys.readouterr().out
    assert "(default: runs/DATASET-td3_bc)" in " ".join(shown["td3_bc"].split())
    assert "--policy-delay" in shown["td3_bc"] and "--policy-delay" not in shown["bc"]
    assert "--top-fraction" in shown["bc"] and "--top-fraction" not in shown["td3_bc"]


def test_tensors_of_a_checkpoint_carry_seed_and_name(job: Path) -> None:
    names = tensors(job)
    assert {name.split("/")[0] for name in names} == {"seed_0", "seed_1", "seed_2"}
    assert {name.split("/", 1)[1] for name in names} >= {"actor/mlp.weights.0", "optimizer.critic/count"}

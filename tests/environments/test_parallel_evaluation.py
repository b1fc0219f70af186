"""Evaluation in worker processes: the returns of a plain loop, whoever computes them, and no process left behind."""

import errno
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit

from c4rl.core.errors import InputError, WorkFailed
from c4rl.core.numpy_policy import NumpyPolicy
from c4rl.core.worker_process import WorkerProcess
from c4rl.data.loading import environment_bounds
from c4rl.environments import evaluation
from c4rl.environments.episodes import episode_return, episode_returns, rollout
from c4rl.environments.evaluation import EvaluationPool
from c4rl.environments.locomotion import gymnasium_environment
from c4rl.environments.making import make_environment
from c4rl.environments.tasks import Task, get_task

BROKEN_ENVIRONMENTS = """
import os
import subprocess
import sys
import time
import gymnasium
import numpy as np

class Broken(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def __init__(self, how):
        self.how = how

    def reset(self, *, seed=None, options=None):
        print("an environment that talks")
        return np.zeros(3), {}

    def step(self, action):
        if self.how == "dies":
            os._exit(3)
        if self.how == "raises":
            raise ValueError("the joint came off")
        if self.how == "inverts":
            np.linalg.inv(np.zeros((2, 2)))
        if self.how == "leaves":
            raise SystemExit
        if self.how == "asks":
            return np.zeros(3), float(len(sys.stdin.read())), True, False, {}
        if self.how == "forks":
            if os.fork() == 0:
                time.sleep(1000)
            os._exit(3)
        if self.how == "starts":
            child = subprocess.Popen(["sleep", "1000"])
            with open(os.environ["CHILDREN"], "a") as file:
                print(child.pid, file=file)
            os._exit(3)
        return np.zeros(3), 1.5, True, False, {}

    def close(self):
        if self.how == "talks":
            raise AttributeError("no window to close")

for how in ("dies", "raises", "inverts", "leaves", "talks", "asks", "forks", "starts"):
    gymnasium.register(f"{how.title()}-v0", entry_point=Broken, kwargs={"how": how}, max_episode_steps=5)
"""


def random_policy(task: Task, seed: int, hidden: tuple[int, ...] = (256, 256, 256, 256)) -> NumpyPolicy:
    assert task.observation_dim is not None and task.action_dim is not None
    rng = np.random.default_rng(seed)
    sizes = (task.observation_dim, *hidden, task.action_dim)
    shapes = list(pairwise(sizes))
    return NumpyPolicy(
        weights=tuple((rng.normal(size=s) * np.sqrt(2 / s[0])).astype(np.float32) for s in shapes),
        biases=tuple(np.zeros(s[1], np.float32) for s in shapes),
        observation_mean=np.zeros(sizes[0], np.float32),
        observation_std=np.ones(sizes[0], np.float32),
        action_low=-np.ones(sizes[-1], np.float32),
        action_high=np.ones(sizes[-1], np.float32),
    )


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "broken_environments.py").write_text(BROKEN_ENVIRONMENTS)
    monkeypatch.syspath_prepend(tmp_path)
    return "gym:broken_environments:"


def test_returns_equal_a_plain_loop_over_gymnasiums_own_class() -> None:
    task = get_task("hopper-medium-v2")
    policy = random_policy(task, 0)
    environment = TimeLimit(gymnasium_environment("Hopper-v4"), 1000)
    expected = []
    for episode in range(10):
        observation, _ = environment.reset(seed=100 + episode)
        total, done = 0.0, False
        while not done:
            observation, reward, terminated, truncated, _ = environment.step(policy.act(observation))
            total, done = total + reward, terminated or truncated
        expected.append(total)
    with EvaluationPool(task, workers=2) as pool:
        np.testing.assert_array_equal(pool.evaluate([policy], 10, seed=100), [expected])


def test_returns_do_not_depend_on_workers_or_on_company() -> None:
    task = get_task("maze2d-open-v0")
    policies = [random_policy(task, seed, hidden=(32,)) for seed in range(3)]
    with EvaluationPool(task, workers=1) as one, EvaluationPool(task, workers=3) as three:
        together = one.evaluate(policies, 6, seed=5)
        assert together.shape == (3, 6)
        np.testing.assert_array_equal(three.evaluate(policies, 6, seed=5), together)
        np.testing.assert_array_equal(three.evaluate(policies[1:2], 3, seed=8), together[1:2, 3:])


def test_episodes_side_by_side_are_those_of_a_plain_loop() -> None:
    """Bit for bit, though they share the calls of NumPy: in Maze2D by default, elsewhere where they end one by one."""
    for name, side in (("maze2d-umaze-dense-v1", 5), ("hopper-medium-v2", 4)):
        task = get_task(name)
        policy, environments = random_policy(task, 0), [make_environment(task) for _ in range(side)]
        expected = [episode_return(environments[0], policy, 100 + e) for e in range(side)]
        assert len(set(expected)) == side
        assert episode_returns(environments, policy, range(100, 100 + side)) == expected
    members = NumpyPolicy.ensemble([random_policy(task, seed) for seed in range(2)])
    together = episode_returns(environments, members, range(side))
    assert together == [episode_return(environments[0], members, e) for e in range(side)]


def test_several_evaluations_may_be_under_way() -> None:
    task = get_task("maze2d-open-dense-v0")
    first, second = random_policy(task, 0, (16,)), random_policy(task, 1, (16,))
    with EvaluationPool(task, workers=2) as pool:
        futures = [pool.submit([policy], 4, seed=0) for policy in (first, second)]
        returns = np.concatenate([future.result(timeout=60) for future in futures])
        np.testing.assert_array_equal(returns, pool.evaluate([first, second], 4, seed=0))


def test_a_diverged_policy_scores_nan_beside_a_healthy_one() -> None:
    task = get_task("maze2d-open-dense-v0")
    healthy, diverged = random_policy(task, 0, (16,)), random_policy(task, 1, (16,))
    diverged.weights[0][0, 0] = np.nan
    with EvaluationPool(task, workers=1) as pool:
        returns = pool.evaluate([diverged, healthy], 2, seed=0)
        assert np.isnan(returns[0]).all()
        assert np.isfinite(returns[1]).all()
        assert np.isnan(pool.evaluate([diverged], 2, seed=0)).all()


def test_episodes_of_a_killed_worker_are_done_again() -> None:
    task = get_task("maze2d-large-v1")
    policy = random_policy(task, 0)
    with EvaluationPool(task, workers=2) as pool:
        expected = pool.evaluate([policy], 12, seed=0)
        future = pool.submit([policy], 12, seed=0)
        victim = pool._processes[0]
        assert victim is not None
        time.sleep(0.02)
        victim.process.kill()
        np.testing.assert_array_equal(future.result(timeout=60), expected)
        np.testing.assert_array_equal(pool.evaluate([policy], 12, seed=0), expected)


def test_an_environment_that_kills_its_worker_is_reported_not_tried_for_ever(broken: str) -> None:
    task = get_task(f"{broken}Dies-v0")
    with (
        EvaluationPool(task, workers=2) as pool,
        pytest.raises(RuntimeError, match=r"Dies-v0.*died in episode \d.*exit code 3"),
    ):
        pool.evaluate([random_policy(task, 0, (8,))], 2, seed=0)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("Raises", "ValueError: the joint came off"),
        ("Inverts", "LinAlgError: Singular matrix"),
        ("Leaves", "SystemExit"),
    ],
)
def test_what_an_environment_raises_reaches_the_caller_with_its_own_line(how: str, message: str, broken: str) -> None:
    task = get_task(f"{broken}{how}-v0")
    with (
        EvaluationPool(task, workers=1) as pool,
        pytest.raises(RuntimeError, match=rf"{message} \(.*broken_environments\.py, line \d+\)"),
    ):
        pool.evaluate([random_policy(task, 0, (8,))], 2, seed=0)


def test_an_environment_that_reads_from_the_terminal_does_not_read_requests(broken: str) -> None:
    task = get_task(f"{broken}Asks-v0")
    with EvaluationPool(task, workers=1) as pool:
        returns = pool.submit([random_policy(task, 0, (8,))], 2, seed=0).result(timeout=60)
    np.testing.assert_array_equal(returns, [[0, 0]])


def test_a_dead_worker_is_noticed_while_a_process_lives_that_it_forked(broken: str) -> None:
    task = get_task(f"{broken}Forks-v0")
    with EvaluationPool(task, workers=1) as pool, pytest.raises(WorkFailed, match="exit code 3"):
        pool.submit([random_policy(task, 0, (8,))], 1, seed=0).result(timeout=60)


def test_what_a_dead_worker_started_is_ended(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHILDREN", str(tmp_path / "children"))
    task = get_task(f"{broken}Starts-v0")
    with EvaluationPool(task, workers=1) as pool, pytest.raises(WorkFailed, match="exit code 3"):
        pool.evaluate([random_policy(task, 0, (8,))], 1, seed=0)
    assert _wait_for_death([int(pid) for pid in (tmp_path / "children").read_text().split()])


def test_workers_import_nothing_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which may be a run folder of somebody else's."""
    (tmp_path / "queue.py").write_text("raise ImportError('from the current folder')")
    monkeypatch.chdir(tmp_path)
    task = get_task("maze2d-open-dense-v0")
    with EvaluationPool(task, workers=1) as pool:
        assert np.isfinite(pool.evaluate([random_policy(task, 0, (8,))], 1, seed=0)).all()


@pytest.mark.parametrize("allowed", [0, 1])
def test_processes_that_cannot_be_started(allowed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that can do the work; without any there is a sentence, and nothing waits for ever."""
    started: list[int] = []

    class Limited(evaluation._Worker):
        def __init__(self, *given: Any) -> None:
            if len(started) >= allowed:
                raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
            started.append(1)
            super().__init__(*given)

    monkeypatch.setattr(evaluation, "_Worker", Limited)
    task = get_task("maze2d-open-dense-v0")
    with EvaluationPool(task, workers=3) as pool:
        future = pool.submit([random_policy(task, 0, (8,))], 2, seed=0)
        if allowed:
            assert np.isfinite(future.result(timeout=60)).all()
        else:
            with pytest.raises(WorkFailed, match=r"no evaluation worker could be started \(Resource temp"):
                future.result(timeout=60)


def test_an_environment_may_print_and_fail_to_close(broken: str) -> None:
    task = get_task(f"{broken}Talks-v0")
    with EvaluationPool(task, workers=1) as pool:
        np.testing.assert_array_equal(pool.evaluate([random_policy(task, 0, (8,))], 2, seed=0), [[1.5, 1.5]])
    assert environment_bounds(task) == [-1, 1]


def test_a_task_without_simulator_is_refused_at_once() -> None:
    with pytest.raises(InputError, match=r"'none' cannot be evaluated here"):
        EvaluationPool(get_task("none"))


def test_workers_start_without_torch() -> None:
    imports = "from c4rl.environments import adroit, antmaze, evaluation, kitchen, locomotion, making, maze2d"
    code = f"import sys; {imports}; sys.exit('torch' in sys.modules or 'gymnasium_robotics' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _alive(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.startswith("Z")  # a zombie is dead, it was only not waited for


def _wait_for_death(pids: list[int]) -> bool:
    deadline = time.monotonic() + 10
    while any(map(_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(_alive, pids))


def test_closing_ends_the_workers_and_fails_what_is_unfinished() -> None:
    task = get_task("maze2d-large-v1")
    with EvaluationPool(task, workers=2) as pool:
        pool.evaluate([random_policy(task, 0)], 2, seed=0)
        pids = [worker.process.pid for worker in pool._processes if worker is not None]
        future = pool.submit([random_policy(task, 0)], 500, seed=0)
    assert len(pids) == 2
    assert _wait_for_death(pids)
    with pytest.raises(RuntimeError, match="closed before"):
        future.result(timeout=0)
    with pytest.raises(RuntimeError, match="is closed"):
        pool.submit([random_policy(task, 0)], 1, seed=0)


def test_what_a_worker_has_started_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "worker_with_a_child.py").write_text(
        "import subprocess\n"
        "from c4rl.core.worker_process import Parent\n"
        "def serve():\n"
        "    child, parent = subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL), Parent()\n"
        "    for _ in parent.requests():\n"
        "        parent.answer({'child': child.pid})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    worker = WorkerProcess("worker_with_a_child", {})
    child = worker.reply()[0]["child"]
    assert _alive(child)
    worker.stop()
    assert _wait_for_death([child])


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_worker_outlives_its_parent(how: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(  # no `if __name__ == "__main__"`: workers must not run the caller's script again
        "import sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_parallel_evaluation import *\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's jobs in the background ignore it
        "task = get_task('maze2d-large-v1')\n"
        "with EvaluationPool(task, workers=2) as pool:\n"
        "    policy = random_policy(task, 0)\n"
        "    pool.evaluate([policy], 2, seed=0)\n"
        "    print(*[w.process.pid for w in pool._processes], flush=True)\n"
        "    pool.evaluate([policy], 100_000, seed=0)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    os.killpg(parent.pid, how)  # as a terminal does
    try:
        _, errors = parent.communicate(timeout=20)
    finally:
        parent.kill()
    assert _wait_for_death(pids)
    if how == signal.SIGINT:
        assert errors.count("Traceback") == 1  # the parent's own KeyboardInterrupt, none from a worker


def test_a_rollout_shows_the_episode_that_is_scored() -> None:
    task = get_task("maze2d-umaze-dense-v1")
    policy, environment = random_policy(task, 0, (32,)), make_environment(task)
    episode = rollout(environment, policy, seed=3)
    assert episode["observations"].shape == (301, 4)
    assert episode["actions"].shape == (300, 2)
    with EvaluationPool(task, workers=1) as pool:
        assert episode["rewards"].sum() == pytest.approx(pool.evaluate([policy], 1, seed=3)[0, 0], rel=1e-12)

"""The behaviour agents that ship with the package: what their cards say, and the sets that they record."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from c4rl.core.errors import InputError
from c4rl.data import load_dataset, policy_recording, recording
from c4rl.data.behaviour_agents import FOLDER, cards, locomotion_sets, shipped_policies
from c4rl.data.policy_files import read_policies
from c4rl.data.recording import record, record_all_locomotion
from c4rl.environments.tasks import GOAL_ANT, ROBOTS, get_task

# of the experts; the Ant falls in some episodes (docs/recording.md)
LEAST = {"hopper": 3000, "halfcheetah": 8000, "walker2d": 4000, "ant": 4000}


@pytest.mark.parametrize("robot", ROBOTS)
def test_cards_describe_the_files_beside_them(robot: str) -> None:
    card = cards()[robot]
    assert hashlib.sha256((FOLDER / card["file"]).read_bytes()).hexdigest() == card["sha256"]
    assert len(read_policies(FOLDER / card["file"], get_task(f"{robot}-medium"))) == len(card["snapshots"])
    steps = [snapshot["steps"] for snapshot in card["snapshots"]]
    assert steps == sorted(steps) and card["medium"] < card["expert"] == len(steps) - 1
    medium, expert = (card["snapshots"][card[role]]["deterministic"] for role in ("medium", "expert"))
    assert medium["episodes"] == expert["episodes"] == 100
    assert expert["mean"] >= LEAST[robot] and 0.25 <= medium["mean"] / expert["mean"] <= 0.45


@pytest.mark.parametrize("robot", ROBOTS)
def test_a_recorded_set_has_the_returns_of_its_agents_card(robot: str, tmp_path: Path) -> None:
    card = cards()[robot]
    meta = record(f"{robot}-medium-expert", 1200, 0, tmp_path / "set.npz", workers=0)
    assert meta["name"] == f"c4rl/{robot}-medium-expert" and meta["chosen"].startswith("c4rl's SAC agents: the medium")
    for role, told in zip(("medium", "expert"), meta["behaviour"], strict=True):
        scored = card["snapshots"][card[role]]["sampled"]
        assert abs(told["mean_return"] - scored["mean"]) < 4 * scored["std"] / np.sqrt(told["episodes"]) + 50
        assert told["sha256"] == card["sha256"] and told["rows"] > 0


def test_the_goal_reaching_ant_records_antmaze(tmp_path: Path) -> None:
    card = cards()[GOAL_ANT.name]
    assert hashlib.sha256((FOLDER / card["file"]).read_bytes()).hexdigest() == card["sha256"]
    walks = card["snapshots"][0]["walks_from_start_to_goal"]
    assert all(walk["arrived"] >= 80 and walk["episodes"] == 100 for walk in walks.values()) and len(walks) == 4
    meta = record("antmaze-umaze", 800, 0, tmp_path / "umaze.npz", workers=0)
    data = load_dataset(tmp_path / "umaze.npz", task=get_task("antmaze-umaze"))
    assert meta["name"] == "c4rl/antmaze-umaze" and meta["chosen"].startswith("c4rl's goal-reaching ant")
    assert data.terminals.sum() >= 2 and np.array_equal(data.rewards == 1, data.terminals)
    goals = data.next_observations[data.terminals, :2]  # one goal for the whole set
    assert np.ptp(goals, axis=0).max() <= 1 and np.abs(data.observations[0, :2]).max() <= 0.1
    record("antmaze-umaze", 800, 0, tmp_path / "again.npz", workers=0)
    assert (tmp_path / "umaze.npz").read_bytes() == (tmp_path / "again.npz").read_bytes()


def test_every_set_names_its_agents_in_order() -> None:
    card, task = cards()["hopper"], get_task("hopper-medium")
    medium, expert = card["medium"], card["expert"]

    def places(kind: str) -> list[int]:
        return [int(word.rpartition("@")[2]) for word in shipped_policies(task, kind)[0]]

    assert places("medium") == [medium] and places("medium-expert") == [medium, expert]
    assert places("medium-replay") == [*range(medium + 1)] and places("full-replay") == [*range(expert + 1)]
    assert shipped_policies(task, "random") == (["random"], "uniform actions")
    assert shipped_policies(get_task("gym:Pendulum-v1"), "")[0] == []
    assert len(locomotion_sets()) == 20 and "ant-full-replay" in locomotion_sets()


def test_a_random_set_has_a_name_of_its_own(tmp_path: Path) -> None:
    record("hopper-random", 300, 0, tmp_path / "a.npz", workers=0)
    record("hopper-medium", 300, 0, tmp_path / "b.npz", ["random"], workers=0)
    one, other = (load_dataset(tmp_path / f"{n}.npz", task=get_task("hopper-medium")) for n in "ab")
    assert one.metadata["name"] == "c4rl/hopper-random" and np.array_equal(one.actions, other.actions)
    with pytest.raises(InputError, match=r"policy: found x\.npz, expected none: hopper-random has uniform actions"):
        record("hopper-random", 300, 0, tmp_path / "c.npz", ["x.npz"], workers=0)


def test_all_locomotion_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "locomotion_sets", lambda: ["hopper-medium", "walker2d-medium"])
    monkeypatch.setattr(policy_recording, "BLOCK", 60)

    class Killed(Exception):
        pass

    def stop(name: str, done: int, expected: int) -> None:
        if name == "walker2d-medium":
            raise Killed

    with pytest.raises(Killed):
        record_all_locomotion(120, 5, tmp_path / "sets", 0, stop)
    first = tmp_path / "sets" / "hopper-medium.npz"
    written = first.stat().st_mtime_ns
    paths = record_all_locomotion(120, 5, tmp_path / "sets", 0)
    assert [path.name for path in paths] == ["hopper-medium.npz", "walker2d-medium.npz"]
    assert first.stat().st_mtime_ns == written and all(path.exists() for path in paths)
    record("walker2d-medium", 120, 5, tmp_path / "alone.npz", workers=0)
    assert (tmp_path / "alone.npz").read_bytes() == paths[1].read_bytes()
    with pytest.raises(InputError, match=r"hopper-medium\.npz: found c4rl/hopper-medium with .*'seed': 5"):
        record_all_locomotion(120, 6, tmp_path / "sets", 0)
    monkeypatch.setattr(recording, "simulator", lambda task: "another")
    with pytest.raises(InputError, match=r"expected c4rl/hopper-medium with .*'environment': 'another'"):
        record_all_locomotion(120, 5, tmp_path / "sets", 0)

"""Chooses the behaviour agents that ship with the package, and writes their cards.

    python benchmarks/behaviour_agents.py collect FOLDER --seed 1 --output agents
    python benchmarks/behaviour_agents.py look FILE --episodes 5 [--only 3 7 12]
    python benchmarks/behaviour_agents.py ship FILE --way 0 4 9 --medium 14 --more 20 26 --expert 40
    python benchmarks/behaviour_agents.py walk FOLDER/snapshots/STEPS.safetensors --episodes 10 [--ship]

`collect` joins one seed's snapshots of a training's FOLDER into FILE, agents/ROBOT.safetensors, whose header lists them
as `chosen`: [{"seed", "steps"}, ...], and prints that seed's evaluations during training. `ship`
scores the medium and the expert agent over 100 episodes, those on the way over 10, with and without noise, and writes
src/c4rl/data/behaviour/ROBOT.safetensors (float16) and its card. `walk` sends a goal-ant from the start to the goal of
every AntMaze, with the noise of a recording, and ships it.
"""

import argparse
import hashlib
import json
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from c4rl.core.files import write_json
from c4rl.core.version import __version__
from c4rl.data.behaviour_agents import CARDS, FOLDER
from c4rl.data.policy_files import WORDS, read_policies, write_gaussian
from c4rl.environments.antmaze import MAZES, goal_near
from c4rl.environments.goal_ant import upside_down
from c4rl.environments.making import make_environment
from c4rl.environments.maze_walk import MazeWalk, SteeredWalker
from c4rl.environments.tasks import GOAL_ANT, get_task, simulator

# of the first episode; training and evaluation during training have others
SEED, LOOK_SEED = 50_000, 60_000
SHARED = ("n_hidden", "log_std_min", "log_std_max", "action_low", "action_high")


def returns(file: str, k: int, sampled: bool, seeds: list[int]) -> list[float]:
    task = get_task(f"{Path(file).stem}-medium")
    policy, environment, out = read_policies(Path(file), task)[k], make_environment(task), []
    for seed in seeds:
        rng = np.random.default_rng(seed) if sampled else None
        observation, _ = environment.reset(seed=seed)
        total, done = 0.0, False
        while not done:
            observation, reward, terminated, truncated, _ = environment.step(policy.act(observation, rng))
            total, done = total + float(reward), terminated or truncated
        out.append(total)
    return out


def score(
    pool: ProcessPoolExecutor, file: Path, k: int, sampled: bool, episodes: int, seed: int = SEED
) -> dict[str, float]:
    pieces = np.array_split(np.arange(seed, seed + episodes), min(episodes, 4))
    jobs = [pool.submit(returns, str(file), k, sampled, piece.tolist()) for piece in pieces]
    found = np.concatenate([job.result() for job in jobs])
    return {"mean": round(float(found.mean()), 1), "std": round(float(found.std()), 1), "episodes": episodes}


def collect(folder: Path, seed: int, output: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    robot, place = config["task"].partition("-")[0], config["seeds"].index(seed)
    rows: dict[str, list[np.ndarray]] = {}
    facts: dict[str, str] = {}
    snapshots = []
    for path in sorted((folder / "snapshots").glob("*.safetensors")):
        with safe_open(path, framework="numpy") as opened:
            facts = opened.metadata()
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                array = opened.get_tensor(name)
                rows.setdefault(name, []).append(array if name in SHARED else array[place])
        snapshots.append({"seed": seed, "steps": int(facts["steps"])})
    output.mkdir(parents=True, exist_ok=True)
    joined = {name: found[0] if name in SHARED else np.stack(found) for name, found in rows.items()}
    save_file(joined, output / f"{robot}.safetensors", facts | {"chosen": json.dumps(snapshots)})
    write_json(output / f"{robot}.config.json", config)
    for line in map(json.loads, (folder / "progress.jsonl").read_text().splitlines()):
        if "evaluation" in line:
            print(f"{line['steps']:,} steps: {line['evaluation'][place]:,.0f}")


def chosen(file: Path) -> list[dict[str, int]]:
    with safe_open(file, framework="numpy") as opened:
        return json.loads(opened.metadata()["chosen"])


def ship(
    pool: ProcessPoolExecutor, file: Path, way: list[int], medium: int, more: list[int], expert: int, why: str
) -> None:
    robot, places = file.stem, [*way, medium, *more, expert]
    with safe_open(file, framework="numpy") as opened:
        facts = opened.metadata()
        arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - not a mapping
    own = [chosen(file)[k] for k in places]
    assert own == sorted(own, key=lambda snapshot: snapshot["steps"]) and len({s["seed"] for s in own}) == 1
    rows = {name: a if name in SHARED else a[places].astype(np.float16) for name, a in arrays.items()}
    FOLDER.mkdir(exist_ok=True)
    output = FOLDER / f"{robot}.safetensors"
    kept = {name: facts[name] for name in ("c4rl", "task", "environment")}
    write_gaussian(output, rows | {name: np.array(facts[name]) for name in WORDS}, kept)
    snapshots = []
    for k, snapshot in enumerate(own):
        episodes = 100 if places[k] in (medium, expert) else 10
        scores = {kind: score(pool, output, k, kind == "sampled", episodes) for kind in ("deterministic", "sampled")}
        snapshots.append({"steps": snapshot["steps"]} | scores)
        print(robot, snapshots[-1], flush=True)
    config = json.loads(file.with_name(f"{robot}.config.json").read_text())
    cards = json.loads(CARDS.read_text()) if CARDS.exists() else {}
    cards[robot] = {
        "file": output.name,
        "sha256": hashlib.sha256(output.read_bytes()).hexdigest(),
        "trained_in": f"c4rl {facts['c4rl']}, {facts['environment']}",
        "scored_in": f"c4rl {__version__}, {simulator(get_task(f'{robot}-medium'))}",
        "seed": own[0]["seed"],
        "selection": f"of the seeds {' '.join(map(str, config['seeds']))}, the one with the best evaluation of 5 "
        f"episodes during training; {why} is the expert, and the medium agent is an earlier one with 25 to 45% of the "
        "expert's return, chosen after a look at some other episodes",
        "settings": {name: config[name] for name in SETTINGS},
        "medium": len(way),
        "expert": len(places) - 1,
        "snapshots": snapshots,
    }
    write_json(CARDS, {name: cards[name] for name in sorted(cards)})


def arrivals(file: str, maze: str, seeds: list[int]) -> list[tuple[bool, bool, int]]:
    """(arrived, fell, steps) of each walk."""
    policy, out = read_policies(Path(file), GOAL_ANT)[0], []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        walk = MazeWalk(maze, "umaze", goal_near(MAZES[maze].goal, rng))
        walker, (observation, _) = SteeredWalker(walk, policy), walk.reset(seed=seed)
        done, arrived, steps = False, False, 0
        while not done:
            observation, _, arrived, truncated, _ = walk.step(walker.act(observation, rng))
            done, steps = arrived or truncated, steps + 1
        out.append((arrived, upside_down(observation[:15]), steps))
    return out


def walk(pool: ProcessPoolExecutor, file: Path, episodes: int, mazes: list[str], shipped: bool) -> None:
    output, success = file, {}
    with safe_open(file, framework="numpy") as opened:
        facts = opened.metadata()
        arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - not a mapping
    if shipped:
        output = FOLDER / f"{GOAL_ANT.name}.safetensors"
        rows = {name: a if name in SHARED else a[0].astype(np.float16) for name, a in arrays.items()}
        kept = {name: facts[name] for name in ("c4rl", "task", "environment")}
        write_gaussian(output, rows | {name: np.array(facts[name]) for name in WORDS}, kept)
    for maze in mazes:
        pieces = np.array_split(np.arange(SEED, SEED + episodes), min(episodes, 4))
        jobs = [pool.submit(arrivals, str(output), maze, piece.tolist()) for piece in pieces]
        found = np.array([one for job in jobs for one in job.result()])
        arrived = found[:, 0].astype(bool)
        success[maze] = {"arrived": int(arrived.sum()), "fell": int((found[:, 1] * ~arrived).sum())}
        success[maze] |= {
            "episodes": episodes,
            "mean_steps": round(float(found[arrived, 2].mean()), 1) if arrived.any() else None,
        }
        print(maze, success[maze], flush=True)
    if shipped:
        config = json.loads((file.parent.parent / "config.json").read_text())
        cards = json.loads(CARDS.read_text())
        cards[GOAL_ANT.name] = {
            "file": output.name,
            "sha256": hashlib.sha256(output.read_bytes()).hexdigest(),
            "trained_in": f"c4rl {facts['c4rl']}, {facts['environment']}",
            "scored_in": f"c4rl {__version__}, {simulator(GOAL_ANT)}",
            "seed": config["seeds"][0],
            "selection": "the last regular snapshot of one training",
            "settings": {name: config[name] for name in SETTINGS},
            "expert": 0,
            "snapshots": [{"steps": int(facts["steps"]), "walks_from_start_to_goal": success}],
        }
        write_json(CARDS, {name: cards[name] for name in sorted(cards)})


SETTINGS = (
    *("envs", "updates_per_step", "random_steps", "replay", "batch_size", "hidden_width", "lr", "layer_norm"),
    "symmetries",
    "checkpoint_every",  # episodes begin anew there
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("collect", "look", "ship", "walk"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--episodes", type=int, default=5)
    parser.add_argument("--only", type=int, nargs="*")
    parser.add_argument("--way", type=int, nargs="*", default=[])
    parser.add_argument("--medium", type=int)
    parser.add_argument("--more", type=int, nargs="*", default=[])
    parser.add_argument("--expert", type=int)
    parser.add_argument("--why", default="its best evaluated snapshot")
    parser.add_argument("--mazes", nargs="*", default=list(MAZES))
    parser.add_argument("--ship", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("agents"))
    given = parser.parse_args()
    if given.what == "collect":
        collect(given.file, given.seed, given.output)
        return
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        if given.what == "ship":
            ship(pool, given.file, given.way, given.medium, given.more, given.expert, given.why)
            return
        if given.what == "walk":
            walk(pool, given.file, given.episodes, given.mazes, given.ship)
            return
        snapshots = chosen(given.file)
        for k in range(len(snapshots)) if given.only is None else given.only:
            plain, noisy = (score(pool, given.file, k, s, given.episodes, LOOK_SEED) for s in (False, True))
            print(k, snapshots[k], "deterministic", plain["mean"], plain["std"], "sampled", noisy["mean"], flush=True)


if __name__ == "__main__":
    main()

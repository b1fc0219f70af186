"""How well does a distilled ensemble score?

    python benchmarks/distilled.py --data SETS --output results/distilled [--sets hopper-medium-v2] [--first-seed 80]

For each set: trains five seeds of --preset best, lets them act together, distils them into one network, and scores all
seven policies in the same episodes. Writes SET-SEED.json: scores, and the distance of the network's actions from the
ensemble's. Skips files that exist.
"""

import argparse
import tempfile
from pathlib import Path

from rich.console import Console

from c4rl.cli.train import config_of
from c4rl.core.files import write_json
from c4rl.core.numpy_policy import NumpyPolicy
from c4rl.data.loading import load_dataset
from c4rl.environments.evaluation import EvaluationPool
from c4rl.environments.tasks import get_task, simulator
from c4rl.results.catalogue.sets import EIGHT
from c4rl.results.policies import open_job
from c4rl.training.distillation import distil
from c4rl.training.loop import train

MEMBERS, UPDATES, NOISE, EPISODES, FIRST_EPISODE = 5, 10_000, 0.1, 20, 20_000


def measure(data: Path, name: str, first: int) -> dict[str, object]:
    """first: seed of the first member."""
    seeds, task = range(first, first + MEMBERS), get_task(name)
    path = data / f"{name}.npz"
    with tempfile.TemporaryDirectory() as folder:
        words = f"--preset best --task {name} --device cpu --threads 1 --eval-every 1000000000 --eval-episodes 1"
        own = ["--dataset", str(path), "--output", f"{folder}/job", "--seeds", *map(str, seeds)]
        train(config_of([*words.split(), *own]), Console(quiet=True))
        members = list(open_job(Path(folder) / "job", "last").policies.values())
    ensemble = NumpyPolicy.ensemble(members)
    distilled, distance = distil(ensemble, load_dataset(path).observations, UPDATES, NOISE)
    with EvaluationPool(task, workers=1) as pool:
        scores = task.normalise(pool.evaluate([*members, ensemble, distilled], EPISODES, FIRST_EPISODE))
    return {
        "set": name,
        "environment": simulator(task),
        "seeds": list(seeds),
        "distance": distance,
        "members": scores[:MEMBERS].tolist(),
        "ensemble": scores[MEMBERS].tolist(),
        "distilled": scores[MEMBERS + 1].tolist(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=EIGHT)
    parser.add_argument("--first-seed", type=int, default=80)
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    for name in given.sets:
        file = given.output / f"{name}-{given.first_seed}.json"
        if not file.exists():
            write_json(file, measure(given.data, name, given.first_seed))
            print(f"wrote {file}", flush=True)


if __name__ == "__main__":
    main()

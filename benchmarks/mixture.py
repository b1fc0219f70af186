"""Speed of the C4 mixture against scikit-learn, and the cost of one re-clustering. Run: python benchmarks/mixture.py

Both sides run the same number of EM steps from the same start on the same rows in one process, in turns; scikit-learn
fits the runs one after the other, c4rl as one stack. Times are the best of several turns. scikit-learn is timed with
its default threads and limited to one: more threads often slow down its small products.
"""

import time
import warnings
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor

from c4rl.core.random import Streams
from c4rl.plugins.c4.cluster_sampler import ClusterSampler
from c4rl.plugins.c4.gaussian_mixture import fit, kmeans_start
from c4rl.plugins.c4.principal_directions import principal_directions

RUNS, ROWS, CLUSTERS, STEPS, TURNS = 5, 10_000, 5, 10, 3


def seconds(work: Callable[[], object]) -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def clustered(runs: int, dim: int) -> Tensor:
    """Rows from overlapping clusters with full covariances, [R, N, D], mean 0 and variance 1 per dimension."""
    draw = torch.Generator().manual_seed(0)
    label = torch.randint(CLUSTERS, (runs, ROWS), generator=draw)
    run = torch.arange(runs).unsqueeze(1)
    factors = torch.randn(runs, CLUSTERS, dim, dim, generator=draw) / dim**0.5
    noise = torch.randn(runs, ROWS, dim, 1, generator=draw)
    y = torch.randn(runs, CLUSTERS, dim, generator=draw)[run, label] + (factors[run, label] @ noise).squeeze(3)
    return (y - y.mean(1, keepdim=True)) / y.std(1, correction=0, keepdim=True)


def against_scikit_learn(dim: int) -> None:
    y = clustered(RUNS, dim)
    streams = Streams(list(range(RUNS)), torch.tensor(0))
    start = kmeans_start(y, streams, torch.full((RUNS,), CLUSTERS), CLUSTERS)
    # scikit-learn starts from parameters, c4rl from the responsibilities these give
    first = fit(y, start, steps=1)
    precisions = torch.linalg.inv(first.mixture.covariances).numpy()
    rows, weights, means = y.double().numpy(), first.mixture.weights.numpy(), first.mixture.means.numpy()
    scores = np.zeros(RUNS)

    def scikit_learn() -> None:
        for r in range(RUNS):
            oracle = GaussianMixture(
                CLUSTERS,
                tol=0,
                reg_covar=1e-4,
                max_iter=STEPS,
                weights_init=weights[r],
                means_init=means[r],
                precisions_init=precisions[r],
                init_params="random",
            )
            scores[r] = oracle.fit(rows[r]).lower_bound_

    def stacked() -> Tensor:
        return fit(y, first.responsibilities, steps=STEPS).log_likelihood

    def scikit_learn_on_one_thread() -> None:
        with threadpool_limits(1):
            scikit_learn()

    stacked()
    turns = [(seconds(scikit_learn), seconds(scikit_learn_on_one_thread), seconds(stacked)) for _ in range(TURNS)]
    theirs, theirs_single, ours = (min(times) for times in zip(*turns, strict=True))
    # their lower bound belongs to the last E-step, before the last M-step
    difference = np.abs(stacked()[:, -2].numpy() / scores - 1).max()
    print(
        f"{RUNS} runs, N={ROWS}, D={dim}, K={CLUSTERS}, {STEPS} EM steps: c4rl {ours:.3f} s; "
        f"scikit-learn {theirs:.3f} s, ratio {theirs / ours:.1f}; "
        f"scikit-learn held to one thread {theirs_single:.3f} s, ratio {theirs_single / ours:.1f}; "
        f"log-likelihoods agree to {difference:.0e}"
    )


def refresh(runs: int, device: str) -> None:
    """All a re-clustering costs beyond the features: projection of 2 x 256 to 2 x 16, warm EM, sampling tables."""
    g_next, g = torch.randn(2, runs, ROWS, 256, device=device).relu()
    valid = torch.rand(runs, ROWS, device=device) > 0.01
    seeds = list(range(runs))
    sampler = ClusterSampler(seeds, [0] * runs, [ROWS] * runs, [CLUSTERS] * runs, device=device)
    streams = Streams(seeds, torch.zeros((), dtype=torch.int64, device=device))
    start = torch.rand(runs, ROWS, CLUSTERS, device=device)
    start = start / start.sum(2, keepdim=True)

    def project() -> Tensor:
        return torch.cat([principal_directions(g_next, 16, valid)(g_next), principal_directions(g, 16)(g)], 2)

    def once(steps: int) -> None:
        fitted = fit(project(), start, valid, steps=steps)
        sampler.refresh(fitted.responsibilities, 0, fitted.failed)

    def best(work: Callable[[], object]) -> float:
        return 1e3 * min(seconds(work) for _ in range(TURNS))

    once(1)
    costs = ", ".join(f"{steps} EM steps {best(partial(once, steps)):.0f} ms" for steps in (2, 5, 10))
    draw = best(lambda: sampler.rows(streams, 256))
    print(f"refresh of {runs} runs on {device}: projection {best(project):.0f} ms, everything with {costs}; ", end="")
    print(f"one draw of 256 rows each {draw:.2f} ms")


def main() -> None:
    warnings.simplefilter("ignore", ConvergenceWarning)
    print(f"{torch.get_num_threads()} threads")
    for dim in (32, 64):
        against_scikit_learn(dim)
    for device in ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]:
        for runs in (1, RUNS):
            refresh(runs, device)


if __name__ == "__main__":
    main()

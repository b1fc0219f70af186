"""Random numbers are a function of (seed, stream, step), well spread, and independent across all three."""

import numpy as np
import pytest
import torch

from c4rl.core.ops.random import hashed_bits
from c4rl.core.random import Streams, stream_key


def streams(seeds: list[int], step: int = 1, dtype: torch.dtype = torch.float64) -> Streams:
    return Streams(seeds, torch.tensor(step), dtype)


def splitmix64(state: int) -> int:
    """The reference: next output of SplitMix64 from a given state, in plain integers."""
    mask = (1 << 64) - 1
    z = state & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def test_the_tensor_hash_is_splitmix64() -> None:
    own = streams([7], step=3)
    bits = hashed_bits(own.keys("noise"), own.step, 5)[0].tolist()
    golden, mask = 0x9E3779B97F4A7C15, (1 << 64) - 1
    key = stream_key(7, "noise")
    expected = [splitmix64(key + golden * ((3 << 32) + i)) for i in range(5)]
    assert [b & mask for b in bits] == expected


def test_a_run_draws_the_same_numbers_alone_and_stacked() -> None:
    alone, stacked = streams([5]), streams([3, 5, 9])
    for draw in ("normal", "uniform"):
        torch.testing.assert_close(
            getattr(alone, draw)("a", 4, 3)[0], getattr(stacked, draw)("a", 4, 3)[1], rtol=0, atol=0
        )


@pytest.mark.parametrize("change", ["seed", "stream", "step"])
def test_seed_stream_and_step_each_change_the_numbers(change: str) -> None:
    base = streams([1]).uniform("a", 1000)
    other = {
        "seed": lambda: streams([2]).uniform("a", 1000),
        "stream": lambda: streams([1]).uniform("b", 1000),
        "step": lambda: streams([1], step=2).uniform("a", 1000),
    }[change]()
    assert abs(np.corrcoef(base[0], other[0])[0, 1]) < 0.1
    assert not torch.equal(base, other)


def test_the_step_tensor_is_read_at_every_draw() -> None:
    step = torch.tensor(1)
    source = Streams([0], step)
    first = source.uniform("a", 8)
    step.add_(1)
    assert not torch.equal(first, source.uniform("a", 8))


def test_normal_numbers_are_standard_normal() -> None:
    x = streams([0]).normal("a", 200_001)[0].numpy()  # odd: half of the last pair is dropped
    assert abs(x.mean()) < 0.01 and abs(x.std() - 1) < 0.01
    assert abs((x**4).mean() - 3) < 0.06
    assert np.abs(np.corrcoef(x[:100_000], x[100_001:])[0, 1]) < 0.015  # the two halves of the pairs


@pytest.mark.parametrize("high", [7, 1000, 2_000_003])
def test_integers_are_uniform(high: int) -> None:
    draws = streams([0]).integers("rows", torch.tensor([high]), 100_000)[0].numpy()
    assert draws.min() >= 0 and draws.max() < high
    counts = np.bincount((draws * 7 // high).astype(int), minlength=7)
    expected = np.bincount((np.arange(high) * 7 // high).astype(int), minlength=7) / high * 100_000
    assert ((counts - expected) ** 2 / expected).sum() < 22.5  # chi-square, 6 degrees of freedom, p = 0.001


def test_every_run_has_its_own_range() -> None:
    draws = streams([0, 1]).integers("rows", torch.tensor([10, 1000]), 5000)
    assert draws[0].max() == 9 and draws[1].max() > 900

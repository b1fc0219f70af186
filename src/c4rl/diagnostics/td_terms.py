"""Terms A, B and C of Theorem 1 at a checkpoint, and the variance of delta measured by perturbing.

delta(w) = r + gamma Q'(x' + k w) - Q(x + k w), with one direction w for both, drawn on the unit sphere. Of every row
A = gamma^2 k^2 Var<w, g'>, B = k^2 Var<w, g>, C = 2 gamma k^2 Cov(<w, g'>, <w, g>) over the directions: the prefactors
are inside. Then rows are averaged. Both ways use the same directions, so their difference is the Taylor remainder and
not chance; directions come in pairs w and -w, which cancels its odd powers of k. The gap is its mean size per row,
against the variance: it falls like k^2 on a smooth network, and more slowly on a ReLU one, whose gradients jump.
"""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from c4rl.core.buffer import Batch
from c4rl.core.networks import Critic
from c4rl.diagnostics.gradients import critics_of
from c4rl.plugins.c4.feature_gradients import feature_gradients
from c4rl.plugins.c4.monitor import DISPLACEMENT
from c4rl.theory.td_variance import td_terms
from c4rl.training.launch import Launch

STEPS = (0.4, 0.2, 0.1, 0.05)
STEP = DISPLACEMENT  # of the terms shown alone
DIRECTIONS = 512
# perturbing evaluates the critics at every row, direction and step: a part of the rows and directions is enough, since
# the linear model is compared on the same part
PERTURBED_ROWS, PERTURBED_DIRECTIONS = 128, 32


def paired_directions(count: int, width: int) -> Tensor:
    """[count, width] float64, uniform on the sphere; w and -w take turns. count is even."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(count // 2, width, generator=generator, dtype=torch.float64)
    w = drawn / drawn.norm(dim=1, keepdim=True)
    return torch.stack([w, -w], dim=1).flatten(0, 1)


def describe_td_terms(
    launch: Launch, batch: Batch, steps: tuple[float, ...] = STEPS, directions: int = DIRECTIONS
) -> list[dict[str, Any]]:
    """Of every run, averaged over its critics. Computed in float64: differences of Q at small steps are small."""
    critic, target = (deepcopy(network).double() for network in critics_of(launch))
    inputs = launch.algorithm.critic_inputs(batch.state_actions).double()
    next_inputs = launch.algorithm.critic_inputs(batch.next_state_actions).double()
    g_next, g = feature_gradients("exact", target, next_inputs), feature_gradients("exact", critic, inputs)
    w = paired_directions(directions, inputs.shape[-1]).to(inputs.device)
    gamma = _per_run(launch.algorithm.config.discount, launch)  # [R, 1, 1]
    A, B, C = terms_of_rows(g_next, g, w, gamma)
    some, few = slice(PERTURBED_ROWS), w[:PERTURBED_DIRECTIONS]
    perturbed = terms_of_rows(g_next[:, :, some], g[:, :, some], few, gamma)
    places = inputs[:, some], next_inputs[:, some]
    measured = [measured_variance(critic, target, *places, few, k, gamma) for k in steps]
    base = (
        batch.rewards.double().unsqueeze(1)
        + gamma * batch.continues.double().unsqueeze(1) * _values(target, next_inputs)
        - _values(critic, inputs)
    )
    out = []
    for run in range(len(launch.runs)):
        a, b, c = (float(term[run].mean()) for term in (A, B, C))
        per_row = (perturbed[0] + perturbed[1] - perturbed[2])[run]
        curve = []
        for k, variance in zip(steps, measured, strict=True):
            linear, seen = k * k * per_row, variance[run]
            # row by row: in the mean over rows, errors of both signs cancel
            gap = float((seen - linear).abs().mean() / linear.mean().clamp_min(1e-300))
            curve.append({"k": k, "linear": float(linear.mean()), "measured": float(seen.mean()), "gap": gap})
        out.append(
            {
                "k": STEP,
                "A": STEP**2 * a,
                "B": STEP**2 * b,
                "C": STEP**2 * c,
                "variance": STEP**2 * (a + b - c),
                "cross_share": c / (a + b) if a + b > 0 else 0.0,
                "base_variance": float(base[run].var(dim=-1, correction=0).mean()),
                "by_step": curve,
                "gap_order": order_of(curve),
            }
        )
    return out


def terms_of_rows(g_next: Tensor, g: Tensor, w: Tensor, gamma: Tensor | float) -> tuple[Tensor, Tensor, Tensor]:
    """A, B and C of every row at k = 1, over the directions w [samples, m]: [R, M, n] each."""
    along_next, along = ((x @ w.T).unsqueeze(-1) for x in (g_next, g))  # [R, M, n, samples, 1]
    unit = td_terms(along_next, along, w.new_ones(1), w.new_ones(1))
    return gamma**2 * unit.A, unit.B, 2 * gamma * unit.C


def _per_run(value: Any, launch: Launch) -> Tensor:
    gamma = torch.as_tensor(value, dtype=torch.float64, device=launch.device)
    return gamma.expand(len(launch.runs)).view(-1, 1, 1)


@torch.no_grad()
def _values(critic: Critic, inputs: Tensor) -> Tensor:
    return critic.at(inputs).q


def measured_variance(
    critic: Critic, target: Critic, inputs: Tensor, next_inputs: Tensor, w: Tensor, k: float, gamma: Tensor | float
) -> Tensor:
    """Var over the directions of gamma Q'(x' + k w) - Q(x + k w), [R, M, n]; the reward is the same for all."""
    deltas = torch.stack([gamma * _values(target, next_inputs + k * d) - _values(critic, inputs + k * d) for d in w])
    return deltas.var(dim=0, correction=0)


def order_of(curve: list[dict[str, float]]) -> float | None:
    """The power of k by which the gap falls, from its largest to its smallest step."""
    ends = [(point["k"], point["gap"]) for point in (curve[0], curve[-1])]
    if len(curve) < 2 or min(gap for _, gap in ends) <= 0:
        return None
    (k, gap), (smaller, less) = ends
    return float(torch.log(torch.tensor(gap / less)) / torch.log(torch.tensor(k / smaller)))

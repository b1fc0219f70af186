"""g and g': the critic's feature gradients at (s, a) and at (s', a').

Exact: the gradient of Q with respect to its input [s, a]. Proxy: the penultimate features φ, as the paper's experiments
run. The target critic gives g', with the logged next action.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from c4rl.core.networks import Critic, CriticOutput
from c4rl.core.ops import kernels
from c4rl.core.ops.mlp import stacked_mlp

Mode = Literal["proxy", "exact"]


def feature_gradients(mode: Mode, critic: Critic, state_actions: Tensor, members: slice = slice(None)) -> Tensor:
    """Of given rows [R, B, s + a], without a graph: [R, M, B, m], m = s + a (exact) or the width (proxy)."""
    if mode == "exact" and critic.mlp.layer_norm:
        return autograd_gradient(critic, state_actions, members, create_graph=False)
    with torch.no_grad():
        output = critic.at(state_actions, members)
        return output.features if mode == "proxy" else explicit_gradient(critic, output, members)


@torch.no_grad()
def both_feature_gradients(critic: Critic, state_actions: Tensor) -> tuple[Tensor, Tensor]:
    """Exact and proxy from one evaluation, without a graph: [R, M, B, s + a] and [R, M, B, width]."""
    output = critic.at(state_actions)
    if critic.mlp.layer_norm:
        return autograd_gradient(critic, state_actions, create_graph=False), output.features
    return explicit_gradient(critic, output), output.features


def online_feature_gradients(mode: Mode, critic: Critic, output: CriticOutput, state_actions: Tensor) -> Tensor:
    """Of rows already evaluated, with a graph into the critic's parameters: [R, M, B, m]."""
    if mode == "proxy":
        return output.features
    if critic.mlp.layer_norm:
        return autograd_gradient(critic, state_actions)
    return explicit_gradient(critic, output)


def explicit_gradient(critic: Critic, output: CriticOutput, members: slice = slice(None)) -> Tensor:
    """∇Q of a ReLU MLP: W_1 D_1 W_2 D_2 ... w, with D_l the 0/1 diagonal of active units; [R, M, B, s + a].

    The D_l are piecewise constant, so differentiating this product is differentiating the gradient, at half the cost
    of autograd's double backward.
    """
    weights = [w[:, members].flatten(0, 1) for w in critic.mlp.weights]  # [R·M, in, out]
    rows = weights[-1].mT  # [R·M, 1, width]: the same last layer for every row
    for w, h in zip(reversed(weights[:-1]), reversed(output.hidden), strict=True):
        rows = torch.bmm(rows * (h.detach() > 0), w.mT)
    return rows.view(*output.q.shape[:3], -1)


def autograd_gradient(
    critic: Critic, state_actions: Tensor, members: slice = slice(None), create_graph: bool = True
) -> Tensor:
    """The same by automatic differentiation, for any architecture."""
    weights, biases, gains, shifts = critic.mlp.layers(members)
    runs, chosen = weights[0].shape[:2]

    def as_runs(parameters: Sequence[Tensor]) -> list[Tensor]:
        return [parameter.flatten(0, 1).unsqueeze(1) for parameter in parameters]

    with torch.enable_grad(), kernels(False):  # the fused ones can be differentiated once only
        # each member has its own copy of the rows, so that one sum gives every member's gradient
        copies = state_actions.detach().unsqueeze(1).expand(-1, chosen, -1, -1).flatten(0, 1).requires_grad_()
        q, _ = stacked_mlp(copies, None, (as_runs(weights), as_runs(biases), as_runs(gains), as_runs(shifts)))
        (gradient,) = torch.autograd.grad(q.sum(), copies, create_graph=create_graph)
        return gradient.unflatten(0, (runs, chosen))


def input_gradient(critic: Callable[[Tensor], Tensor], x: Tensor, create_graph: bool) -> Tensor:
    """∇Q of anyone's critic: x [..., in] -> Q [...] or [..., 1]; gives [..., in]."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(critic(x).sum(), x, create_graph=create_graph)
        return gradient

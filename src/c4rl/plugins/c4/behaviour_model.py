"""The behaviour policy as the clusters see it: nu_z(a|s), one linear-Gaussian model per cluster, in closed form."""

import math

import torch
from torch import Tensor

_LOG_2PI = math.log(2 * math.pi)
LEAST_LOG_P = -1e30  # of a dead cluster: finite, and too little to matter anywhere


class BehaviourModel:
    """nu_z(a|s) = N(a | W_z^T s + b_z, diag(sigma_z^2)) for R runs and K clusters, and nu(a|s) = sum_z p_z nu_z(a|s).

    Weighted ridge regression with weights r_iz. `fit` writes into the same tensors, so a captured CUDA graph that
    reads them sees the refit. The mixture's weights p_z do not depend on s; where clusters live in different parts
    of the state space, nu_z of the batch's own cluster is the sharper model.

    weight [R, K, d, a], bias [R, K, a], log_std [R, K, a], log_p [R, K].
    """

    def __init__(
        self,
        runs: int,
        clusters: int,
        observation_size: int,
        action_size: int,
        *,
        ridge: float = 1e-3,
        std_floor: float = 0.05,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """ridge: in units of each observation dimension's variance. std_floor: least sigma, in units of the action."""
        self.ridge, self.std_floor = ridge, std_floor
        shape = (runs, clusters)
        self.weight = torch.zeros(*shape, observation_size, action_size, device=device, dtype=dtype)
        self.bias = torch.zeros(*shape, action_size, device=device, dtype=dtype)
        self.log_std = torch.zeros(*shape, action_size, device=device, dtype=dtype)
        self.log_p = torch.full(shape, -math.log(clusters), device=device, dtype=dtype)

    @torch.no_grad()
    def fit(self, states: Tensor, actions: Tensor, responsibilities: Tensor) -> None:
        """states [R, N, d], actions [R, N, a] (R may be 1: shared rows), responsibilities [R, N, K].

        Rows with all-zero responsibilities (padding) are left out.
        """
        row_weight = responsibilities.sum(-1, keepdim=True)
        # A dead cluster (no mass at all) inherits the regression of the whole buffer instead of 0/0.
        r = responsibilities + 1e-7 * row_weight
        mass = row_weight.sum(-2, keepdim=True)
        overall_mean = (row_weight * states).sum(-2, keepdim=True) / mass
        overall_variance = (row_weight * (states - overall_mean).square()).sum(-2) / mass.squeeze(-1)
        penalty = torch.diag_embed(self.ridge * overall_variance + torch.finfo(states.dtype).eps)
        for z in range(responsibilities.shape[-1]):
            share = r[..., z : z + 1] / r[..., z : z + 1].sum(-2, keepdim=True)
            mean_s, mean_a = (share * states).sum(-2, keepdim=True), (share * actions).sum(-2, keepdim=True)
            s, a = states - mean_s, actions - mean_a
            weighted = (share * s).mT
            W = torch.linalg.solve(weighted @ s + penalty, weighted @ a)
            variance = (share * (a - s @ W).square()).sum(-2)
            self.weight[:, z].copy_(W)
            self.bias[:, z].copy_((mean_a - mean_s @ W).squeeze(-2))
            self.log_std[:, z].copy_(0.5 * variance.clamp_min(self.std_floor**2).log())
        share = responsibilities.sum(-2) / mass.squeeze(-1)
        self.log_p.copy_(share.log().clamp_min(LEAST_LOG_P))

    def mean(self, states: Tensor) -> Tensor:
        """E_z[a|s] for states [R, B, d], [R, K, B, a]."""
        return states.unsqueeze(1) @ self.weight + self.bias.unsqueeze(-2)

    def log_prob(self, states: Tensor, actions: Tensor) -> Tensor:
        """log nu_z(a|s) per cluster: actions [R, B, a] -> [R, K, B], or [R, B, n, a] -> [R, K, B, n]."""
        mean, log_std = self.mean(states), self.log_std.unsqueeze(-2)
        if actions.dim() == 4:
            mean, log_std = mean.unsqueeze(-2), log_std.unsqueeze(-2)
        shift = (actions.unsqueeze(1) - mean) * torch.exp(-log_std)
        return -(0.5 * shift.square() + log_std + 0.5 * _LOG_2PI).sum(-1)

    def log_prob_mixture(self, states: Tensor, actions: Tensor) -> Tensor:
        """log nu(a|s) = log sum_z p_z nu_z(a|s), [R, B] or [R, B, n]."""
        per_cluster = self.log_prob(states, actions)
        log_p = self.log_p.view(*self.log_p.shape, *([1] * (per_cluster.dim() - 2)))
        return torch.logsumexp(per_cluster + log_p, 1)

    def log_prob_cluster(self, states: Tensor, actions: Tensor, cluster: Tensor) -> Tensor:
        """log nu_z(a|s) of each run's own cluster z [R] (the batch's), [R, B] or [R, B, n]."""
        per_cluster = self.log_prob(states, actions)
        index = cluster.view(-1, *([1] * (per_cluster.dim() - 1))).expand(-1, 1, *per_cluster.shape[2:])
        return per_cluster.gather(1, index).squeeze(1)

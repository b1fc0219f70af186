"""CQL as its equations stand, for one run: one state, one action and one critic at a time."""

import itertools
import math

import torch
from torch import Tensor

from c4rl.algorithms.cql import CQL, CQLConfig
from c4rl.core.buffer import Batch
from c4rl.core.networks import StackedMLP

ACTIONS, MEMBERS = 2, 2

Layers = list[tuple[Tensor, Tensor]]


def layers_of(mlp: StackedMLP, member: int) -> Layers:
    pairs = zip(mlp.weights, mlp.biases, strict=True)
    return [(w[0, member].detach().clone(), b[0, member].detach().clone()) for w, b in pairs]


def trained(layers: Layers) -> list[Tensor]:
    return [p.requires_grad_() for pair in layers for p in pair]


def value_of(layers: Layers, *parts: Tensor) -> Tensor:
    x = torch.cat(parts)
    for w, b in layers[:-1]:
        x = torch.relu(x @ w + b)
    return x @ layers[-1][0] + layers[-1][1]


def total(values: list[Tensor]) -> Tensor:
    return torch.stack(values).sum()


def mean(values: list[Tensor]) -> Tensor:
    return total(values) / len(values)


class PlainCQL:
    """The sheet's equations for one run, row by row."""

    def __init__(self, algorithm: CQL, config: CQLConfig) -> None:
        self.config = config
        self.actor = layers_of(algorithm.actor.mlp, 0)
        self.critics = [layers_of(algorithm.critic.mlp, i) for i in range(MEMBERS)]
        self.targets = [layers_of(algorithm.target_critic.mlp, i) for i in range(MEMBERS)]
        self.log_alpha = torch.tensor(math.log(config.entropy_weight), dtype=torch.float64, requires_grad=True)
        self.log_multiplier = torch.tensor(config.lagrange_initial_log, dtype=torch.float64, requires_grad=True)
        critic_parameters = [p for critic in self.critics for p in trained(critic)]
        self.adam = {
            "actor": torch.optim.Adam(trained(self.actor), config.actor_lr),
            "critic": torch.optim.Adam(critic_parameters, config.critic_lr),
            "alpha": torch.optim.Adam([self.log_alpha], config.actor_lr),
            "multiplier": torch.optim.Adam([self.log_multiplier], config.critic_lr),
        }

    def policy(self, s: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        centre, log_std = value_of(self.actor, s).split(ACTIONS)
        std = log_std.clamp(-5, 2).exp()
        u = centre + std * noise
        log_prob = torch.distributions.Normal(centre, std).log_prob(u) - torch.log(1 - torch.tanh(u) ** 2)
        return torch.tanh(u), log_prob.sum()

    def likelihood(self, s: Tensor, a: Tensor) -> Tensor:
        centre, log_std = value_of(self.actor, s).split(ACTIONS)
        u = torch.atanh(a.clamp(-1 + 1e-6, 1 - 1e-6))
        return (torch.distributions.Normal(centre, log_std.clamp(-5, 2).exp()).log_prob(u) - torch.log(1 - a**2)).sum()

    def q(self, critics: list[Layers], s: Tensor, a: Tensor) -> list[Tensor]:
        return [value_of(critic, s, a)[0] for critic in critics]

    def backup(self, s_next: Tensor, noise: Tensor) -> Tensor:
        """min Q̄(s', ã'), or the best of the N actions of `noise`, with the entropy cost where it is asked for."""
        drawn = [self.policy(s_next, one) for one in noise.reshape(-1, ACTIONS)]
        values = [self.q(self.targets, s_next, action) for action, _ in drawn]
        smaller = [min(pair) for pair in values]
        best = max(range(len(drawn)), key=lambda k: float(smaller[k]))
        value = smaller[best]
        if self.config.max_q_backup == "min_max":
            value = min(max(pair[i] for pair in values) for i in range(MEMBERS))
        return value - self.log_alpha.exp() * drawn[best][1] if self.config.backup_entropy else value

    def gap(self, i: int, s: Tensor, a: Tensor, s_next: Tensor, noise: dict[str, Tensor]) -> Tensor:
        """Soft maximum of Q_i(s, .) minus Q_i(s, a) of one state."""
        config, critic = self.config, self.critics[i]
        count, T = config.cql_actions, config.cql_temperature
        terms: dict[str, list[Tensor]] = {"uniform": [], "policy": [], "next": []}
        for k in range(count):
            with torch.no_grad():
                at_s, log_prob = self.policy(s, noise["cql_action"][k])
                from_next, next_log_prob = self.policy(s_next, noise["cql_next_action"][k])
            uniform = noise["cql_uniform"][k] * 2 - 1
            densities = (s.new_tensor(ACTIONS * math.log(0.5)), log_prob, next_log_prob)
            for kind, action, density in zip(terms, (uniform, at_s, from_next), densities, strict=True):
                value = value_of(critic, s, action)[0]
                terms[kind].append(value - density if config.importance_sampling else value)
        logged = value_of(critic, s, a)[0]
        extra = [] if config.importance_sampling else [logged]
        groups = [list(itertools.chain(*terms.values(), extra))]
        if config.lse_group == 3:
            groups = [[kind[k] for kind in terms.values()] + extra for k in range(count)]
        soft = mean([T * torch.log(total([torch.exp(v / T) for v in group])) for group in groups])
        return (soft - logged).clamp(config.gap_minimum, config.gap_maximum)

    def update(self, batch: Batch, noise: dict[str, Tensor], step: int) -> dict[str, Tensor]:
        config = self.config
        alpha, multiplier = self.log_alpha.detach().exp(), self.log_multiplier.exp()
        actor_terms, log_probs = [], []
        squares: list[list[Tensor]] = [[], []]
        gaps: list[list[Tensor]] = [[], []]
        for j in range(batch.rewards.shape[1]):
            s, a, s_next = batch.observations[0, j], batch.actions[0, j], batch.next_observations[0, j]
            action, log_prob = self.policy(s, noise["actor_action"][j])
            cloning = step <= config.cloning_updates
            good = self.likelihood(s, a) if cloning else min(self.q(self.critics, s, action))
            actor_terms.append(alpha * log_prob - good)
            log_probs.append(log_prob.detach())
            with torch.no_grad():
                next_value = self.backup(s_next, noise["backup_action"][j])
                y = batch.rewards[0, j] + config.discount * batch.continues[0, j] * next_value
            row_noise = {name: values[j] for name, values in noise.items()}
            for i in range(MEMBERS):
                squares[i].append((value_of(self.critics[i], s, a)[0] - y) ** 2)
                gaps[i].append(self.gap(i, s, a, s_next, row_noise))
        losses = {"actor": mean(actor_terms)}
        gap = [mean(one) for one in gaps]
        weight, threshold = config.cql_weight, config.lagrange_threshold
        conservative = [weight * g for g in gap]
        if config.lagrange == "weighted_gap":
            conservative = [multiplier * (weight * g - threshold) for g in gap]
        elif config.lagrange == "raw_gap":
            conservative = [multiplier * weight * (g - threshold) for g in gap]
        losses["critic"] = total([mean(one) for one in squares]) + total(conservative)
        if config.entropy == "automatic":
            losses["alpha"] = -self.log_alpha * (mean(log_probs) - ACTIONS)
        if config.lagrange != "none":
            losses["multiplier"] = -0.5 * total(conservative)
        for name, loss in losses.items():
            parameters = self.adam[name].param_groups[0]["params"]
            gradients = torch.autograd.grad(loss, parameters, retain_graph=True)
            for p, gradient in zip(parameters, gradients, strict=True):
                p.grad = gradient
        for name in losses:
            self.adam[name].step()
        with torch.no_grad():
            for target, online in zip(self.targets, self.critics, strict=True):
                for (wt, bt), (w, b) in zip(target, online, strict=True):
                    wt.mul_(1 - config.tau).add_(config.tau * w)
                    bt.mul_(1 - config.tau).add_(config.tau * b)
        return losses | {"gap": mean(gap)}

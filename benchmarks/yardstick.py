"""The yardstick: TD3+BC and CQL as a careful person writes one run in plain PyTorch.

Same losses, sizes and batch as c4rl's, with nn.Linear networks, torch.optim.Adam, torch's own random numbers and a data
set held as tensors. benchmarks/cpu_speed.py times both, alternating, in one process.
"""

import copy
import itertools
import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Data(NamedTuple):
    observations: Tensor
    actions: Tensor
    rewards: Tensor
    next_observations: Tensor
    continues: Tensor

    def batch(self, size: int) -> "Data":
        rows = torch.randint(len(self.rewards), (size,), device=self.rewards.device)
        return Data(*(field[rows] for field in self))


def mlp(inputs: int, outputs: int, width: int = 256, layers: int = 4) -> nn.Sequential:
    sizes = [inputs] + [width] * layers
    hidden = [m for a, b in itertools.pairwise(sizes) for m in (nn.Linear(a, b), nn.ReLU(inplace=True))]
    return nn.Sequential(*hidden, nn.Linear(width, outputs))


@torch.no_grad()
def polyak(target: nn.Module, online: nn.Module, tau: float = 0.005) -> None:
    torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), tau)


class TD3BC:
    def __init__(self, data: Data) -> None:
        s, a = data.observations.shape[1], data.actions.shape[1]
        self.data, self.count = data, 0
        device = data.rewards.device
        self.actor = mlp(s, a).to(device)
        self.q1, self.q2 = mlp(s + a, 1).to(device), mlp(s + a, 1).to(device)
        self.targets = [copy.deepcopy(net).requires_grad_(False) for net in (self.actor, self.q1, self.q2)]
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), 1e-4)
        self.critic_optimizer = torch.optim.Adam([*self.q1.parameters(), *self.q2.parameters()], 3e-4)

    def update(self) -> None:
        self.count += 1
        s, a, r, s2, continues = self.data.batch(256)
        target_actor, target_q1, target_q2 = self.targets
        with torch.no_grad():
            noise = (torch.randn_like(a) * 0.2).clamp_(-0.5, 0.5)
            x2 = torch.cat([s2, (torch.tanh(target_actor(s2)) + noise).clamp_(-1, 1)], 1)
            y = r + 0.99 * continues * torch.minimum(target_q1(x2), target_q2(x2)).squeeze(1)
        x = torch.cat([s, a], 1)
        loss = F.mse_loss(self.q1(x).squeeze(1), y) + F.mse_loss(self.q2(x).squeeze(1), y)
        self.critic_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.critic_optimizer.step()
        if self.count % 2 == 0:
            pi = torch.tanh(self.actor(s))
            self.q1.requires_grad_(False)
            q = self.q1(torch.cat([s, pi], 1))
            actor_loss = F.mse_loss(pi, a) - 2.5 / q.detach().abs().mean() * q.mean()
            self.actor_optimizer.zero_grad(set_to_none=True)
            actor_loss.backward()
            self.q1.requires_grad_(True)
            self.actor_optimizer.step()
            for target, net in zip(self.targets, (self.actor, self.q1, self.q2), strict=True):
                polyak(target, net)


class CQL:
    def __init__(self, data: Data, samples: int = 10) -> None:
        s, a = data.observations.shape[1], data.actions.shape[1]
        self.data, self.samples = data, samples
        device = data.rewards.device
        self.actor = mlp(s, 2 * a).to(device)
        self.q1, self.q2 = mlp(s + a, 1).to(device), mlp(s + a, 1).to(device)
        self.targets = [copy.deepcopy(net).requires_grad_(False) for net in (self.q1, self.q2)]
        self.log_alpha = torch.zeros((), requires_grad=True, device=device)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), 1e-4)
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], 1e-4)
        self.critic_optimizer = torch.optim.Adam([*self.q1.parameters(), *self.q2.parameters()], 3e-4)

    def sample(self, s: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.actor(s).chunk(2, -1)
        log_std = log_std.clamp(-5, 2)
        noise = torch.randn_like(mean)
        u = mean + log_std.exp() * noise
        log_prob = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        return torch.tanh(u), (log_prob - 2 * (math.log(2) - u - F.softplus(-2 * u))).sum(-1)

    def update(self) -> None:
        s, a, r, s2, continues = self.data.batch(256)
        n, width = self.samples, a.shape[1]
        alpha = self.log_alpha.detach().exp()
        self.q1.requires_grad_(False)
        self.q2.requires_grad_(False)
        pi, log_pi = self.sample(s)
        x = torch.cat([s, pi], 1)
        actor_loss = (alpha * log_pi - torch.minimum(self.q1(x), self.q2(x)).squeeze(1)).mean()
        self.actor_optimizer.zero_grad(set_to_none=True)
        actor_loss.backward()
        self.q1.requires_grad_(True)
        self.q2.requires_grad_(True)
        with torch.no_grad():
            a2, _ = self.sample(s2)
            x2 = torch.cat([s2, a2], 1)
            y = r + 0.99 * continues * torch.minimum(self.targets[0](x2), self.targets[1](x2)).squeeze(1)
            repeated = s.repeat_interleave(n, 0)
            uniform = torch.rand(len(repeated), width, device=s.device) * 2 - 1
            at_s, log_s = self.sample(repeated)
            at_next, log_next = self.sample(s2.repeat_interleave(n, 0))
            flat = torch.full_like(log_s, -width * math.log(2))
            density = torch.cat([d.view(-1, n) for d in (flat, log_s, log_next)], 1)
            everything = torch.cat([torch.cat([repeated, b], 1) for b in (uniform, at_s, at_next)], 0)
        x = torch.cat([s, a], 1)
        loss = torch.zeros((), device=s.device)
        for net in (self.q1, self.q2):
            q = net(x).squeeze(1)
            others = net(everything).view(3, -1, n).permute(1, 0, 2).reshape(-1, 3 * n) - density
            loss = loss + F.mse_loss(q, y) + 10.0 * (others.logsumexp(1) - q).mean()
        self.critic_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.critic_optimizer.step()
        self.actor_optimizer.step()
        alpha_loss = -(self.log_alpha * (log_pi.detach() - width).mean())
        self.alpha_optimizer.zero_grad(set_to_none=True)
        alpha_loss.backward()
        self.alpha_optimizer.step()
        for target, net in zip(self.targets, (self.q1, self.q2), strict=True):
            polyak(target, net)

"""TD3+BC and ReBRAC as their equations stand, for one run: one state, one action and one critic at a time."""

import torch
import torch.nn.functional as F
from torch import Tensor

from c4rl.algorithms.rebrac import ReBRACConfig
from c4rl.algorithms.td3 import TD3, TD3Config
from c4rl.core.buffer import Batch
from c4rl.core.networks import StackedMLP
from tests.algorithms.plain_cql import mean, total

MEMBERS = 2


class PlainMLP:
    """One member of a stack of one run, with its own copies of the weights."""

    def __init__(self, mlp: StackedMLP, member: int) -> None:
        lists = (mlp.weights, mlp.biases, mlp.gains, mlp.shifts)
        self.weights, self.biases, self.gains, self.shifts = (
            [p[0, member].detach().clone().requires_grad_() for p in own] for own in lists
        )

    @property
    def parameters(self) -> list[Tensor]:
        return [*self.weights, *self.biases, *self.gains, *self.shifts]

    def __call__(self, *parts: Tensor) -> Tensor:
        x = torch.cat(parts)
        for layer in range(len(self.weights) - 1):
            x = x @ self.weights[layer] + self.biases[layer]
            if self.gains:
                x = F.layer_norm(x, x.shape, self.gains[layer], self.shifts[layer])
            x = torch.relu(x)
        return x @ self.weights[-1] + self.biases[-1]

    def follow(self, online: "PlainMLP", tau: float) -> None:
        with torch.no_grad():
            for mine, theirs in zip(self.parameters, online.parameters, strict=True):
                mine.copy_((1 - tau) * mine + tau * theirs)


class PlainTD3:
    """Both algorithms' sheets, row by row."""

    def __init__(self, algorithm: TD3) -> None:
        self.config: TD3Config = algorithm.config
        self.actor, self.target_actor = (PlainMLP(n.mlp, 0) for n in (algorithm.actor, algorithm.target_actor))
        self.critics = [PlainMLP(algorithm.critic.mlp, i) for i in range(MEMBERS)]
        self.targets = [PlainMLP(algorithm.target_critic.mlp, i) for i in range(MEMBERS)]
        self.actor_adam = torch.optim.Adam(self.actor.parameters, self.config.actor_lr)
        self.critic_adam = torch.optim.Adam([p for q in self.critics for p in q.parameters], self.config.critic_lr)

    def q(self, critics: list[PlainMLP], s: Tensor, a: Tensor) -> list[Tensor]:
        return [critic(s, a)[0] for critic in critics]

    def update_critics(self, batch: Batch, noise: Tensor) -> Tensor:
        """noise: standard normal, [B, a]."""
        config, errors = self.config, []
        for j in range(batch.rewards.shape[1]):
            s, a, s_next = batch.observations[0, j], batch.actions[0, j], batch.next_observations[0, j]
            with torch.no_grad():
                smoothing = torch.clamp(noise[j] * config.policy_noise, -config.noise_clip, config.noise_clip)
                a_next = torch.clamp(torch.tanh(self.target_actor(s_next)) + smoothing, -1, 1)
                value = min(self.q(self.targets, s_next, a_next))
                if config.critic_cloning and batch.next_valid[0, j] == 1:
                    logged = batch.next_state_actions[0, j, len(s) :]
                    value = value - config.critic_cloning * total(squares(a_next, logged))
                ended = batch.continues[0, j] == 0
                y = batch.rewards[0, j] if ended else batch.rewards[0, j] + config.discount * value
            errors += [(q - y) ** 2 for q in self.q(self.critics, s, a)]
        loss = total(errors) / batch.rewards.shape[1]
        step(self.critic_adam, loss)
        return loss

    def update_actor(self, batch: Batch) -> Tensor:
        config, distances, values = self.config, [], []
        for j in range(batch.rewards.shape[1]):
            s, a = batch.observations[0, j], batch.actions[0, j]
            action = torch.tanh(self.actor(s))
            both = self.q(self.critics, s, action)
            if isinstance(config, ReBRACConfig):
                distances.append(config.actor_cloning * total(squares(action, a)))
                values.append(min(both))
            else:
                distances.append(mean(squares(action, a)))
                values.append(both[0])
        size = float(mean([value.detach().abs() for value in values]))
        loss = mean(distances) - config.alpha / size * mean(values)
        step(self.actor_adam, loss)
        self.target_actor.follow(self.actor, config.tau)
        for target, critic in zip(self.targets, self.critics, strict=True):
            target.follow(critic, config.tau)
        return loss

    def assert_equal_networks(self, algorithm: TD3) -> None:
        networks = {
            "actor": (algorithm.actor.mlp, [self.actor]),
            "target_actor": (algorithm.target_actor.mlp, [self.target_actor]),
            "critic": (algorithm.critic.mlp, self.critics),
            "target_critic": (algorithm.target_critic.mlp, self.targets),
        }
        for name, (mlp, members) in networks.items():
            for i, mine in enumerate(members):
                for ours, theirs in zip(PlainMLP(mlp, i).parameters, mine.parameters, strict=True):
                    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9, msg=name)


def squares(x: Tensor, y: Tensor) -> list[Tensor]:
    return [(one - other) ** 2 for one, other in zip(x, y, strict=True)]


def step(adam: torch.optim.Adam, loss: Tensor) -> None:
    parameters = adam.param_groups[0]["params"]
    for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        p.grad = gradient
    adam.step()

"""TD3+BC as single-file libraries write it (CORL, CleanRL), with C4 added in three places (marked C4).

Their buffers keep no next actions and draw their own indices: C4 finds the next actions and supplies the indices.

python examples/corl_loop.py maze.npz --updates 2000
"""

import argparse
import copy

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from c4rl import C4Anywhere, C4AnywhereConfig
from c4rl.integrations.loss_penalty import LossPenalty


class ReplayBuffer:
    def __init__(self, data: dict[str, np.ndarray]) -> None:
        mean, std = data["observations"].mean(0), data["observations"].std(0) + 1e-3
        arrays = (
            (data["observations"] - mean) / std,
            data["actions"],
            data["rewards"].reshape(-1, 1),
            (data["next_observations"] - mean) / std,
            data["terminals"].reshape(-1, 1),
        )
        self.tensors = [torch.tensor(array, dtype=torch.float32) for array in arrays]

    def sample(self, rows: Tensor) -> list[Tensor]:  # C4: was sample(batch_size), with indices of its own
        return [tensor[rows] for tensor in self.tensors]


class Actor(nn.Module):
    def __init__(self, state_dim: int, action_dim: int, hidden: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(state_dim, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
            nn.Linear(hidden, action_dim), nn.Tanh(),
        )  # fmt: skip

    def forward(self, state: Tensor) -> Tensor:
        return self.net(state)


class Critic(nn.Module):
    def __init__(self, state_dim: int, action_dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(state_dim + action_dim, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.fc3 = nn.Linear(hidden, 1)

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        x = F.relu(self.fc1(torch.cat([state, action], 1)))
        return self.fc3(F.relu(self.fc2(x)))


class TD3BC:
    def __init__(self, buffer: ReplayBuffer, hidden: int, lambda_: float, seed: int) -> None:
        state, action, _, next_state, done = buffer.tensors
        sizes = state.shape[1], action.shape[1], hidden
        self.actor, self.critics = Actor(*sizes), [Critic(*sizes), Critic(*sizes)]
        self.target_actor, self.target_critics = copy.deepcopy((self.actor, self.critics))
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), 3e-4)
        self.critic_optimizer = torch.optim.Adam([p for q in self.critics for p in q.parameters()], 3e-4)
        self.updates = 0
        self.c4 = C4Anywhere.from_transitions(  # C4
            self.critics[0], self.target_critics[0], state, action, next_state, done,
            config=C4AnywhereConfig(lambda_=lambda_), seed=seed,
        )  # fmt: skip
        self.penalty = LossPenalty(self.c4, zip(self.critics, self.target_critics, strict=True))

    def train(self, batch: list[Tensor]) -> dict[str, float]:
        state, action, reward, next_state, done = batch
        self.updates += 1
        with torch.no_grad():
            noise = (0.2 * torch.randn_like(action)).clamp(-0.5, 0.5)
            next_action = (self.target_actor(next_state) + noise).clamp(-1, 1)
            next_q = torch.min(*(q(next_state, next_action) for q in self.target_critics))
            target = reward + (1 - done) * 0.99 * next_q
        critic_loss = self.penalty.added_to(  # C4
            lambda: torch.stack([F.mse_loss(q(state, action), target) for q in self.critics]).sum()
        )
        self.critic_optimizer.zero_grad()
        critic_loss.backward()
        self.critic_optimizer.step()
        if self.updates % 2 == 0:
            pi = self.actor(state)
            q = self.critics[0](state, pi)
            actor_loss = F.mse_loss(pi, action) - 2.5 * q.mean() / q.abs().mean().detach()
            self.actor_optimizer.zero_grad()
            actor_loss.backward()
            self.actor_optimizer.step()
            pairs = zip([self.actor, *self.critics], [self.target_actor, *self.target_critics], strict=True)
            with torch.no_grad():
                for online, slow in pairs:
                    for p, p_slow in zip(online.parameters(), slow.parameters(), strict=True):
                        p_slow.lerp_(p, 0.005)
        return {"critic_loss": critic_loss.item(), "c4_penalty": self.c4.report["c4_penalty"].item()}


def main(words: list[str] | None = None) -> TD3BC:
    parser = argparse.ArgumentParser()
    parser.add_argument("dataset", help="npz as written by `c4rl data record` or `c4rl data convert`")
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("--lambda", type=float, default=0.3, dest="lambda_", help="weight of C4's penalty")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(words)
    torch.manual_seed(arguments.seed)
    with np.load(arguments.dataset, allow_pickle=False) as data:
        buffer = ReplayBuffer(dict(data))
    trainer = TD3BC(buffer, arguments.hidden, arguments.lambda_, arguments.seed)
    for update in range(1, arguments.updates + 1):
        log = trainer.train(buffer.sample(trainer.c4.rows(arguments.batch_size)))
        if update % 500 == 0 or update == arguments.updates:
            print(f"update {update}: " + ", ".join(f"{name} {value:.4g}" for name, value in log.items()))
    return trainer


if __name__ == "__main__":
    main()

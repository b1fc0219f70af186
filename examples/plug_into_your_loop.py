"""A plain TD3 loop on logged data, with C4 added in three lines (marked C4).

python examples/plug_into_your_loop.py maze.npz --updates 2000
"""

import argparse
import copy

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from c4rl import C4Anywhere


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(),
        nn.Linear(256, outputs),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("dataset", help="npz as written by `c4rl data record`")
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)

    # data: rows (s, a) and (s', a'), actions in [-1, 1]
    data = {k: torch.from_numpy(v) for k, v in np.load(arguments.dataset, allow_pickle=False).items()}
    mean, std = data["observations"].mean(0), data["observations"].std(0) + 1e-3
    s, s2 = (data["observations"] - mean) / std, (data["next_observations"] - mean) / std
    a, r, continues = data["actions"], data["rewards"], 1 - data["terminals"].float()
    x, x2 = torch.cat([s, a], 1), torch.cat([s2, data["next_actions"]], 1)

    actor, q1, q2 = mlp(s.shape[1], a.shape[1]), mlp(x.shape[1], 1), mlp(x.shape[1], 1)
    target_actor, target_q1, target_q2 = (copy.deepcopy(net) for net in (actor, q1, q2))
    pairs = [(target_actor, actor), (target_q1, q1), (target_q2, q2)]
    actor_optimizer = torch.optim.Adam(actor.parameters(), 1e-4)
    critic_optimizer = torch.optim.Adam([*q1.parameters(), *q2.parameters()], 3e-4)

    c4 = C4Anywhere(q1, target_q1, x, x2, data["next_action_valid"], seed=arguments.seed)  # C4

    for update in range(1, arguments.updates + 1):
        rows = c4.rows(256)  # C4; without it: torch.randint(len(s), (256,))
        with torch.no_grad():
            noise = (0.2 * torch.randn_like(a[rows])).clamp(-0.5, 0.5)
            next_action = (torch.tanh(target_actor(s2[rows])) + noise).clamp(-1, 1)
            next_pair = torch.cat([s2[rows], next_action], 1)
            next_q = torch.minimum(target_q1(next_pair), target_q2(next_pair)).squeeze(1)
            y = r[rows] + 0.99 * continues[rows] * next_q

        loss = F.mse_loss(q1(x[rows]).squeeze(1), y) + F.mse_loss(q2(x[rows]).squeeze(1), y)
        loss = loss + c4.penalty(q1, target_q1) + c4.penalty(q2, target_q2)  # C4
        critic_optimizer.zero_grad()
        loss.backward()
        critic_optimizer.step()

        if update % 2 == 0:
            action = torch.tanh(actor(s[rows]))
            q = q1(torch.cat([s[rows], action], 1))
            actor_loss = F.mse_loss(action, a[rows]) - 2.5 * q.mean() / q.abs().mean().detach()
            actor_optimizer.zero_grad()
            actor_loss.backward()
            actor_optimizer.step()
            with torch.no_grad():
                for target, online in pairs:
                    for p_target, p in zip(target.parameters(), online.parameters(), strict=True):
                        p_target.lerp_(p, 0.005)

        if update % 500 == 0 or update == arguments.updates:
            clusters = int(c4.report["c4_effective_K"])
            print(f"update {update}: critic loss {loss.item():.4g}, Q {q.mean().item():.4g}, {clusters} clusters")


if __name__ == "__main__":
    main()

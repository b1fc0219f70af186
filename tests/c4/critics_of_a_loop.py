"""Critics as loops of their own have them, and C4 around them."""

from typing import Any

import torch

from c4rl.plugins.c4.anywhere import C4Anywhere, C4AnywhereConfig


class Apart(torch.nn.Module):
    """Q(s, a), with the head registered before the body."""

    def __init__(self, low: float = 0.0) -> None:
        super().__init__()
        self.head, self.body = torch.nn.Linear(8, 1), torch.nn.Linear(3, 8)
        torch.nn.init.constant_(self.head.bias, low)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x))

    def forward(self, state: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(torch.cat([state, action], 1))).squeeze(1)


class Joined(torch.nn.Module):
    def __init__(self, critic: Apart) -> None:
        super().__init__()
        self.critic = critic

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.critic(x[:, :2], x[:, 2:])


def some_rows(count: int = 300) -> torch.Tensor:
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(0))


def outside(critic: Any, x: torch.Tensor | None = None, **options: Any) -> C4Anywhere:
    x = some_rows() if x is None else x
    config = C4AnywhereConfig(**{"K": 2, "period": 2} | options.pop("config", {}))
    return C4Anywhere(
        critic, critic, x, x.roll(-1, 0), torch.ones(len(x)), **{"config": config, "action_dim": 1} | options
    )


def drawn(critic: Any, **options: Any) -> C4Anywhere:
    c4 = outside(critic, **options)
    c4.rows(32)
    return c4

"""What losses are made of."""

import torch

from c4rl.algorithms.losses import mean_squared_error


def test_a_target_is_regressed_on_and_not_moved() -> None:
    x, y = (torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    loss = mean_squared_error(x, y)
    torch.testing.assert_close(loss, (x - y).square().mean((1, 2)))
    gradient, none = torch.autograd.grad(loss.sum(), (x, y), allow_unused=True)
    torch.testing.assert_close(gradient, 2 * (x - y) / 12)
    assert none is None


def test_errors_are_averaged_for_every_member() -> None:
    x, y = torch.randn(2, 3, 4), torch.randn(2, 1, 4)
    torch.testing.assert_close(mean_squared_error(x, y, keep=2), (x - y).square().mean(2))

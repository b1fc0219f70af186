"""Projection of each side on its own principal directions."""

import torch

from c4rl.plugins.c4.gaussian_mixture import fit
from c4rl.plugins.c4.principal_directions import principal_directions


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_run_in_a_stack_is_projected_as_if_alone_and_ignores_masked_rows() -> None:
    g = draw(3, 200, 10) @ draw(3, 10, 10, seed=1)
    valid = torch.rand(3, 200, generator=torch.Generator().manual_seed(2)) > 0.3
    spoiled = torch.where(valid.unsqueeze(2), g, torch.nan)
    stacked = principal_directions(spoiled, 4, valid)
    for r in range(3):
        alone = principal_directions(g[r : r + 1, valid[r]], 4)
        for a, b in zip(alone, stacked, strict=True):
            torch.testing.assert_close(a[0], b[r], rtol=1e-8, atol=1e-8)


def test_directions_are_orthonormal_and_their_sign_does_not_depend_on_the_data_s() -> None:
    g = draw(1, 300, 6) @ draw(1, 6, 6, seed=1)
    projection, mirrored = principal_directions(g, 3), principal_directions(-g, 3)
    torch.testing.assert_close(projection.directions, mirrored.directions)
    assert (projection.directions.amax(1) == projection.directions.abs().amax(1)).all()  # the largest is positive
    torch.testing.assert_close(
        projection.directions.mT @ projection.directions, torch.eye(3, dtype=g.dtype).expand(1, 3, 3)
    )
    torch.testing.assert_close(projection(g).mean(1), torch.zeros(1, 3, dtype=g.dtype), rtol=0, atol=1e-9)
    variance = projection(g).var(1)
    assert (variance.diff(dim=1) < 0).all()


def test_fewer_features_than_directions_are_only_rotated() -> None:
    g = draw(1, 100, 5)
    projection = principal_directions(g, 16)
    assert projection.directions.shape == (1, 5, 5)
    torch.testing.assert_close(projection.kept_variance, torch.ones(1, dtype=g.dtype))
    torch.testing.assert_close(projection(g).var(1).sum(), g.var(1).sum())


def test_features_that_blew_up_reach_the_fit_as_a_failure_of_their_run_only() -> None:
    g = draw(2, 100, 6)
    g[1, 4, 0] = torch.nan
    huge = torch.cat([g, draw(1, 100, 6, seed=3) * 1e300])
    projected = principal_directions(huge, 2)(huge)
    start = torch.ones(3, 100, 1, dtype=g.dtype)
    assert fit(torch.cat([projected, projected], 2), start).failed.tolist() == [False, True, True]

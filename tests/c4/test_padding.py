"""What a run of few clusters keeps in a stack of many."""

import torch

from c4rl.plugins.c4.gaussian_mixture import Mixture, fit
from c4rl.plugins.c4.padding import padded, unpadded


def test_a_padded_mixture_is_the_same_mixture() -> None:
    y = torch.randn(1, 60, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    start = torch.nn.functional.one_hot(torch.arange(60) % 2, 2).double().unsqueeze(0)
    whole = fit(y, start).mixture
    own, stack = (2, 60), (5, 90)
    for name, mixture, rows in (("mixture", whole, y), ("marginal", whole.marginal(), y[:, :, 2:])):
        parts = mixture._asdict().items()
        larger = {part: padded(f"{name}.{part}", tensor[0], own, stack).unsqueeze(0) for part, tensor in parts}
        torch.testing.assert_close(Mixture(**larger).log_prob(rows), mixture.log_prob(rows))
        for part, tensor in parts:
            assert torch.equal(unpadded(f"{name}.{part}", larger[part][0], own, stack), tensor[0])

"""A mixture's parameters in the units of y = [g', g], which a fit standardises."""

import torch
from torch import Tensor

from c4rl.plugins.c4.gaussian_mixture import Mixture


def omega(mixture: Mixture) -> Tensor:
    """Omega_z = [Sigma' C; C^T Sigma] with its share of epsilon I, [R, K, D, D]."""
    diagonal = mixture.covariances.dim() == 3
    covariances = torch.diag_embed(mixture.covariances) if diagonal else mixture.covariances
    scale = mixture.scale.unsqueeze(1)
    return covariances * scale.unsqueeze(3) * scale.unsqueeze(2)


def centres(mixture: Mixture) -> Tensor:
    """mu_z = [mu'_z, mu_z], [R, K, D]."""
    return mixture.means * mixture.scale.unsqueeze(1) + mixture.shift.unsqueeze(1)

"""Returns of logged trajectories."""

import torch
from torch import Tensor

from c4rl.core.buffer import TransitionBuffer


def returns_to_go(buffer: TransitionBuffer, discount: float) -> Tensor:
    """G = r + γG' of every row of the buffer, [N] float64; a trajectory's last row has G = r.

    Sums over 1, 2, 4, ... rows: each pass adds to every sum the one that begins where it stops.
    """
    rows, ids = buffer.unpack(buffer.packed), buffer.trajectory_ids
    begins = torch.ones(len(ids) + 1, dtype=torch.bool, device=ids.device)
    begins[1:-1] = (ids[1:] != ids[:-1]) | (rows.continues[:-1] == 0)
    begins[torch.cat([buffer.offsets, buffer.offsets + buffer.lengths])] = True  # ids restart in each dataset
    trajectory = begins[:-1].cumsum(0)
    total, reach = rows.rewards.double(), 1
    while reach < len(total):
        following = torch.where(trajectory[reach:] == trajectory[:-reach], total[reach:], 0)
        total = torch.cat([total[:-reach] + discount**reach * following, total[-reach:]])
        reach *= 2
    return total

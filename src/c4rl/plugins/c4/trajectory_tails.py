"""Trajectory tails: what follows a cluster's last member in each trajectory that the cluster touches.

Authors' release: their cluster buffers hold these rows too, so that clusters overlap. A cluster that holds the first
rows of every trajectory, and none after them, becomes the whole data.
"""

import torch
from torch import Tensor


def with_trajectory_tails(members: Tensor, trajectories: Tensor, rows: Tensor, trajectory_count: int) -> Tensor:
    """members [R, P, K] bool, with the tails added.

    trajectories [R, P]: the trajectory of each row, below trajectory_count. rows [R, P]: the rows' places in the logged
    order, in which they need not be given (a pool is shuffled).
    """
    runs, _, clusters = members.shape
    place = rows.unsqueeze(2)
    trajectory = trajectories.long().unsqueeze(2).expand(-1, -1, clusters)
    last = place.new_full((runs, trajectory_count, clusters), -1)
    last = last.scatter_reduce(1, trajectory, torch.where(members, place, -1), "amax").gather(1, trajectory)
    return members | ((last >= 0) & (place > last))

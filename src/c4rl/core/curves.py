"""What is reported of a run's curve of evaluations."""

import numpy as np


def late_mean(curve: np.ndarray) -> float:
    """The mean over the second half of a run's evaluations: half the noise of the last one."""
    return float(np.mean(curve[len(curve) // 2 :]))

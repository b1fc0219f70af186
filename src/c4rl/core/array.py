"""The type of NumPy arrays."""

import numpy as np

Array = np.ndarray

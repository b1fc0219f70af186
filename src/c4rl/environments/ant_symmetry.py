"""The ant's eight symmetries: four turns about its axis, which only rename its legs, and each after a mirror image.

They are matrices on rows: observation @ matrix is what the turned ant observes. They leave the simulator as it is.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from c4rl.core.array import Array

# the legs in the order of their joints, a quarter turn apart, and the signs of their ankles' axes
_ANKLES = np.array([1.0, -1.0, -1.0, 1.0])
_MIRRORED = (1, 0, 3, 2)
_MOTOR_LEGS = (3, 0, 1, 2)  # motors are in another order: (hip, ankle) of these legs


class _Symmetry(NamedTuple):
    """In the frame of the body."""

    vector: Array
    spin: Array  # what turns, turns the other way in a mirror
    joints: Array

    @property
    def motors(self) -> Array:
        order = [2 * leg + part for leg in _MOTOR_LEGS for part in (0, 1)]  # joint of each motor
        return self.joints[np.ix_(order, order)]


def _symmetries() -> Iterator[_Symmetry]:
    for mirrored in (False, True):
        for quarters in range(4):
            vector, spin, joints = np.eye(3), np.eye(3), np.eye(8)
            if mirrored:  # x -> -x
                flip = np.diag([-1.0, 1.0, 1.0])
                vector, spin, joints = flip, -flip, _leg_matrix(_MIRRORED, -np.ones(4))
            for _ in range(quarters):
                turn = np.array([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])  # rows: x -> y, y -> -x
                legs = _leg_matrix((1, 2, 3, 0), _ANKLES * np.roll(_ANKLES, -1))
                vector, spin, joints = vector @ turn, spin @ turn, joints @ legs
            yield _Symmetry(vector, spin, joints)


def goal_ant_symmetries() -> tuple[Array, Array]:
    """Of the goal-reaching ant, which observes all in its body's frame: observations [8, 29, 29], actions [8, 8, 8]."""
    found = list(_symmetries())
    turns = [_blocks(np.eye(1), s.vector, s.joints, s.vector, s.spin, s.joints, s.vector) for s in found]
    return _stacked(turns), _stacked([s.motors for s in found])


def _leg_matrix(target: tuple[int, ...], ankle_signs: Array) -> Array:
    """Joints of leg i become those of leg target[i]; a mirror image turns hips around as well."""
    out = np.zeros((8, 8))
    mirrored = bool((ankle_signs < 0).all())
    for leg, other in enumerate(target):
        out[2 * leg, 2 * other] = -1.0 if mirrored else 1.0
        out[2 * leg + 1, 2 * other + 1] = ankle_signs[leg]
    return out


def _blocks(*parts: Array) -> Array:
    size = sum(len(part) for part in parts)
    out, at = np.zeros((size, size)), 0
    for part in parts:
        out[at : at + len(part), at : at + len(part)] = part
        at += len(part)
    return out


def _stacked(matrices: list[Array]) -> Array:
    return np.stack(matrices).astype(np.float32)

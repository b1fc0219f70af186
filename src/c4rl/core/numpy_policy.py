"""A trained policy that needs NumPy alone: what evaluation workers run and users export."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from c4rl.core.array import Array

SQUASHES = ("tanh", "clip")
LAYER_NORM_EPSILON = 1e-5
ZERO = np.float32(0)


@dataclass(frozen=True)
class NumpyPolicy:
    """Deterministic policy: normalise, ReLU MLP, squash, rescale to the task's action bounds. All float32.

    An ensemble has a member axis in front of its layers' arrays; it plays the mean of its members' actions.
    """

    weights: tuple[Array, ...]  # each [in, out] or [members, in, out]; the last one is the mean head
    biases: tuple[Array, ...]  # each [out] or [members, 1, out]
    observation_mean: Array
    observation_std: Array
    action_low: Array
    action_high: Array
    squash: str = "tanh"  # one of SQUASHES
    gains: tuple[Array, ...] = ()  # with LayerNorm: of each hidden layer before its ReLU, shaped as its biases
    shifts: tuple[Array, ...] = ()

    def act(self, observations: Array, rng: np.random.Generator | None = None) -> Array:
        """[s] -> [a], or [B, s] -> [B, a], in the units of the logged actions. rng: draws nothing."""
        if self.weights[0].ndim == 3 and np.ndim(observations) == 1:
            return self.act(np.asarray(observations)[None])[0]
        if np.shape(observations)[-1:] != self.observation_mean.shape[-1:]:
            expected = self.observation_mean.shape[-1]
            raise ValueError(f"observations: found shape {np.shape(observations)}, expected {expected} numbers each")
        x = (np.asarray(observations, np.float32) - self.observation_mean) / self.observation_std
        last = len(self.weights) - 1
        for i, w in enumerate(self.weights):  # in place: in small networks, making arrays costs as much as the products
            x = x @ w
            x += self.biases[i]
            if i == last:
                break
            if self.gains:
                x -= x.mean(-1, keepdims=True)
                x /= np.sqrt(np.square(x).mean(-1, keepdims=True) + np.float32(LAYER_NORM_EPSILON))
                x *= self.gains[i]
                x += self.shifts[i]
            np.maximum(x, ZERO, out=x)
        x = np.tanh(x, out=x) if self.squash == "tanh" else np.clip(x, -1, 1)
        x = x.mean(0) if self.weights[0].ndim == 3 else x
        x += 1
        x /= 2
        x *= self.action_high - self.action_low
        x += self.action_low
        # rounding may lead one step beyond the upper bound, which strict environments refuse
        return np.minimum(x, self.action_high, out=x)

    @classmethod
    def ensemble(cls, members: "Sequence[NumpyPolicy]") -> "NumpyPolicy":
        """One policy of several that were trained on the same data with networks of the same shape."""

        def vectors(name: str) -> tuple[Array, ...]:
            return tuple(np.stack(layer)[:, None] for layer in zip(*(getattr(m, name) for m in members), strict=True))

        weights = zip(*(member.weights for member in members), strict=True)
        return replace(
            members[0],
            weights=tuple(np.stack(layer) for layer in weights),
            biases=vectors("biases"),
            gains=vectors("gains"),
            shifts=vectors("shifts"),
        )

    def members(self) -> "list[NumpyPolicy]":
        """The policies of an ensemble; a policy alone is its only one."""
        if self.weights[0].ndim == 2:
            return [self]
        return [
            replace(
                self,
                weights=tuple(w[k] for w in self.weights),
                biases=tuple(b[k, 0] for b in self.biases),
                gains=tuple(gain[k, 0] for gain in self.gains),
                shifts=tuple(shift[k, 0] for shift in self.shifts),
            )
            for k in range(len(self.weights[0]))
        ]

    def misfit(self) -> str | None:
        """What does not fit together, in words; None if all does."""
        if self.squash not in SQUASHES:
            return f"squash '{self.squash}', expected one of {', '.join(SQUASHES)}"
        if {len(self.gains), len(self.shifts)} not in ({0}, {len(self.weights) - 1}):
            found = f"{len(self.gains)} gains and {len(self.shifts)} shifts of LayerNorm"
            return f"{found}, expected {len(self.weights) - 1} of each, or none"
        width, actions = self.observation_mean.size, self.action_low.size
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("observation_mean", "observation_std"), (width,))
        shapes |= dict.fromkeys(("action_low", "action_high"), (actions,))
        for i, bias in enumerate(self.biases):
            units = actions if i == len(self.biases) - 1 else bias.size
            shapes |= {f"w{i}": (width, units)} | dict.fromkeys((f"b{i}", f"gain{i}", f"shift{i}"), (units,))
            width = units
        for name, array in self.arrays().items():
            if name in shapes and (array.shape != shapes[name] or array.dtype != np.float32):
                return f"{name} of {array.dtype} {list(array.shape)}, expected float32 {list(shapes[name])}"
            if name in shapes and not np.isfinite(array).all():
                return f"{name} with numbers that are not finite, expected finite ones"
        if not (self.observation_std > 0).all() or not (self.action_low < self.action_high).all():
            return "no spread of an observation or action, expected std above 0 and low below high"
        return None

    def arrays(self) -> dict[str, Array]:
        """Plain arrays for an npz file; `from_arrays` reads them back."""
        out: dict[str, Array] = {f"w{i}": w for i, w in enumerate(self.weights)}
        out |= {f"b{i}": b for i, b in enumerate(self.biases)}
        out |= {f"gain{i}": gain for i, gain in enumerate(self.gains)}
        out |= {f"shift{i}": shift for i, shift in enumerate(self.shifts)}
        out |= {"observation_mean": self.observation_mean, "observation_std": self.observation_std}
        out |= {"action_low": self.action_low, "action_high": self.action_high}
        return out | {"layers": np.array(len(self.weights)), "squash": np.array(self.squash)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> "NumpyPolicy":
        layers = range(int(arrays["layers"]))
        return cls(
            weights=tuple(arrays[f"w{i}"] for i in layers),
            biases=tuple(arrays[f"b{i}"] for i in layers),
            observation_mean=arrays["observation_mean"],
            observation_std=arrays["observation_std"],
            action_low=arrays["action_low"],
            action_high=arrays["action_high"],
            squash=str(arrays["squash"]),
            gains=tuple(arrays[f"gain{i}"] for i in layers if f"gain{i}" in arrays),
            shifts=tuple(arrays[f"shift{i}"] for i in layers if f"shift{i}" in arrays),
        )


def policy_bytes(policy: NumpyPolicy) -> bytes:
    """A line that names the arrays, then the arrays: a tenth of the time of an npz file, which has checksums."""
    arrays = policy.arrays()
    head = [[name, array.dtype.str, array.shape] for name, array in arrays.items()]
    return b"".join([json.dumps(head).encode(), b"\n", *(array.tobytes() for array in arrays.values())])


def policy_from_bytes(content: bytes) -> NumpyPolicy:
    start, arrays = content.index(b"\n") + 1, {}
    for name, dtype, shape in json.loads(content[:start]):
        count = math.prod(shape)
        arrays[name] = np.frombuffer(content, dtype, count, start).reshape(shape).copy()  # aligned, as any array
        start += arrays[name].nbytes
    return NumpyPolicy.from_arrays(arrays)

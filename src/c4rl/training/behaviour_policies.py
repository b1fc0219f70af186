"""Policies of behaviour agents: as files hold them, and without noise for evaluations."""

import numpy as np

from c4rl.core.array import Array
from c4rl.core.numpy_policy import NumpyPolicy
from c4rl.core.policies import GaussianPolicy


def policy_arrays(actor: GaussianPolicy, low: Array, high: Array) -> dict[str, Array]:
    """R policies in the form of docs/recording.md, [R, ...] each."""
    weights, biases = ([p.detach()[:, 0].cpu().numpy() for p in own] for own in (actor.mlp.weights, actor.mlp.biases))
    out: dict[str, Array] = {"n_hidden": np.array(len(weights) - 1)}
    for i, (w, b) in enumerate(zip(weights[:-1], biases[:-1], strict=True)):
        out |= {f"w{i}": w, f"b{i}": b}
    (runs, inputs, _), a = weights[0].shape, actor.action_dim
    out |= {"w_mean": weights[-1][..., :a], "b_mean": biases[-1][..., :a]}
    out |= {"w_log_std": weights[-1][..., a:], "b_log_std": biases[-1][..., a:]}
    out |= {"obs_mean": np.zeros((runs, inputs), np.float32), "obs_std": np.ones((runs, inputs), np.float32)}
    out |= {"log_std_min": np.array(-5, np.float32), "log_std_max": np.array(2, np.float32)}
    out |= {"activation": np.array("relu"), "squash": np.array("tanh"), "action_low": low, "action_high": high}
    return out


def mean_policies(arrays: dict[str, Array]) -> list[NumpyPolicy]:
    """The same without noise."""
    layers = [(arrays[f"w{i}"], arrays[f"b{i}"]) for i in range(int(arrays["n_hidden"]))]
    layers.append((arrays["w_mean"], arrays["b_mean"]))
    return [
        NumpyPolicy(
            tuple(w[run] for w, _ in layers),
            tuple(b[run] for _, b in layers),
            arrays["obs_mean"][run],
            arrays["obs_std"][run],
            arrays["action_low"],
            arrays["action_high"],
        )
        for run in range(len(arrays["w_mean"]))
    ]

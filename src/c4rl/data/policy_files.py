"""Policies in npz and safetensors files, to record data with: those of `c4rl export`, and Gaussian ones
(docs/recording.md)."""

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from c4rl.core.array import Array
from c4rl.core.behaviour_policy import LOG_STD_BOUNDS, BehaviourPolicy
from c4rl.core.errors import InputError
from c4rl.core.files import replacing
from c4rl.core.numpy_policy import SQUASHES, NumpyPolicy
from c4rl.data.checks import Allowance, problem, reason
from c4rl.environments.tasks import Task

EXPORTED = "an npz file as `c4rl export` writes it"
SAFETENSORS = ".safetensors"
WORDS = "n_hidden", "activation", "squash"  # of a Gaussian policy: in the header of a safetensors file
EXPECTED = "a policy as `c4rl export` writes it, or a Gaussian one as in docs/recording.md"


def read_policies(path: Path, task: Task) -> list[NumpyPolicy] | list[BehaviourPolicy]:
    """The policies of a file: one, or all snapshots of a training in their order."""
    try:
        arrays = _arrays(path)
        if "layers" in arrays:
            exported = read_exported(path)
            _check_widths(path, exported.observation_mean.size, exported.action_low.size, task)
            return [exported]
        policies = gaussian_policies(arrays)
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"{path}: there is no such file; expected {EXPECTED}.") from error
    except KeyError as error:
        raise problem(path, str(error.args[0]), "is missing", EXPECTED) from error
    except Exception as error:  # zipfile and NumPy raise many kinds for damaged bytes
        kind = "a safetensors" if path.suffix == SAFETENSORS else "an npz"
        raise InputError(f"{path}: not readable as {kind} file ({reason(error)}); expected {EXPECTED}.") from error
    for policy in policies:
        _check(path, policy, task)
    return policies


def read_exported(path: Path) -> NumpyPolicy:
    """The policy of a file that `c4rl export` wrote, an ensemble too."""
    try:
        policy = NumpyPolicy.from_arrays(_arrays(path))
        members = policy.members()
        whole = NumpyPolicy.ensemble(members) if policy.weights[0].ndim == 3 else policy  # without members: an error
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"{path}: there is no such file, expected {EXPORTED}.") from error
    except Exception as error:  # zipfile and NumPy raise many kinds for damaged bytes
        raise InputError(f"{path}: not readable as a policy ({reason(error)}); expected {EXPORTED}.") from error
    for member in members:
        if (misfit := member.misfit()) is not None:
            raise InputError(f"{path}: found {misfit}")
    for name, array in policy.arrays().items():
        if array.shape != (expected := whole.arrays()[name].shape):  # layers of different numbers of members
            raise InputError(f"{path}: found {name} of {list(array.shape)}, expected {list(expected)}")
    return policy


def _arrays(path: Path) -> dict[str, Array]:
    """All arrays of the file; nothing is unpickled, and nothing is unpacked that the file cannot hold."""
    if path.suffix == SAFETENSORS:
        return _safetensors(path)
    allowance = Allowance(path)
    with zipfile.ZipFile(path) as archive:
        size = sum(member.file_size for member in archive.infolist())
    allowance.take("policy", np.dtype(np.uint8), (size,))
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def _safetensors(path: Path) -> dict[str, Array]:
    """Weights of half precision are widened; what is not a number stands in the header."""
    with safe_open(path, framework="numpy") as file:
        words = file.metadata() or {}
        arrays = {name: file.get_tensor(name).astype(np.float32) for name in file.keys()}  # noqa: SIM118 - no mapping
    return arrays | {name: np.array(words[name]) for name in WORDS if name in words}


def trained_for(path: Path) -> str | None:
    """The task that a behaviour agent's file was trained in, where it says so."""
    if path.suffix != SAFETENSORS:
        return None
    with safe_open(path, framework="numpy") as file:
        return (file.metadata() or {}).get("task")


def write_gaussian(path: Path, arrays: Mapping[str, Array], facts: Mapping[str, str]) -> None:
    """A Gaussian policy, or snapshots of one, as safetensors. arrays: as docs/recording.md has them. facts: more for
    the header."""
    words = {name: str(arrays[name]) for name in WORDS if name in arrays}
    with replacing(path) as temporary:
        save_file(
            {name: np.array(array, order="C") for name, array in arrays.items() if name not in WORDS},
            temporary,
            {**facts, **words},
        )


def gaussian_policies(arrays: Mapping[str, Array]) -> list[BehaviourPolicy]:
    """One policy, or one per snapshot where the weights have a leading axis."""
    if arrays["w_mean"].ndim == 2:
        return [_one_gaussian(arrays)]
    shared = ("n_hidden", "obs_clip", "log_std_min", "log_std_max", "activation", "squash", "action_low", "action_high")
    own = [name for name in arrays if name not in shared and arrays[name].ndim > 0]
    one = ({**arrays, **{name: arrays[name][k] for name in own}} for k in range(len(arrays["w_mean"])))
    return [_one_gaussian(own_arrays) for own_arrays in one]


def _one_gaussian(arrays: Mapping[str, Array]) -> BehaviourPolicy:
    head, (low, high) = "w_log_std" in arrays, LOG_STD_BOUNDS
    return BehaviourPolicy(
        hidden=tuple((arrays[f"w{i}"], arrays[f"b{i}"]) for i in range(int(arrays["n_hidden"]))),
        mean=(arrays["w_mean"], arrays["b_mean"]),
        log_std=(arrays["w_log_std"], arrays["b_log_std"]) if head else arrays["log_std"],
        observation_mean=arrays["obs_mean"],
        observation_std=arrays["obs_std"],
        observation_clip=float(arrays["obs_clip"]) if "obs_clip" in arrays else None,
        log_std_bounds=(float(arrays.get("log_std_min", low)), float(arrays.get("log_std_max", high))),
        activation=str(arrays["activation"]),
        squash="clip" if str(arrays["squash"]) == "none" else str(arrays["squash"]),
        action_low=arrays["action_low"],
        action_high=arrays["action_high"],
    )


def _check_widths(path: Path, observations: int, actions: int, task: Task) -> None:
    if observations != task.observation_dim or actions != task.action_dim:
        found = f"takes {observations} observations and gives {actions} actions"
        raise problem(path, "policy", found, f"{task.observation_dim} and {task.action_dim} for task {task.name}")


def _check(path: Path, policy: BehaviourPolicy, task: Task) -> None:
    """Refuse what does not fit together or is not finite."""
    observations, actions = np.size(policy.observation_mean), np.size(policy.mean[1])
    _check_widths(path, observations, actions, task)
    vectors: dict[str, tuple[Array | float, int]] = {
        "obs_mean": (policy.observation_mean, observations),
        "obs_std": (policy.observation_std, observations),
        "action_low": (policy.action_low, actions),
        "action_high": (policy.action_high, actions),
    }
    if isinstance(policy.log_std, np.ndarray):
        vectors["log_std"] = policy.log_std, actions
    for name, (vector, width) in vectors.items():
        if np.shape(vector) not in ((), (width,)):
            raise problem(path, name, f"has shape {np.shape(vector)}", f"({width},)")
    heads = [policy.mean, *([policy.log_std] if isinstance(policy.log_std, tuple) else [])]
    layers, width = [*policy.hidden, policy.mean], observations
    for weight, bias in layers:
        if weight.shape != (width, *bias.shape) or bias.ndim != 1:
            raise problem(path, "policy", f"has a layer of shape {weight.shape} after {width} numbers", EXPECTED)
        width = len(bias)
    if any(weight.shape != policy.mean[0].shape or bias.shape != policy.mean[1].shape for weight, bias in heads):
        raise problem(path, "w_log_std", f"has shape {heads[-1][0].shape}", f"{policy.mean[0].shape} as 'w_mean'")
    if policy.activation not in ("relu", "tanh"):
        raise problem(path, "activation", f"is '{policy.activation}'", "relu or tanh")
    if policy.squash not in SQUASHES:
        raise problem(path, "squash", f"is '{policy.squash}'", "tanh or none")
    numbers = [
        *(vector for vector, _ in vectors.values()),
        *(array for layer in (*layers, *heads) for array in layer),
    ]
    finite = all(np.asarray(array).dtype.kind in "fiub" and np.isfinite(array).all() for array in numbers)
    finite &= not np.isnan([*policy.log_std_bounds, policy.observation_clip or 0.0]).any()  # infinity: no limit
    if not finite or not (policy.observation_std > 0).all():
        raise problem(path, "policy", "holds no real numbers or some not finite, or a std not above 0", EXPECTED)
    if not (np.asarray(policy.action_low) < policy.action_high).all():
        raise problem(path, "action_low", "is not below 'action_high'", "a lower bound below the upper one")

"""Environments by their Gymnasium id."""

import sys
import warnings
from contextlib import redirect_stdout, suppress

import gymnasium

from c4rl.core.errors import InputError
from c4rl.core.worker_process import described

# the user asked for -v4: hide gymnasium's advice to use -v5
_ADVICE = r".*The environment (Hopper|HalfCheetah|Walker2d|Ant)-v4 is out of date"
# cuts episodes of gymnasium ids that are registered without a time limit of their own
DEFAULT_HORIZON = 1000


def gym_dimensions(environment: str) -> tuple[int, int, int]:
    """(observation numbers, action numbers, horizon) of a gymnasium id whose spaces are flat boxes."""
    made = make_gym(environment)
    try:
        dimensions = []
        for kind, space in (("observation", made.observation_space), ("action", made.action_space)):
            if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1 or space.dtype.kind != "f":
                raise InputError(f"task 'gym:{environment}': the {kind} space is {space}; expected a flat float Box")
            dimensions.append(space.shape[0])
        limit = made.spec.max_episode_steps if made.spec is not None else None
        return dimensions[0], dimensions[1], limit or DEFAULT_HORIZON
    finally:
        close(made)


def close(environment: gymnasium.Env) -> None:
    """Whatever its own code raises: nobody needs it any more."""
    with redirect_stdout(sys.stderr), suppress(Exception, SystemExit):
        environment.close()


def make_gym(environment: str, horizon: int | None = None) -> gymnasium.Env:
    with warnings.catch_warnings(), redirect_stdout(sys.stderr):  # ours may be JSON
        warnings.filterwarnings("ignore", message=_ADVICE, category=DeprecationWarning)
        try:
            # the checker only warns about the environment's code, and costs time in every evaluation
            return gymnasium.make(environment, max_episode_steps=horizon, disable_env_checker=True)
        except (Exception, SystemExit) as error:  # the environment's own code may raise anything, a script's may exit
            of_gymnasium = isinstance(error, (gymnasium.error.Error, ImportError))
            why = (str(error) if of_gymnasium else described(error)).removesuffix(".") + _hint(environment, error)
            raise InputError(f"task 'gym:{environment}': gymnasium cannot make it: {why}") from error


def _hint(environment: str, error: BaseException) -> str:
    """How an environment of the user's own is found."""
    module, colon, _ = environment.partition(":")
    if isinstance(error, gymnasium.error.UnregisteredEnv) and not colon:
        return "; gym:MODULE:ID imports the module that registers it"
    if colon and isinstance(error.__cause__, ModuleNotFoundError) and error.__cause__.name == module.partition(".")[0]:
        return "; with PYTHONPATH=. modules in this folder are found"
    return ""

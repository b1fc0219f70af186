"""The settings of each algorithm's own publication, by task: what --preset published gives. Every entry has its source.

What nobody published is marked "ours". Where several entries match a task, later ones win.
"""

from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any

Values = dict[str, Any]


@dataclass(frozen=True)
class Published:
    """Settings for the tasks whose names match."""

    tasks: tuple[str, ...]  # patterns, as "antmaze-*"
    source: str
    options: Values  # of the algorithm
    training: Values = field(default_factory=dict)  # fields of TrainConfig


# patterns of task names
ROBOTS = ("halfcheetah-*", "hopper-*", "walker2d-*")
LOCOMOTION = (*ROBOTS, "ant-*")
MAZES = ("antmaze-*", "maze2d-*")
ADROIT = ("pen-*", "hammer-*", "door-*", "relocate-*")
DEMONSTRATIONS = (*ADROIT, "kitchen-*")
EVERY_TASK = (*LOCOMOTION, *MAZES, *DEMONSTRATIONS)

MILLION: Values = {"updates": 1_000_000}
NORMALISED = MILLION | {"normalize_observations": True}
RAW = MILLION | {"normalize_observations": False}
HUNDRED_EPISODES: Values = {"eval_episodes": 100}
CORL_EPISODES = Published(MAZES, "CORL: episodes per evaluation", {}, HUNDRED_EPISODES)
# networks that most releases share
TWO_LAYERS: Values = {"hidden_layers": 2, "hidden_width": 256, "batch_size": 256, "actor_lr": 3e-4}
TWO_LAYER_CRITICS = TWO_LAYERS | {"critic_lr": 3e-4, "discount": 0.99}

BC = (
    Published(
        EVERY_TASK,
        "CORL (corl-team/CORL at eeeeef2), any_percent_bc.py; ours: the same for ant and kitchen, which it lacks",
        TWO_LAYERS | {"loss": "mse", "top_fraction": 1.0},
        NORMALISED,
    ),
    CORL_EPISODES,
)

TD3_BC = (
    Published(
        EVERY_TASK,
        "TD3+BC's release (sfujim/TD3_BC at 8791ad7) for halfcheetah, hopper and walker2d, CORL for antmaze, "
        "maze2d and adroit; ours: the same for ant and kitchen, which both lack",
        TWO_LAYER_CRITICS | {"tau": 0.005, "alpha": 2.5, "policy_noise": 0.2, "noise_clip": 0.5, "policy_delay": 2},
        NORMALISED,
    ),
    Published(("antmaze-*",), "CORL, antmaze: r - 1", {}, {"reward_shift": -1.0}),
    CORL_EPISODES,
)

# CORL's, whose scores are known for each domain: CQL's own release leaves α and the step size open
CQL = (
    Published(
        EVERY_TASK,
        "CORL (corl-team/CORL at eeeeef2), configs/offline/cql; ours: the same for ant, which it lacks",
        {"hidden_layers": 3, "hidden_width": 256, "batch_size": 256, "actor_lr": 3e-5, "critic_lr": 3e-4}
        | {"discount": 0.99, "tau": 0.005, "cql_weight": 10.0, "cql_actions": 10, "lse_group": 30}
        | {"importance_sampling": True, "lagrange": "none", "max_q_backup": "none", "entropy": "automatic"}
        | {"backup_entropy": False, "cloning_updates": 0, "policy_log_std": "scaled"}
        | {"critic_initialization": "orthogonal"},
        NORMALISED,
    ),
    Published(("hopper-medium-v2", "hopper-medium"), "CORL, hopper-medium", {}, {"normalize_returns": True}),
    Published(
        ("antmaze-*",),
        "CORL, antmaze; ours: three hidden layers in both critics, where CORL has five in one of them",
        {"actor_lr": 1e-4, "cql_weight": 5.0, "lagrange": "raw_gap", "lagrange_threshold": 0.8}
        | {"lagrange_initial_log": 1.0, "max_q_backup": "max_min", "gap_minimum": -200.0},
        HUNDRED_EPISODES
        | {"normalize_observations": False, "reward_scale": 10.0, "reward_shift": -5.0, "eval_every": 50_000},
    ),
    Published(
        ("maze2d-*",),
        "CORL, maze2d",
        {"lagrange": "raw_gap", "lagrange_threshold": 5.0, "lagrange_initial_log": 1.0},
        HUNDRED_EPISODES,
    ),
    Published(ADROIT, "CORL, adroit", {"actor_lr": 1e-4, "cql_weight": 1.0}),
    Published(
        ("kitchen-*",),
        "Cal-QL's release (nakamotoo/Cal-QL at c510025), run_kitchen.sh and its defaults, without its bound",
        {"hidden_width": 512, "actor_lr": 1e-4, "cql_weight": 5.0}
        | {"importance_sampling": False, "max_q_backup": "max_min"},
        {"updates": 500_000, "normalize_observations": False, "eval_episodes": 20},
    ),
)

# the release: README.md, configs/ and train_offline.py of ikostrikov/implicit_q_learning
_IQL_RELEASE = "IQL's release (ikostrikov/implicit_q_learning at 09d7002)"
_IQL_NETWORKS = (
    TWO_LAYER_CRITICS
    | {"value_lr": 3e-4, "tau": 0.005, "weight_maximum": 100.0, "policy": "gaussian"}
    | {"actor_schedule": "cosine", "initialization": "orthogonal_throughout"}
)
_IQL_LOCOMOTION = _IQL_NETWORKS | {"expectile": 0.7, "inverse_temperature": 3.0, "actor_dropout": 0.0}
_IQL_ANTMAZE = _IQL_NETWORKS | {"expectile": 0.9, "inverse_temperature": 10.0, "actor_dropout": 0.0}
_IQL_KITCHEN = _IQL_NETWORKS | {"expectile": 0.7, "inverse_temperature": 0.5, "actor_dropout": 0.1}
_IQL_RAW = RAW | {"normalize_returns": False}
_RETURN_RANGE = RAW | {"normalize_returns": True}
IQL = (
    Published(ROBOTS, f"{_IQL_RELEASE}, mujoco_config.py", _IQL_LOCOMOTION, _RETURN_RANGE),
    Published(
        ("ant-*",), "ours: as the other robots, their scaling of returns included", _IQL_LOCOMOTION, _RETURN_RANGE
    ),
    Published(
        ("antmaze-*",),
        f"{_IQL_RELEASE}, antmaze_config.py",
        _IQL_ANTMAZE,
        _IQL_RAW | HUNDRED_EPISODES | {"reward_shift": -1.0, "eval_every": 100_000},
    ),
    Published(
        ("maze2d-*",),
        "CORL's iql/maze2d for expectile, β, rewards and states, as IQL's release has none; ours: the release's "
        "networks",
        _IQL_LOCOMOTION,
        _IQL_RAW | HUNDRED_EPISODES | {"normalize_observations": True},
    ),
    Published(DEMONSTRATIONS, f"{_IQL_RELEASE}, kitchen_config.py", _IQL_KITCHEN, _IQL_RAW),
)

_DOGE_RELEASE = "Facebear-ljx/DOGE at 13636d9"
_DOGE_LOCOMOTION = (
    TWO_LAYER_CRITICS
    | {"alpha": 7.5, "distance_lr": 1e-3, "distance_updates": 100_000, "negative_actions": 20}
    | {"negative_range": 1.5, "multiplier_initial": 5.0, "multiplier_minimum": 1.0}
)
_DOGE_ANTMAZE = (
    _DOGE_LOCOMOTION
    | {"critic_lr": 1e-3, "discount": 0.995, "alpha": 5.0}
    | {"distance_lr": 1e-4, "distance_updates": 1_000_000, "multiplier_initial": 1.0}
)
_DOGE_ANTMAZE_TRAINING = RAW | HUNDRED_EPISODES | {"reward_shift": -1.0, "eval_every": 100_000}
DOGE = (
    Published(ROBOTS, f"train_distance_mujoco.py, {_DOGE_RELEASE}", _DOGE_LOCOMOTION, NORMALISED),
    Published(("hopper-medium-v*", "hopper-medium-replay-*"), f"run_d4rl.sh, {_DOGE_RELEASE}", {"alpha": 17.5}),
    Published(("ant-*",), "ours: locomotion's settings", _DOGE_LOCOMOTION, NORMALISED),
    Published(
        ("antmaze-umaze*",), f"train_distance_antmaze.py, {_DOGE_RELEASE}", _DOGE_ANTMAZE, _DOGE_ANTMAZE_TRAINING
    ),
    Published(
        ("antmaze-medium-*", "antmaze-large-*", "antmaze-ultra-*"),
        "ours: the script's default α, which the release names for umaze alone; the rest is the script's",
        _DOGE_ANTMAZE,
        _DOGE_ANTMAZE_TRAINING,
    ),
    Published(
        ("maze2d-*",),
        "ours: locomotion's settings with AntMaze's discount",
        _DOGE_LOCOMOTION | {"discount": 0.995},
        NORMALISED | HUNDRED_EPISODES,
    ),
    Published(
        DEMONSTRATIONS,
        "ours: locomotion's settings with a smaller α for demonstrations",
        _DOGE_LOCOMOTION | {"alpha": 2.5},
        NORMALISED,
    ),
)

_TSRL_RELEASE = "pcheng2/TSRL at 392420f, its 10k-row runs"
_TSRL_OURS = "ours, as nobody published any"
_TSRL_NETWORKS: Values = {"hidden_layers": 2, "hidden_width": 512, "actor_lr": 3e-4, "critic_lr": 3e-4}
_TSRL_LOCOMOTION = _TSRL_NETWORKS | {"latent_cloning": 100.0, "policy_symmetry": 100.0, "quantile": 0.7}
_TSRL_ADROIT = _TSRL_LOCOMOTION | {"latent_cloning": 10_000.0, "encoder_ode_from": 0}
_TSRL_KITCHEN = _TSRL_LOCOMOTION | {"latent_cloning": 10_000.0}
_TSRL_SCHEDULE = MILLION | {"eval_every": 3_000, "eval_episodes": 5}
_TSRL_MAZES = MILLION | HUNDRED_EPISODES
TSRL = (
    Published(ROBOTS, f"{_TSRL_RELEASE}, tsrl_loco.sh", _TSRL_LOCOMOTION, _TSRL_SCHEDULE),
    Published(("walker2d-*",), f"{_TSRL_RELEASE}, tsrl_loco.sh", {"latent_cloning": 200.0, "quantile": 0.5}),
    Published(ADROIT, f"{_TSRL_RELEASE}, tsrl_adroit.sh", _TSRL_ADROIT, _TSRL_SCHEDULE),
    Published(("ant-*",), f"{_TSRL_OURS}: as locomotion", _TSRL_LOCOMOTION, _TSRL_SCHEDULE),
    Published(("maze2d-*",), f"{_TSRL_OURS}: as locomotion", _TSRL_LOCOMOTION, _TSRL_MAZES),
    Published(
        ("antmaze-*",), f"{_TSRL_OURS}: as locomotion; r - 1", _TSRL_LOCOMOTION, _TSRL_MAZES | {"reward_shift": -1.0}
    ),
    Published(("kitchen-*",), f"{_TSRL_OURS}: cloning as Adroit", _TSRL_KITCHEN, _TSRL_SCHEDULE),
)

# the options' defaults are the release's but for what these name
_BPPO_MAIN = "main.py, Dragon-Zhuang/BPPO at 0bb6e7d"
_BPPO_LONG: Values = {"value_updates": 2_000_000, "cloning_updates": 500_000}
_BPPO_TRAINING: Values = {"updates": 2_000_000, "normalize_observations": False}
BPPO = (
    Published(
        (*ROBOTS, "antmaze-*", *DEMONSTRATIONS),
        f"{_BPPO_MAIN}, for every task of the paper; policies are accepted by the simulator",
        _BPPO_LONG | {"output_relu": True, "acceptance": "online_best"},
        _BPPO_TRAINING,
    ),
    Published(
        ("hopper-medium-v*", "walker2d-medium-replay-*"),
        f"{_BPPO_MAIN}, a remark on these two",
        {"value_updates": 200_000, "cloning_updates": 50_000},
        {"updates": 200_000},
    ),
    Published(ADROIT[1:], "ours: no ReLU, as returns are negative", {"output_relu": False}),
    Published(
        ("ant-*", "maze2d-*"),
        f"ours: {_BPPO_MAIN}, without its ReLU and its use of the simulator",
        _BPPO_LONG,
        _BPPO_TRAINING,
    ),
)

_A2PR_RELEASE = "ltlhuuu/A2PR at f92a2a4"
_A2PR_README, _A2PR_HISTORY = f"README.md, {_A2PR_RELEASE}", "READMEv0.md in the history of ltlhuuu/A2PR"
_A2PR_DEFAULTS = (
    TWO_LAYER_CRITICS
    | {"hidden_layers": 4, "actor_layers": 3, "alpha": 2.5, "detach_target": False}
    | {"reconstruction_weight": 1.0, "cloning_weight": 0.5}
)
_AS_EXPERT, _AS_REPLAY = "ours: as medium-expert", "ours: as medium-replay"


def _a2pr(tasks: str, alpha: float, w1: float, w2: float, discount: float, source: str) -> Published:
    options = {"alpha": alpha, "reconstruction_weight": w1, "cloning_weight": w2, "discount": discount}
    return Published((tasks,), source, options)


A2PR = (
    Published(ROBOTS, f"A2PR.py, utils/config.py, {_A2PR_RELEASE}", _A2PR_DEFAULTS, NORMALISED),
    _a2pr("hopper-medium-v*", 2.5, 1.0, 0.4, 0.995, _A2PR_README),
    _a2pr("hopper-medium-replay*", 2.5, 1.5, 0.5, 0.99, _A2PR_HISTORY),
    _a2pr("hopper-full-replay*", 2.5, 1.5, 0.5, 0.99, _AS_REPLAY),
    _a2pr("hopper-medium-expert*", 2.5, 1.0, 4.0, 0.99, _A2PR_HISTORY),
    _a2pr("hopper-expert*", 2.5, 1.0, 4.0, 0.99, _AS_EXPERT),
    _a2pr("halfcheetah-medium-v*", 40.0, 1.0, 1.0, 0.99, _A2PR_README),
    _a2pr("halfcheetah-medium-replay*", 40.0, 1.5, 0.8, 0.995, _A2PR_HISTORY),
    _a2pr("halfcheetah-full-replay*", 40.0, 1.5, 0.8, 0.995, _AS_REPLAY),
    _a2pr("halfcheetah-medium-expert*", 40.0, 1.0, 15.0, 0.99, _A2PR_HISTORY),
    _a2pr("halfcheetah-expert*", 40.0, 1.0, 15.0, 0.99, _AS_EXPERT),
    _a2pr("walker2d-medium-v*", 2.5, 1.5, 1.0, 0.99, _A2PR_README),
    _a2pr("walker2d-medium-replay*", 2.5, 1.5, 1.2, 0.995, _A2PR_HISTORY),
    _a2pr("walker2d-full-replay*", 2.5, 1.5, 1.2, 0.995, _AS_REPLAY),
    _a2pr("walker2d-medium-expert*", 2.5, 1.0, 0.8, 0.99, _A2PR_HISTORY),
    _a2pr("walker2d-expert*", 2.5, 1.0, 0.8, 0.99, _AS_EXPERT),
    Published(("ant-*",), "ours: the release's defaults", _A2PR_DEFAULTS, NORMALISED),
    Published(
        ("antmaze-*",),
        "ours: the release's α, with the discount, reward and raw states usual there",
        _A2PR_DEFAULTS | {"cloning_weight": 1.0, "discount": 0.995},
        RAW | HUNDRED_EPISODES | {"reward_shift": -1.0},
    ),
    Published(("maze2d-*",), "ours: the release's defaults", _A2PR_DEFAULTS, NORMALISED | HUNDRED_EPISODES),
    Published(
        DEMONSTRATIONS,
        "ours: the release's defaults with a smaller α for demonstrations",
        _A2PR_DEFAULTS | {"alpha": 1.0},
        NORMALISED,
    ),
)

_SORL_ADAPTATION = "ours: adaptation to continuous actions on IQL's values, as SORL has no D4RL experiment"
SORL = (
    Published(
        EVERY_TASK,
        _SORL_ADAPTATION,
        TWO_LAYER_CRITICS | {"tau": 0.005, "styles": 3, "expectile": 0.7, "advantage_temperature": 1 / 3},
        NORMALISED,
    ),
    Published(LOCOMOTION, f"{_SORL_ADAPTATION}, returns scaled as IQL does", {}, {"normalize_returns": True}),
    Published(
        ("antmaze-*",),
        f"{_SORL_ADAPTATION}, IQL's for antmaze",
        {"expectile": 0.9, "advantage_temperature": 1 / 10},
        {"reward_shift": -1.0},
    ),
    Published(MAZES, f"{_SORL_ADAPTATION}: episodes per evaluation", {}, HUNDRED_EPISODES),
)

# the release's configs (tinkoff-ai/ReBRAC), as CORL repeats them; CORL adds maze2d
_REBRAC = "ReBRAC's release as in CORL, configs/offline/rebrac"
_REBRAC_LOCOMOTION: Values = (
    {"hidden_layers": 3, "hidden_width": 256, "batch_size": 1024, "actor_lr": 1e-3, "critic_lr": 1e-3}
    | {"discount": 0.99, "tau": 0.005, "policy_noise": 0.2, "noise_clip": 0.5, "policy_delay": 2}
    | {"alpha": 1.0, "actor_cloning": 0.01, "critic_cloning": 0.01}
)
_REBRAC_SMALL_BATCH = _REBRAC_LOCOMOTION | {"batch_size": 256, "actor_lr": 3e-4, "critic_lr": 3e-4}
_REBRAC_MAZE2D = _REBRAC_SMALL_BATCH | {"actor_cloning": 0.003, "critic_cloning": 0.001}
_REBRAC_ANTMAZE = _REBRAC_SMALL_BATCH | {"critic_lr": 5e-5, "discount": 0.999}


def _rebrac(tasks: str, actor: float, critic: float, source: str = f"{_REBRAC}: β1, β2") -> Published:
    return Published(tuple(tasks.split()), source, {"actor_cloning": actor, "critic_cloning": critic})


REBRAC = (
    Published(ROBOTS, f"{_REBRAC}; β1 and β2 of the sets not named below", _REBRAC_LOCOMOTION, RAW),
    Published(ADROIT, f"{_REBRAC}; β1 and β2 of the sets not named below", _REBRAC_SMALL_BATCH, RAW),
    _rebrac("halfcheetah-medium-v*", 0.001, 0.01),
    _rebrac("halfcheetah-medium-replay*", 0.01, 0.001),
    _rebrac("halfcheetah-full-replay*", 0.001, 0.1),
    _rebrac("halfcheetah-medium-expert* door-cloned*", 0.01, 0.1),
    _rebrac("walker2d-medium-v*", 0.05, 0.1),
    _rebrac("walker2d-medium-replay* door-expert* relocate-expert*", 0.05, 0.01),
    _rebrac("walker2d-expert* hammer-human*", 0.01, 0.5),
    _rebrac("hopper-medium-replay* pen-cloned*", 0.05, 0.5),
    _rebrac("hopper-medium-expert* relocate-human* relocate-cloned*", 0.1, 0.01),
    _rebrac("hopper-expert* door-human*", 0.1, 0.1),
    _rebrac("pen-human* hammer-cloned*", 0.1, 0.5),
    Published(("ant-*",), "ours: locomotion's settings, β1 and β2 of the middle of its grid", _REBRAC_LOCOMOTION, RAW),
    Published(("maze2d-*",), f"{_REBRAC}; ours: the same for dense rewards", _REBRAC_MAZE2D, RAW | HUNDRED_EPISODES),
    Published(
        ("antmaze-*",),
        f"{_REBRAC}, 100 r",
        _REBRAC_ANTMAZE,
        RAW | HUNDRED_EPISODES | {"reward_scale": 100.0, "eval_every": 50_000},
    ),
    _rebrac("antmaze-umaze-v*", 0.003, 0.002),
    _rebrac("antmaze-umaze-diverse*", 0.003, 0.001),
    _rebrac("antmaze-medium-play*", 0.001, 0.0005),
    _rebrac("antmaze-medium-diverse*", 0.001, 0.0),
    _rebrac("antmaze-large-play*", 0.002, 0.001),
    _rebrac("antmaze-large-diverse*", 0.002, 0.002),
    _rebrac("antmaze-ultra-*", 0.002, 0.001, "ours: as antmaze-large-play"),
    Published(
        ("kitchen-*",),
        "ours: Adroit's settings for human demonstrations",
        _REBRAC_SMALL_BATCH | {"actor_cloning": 0.1, "critic_cloning": 0.1},
        RAW,
    ),
)

PUBLISHED: dict[str, tuple[Published, ...]] = {
    "bc": BC,
    "td3_bc": TD3_BC,
    "cql": CQL,
    "iql": IQL,
    "rebrac": REBRAC,
    "doge": DOGE,
    "tsrl": TSRL,
    "bppo": BPPO,
    "a2pr": A2PR,
    "sorl": SORL,
}


def published_for(algorithm: str, task: str) -> list[Published]:
    """The settings that name this task (with its version), in order: later ones win."""
    return [p for p in PUBLISHED.get(algorithm, ()) if any(fnmatch(task, pattern) for pattern in p.tasks)]

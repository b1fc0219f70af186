"""One contract for every algorithm x plug-in."""

import itertools
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin

import pytest
import torch

from c4rl.core.errors import InputError
from c4rl.jobs.config import TrainConfig
from c4rl.jobs.config_file import from_json, to_json
from c4rl.jobs.registry import ALGORITHMS, PLUGINS
from c4rl.plugins.c4.plugin import C4Config
from c4rl.plugins.layer_norm import LayerNormConfig
from c4rl.plugins.returns import ReturnsConfig
from tests.helpers import (
    SMALL_PLUGINS,
    advance,
    make_launch,
    plain_scaling,
    small_config,
    small_dataset,
    with_trajectories,
)

# clusters are refreshed within the few updates of these tests, on projected features and on all of them
C4_FORMS = [
    C4Config(K=3, period=2, directions=4, mode="proxy"),
    C4Config(K=3, period=2, mode="exact"),
    C4Config(K=2, period=3, sampler="hard", estimator="unbiased", scale="per_feature", lambda_="auto", pool=64),
    C4Config(K=2, period=2, divergence="mse", divergence_weight=0.5, divergence_gate=0.2),
    # every quirk of the authors' release
    C4Config(
        K=3,
        period=3,
        sampler="hard",
        mixture_start="cold",
        directions=None,
        initial_clusters="state_action",
        trajectory_tails=True,
        drop_small=True,
        next_features="online",
        average_critics=True,
        estimator="dot_product",
        zero_next_actions=True,
        mask_invalid=False,
    ),
]
PLUGIN_FORMS: list[tuple[tuple[str, ...], tuple[Any, ...]]] = [
    ((), ()),
    *(((name,), (kind(**SMALL_PLUGINS.get(name, {})),)) for name, (kind, _) in PLUGINS.items() if name != "c4"),
    (("returns",), (ReturnsConfig(weighted_rows="all"),)),
    *((("c4",), (form,)) for form in C4_FORMS),
    (("c4", "layer_norm"), (C4_FORMS[1], LayerNormConfig())),
]


def makes_sense(algorithm: str, plugins: tuple[tuple[str, ...], tuple[Any, ...]]) -> bool:
    kind, (names, options) = ALGORITHMS[algorithm], plugins
    adds_to_actor = any(isinstance(form, C4Config) and form.divergence_weight for form in options)
    adds_to_actor |= any(isinstance(form, ReturnsConfig) and form.weighted_rows == "actor" for form in options)
    lacks_policy = not (kind.has_actor_term and kind.has_one_policy)
    lacks_policy &= any(PLUGINS[name][1].needs_policy for name in names)
    lacks_critic = not kind.has_critic and any(PLUGINS[name][1].needs_critic for name in names)
    lacks = lacks_policy or lacks_critic or (adds_to_actor and not kind.has_actor_term)
    return not lacks and algorithm not in names


COMBINATIONS = [
    pytest.param(name, plugins, id=f"{name}-{'+'.join(plugins[0]) or 'none'}-{i}")
    for name, (i, plugins) in itertools.product(ALGORITHMS, enumerate(PLUGIN_FORMS))
    if makes_sense(name, plugins)
]


def config_of(algorithm: str, plugins: tuple[tuple[str, ...], tuple[Any, ...]], **values: Any) -> TrainConfig:
    return small_config(algorithm, plugins[0], plugin_options=plugins[1], **values)


@pytest.mark.parametrize(("algorithm", "plugins"), COMBINATIONS)
class TestEveryAlgorithmWithEveryPlugin:
    def test_updates_change_every_trained_parameter_and_losses_are_finite(self, algorithm, plugins) -> None:
        launch = make_launch(config_of(algorithm, plugins))
        before = {name: tensor.clone() for name, tensor in launch.live_state().items()}
        advance(launch, 9)
        moved = {k for k, v in launch.live_state().items() if not torch.equal(v, before[k])}
        trained = {
            f"{key}/{name}"
            for key, optimizer in launch.algorithm.optimizers.items()
            if optimizer.count > 0
            for name in optimizer.names
        }
        assert trained <= moved, f"not trained: {sorted(trained - moved)}"
        assert all(value == value for value in launch.read_metrics()[0].values())
        assert not launch.failures()

    def test_targets_only_move_by_polyak(self, algorithm, plugins) -> None:
        launch = make_launch(
            config_of(algorithm, plugins, **({"tau": 0.0} if ALGORITHMS[algorithm].has_critic else {}))
        )
        before = {n: t.clone() for n, t in launch.live_state().items() if n.startswith("target_")}
        advance(launch, 9)
        after = launch.live_state()
        assert all(torch.equal(after[name], tensor) for name, tensor in before.items())

    def test_a_stack_of_three_equals_three_alone(self, algorithm, plugins) -> None:
        stacked = advance(make_launch(config_of(algorithm, plugins, seeds=(3, 1, 4))), 12).run_states()
        for seed in (3, 1, 4):
            alone = advance(make_launch(config_of(algorithm, plugins, seeds=(seed,))), 12).run_states()[seed]
            for name, tensor in alone.items():
                torch.testing.assert_close(stacked[seed][name], tensor, rtol=1e-9, atol=1e-12, msg=name)

    def test_resuming_is_exact(self, algorithm, plugins) -> None:
        config = config_of(algorithm, plugins, seeds=(0, 1))
        first, second = advance(make_launch(config), 4), make_launch(config)
        second.load(first.run_states())
        straight, resumed = (advance(launch, 5, start=4).run_states() for launch in (first, second))
        for seed in (0, 1):
            for name, tensor in straight[seed].items():
                assert torch.equal(resumed[seed][name], tensor), name

    def test_the_exported_policy_is_the_evaluation_policy(self, algorithm, plugins) -> None:
        dataset = small_dataset()
        launch = advance(make_launch(config_of(algorithm, plugins, seeds=(0, 1)), dataset, torch.float32), 3)
        observations = torch.tensor(dataset.observations[:20])
        actions = launch.algorithm.act(observations.expand(2, -1, -1))
        for run, policy in enumerate(launch.policies(plain_scaling(dataset)).values()):
            torch.testing.assert_close(
                torch.tensor(policy.act(observations.numpy())), actions[run], rtol=1e-5, atol=1e-6
            )

    def test_the_config_survives_json(self, algorithm, plugins) -> None:
        config = config_of(algorithm, plugins, seeds=(0, 7))
        assert from_json(to_json(config), "here") == config


def other_choices() -> Iterator[tuple[str, str, Any]]:
    """(algorithm, option, a choice that is not the default) of words and switches that need no simulator."""
    for name, kind in ALGORITHMS.items():
        for one in fields(kind.config_type):
            words = get_args(one.type) if get_origin(one.type) is Literal else ()
            for value in (True, False) if one.type is bool else words:
                with suppress(InputError):
                    small_config(name, **{one.name: value})
                    if value != one.default:
                        yield name, one.name, value


@pytest.mark.parametrize(("algorithm", "option", "value"), list(other_choices()))
def test_every_choice_makes_a_difference(algorithm: str, option: str, value: Any) -> None:
    data = with_trajectories(small_dataset(), 10, terminal=True)
    runs = [advance(make_launch(small_config(algorithm, **own), data), 9) for own in ({}, {option: value})]
    default, chosen = (run.run_states()[0] for run in runs)
    assert default.keys() != chosen.keys() or any(not torch.equal(default[name], chosen[name]) for name in default)


def test_a_term_for_an_actor_that_takes_none_is_refused() -> None:
    with pytest.raises(InputError, match=r"--divergence-weight: found 0.5, expected 0: BPPO has no actor's loss"):
        small_config("bppo", ("c4",), plugin_options=(C4_FORMS[3],))


def test_rows_for_an_actor_that_takes_none_are_refused() -> None:
    with pytest.raises(InputError, match="--weighted-rows: found actor, expected all: BPPO trains no actor where"):
        small_config("bppo", ("returns",))
    small_config("bppo", ("returns",), plugin_options=(ReturnsConfig(weighted_rows="all"),))

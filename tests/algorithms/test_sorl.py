"""SORL: a policy per style and the choice among them; and the styles as a sampler for other algorithms."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from c4rl.algorithms.sorl import SORL
from c4rl.core.errors import InputError
from c4rl.data.dataset import Dataset
from c4rl.jobs.config import TrainConfig
from c4rl.jobs.preset_fields import published_fields
from c4rl.jobs.presets.published import PUBLISHED
from c4rl.plugins.seams import Plugins
from c4rl.plugins.style_sampler import StyleSampler, StyleSamplerConfig
from c4rl.plugins.trajectory_styles import TrajectoryStyles
from c4rl.training.launch import Launch
from tests.algorithms.scripted_policies import good_action, scripted
from tests.algorithms.test_plugin_terms import Adds
from tests.helpers import advance, make_launch, plain_scaling, small_config

EM: dict[str, Any] = {
    "styles": 2,
    "style_rounds": 10,
    "style_steps": 100,
    "style_lr": 1e-3,
    "style_layers": 2,
    "style_width": 32,
}


def sorl_lane(data: Dataset, seeds: tuple[int, ...] = (0, 1), **options: Any) -> Launch:
    return make_launch(small_config("sorl", (), seeds, **(EM | options)), data)


def algorithm_of(launch: Launch) -> SORL:
    assert isinstance(launch.algorithm, SORL)
    return launch.algorithm


class TestStylePolicies:
    @pytest.mark.parametrize("selection", ["q", "advantage"])
    def test_the_better_policy_is_found_and_selected(self, selection: str) -> None:
        data, good = scripted(4)
        values = {"updates": 500, "actor_lr": 3e-3, "critic_lr": 3e-3, "batch_size": 64, "discount": 0.9, "tau": 0.05}
        launch = sorl_lane(data, (2,), hidden_width=32, selection=selection, style_rounds=5, **values)
        advance(launch, 5 * 100 + 500)
        algorithm = algorithm_of(launch)
        states = torch.tensor(data.observations, dtype=torch.float64)
        actions = algorithm.act(states[None])[0]
        own = algorithm.styles.posteriors[0, torch.tensor(good)].sum(0).argmax()
        assert algorithm.selected.tolist() == [own]
        error = (actions - torch.tensor(good_action(data.observations))).abs().mean()
        assert error < 0.2  # the noise of the logged actions has a mean size of 0.16, the other policy is 1.0 away

    def test_the_loss_weighs_by_posterior_and_clipped_advantage(self) -> None:
        data, _ = scripted(0)
        launch = sorl_lane(data, seeds=(3,), style_rounds=1, style_steps=2, tau=0.0, advantage_temperature=0.02)
        advance(launch, 2)
        algorithm = algorithm_of(launch)
        policies = deepcopy(algorithm.style_policies)
        launch.step.fill_(3)
        batch = launch.buffer.gather(launch.sampler.rows(launch.streams, 32))
        metrics = algorithm.update(batch, 3, batch)
        with torch.no_grad():
            advantage = algorithm.target_critic.at(batch.state_actions).q.amin(1) - algorithm.value(batch.observations)
            weight = (advantage[0] / 0.02).exp().clamp(max=100)
            assert (weight == 100).any() and (weight < 100).any()
            assert batch.rows is not None
            loss = 0.0
            for i in range(2):
                pi = policies(batch.observations)
                density = torch.distributions.Normal(pi.mean[0, :, i], pi.log_std[0, :, i].exp())
                p = algorithm.styles.posteriors[0, data.trajectory_ids[batch.rows[0]], i]
                loss = loss - (p * weight * density.log_prob(batch.actions[0]).sum(1)).mean()
        torch.testing.assert_close(metrics["actor_loss"][0], loss)

    def test_each_run_exports_the_style_it_selected(self) -> None:
        data, _ = scripted(0)
        launch = sorl_lane(data, style_rounds=1, style_steps=1)
        algorithm = algorithm_of(launch)
        scores = torch.tensor([[1.0, 2.0], [-1.0, -2.0]], dtype=torch.float64)
        algorithm._score_sums.copy_(torch.stack([scores, torch.ones_like(scores)], 1))
        assert algorithm.selected.tolist() == [1, 0]
        states = torch.tensor(data.observations[:9], dtype=torch.float64).expand(2, -1, -1)
        means = algorithm.style_policies(states).mean
        torch.testing.assert_close(algorithm.act(states), torch.stack([means[0, :, 1], means[1, :, 0]]))
        for policy, actions in zip(launch.policies(plain_scaling(data)).values(), algorithm.act(states), strict=True):
            torch.testing.assert_close(
                torch.tensor(policy.act(data.observations[:9])).double(), actions, rtol=1e-5, atol=1e-6
            )

    def test_unused_styles_are_never_selected(self) -> None:
        algorithm = algorithm_of(make_launch(small_config("sorl")))
        assert algorithm.styles.active.tolist() == [[True, False, False]]  # one trajectory, one style
        algorithm._score_sums[:, 0] = torch.tensor([-5.0, 0.0, 0.0])
        assert algorithm.selected.tolist() == [0]

    def test_a_style_without_data_is_not_selected_where_all_values_are_negative(self) -> None:
        algorithm = algorithm_of(sorl_lane(scripted(0)[0], seeds=(0,)))
        algorithm._score_sums.copy_(torch.tensor([[[-5.0, -1e-12], [1.0, 1e-12]]]))
        assert algorithm.selected.tolist() == [0]

    @pytest.mark.parametrize(("share", "selected"), [(0.015, 0), (0.007, 1)])
    def test_a_style_needs_a_hundredth_of_the_data_to_be_selected(self, share: float, selected: int) -> None:
        algorithm = algorithm_of(sorl_lane(scripted(0)[0], seeds=(0,)))
        weight = torch.tensor([share, 1 - share], dtype=torch.float64)
        algorithm._score_sums[0] = torch.stack([torch.tensor([5.0, 3.0]) * weight, weight])
        torch.testing.assert_close(algorithm.style_scores[0], torch.tensor([5.0, 3.0], dtype=torch.float64))
        assert algorithm.selected.tolist() == [selected]

    @pytest.mark.parametrize("selection", ["q", "advantage"])
    def test_a_styles_score_is_a_moving_mean_over_its_own_rows(self, selection: str) -> None:
        data, _ = scripted(0)
        launch = sorl_lane(data, seeds=(3,), selection=selection, batch_size=100)
        algorithm = algorithm_of(launch)
        with torch.no_grad():  # as later in training: the target is another network
            for p in algorithm.target_critic.parameters():
                p.mul_(1.5)
        launch.step.fill_(1)
        batch = launch.buffer.gather(launch.sampler.rows(launch.streams, 100))
        policies = algorithm.style_policies(batch.observations)
        posteriors = algorithm.styles.of(batch.rows)
        advantage = torch.randn(1, 100, dtype=torch.float64)
        before = torch.rand(1, 2, 2, dtype=torch.float64)
        algorithm._score_sums.copy_(before)
        algorithm._score(batch, posteriors, advantage, policies)
        for i in range(2):
            p = posteriors[0, :64, i]
            q = algorithm.target_critic(batch.observations, policies.mean[:, :, i]).q[0, :, :64].min(0).values
            worth = q if selection == "q" else advantage[0, :64]
            expected = 0.99 * before[0, :, i] + 0.01 * torch.stack([(p * worth).sum() / 64, p.sum() / 64])
            torch.testing.assert_close(algorithm._score_sums[0, :, i], expected.detach())

    def test_plugins_see_what_the_rows_own_styles_would_do(self) -> None:
        data, _ = scripted(0)
        launch = sorl_lane(data, seeds=(3,), style_rounds=1, style_steps=2)
        advance(launch, 2)
        algorithm = algorithm_of(launch)
        plugin = Adds(algorithm.optimizers, 0.0)
        algorithm.plugins = Plugins([plugin])
        launch.step.fill_(3)
        batch = launch.buffer.gather(launch.sampler.rows(launch.streams, 32))
        means, posteriors = algorithm.style_policies(batch.observations).mean, algorithm.styles.of(batch.rows)
        expected = posteriors[:, :, :1] * means[:, :, 0] + posteriors[:, :, 1:] * means[:, :, 1]
        expected = expected.detach().clone()
        algorithm.update(batch, 3, batch)
        torch.testing.assert_close(plugin.actions, expected)

    def test_an_e_step_follows_every_round_of_the_first_stage_alone(self) -> None:
        launch = sorl_lane(scripted(0)[0], seeds=(3,), style_rounds=2, style_steps=3)
        algorithm, moved = algorithm_of(launch), []
        for step in range(1, 13):
            before = algorithm.styles.posteriors.clone()
            launch.update(step)
            said = launch.refresh(step)
            moved.append((not torch.equal(before, algorithm.styles.posteriors), bool(said)))
        assert moved == [(step in (3, 6), step in (3, 6)) for step in range(1, 13)]


STYLES = StyleSamplerConfig(style_rounds=6, style_steps=60, style_lr=1e-3, style_layers=1, style_width=16, styles=2)


def plugged_lane(
    data: Dataset, seeds: tuple[int, ...] = (0, 1), states: Any = None, **options: int
) -> tuple[Launch, StyleSampler]:
    """TD3+BC with the plug-in."""
    config = small_config("td3_bc", ("sorl",), seeds, plugin_options=(replace(STYLES, **options),))
    launch = make_launch(config, data, states=states)
    plugin = launch.plugins.all[0]
    assert isinstance(plugin, StyleSampler)
    return launch, plugin


class TestStylesAsASampler:
    def test_batches_are_of_one_style_and_all_rows_are_drawn_equally_often(self) -> None:
        data, good = scripted(0, 24)
        launch, plugin = plugged_lane(data)
        styles = plugin.posteriors.argmax(2)  # [R, T]
        ids = torch.tensor(data.trajectory_ids.astype(np.int64))
        assert (plugin.posteriors.amax(2) > 0.99).all() and plugin.period is None
        counts = torch.zeros(2, len(data))
        for step in range(4000):
            launch.step.fill_(step)
            rows = plugin.rows(launch.streams, 64)
            counts.scatter_add_(1, rows, torch.ones(2, 64))
            if step < 50:
                drawn = styles.gather(1, ids[rows])
                assert (drawn == plugin.style.unsqueeze(1)).all()
        # single batches come from one style, so that a style's count scatters by sqrt(steps) batches
        for run in range(2):
            shares = [counts[run, styles[run, ids] == z].mean() / counts[run].mean() for z in range(2)]
            assert all(0.9 < share < 1.1 for share in shares)
        assert agreement_of(plugin, good) > 0.95

    def test_resuming_asks_for_no_second_em(self, monkeypatch: pytest.MonkeyPatch) -> None:
        data, _ = scripted(0)
        straight = advance(plugged_lane(data)[0], 6).run_states()
        first = advance(plugged_lane(data)[0], 3).run_states()
        monkeypatch.setattr(TrajectoryStyles, "fit", None)  # what takes its time
        second, _ = plugged_lane(data, states=first)
        resumed = advance(second, 3, start=3).run_states()
        for seed in (0, 1):
            assert all(torch.equal(resumed[seed][name], tensor) for name, tensor in straight[seed].items())

    def test_large_data_are_walked_through_pool_by_pool(self) -> None:
        data, _ = scripted(0)
        size = len(data) // 4
        launch, plugin = plugged_lane(data, seeds=(0,), style_pool=size, style_period=2)
        assert plugin.period == 2
        seen: set[int] = set()
        for step in range(1, 11):
            rows = plugin.rows(launch.streams, 1000)
            assert len(set(rows.flatten().tolist())) <= size
            seen |= set(plugin.tables.state()["pool"].flatten().tolist())
            advance(launch, 1, start=step - 1)
        assert seen == set(range(len(data)))

    @pytest.mark.parametrize(
        ("algorithm", "plugins", "message"),
        [
            ("cql", ("c4", "sorl"), "--plugins: found c4 and sorl, which both choose the rows of a batch"),
            ("cql", ("sorl", "c4"), "--plugins: found sorl and c4, which both choose the rows of a batch"),
            ("sorl", ("sorl",), "--plugins: found sorl and --algorithm sorl, which both find the styles"),
        ],
    )
    def test_combinations_without_meaning_are_refused(
        self, algorithm: str, plugins: tuple[str, ...], message: str
    ) -> None:
        with pytest.raises(InputError, match=message):
            small_config(algorithm, plugins)


def test_without_a_critic_only_one_plugin_chooses_rows() -> None:
    """The policy's rows would be those of `returns`, and the styles be found for nothing."""
    with pytest.raises(InputError, match="found sorl and another plug-in that chooses the policy's rows"):
        make_launch(small_config("bc", ("returns", "sorl")))


def agreement_of(plugin: StyleSampler, truth: np.ndarray) -> float:
    return min(adjusted_rand_score(truth, labels.numpy()) for labels in plugin.posteriors.argmax(2))


@pytest.mark.parametrize(("algorithm", "plugins"), [("sorl", ()), ("td3_bc", ("sorl",))])
class TestSeveralStylesInALane:
    """The contract's data are one trajectory, which has one style."""

    def config(self, algorithm: str, plugins: tuple[str, ...], seeds: tuple[int, ...]) -> TrainConfig:
        options = {"style_rounds": 3, "style_steps": 2} if algorithm == "sorl" else {}
        plugin_options = tuple(replace(STYLES, style_rounds=3, style_steps=2, styles=3) for _ in plugins)
        return small_config(algorithm, plugins, seeds, plugin_options=plugin_options, **options)

    def test_a_stack_equals_its_runs_alone(self, algorithm: str, plugins: tuple[str, ...]) -> None:
        data, _ = scripted(0, short=3)
        stacked = advance(make_launch(self.config(algorithm, plugins, (3, 1)), data), 15).run_states()
        alone = advance(make_launch(self.config(algorithm, plugins, (1,)), data), 15).run_states()[1]
        for name, tensor in alone.items():
            torch.testing.assert_close(stacked[1][name], tensor, rtol=1e-9, atol=1e-12, msg=name)

    @pytest.mark.parametrize("stop", [1, 2, 5, 6, 7])
    def test_resuming_is_exact(self, algorithm: str, plugins: tuple[str, ...], stop: int) -> None:
        data, _ = scripted(0, short=3)
        config = self.config(algorithm, plugins, (0,))
        straight = advance(make_launch(config, data), 9).run_states()[0]
        second = make_launch(config, data)
        second.load(advance(make_launch(config, data), stop).run_states())
        resumed = advance(second, 9 - stop, start=stop).run_states()[0]
        assert all(torch.equal(resumed[name], tensor) for name, tensor in straight.items())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"styles": 0}, "--styles: found 0"),
        ({"style_temperature": 0.0}, "--style-temperature: found 0,"),
        ({"style_least_share": 1.0}, "--style-least-share: found 1,"),
        ({"expectile": 1.0}, "--expectile: found 1, expected a number above 0, below 1"),
        ({"advantage_temperature": 0.0}, "--advantage-temperature: found 0, expected a number above 0"),
    ],
)
def test_options_without_meaning_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        small_config("sorl", **options)


def test_published_settings_differ_by_domain_and_say_that_they_are_ours() -> None:
    hopper, antmaze = (published_fields("sorl", ("none",), task) for task in ("hopper-medium-v2", "antmaze-umaze-v2"))
    assert (hopper["options"].expectile, hopper["options"].advantage_temperature) == (0.7, 1 / 3)
    assert (antmaze["options"].expectile, antmaze["options"].advantage_temperature) == (0.9, 1 / 10)
    assert hopper["normalize_returns"] and antmaze["reward_shift"] == -1
    assert all(published.source.startswith("ours: adaptation") for published in PUBLISHED["sorl"])

"""Styles of trajectories: an EM that tells apart who acted."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from c4rl.core.networks import Stack
from c4rl.core.random import Streams
from c4rl.data.dataset import Dataset
from c4rl.data.info import observation_statistics
from c4rl.data.loading import load_dataset
from c4rl.data.packing import Scaling, pack_datasets
from c4rl.plugins.trajectory_styles import StyleConfig, Trajectories, TrajectoryStyles
from tests.algorithms.scripted_policies import scripted
from tests.helpers import CPU, plain_scaling

EM: dict[str, Any] = {
    "styles": 2,
    "style_rounds": 10,
    "style_steps": 100,
    "style_lr": 1e-3,
    "style_layers": 2,
    "style_width": 32,
}


def fitted(
    datasets: Sequence[Dataset],
    seeds: tuple[int, ...],
    fit: bool = True,
    scaling: Scaling | None = None,
    **options: Any,
) -> TrajectoryStyles:
    """Run r on dataset r."""
    buffer = pack_datasets(
        [(data, scaling or plain_scaling(data)) for data in datasets], CPU, torch.float64, range(len(seeds))
    )
    streams = Streams(list(seeds), torch.zeros((), dtype=torch.int64), torch.float64)
    config = StyleConfig(**(EM | options))
    styles = TrajectoryStyles(config, Stack(seeds, *buffer.widths, CPU, torch.float64), buffer, streams)
    if fit:
        styles.fit(streams)
    return styles


def agreement(styles: TrajectoryStyles, run: int, truth: np.ndarray) -> float:
    return float(adjusted_rand_score(truth, styles.posteriors[run, : len(truth)].argmax(1).numpy()))


class TestExpectationMaximisation:
    def test_two_scripted_policies_are_told_apart(self) -> None:
        data, truths = zip(*(scripted(seed, count) for seed, count in ((0, 24), (1, 18), (2, 30))), strict=True)
        styles = fitted(data, (5, 6, 7))
        for run, truth in enumerate(truths):
            assert agreement(styles, run, truth) > 0.95

    def test_more_styles_than_policies_mix_none_of_them(self) -> None:
        data, good = scripted(3)
        styles = fitted([data], (0,), styles=4)
        label = styles.posteriors[0].argmax(1).numpy()
        assert all(len(set(good[label == z])) == 1 for z in set(label))

    def test_the_e_step_equals_a_slow_computation(self) -> None:
        data, _ = scripted(0, trajectories=10, short=1)
        styles = fitted([data], (3,), fit=False, styles=3, style_temperature=0.7, style_least_share=0.0)
        styles.prior.copy_(torch.tensor([[0.5, 0.3, 0.2]]))
        report = styles.expectation(1)
        policies = styles.policies(torch.tensor(data.observations, dtype=torch.float64)[None])
        density = torch.distributions.Normal(policies.mean[0], policies.log_std[0].exp())
        log_prob = density.log_prob(torch.tensor(data.actions, dtype=torch.float64)[:, None]).sum(2)  # [N, m]
        for trajectory in range(9):
            likelihood = log_prob[data.trajectory_ids == trajectory].mean(0)
            expected = torch.tensor([0.5, 0.3, 0.2]) * torch.exp(likelihood / 0.7)
            torch.testing.assert_close(styles.posteriors[0, trajectory], expected / expected.sum())
        torch.testing.assert_close(styles.posteriors[0, 9], torch.full((3,), 1 / 3, dtype=torch.float64))
        telling, own = styles.posteriors[0, :9], styles.log_likelihood()[0, :9]
        entropy, explained = -(telling * telling.log()).sum(1).mean(), (telling * own).sum(1).mean()
        torch.testing.assert_close(report["style_entropy"][0], entropy)
        torch.testing.assert_close(report["style_log_likelihood"][0], explained)
        mean = telling.mean(0)  # of those that say who acted
        torch.testing.assert_close(styles.prior[0], (torch.tensor([0.5, 0.3, 0.2]) + mean) / 2)

    def test_the_m_step_is_a_weighted_cloning_loss_of_policies_between_their_bounds(self) -> None:
        data, _ = scripted(0, trajectories=10)
        styles = fitted([data], (3,), fit=False)
        heads = [-40.0, 0.0, 1.0, 40.0]  # log-stds of two actions of two styles; before them the means
        with torch.no_grad():
            styles.policies.mlp.weights[-1].zero_()
            biases = torch.tensor([[0.5, -0.5, *heads[:2]], [0.0, 1.0, *heads[2:]]])
            styles.policies.by_style(styles.policies.mlp.biases[-1]).copy_(biases)
        rows = torch.arange(0, len(data), 3).unsqueeze(0)
        policies = styles.policies(styles.buffer.gather(rows).observations)
        stds = np.exp(-5 / (1 + np.exp(2 + np.array(heads)))).reshape(2, 2)
        np.testing.assert_allclose(policies.log_std[0, 0].exp().detach().numpy(), stds)
        means = np.tanh([[0.5, -0.5], [0.0, 1.0]])
        densities = torch.distributions.Normal(torch.tensor(means), torch.tensor(stds))
        actions = torch.tensor(data.actions[rows[0]], dtype=torch.float64)
        log_prob = densities.log_prob(actions.unsqueeze(1)).sum(2)
        weights = styles.posteriors[0, torch.tensor(data.trajectory_ids[rows[0]]).long()]
        expected = -(weights * log_prob).sum() / rows.shape[1]
        found = styles.maximisation_step(styles.buffer.gather(rows))
        torch.testing.assert_close(found[0], expected)

    def test_as_many_steps_as_asked_for(self) -> None:
        styles = fitted([scripted(0, trajectories=10)[0]], (3,), fit=False, style_rounds=3, style_steps=4)
        streams = Streams([3], torch.zeros((), dtype=torch.int64), torch.float64)
        styles.fit(streams)
        assert streams.step == 12

    def test_a_posterior_is_one_for_all_steps_of_a_trajectory(self) -> None:
        (first, _), (second, _) = scripted(0, 9), scripted(1, 12)
        styles = fitted([first, second], (0, 1), style_rounds=1)
        offset = len(first)
        for trajectory in range(9):
            rows = torch.tensor(np.flatnonzero(second.trajectory_ids == trajectory)) + offset
            found = styles.of(torch.stack([rows - offset, rows]))
            assert torch.equal(found[1], styles.posteriors[1, trajectory].expand_as(found[1]))

    def test_few_trajectories_get_few_styles(self) -> None:
        data, _ = scripted(0, trajectories=10, short=3)
        styles = fitted([data], (0,), styles=5, style_rounds=2, style_steps=3)
        assert styles.active.tolist() == [[True, True, False, False, False]]  # seven that tell, three for each
        assert (styles.posteriors[:, :, 2:] == 0).all() and (styles.prior[:, 2:] == 0).all()
        torch.testing.assert_close(styles.posteriors.sum(2), torch.ones(1, 10, dtype=torch.float64))
        assert (styles.posteriors[0, 7:, :2] == 0.5).all()

    def test_rows_without_trajectories_are_one_style(self) -> None:
        data, _ = scripted(0, trajectories=6, short=6)
        styles = fitted([data], (0,), style_rounds=2, style_steps=3)
        assert (styles.posteriors[..., 0] == 1).all() and styles.log_likelihood().isfinite().all()

    def test_runs_with_other_numbers_of_trajectories_change_nothing(self) -> None:
        data = [scripted(0, 24)[0], scripted(1, 9, short=2)[0]]
        together = fitted(data, (4, 8), style_rounds=4, style_steps=5, styles=3)
        for run, count in enumerate((24, 9)):
            alone = fitted(data[run : run + 1], (4, 8)[run : run + 1], style_rounds=4, style_steps=5, styles=3)
            torch.testing.assert_close(together.posteriors[run, :count], alone.posteriors[0], rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(together.prior[run], alone.prior[0], rtol=1e-9, atol=1e-12)

    def test_large_data_are_looked_at_every_few_steps(self) -> None:
        data, _ = scripted(0, trajectories=7, short=1)
        buffer = pack_datasets([(data, plain_scaling(data))], CPU, torch.float64)
        trajectories = Trajectories(buffer, len(data) // 3)
        place = np.concatenate([np.arange(n) for n in np.bincount(data.trajectory_ids)])
        expected = np.flatnonzero(place % 4 == 0)  # a third is not reached by every third row and some
        assert trajectories.rows[0].tolist() == expected.tolist()
        values = torch.tensor(data.rewards, dtype=torch.float64)[expected]
        means = trajectories.means(values.view(1, -1, 1))[0, :, 0]
        for trajectory, mean in enumerate(means):
            own = torch.tensor(data.trajectory_ids[expected] == trajectory)
            torch.testing.assert_close(mean, values[own].mean())
        assert trajectories.lengths[0].tolist() == np.bincount(data.trajectory_ids).tolist()

    def test_hopper_medium_expert_is_split_into_medium_and_expert(self, shared: Callable[[str], Path]) -> None:
        data = load_dataset(shared("data/d4rl-10k/hopper-medium-expert-v2.npz"))
        mean, std = observation_statistics(data.observations)
        scaling = replace(plain_scaling(data), observation_mean=mean, observation_std=std)
        styles = fitted([data, data], (0, 1), scaling=scaling, style_width=64, style_lr=3e-4, style_rounds=6)
        returns = np.bincount(data.trajectory_ids, weights=data.rewards)
        for run in range(2):
            assert agreement(styles, run, returns > 2500) > 0.5  # 1.0 was seen for each of eight seeds


class TestDegeneracyGuard:
    def dying(self, round_: int) -> tuple[TrajectoryStyles, Tensor, dict[str, Tensor]]:
        """Style 1 of run 0 is sure of what nobody does, run 1 is sound; then an E-step."""
        styles = fitted([scripted(0, 12)[0], scripted(1, 12)[0]], (0, 1), style_steps=30, style_rounds=4)
        styles.prior.fill_(0.5)
        with torch.no_grad():
            styles.policies.by_style(styles.policies.mlp.biases[-1])[0, :, 1] = torch.tensor([20.0, 20.0, -20.0, -20.0])
        likelihood = styles.log_likelihood()
        return styles, likelihood, styles.expectation(round_)

    def test_a_style_that_dies_out_starts_anew_from_the_largest(self) -> None:
        styles, likelihood, report = self.dying(round_=2)
        assert report["style_revived"].tolist() == [1, 0]
        for tensor in styles._head_tensors():
            heads = styles.policies.by_style(tensor)
            assert torch.equal(heads[0, ..., 0, :], heads[0, ..., 1, :])
            assert not torch.equal(heads[1, ..., 0, :], heads[1, ..., 1, :])
        worst = likelihood[0, :, 0].argsort()[:6]  # of twelve trajectories, all of them style 0's
        assert set(worst.tolist()) == set(styles.posteriors[0, :, 1].nonzero().flatten().tolist())
        torch.testing.assert_close(styles.posteriors.sum(2), torch.ones(2, 12, dtype=torch.float64))

    def test_late_rounds_leave_styles_alone(self) -> None:
        styles, _, report = self.dying(round_=3)
        assert report["style_revived"].tolist() == [0, 0] and (styles.posteriors[0, :, 0] > 0.999).all()
        assert styles.prior[0, 1] > 0.09
        for _ in range(2):  # 1/4, 1/8, then the floor, a tenth: it could still win trajectories back
            styles.expectation(3)
        torch.testing.assert_close(styles.prior[0, 1].item(), 0.1 / (0.1 + 15 / 16), rtol=1e-3, atol=0)

"""Linear-Gaussian behaviour per cluster: recovery, weighting, degenerate clusters, refitting in place."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.linear_model import Ridge
from torch import Tensor

from c4rl.plugins.c4.behaviour_model import BehaviourModel

ROWS, STATE, ACTION = 4000, 5, 2


def buffer(runs: int = 2) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Two behaviours mixed row by row: states, actions, hard responsibilities, the true weights and biases."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    W, b = 0.3 * normal(runs, 2, STATE, ACTION), normal(runs, 2, ACTION)
    states = 3 * normal(runs, ROWS, STATE) + 2
    label = torch.rand(runs, ROWS, generator=generator) < 0.25
    means = torch.einsum("rnd,rkda->rkna", states, W) + b.unsqueeze(-2)
    actions = torch.where(label.unsqueeze(-1), means[:, 1], means[:, 0]) + 0.2 * normal(runs, ROWS, ACTION)
    return states, actions, torch.stack([~label, label], -1).double(), W, b


def fitted(clusters: int = 2, **options: float) -> tuple[BehaviourModel, Tensor, Tensor, Tensor]:
    states, actions, r, _, _ = buffer()
    r = torch.nn.functional.pad(r, (0, clusters - 2))
    model = BehaviourModel(2, clusters, STATE, ACTION, dtype=torch.float64, **options)
    model.fit(states, actions, r)
    return model, states, actions, r


def test_recovers_each_clusters_policy_and_noise() -> None:
    model, states, _, _ = fitted()
    *_, W, b = buffer()
    assert (model.weight - W).abs().max() < 0.01
    assert (model.mean(states) - torch.einsum("rnd,rkda->rkna", states, W) - b.unsqueeze(-2)).abs().max() < 0.1
    assert (model.log_std.exp() - 0.2).abs().max() < 0.02
    assert (model.log_p.exp() - torch.tensor([0.75, 0.25])).abs().max() < 0.03


def test_equals_weighted_ridge_regression() -> None:
    """Rows of unequal weight; dimensions of other sizes and other means, whose variances are the ridge's units."""
    states, actions, _, _, _ = buffer(runs=1)
    states = states * torch.tensor([0.2, 0.5, 1.0, 2.0, 5.0]) + 10
    generator = torch.Generator().manual_seed(1)
    r = torch.rand(1, ROWS, 2, generator=generator, dtype=torch.float64)
    row_weights = (states[0, :, 0] > 10).double() + 0.1
    r = r / r.sum(-1, keepdim=True) * row_weights.unsqueeze(1)
    model = BehaviourModel(1, 2, STATE, ACTION, ridge=0.1, dtype=torch.float64)
    model.fit(states, actions, r)
    scale = torch.cov(states[0].T, correction=0, aweights=row_weights).diagonal().sqrt()
    for z in range(2):
        weights = (r[0, :, z] / r[0, :, z].sum()).numpy()
        oracle = Ridge(alpha=0.1).fit((states[0] / scale).numpy(), actions[0].numpy(), sample_weight=weights)
        coefficients = torch.from_numpy(oracle.coef_.T) / scale.unsqueeze(1)
        torch.testing.assert_close(model.weight[0, z], coefficients, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(model.bias[0, z], torch.from_numpy(oracle.intercept_).clone(), rtol=1e-5, atol=1e-6)


def test_log_prob_is_the_density() -> None:
    model, states, actions, _ = fitted()
    expected = torch.distributions.Normal(model.mean(states), model.log_std.exp().unsqueeze(-2))
    log_prob = model.log_prob(states, actions)
    assert log_prob.shape == (2, 2, ROWS)
    torch.testing.assert_close(log_prob, expected.log_prob(actions.unsqueeze(1)).sum(-1))
    several = actions[:, :7].unsqueeze(2) + torch.tensor([0.0, 0.1, 0.2], dtype=torch.float64)[:, None]
    assert model.log_prob(states[:, :7], several).shape == (2, 2, 7, 3)
    torch.testing.assert_close(model.log_prob(states[:, :7], several)[..., 0], log_prob[..., :7])


def test_mixture_and_single_cluster_views() -> None:
    model, states, actions, _ = fitted()
    per_cluster = model.log_prob(states, actions)
    mixture = (per_cluster.exp() * model.log_p.exp().unsqueeze(-1)).sum(1).log()
    torch.testing.assert_close(model.log_prob_mixture(states, actions), mixture)
    torch.testing.assert_close(model.log_prob_mixture(states, actions.unsqueeze(2)).squeeze(-1), mixture)
    cluster = torch.tensor([1, 0])
    torch.testing.assert_close(
        model.log_prob_cluster(states, actions, cluster), torch.stack([per_cluster[0, 1], per_cluster[1, 0]])
    )


def test_dead_cluster_inherits_the_whole_buffer_and_has_no_share() -> None:
    model, states, actions, _ = fitted(clusters=3)
    whole = BehaviourModel(2, 1, STATE, ACTION, dtype=torch.float64)
    whole.fit(states, actions, torch.ones(2, ROWS, 1, dtype=torch.float64))
    torch.testing.assert_close(model.weight[:, 2], whole.weight[:, 0])
    torch.testing.assert_close(model.log_std[:, 2], whole.log_std[:, 0])
    mixture = model.log_prob_mixture(states, actions)
    assert mixture.isfinite().all()
    assert (model.log_p[:, 2].exp() < 1e-300).all() and model.log_p.isfinite().all()  # a state with -inf would be lost


def test_a_dead_cluster_counts_nowhere() -> None:
    """Far from narrow clusters the regression of all rows would be likelier by hundreds of nats."""
    own, states, actions, _ = fitted(std_floor=1e-3)
    beside, _, _, _ = fitted(clusters=3, std_floor=1e-3)
    far = actions + 10
    torch.testing.assert_close(beside.log_prob_mixture(states, far), own.log_prob_mixture(states, far))


def test_rows_without_responsibility_are_left_out() -> None:
    _, states, actions, r = fitted()
    spoiled_states, spoiled_actions, spoiled_r = states.clone(), actions.clone(), r.clone()
    spoiled_states[:, :100], spoiled_actions[:, :100], spoiled_r[:, :100] = 50.0, -50.0, 0.0
    other = BehaviourModel(2, 2, STATE, ACTION, dtype=torch.float64)
    other.fit(spoiled_states, spoiled_actions, spoiled_r)
    kept = BehaviourModel(2, 2, STATE, ACTION, dtype=torch.float64)
    kept.fit(states[:, 100:], actions[:, 100:], r[:, 100:])
    torch.testing.assert_close(other.weight, kept.weight)
    torch.testing.assert_close(other.log_p, kept.log_p)


def test_noise_free_or_constant_dimensions_stop_at_the_floor() -> None:
    states, actions, r, _, _ = buffer()
    states[..., 0] = 1.0
    actions[..., 0] = 0.5
    model = BehaviourModel(2, 2, STATE, ACTION, std_floor=0.1, dtype=torch.float64)
    model.fit(states, actions, r)
    torch.testing.assert_close(model.log_std[..., 0].exp(), torch.full((2, 2), 0.1, dtype=torch.float64))
    assert model.log_prob(states, actions).isfinite().all()


def test_refit_writes_into_the_same_tensors() -> None:
    model, states, actions, r = fitted()
    tensors = (model.weight, model.bias, model.log_std, model.log_p)
    before = [(t.data_ptr(), t.clone()) for t in tensors]
    model.fit(states, -actions, r.flip(-1))
    assert [t.data_ptr() for t in tensors] == [pointer for pointer, _ in before]
    assert (model.weight[:, 0] - before[0][1][:, 0]).abs().max() > 0.1


@pytest.mark.parametrize("task", ["hopper-medium-expert-v2", "antmaze-umaze-v0"])
def test_float32_fit_of_real_data_beats_a_state_free_gaussian(shared: Callable[[str], Path], task: str) -> None:
    """Held-out rows, three clusters of states, log-likelihood of each row under its own cluster."""
    with np.load(shared(f"data/d4rl-10k/{task}.npz"), allow_pickle=False) as file:
        states, actions = torch.from_numpy(file["observations"]), torch.from_numpy(file["actions"])
    held_out = torch.arange(len(states)) % 5 == 0
    label = KMeans(3, n_init=1, random_state=0).fit_predict(states.numpy())
    r = torch.nn.functional.one_hot(torch.from_numpy(label).long(), 3).float()
    fit, test = ([x[rows][None] for x in (states, actions, r)] for rows in (~held_out, held_out))
    models = []
    for dtype in (torch.float32, torch.float64):
        model = BehaviourModel(1, 3, states.shape[1], actions.shape[1], dtype=dtype)
        model.fit(*(x.to(dtype) for x in fit))
        models.append(model)
    single, double = models
    own = (single.log_prob(test[0], test[1])[0] * test[2][0].T).sum(0)
    own_double = (double.log_prob(test[0].double(), test[1].double())[0] * test[2][0].T).sum(0)
    assert (own - own_double).abs().median() < 1e-2
    mean, std = fit[1][0].mean(0), fit[1][0].std(0).clamp_min(0.05)
    state_free = torch.distributions.Normal(mean, std).log_prob(test[1][0]).sum(-1)
    assert own.mean() > state_free.mean() + 0.5

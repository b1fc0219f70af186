"""TSRL's dynamics model: symmetric in time."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from c4rl.algorithms.t_symmetry_dynamics import CHUNK, jacobian_vector_product, masked_quantile
from c4rl.algorithms.tsrl import TSRL
from c4rl.core.buffer import Batch
from c4rl.core.networks import Stack, StackedMLP
from c4rl.data.dataset import Dataset
from c4rl.data.packing import pack_datasets
from tests.algorithms.tsrl_cases import algorithm_of, one_run, with_terminals
from tests.helpers import CPU, advance, batch_at, make_launch, plain_scaling, small_config, small_dataset


def test_jacobian_times_vector_equals_automatic_differentiation() -> None:
    stack = Stack((3, 4), 5, 2, CPU, torch.float64)
    mlp = StackedMLP(stack, "net", (7, 11, 13, 4))
    generator = torch.Generator().manual_seed(0)
    x, v = torch.randn(2, 2, 9, 7, generator=generator, dtype=torch.float64)
    y, product = jacobian_vector_product(x, v, mlp.layers())
    for run in range(2):
        network = one_run(mlp, run)
        jacobian = torch.func.vmap(torch.func.jacrev(network))(x[run])
        torch.testing.assert_close(y[run], network(x[run]))
        torch.testing.assert_close(product[run], (jacobian @ v[run].unsqueeze(2)).squeeze(2))


def slow_losses(algorithm: TSRL, batch: Batch) -> dict[str, Tensor]:
    """The sheet's formulas of run 0, row by row, with full Jacobians."""
    model = algorithm.dynamics
    phi, psi_s, psi_a = (one_run(m) for m in (model.encoder, model.state_decoder, model.action_decoder))
    f, g = one_run(model.forward_field), one_run(model.reverse_field)
    size = batch.observations.shape[2]
    sums: dict[str, list[Tensor]] = {n: [] for n in ("reconstruction", "encoder_ode", "decoder_ode", "symmetry")}
    for s, a, s2, goes_on in zip(
        batch.observations[0], batch.actions[0], batch.next_observations[0], batch.continues[0], strict=True
    ):
        z, z2 = phi(torch.cat([s, a])), phi(torch.cat([s2, a]))
        zs, za, zs2 = z[:size], z[size:], z2[:size]
        sums["reconstruction"].append((psi_s(zs) - s).square().sum() + (psi_a(za) - a).square().sum())
        if not goes_on:
            continue
        ds = s2 - s
        j, j2 = (torch.func.jacrev(phi)(torch.cat([x, a]))[:size, :size] for x in (s, s2))
        sums["encoder_ode"].append((j @ ds - f(z)).square().sum() + (j2 @ -ds - g(z2)).square().sum())
        d, d2 = torch.func.jacrev(psi_s)(zs), torch.func.jacrev(psi_s)(zs2)
        sums["decoder_ode"].append((d @ f(z) - ds).square().sum() + (d2 @ g(z2) + ds).square().sum())
        back = zs2 + g(torch.cat([zs + f(z), za]))
        sums["symmetry"].append((f(z) + g(z2)).square().sum() + (back - zs).square().sum())
    return {name: torch.stack(values).mean() for name, values in sums.items()}


def test_loss_terms_and_their_gradients_equal_the_formulas() -> None:
    algorithm, launch = algorithm_of()
    batch = batch_at(launch, 1, rows=24)
    assert 0 < batch.continues.mean() < 1
    found, expected = algorithm.dynamics.losses(batch), slow_losses(algorithm, batch)
    for name, value in expected.items():
        torch.testing.assert_close(getattr(found, name)[0], value, msg=name)
    parameters = list(algorithm.dynamics.parameters())
    ours = torch.autograd.grad(sum(getattr(found, name)[0] for name in expected), parameters)
    theirs = torch.autograd.grad(sum(expected.values()), parameters)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)


def test_the_encoders_side_of_the_ode_joins_late() -> None:
    algorithm, launch = algorithm_of(encoder_ode_weight=0.3, l1_weight=1e-3)
    batch = batch_at(launch, 1)
    for step, weight in ((2, 0.0), (3, 0.3)):
        with torch.no_grad():
            terms = algorithm.dynamics.losses(batch)
            fields = (algorithm.dynamics.forward_field, algorithm.dynamics.reverse_field)
            l1 = sum(p.abs().sum() for field in fields for p in field.parameters())
        expected = terms.reconstruction + terms.decoder_ode + 0.1 * terms.symmetry + weight * terms.encoder_ode
        torch.testing.assert_close(algorithm.update(batch, step, batch)["dynamics_loss"], expected + 1e-3 * l1)


def test_what_follows_a_terminal_is_no_transition() -> None:
    """Its next observation is another episode's first, or nothing at all."""
    data = with_terminals()
    elsewhere = np.where(data.terminals[:, None], np.float32(100), data.next_observations)
    straight, odd = (
        advance(algorithm_of(replace(data, next_observations=n))[1], 12).run_states()[0]
        for n in (data.next_observations, elsewhere)
    )
    for name, tensor in straight.items():
        if name.split("/")[0] in ("dynamics", "data", "critic", "actor"):
            torch.testing.assert_close(odd[name], tensor, msg=name)


def linear_system(rows: int = 2000) -> Dataset:
    """s' = s + 0.2 (A s + B a), A a rotation."""
    rng = np.random.default_rng(0)
    a = rng.uniform(-1, 1, (rows, 1)).astype(np.float32)
    s = rng.uniform(-1, 1, (rows, 2)).astype(np.float32)
    drift = s @ np.float32([[0, -2], [2, 0]]) + a @ np.float32([[1, 0.5]])
    return replace(small_dataset(rows, 2, 1), observations=s, actions=a, next_observations=s + 0.2 * drift)


def test_a_trained_model_tells_true_transitions_from_shuffled_ones() -> None:
    """By far more than by the length of the way: shuffled ends are eleven times farther apart (in squares)."""
    widths = {"encoder_widths": (64, 32), "field_widths": (64, 64), "dynamics_batch_size": 128, "dynamics_lr": 1e-3}
    config = small_config("tsrl", **widths, dynamics_updates=800, encoder_ode_from=80)
    launch = make_launch(config, linear_system(), torch.float32)
    advance(launch, 700)
    launch.read_metrics()
    for step in range(701, 801):
        launch.update(step)
        report = launch.refresh(step)
    end = launch.read_metrics()[0]
    assert end["dynamics_reconstruction"] < 0.01 * 3
    assert end["dynamics_decoder_ode_to_change"] < 0.2
    assert report[0]["dynamics_symmetry_shuffled"] > 100 * report[0]["dynamics_symmetry_true"]


def test_statistics_are_each_runs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three runs, two datasets of different lengths, chunks that do not divide either."""
    monkeypatch.setitem(CHUNK, "cpu", 3 * 40)
    long, short = with_terminals(300), with_terminals(70, every=4)
    buffer = pack_datasets([(d, plain_scaling(d)) for d in (long, short)], CPU, torch.float64, (1, 0, 1))
    algorithm, _ = algorithm_of(seeds=(5, 6, 7))
    model = algorithm.dynamics
    found = model.statistics(buffer, 0.7)
    for run, data in enumerate((short, long, short)):
        phi, f, g = (one_run(m, run) for m in (model.encoder, model.forward_field, model.reverse_field))
        alone = pack_datasets([(data, plain_scaling(data))], CPU, torch.float64)
        batch = alone.gather(torch.from_numpy(np.flatnonzero(~data.terminals))[None])
        s, a, s2 = batch.observations[0], batch.actions[0], batch.next_observations[0]
        with torch.no_grad():
            z, zs2 = phi(torch.cat([s, a], 1)), phi(torch.cat([s2, a], 1))[:, :5]
            zs = z[:, :5]
            residual = (zs2 + g(torch.cat([zs + f(z), z[:, 5:]], 1)) - zs).square().sum(1)
        expected = [residual.quantile(0.7), residual.min(), residual.max()]
        torch.testing.assert_close(found.residuals[run], torch.stack(expected))
        torch.testing.assert_close(found.latent_mean[run], zs.mean(0))
        torch.testing.assert_close(found.latent_std[run], zs.std(0))


@pytest.mark.parametrize("q", [0.0, 0.37, 1.0])
def test_masked_quantiles_equal_numpys(q: float) -> None:
    rng = np.random.default_rng(1)
    values, valid = rng.standard_normal((4, 50)), rng.random((4, 50)) < 0.5
    found = masked_quantile(torch.tensor(values), torch.tensor(valid), q)
    assert found.tolist() == pytest.approx([np.quantile(v[m], q) for v, m in zip(values, valid, strict=True)])

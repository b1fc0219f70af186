"""C4 at work inside algorithms: what it draws, what it adds to which loss, when it refits, and what it leaves alone."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import c4rl
from c4rl.core.buffer import Batch
from c4rl.core.networks import Critic
from c4rl.data.dataset import Dataset
from c4rl.jobs.registry import ALGORITHMS
from c4rl.plugins.c4.clustering import Clustering
from c4rl.plugins.c4.plugin import C4Config
from c4rl.training.launch import Launch
from tests.helpers import CPU, advance, c4_of, make_launch, small_config, small_dataset, sum_of_losses

# those whose first update already has plug-ins; the others' later stages run the same code (see the contract test)
WITH_CRITIC = [
    name
    for name, kind in ALGORITHMS.items()
    if kind.has_critic and len(kind.plan(small_config(name).options, 100)) == 1
]
SOURCES = Path(c4rl.__file__).parent
each_algorithm = pytest.mark.parametrize("algorithm", WITH_CRITIC)
each_mode = pytest.mark.parametrize("mode", ["proxy", "exact"])


def short_episodes(rows: int = 200, length: int = 10) -> Dataset:
    """Every tenth row has no next action: terminal and timed out in turn."""
    data = small_dataset(rows)
    last = np.arange(rows) % length == length - 1
    terminals = last & (np.arange(rows) % (2 * length) >= length)
    valid = ~last
    return replace(
        data,
        terminals=terminals,
        timeouts=last & ~terminals,
        trajectory_ids=(np.arange(rows) // length).astype(np.int32),
        next_actions=data.next_actions * valid[:, None],
        next_action_valid=valid,
    )


def launch_of(
    algorithm: str, form: C4Config | None, seeds: tuple[int, ...] = (0,), data: Dataset | None = None, **values: Any
) -> Launch:
    plugins = ("c4",) if form is not None else ()
    options = (form,) if form is not None else ()
    config = small_config(algorithm, plugins, seeds, plugin_options=options, **values)
    return make_launch(config, data if data is not None else short_episodes())


def trained_state(launch: Launch) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in launch.algorithm.state().items()}


def critic_loss_of(launch: Launch, step: int = 1) -> Tensor:
    """The sum of what one update hands to the critic's optimiser, with its graph; the critic itself does not move."""
    seen: list[Tensor] = []
    launch.algorithm.optimizers["critic"].step = seen.append  # type: ignore[assignment]
    launch.update(step)
    return sum_of_losses(seen[0]).sum()


# -- which rows form the batch


@each_algorithm
def test_a_hard_batch_comes_from_a_single_cluster_of_the_last_refresh(algorithm: str) -> None:
    launch = launch_of(algorithm, C4Config(K=3, period=5, sampler="hard"), seeds=(0, 1))
    clustering = c4_of(launch).clustering
    batches: list[Batch] = []
    update = launch.algorithm.update

    def noted(batch: Batch, step: int, actor_batch: Batch) -> dict[str, Tensor]:
        batches.append(batch)
        return update(batch, step, actor_batch)

    launch.algorithm.update = noted  # type: ignore[method-assign]
    all_pairs = launch.buffer.unpack(launch.buffer.packed).state_actions
    drawn: set[int] = set()
    for step in range(1, 31):
        assert clustering.responsibilities is not None
        labels = clustering.responsibilities.argmax(2)
        launch.update(step)
        for run, pairs in enumerate(batches[-1].state_actions):
            rows = torch.cdist(pairs, all_pairs).argmin(1)
            assert torch.equal(all_pairs[rows], pairs)
            assert (labels[run, rows] == clustering.cluster[run]).all()
            drawn.add(int(clustering.cluster[run]))
        launch.refresh(step)
    assert drawn == {0, 1, 2}


def test_one_cluster_draws_all_rows_alike_also_those_without_a_next_action() -> None:
    data, updates = short_episodes(100), 3000
    launch = launch_of("td3_bc", C4Config(K=1), data=data)
    counts = torch.zeros(100)
    for step in range(1, updates + 1):
        launch.step.fill_(step)
        counts += torch.bincount(launch.sampler.rows(launch.streams, 32)[0], minlength=100)
    expected = updates * 32 / 100
    statistic = float(((counts - expected).square() / expected).sum())
    assert abs(statistic - 99) < 4 * np.sqrt(2 * 99)
    without = counts[torch.tensor(~data.next_action_valid)]
    assert len(without) == 10 and abs(float(without.mean()) / expected - 1) < 0.02


# -- what is added to the critics' losses


def penalty_by_hand(mode: str, critic: Critic, target: Critic, batch: Batch, beta: float) -> Tensor:
    """Σ over heads of ||C||²_F + β (tr C)², each from its own critic and that critic's own target."""

    def rows_of(network: Critic, pairs: Tensor, head: int) -> Tensor:
        if mode == "proxy":
            return network.at(pairs).features[0, head]
        x = pairs.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(network.at(x).q[0, head].sum(), x, create_graph=True)
        return gradient[0]

    valid = batch.next_valid[0] > 0
    total = torch.zeros((), dtype=torch.float64)
    for head in range(2):
        g = rows_of(critic, batch.state_actions, head)[valid]
        g_next = rows_of(target, batch.next_state_actions, head)[valid].detach()
        C = (g_next - g_next.mean(0)).T @ (g - g.mean(0)) / (len(g) - 1)
        total = total + C.square().sum() + beta * C.trace() ** 2
    return total


@each_algorithm
@each_mode
def test_each_head_gets_lambda_times_its_own_penalty_and_nothing_else(algorithm: str, mode: Any) -> None:
    form = C4Config(K=2, sampler="uniform", mode=mode, lambda_=0.7, beta=0.5)
    plain, with_penalty = launch_of(algorithm, None), launch_of(algorithm, form)
    # targets that differ from the critics, so that g' from the wrong network shows
    for launch in (plain, with_penalty):
        with torch.no_grad():
            for p in launch.algorithm.networks["target_critic"].parameters():
                p.mul_(1.1)
    assert with_penalty.algorithm.critics is not None
    critic, target = with_penalty.algorithm.critics
    with_penalty.step.fill_(1)
    batch = with_penalty.buffer.gather(with_penalty.sampler.rows(with_penalty.streams, 32))
    assert 0 < batch.next_valid.sum() < 32
    weights = list(critic.mlp.weights)
    by_hand = torch.autograd.grad(
        penalty_by_hand(mode, critic, target, batch, beta=0.5), weights, allow_unused=True, materialize_grads=True
    )
    assert by_hand[0].abs().amax((0, 2, 3)).min() > 1e-6, "both heads must be pulled"
    plain_critic = plain.algorithm.networks["critic"]
    assert isinstance(plain_critic, Critic)
    without = torch.autograd.grad(critic_loss_of(plain), list(plain_critic.mlp.weights))
    having = torch.autograd.grad(critic_loss_of(with_penalty), weights)
    for pulled, base, expected in zip(having, without, by_hand, strict=True):
        torch.testing.assert_close(pulled - base, 0.7 * expected, rtol=1e-8, atol=1e-10)


@each_algorithm
@each_mode
def test_no_gradient_reaches_the_target_critic(algorithm: str, mode: Any) -> None:
    launch = launch_of(algorithm, C4Config(K=2, mode=mode))
    assert launch.algorithm.critics is not None
    target = list(launch.algorithm.critics[1].requires_grad_().parameters())
    gradients = torch.autograd.grad(critic_loss_of(launch), target, allow_unused=True)
    assert all(gradient is None for gradient in gradients)


@each_algorithm
def test_without_weight_and_with_uniform_rows_the_plugin_changes_nothing(algorithm: str) -> None:
    """Random numbers are a function of (seed, stream, update): what C4 draws for itself disturbs nobody."""
    plain = trained_state(advance(launch_of(algorithm, None), 12))
    attached = trained_state(advance(launch_of(algorithm, C4Config(K=3, period=4, lambda_=0.0, sampler="uniform")), 12))
    assert plain.keys() == attached.keys()
    for name, tensor in plain.items():
        assert torch.equal(attached[name], tensor), name


@pytest.mark.parametrize("fraction", [0.1, 1.0])
@each_algorithm
def test_an_automatic_lambda_holds_the_penalty_at_its_fraction_of_the_td_loss(algorithm: str, fraction: float) -> None:
    """Exactly where the critic and what it learns from stand almost still; while they learn, of the same order: the
    averages lag behind."""
    form = C4Config(K=2, period=50, lambda_="auto", lambda_fraction=fraction)
    fields = ALGORITHMS[algorithm].config_type.__dataclass_fields__
    for rate, factor in ((1e-7, 1.1), (3e-4, 3.0)):
        rates = {name: rate for name in ("critic_lr", "value_lr") if name in fields}
        launch = advance(launch_of(algorithm, form, **rates), 50)
        launch.read_metrics()
        found = advance(launch, 100, start=50).read_metrics()[0]
        assert 1 / factor < found["c4_penalty"] / found["critic_loss"] / fraction < factor
        assert 1 / factor < found["c4_penalty_to_td"] / fraction < factor


@each_algorithm
@each_mode
def test_rows_without_a_next_action_take_no_part(algorithm: str, mode: Any) -> None:
    """What stands in the place of a next action that was never taken must not matter, unless it is asked for."""
    data = short_episodes()
    invalid = ~data.next_action_valid[:, None]
    garbage = replace(data, next_actions=np.where(invalid, np.float32(0.9), data.next_actions))
    for masked in (True, False):
        form = C4Config(K=2, period=3, mode=mode, mask_invalid=masked)
        states = [trained_state(advance(launch_of(algorithm, form, data=d), 8)) for d in (data, garbage)]
        critics = [name for name in states[0] if name.startswith("critic/")]
        same = [torch.allclose(states[0][n], states[1][n], rtol=1e-10, atol=1e-13) for n in critics]
        assert all(same) if masked else not any(same)


# -- when it refits, and when it cannot


@each_algorithm
def test_clusters_are_refitted_every_period_and_only_then(algorithm: str) -> None:
    launch = launch_of(algorithm, C4Config(K=3, period=4))
    clustering = c4_of(launch).clustering
    assert clustering.mixture is not None  # fitted before the first update
    reported, changed = [], []
    for step in range(1, 13):
        before = clustering.mixture.means.clone()
        launch.update(step)
        if "c4_effective_K" in launch.refresh(step).get(0, {}):
            reported.append(step)
        if not torch.equal(clustering.mixture.means, before):
            changed.append(step)
    assert reported == changed == [4, 8, 12]


@pytest.mark.parametrize("form", [{}, {"mode": "proxy", "directions": 4}, {"mode": "proxy", "covariance": "diagonal"}])
def test_runs_that_go_on_are_not_clustered_anew(form: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    launch = advance(launch_of("td3_bc", C4Config(K=2, period=3, **form), seeds=(0, 1)), 4)
    states = launch.run_states()
    monkeypatch.setattr(Clustering, "refresh", None)
    again = Launch(launch.config, [0, 1], launch.buffer, CPU, torch.float64, states=states)
    found, expected = again.live_state(), launch.live_state()
    assert found.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())


def test_the_paper_s_period_is_200_updates() -> None:
    assert C4Config().period == 200


@each_algorithm
@each_mode
def test_a_mixture_that_cannot_be_fitted_is_reported_and_the_other_runs_go_on(algorithm: str, mode: Any) -> None:
    form = C4Config(K=3, period=4, mode=mode)
    launch = advance(launch_of(algorithm, form, seeds=(5, 6, 7)), 3)
    launch.update(4)
    critic = launch.algorithm.networks["critic"]
    assert isinstance(critic, Critic)
    with torch.no_grad():
        critic.mlp.weights[-1 if mode == "exact" else 0][1] *= 1e200  # finite, but its square is not
    launch.refresh(4)
    failures = launch.failures()
    assert list(failures) == [6]
    update, reason = failures[6]
    assert update == 4 and reason.startswith("the Gaussian mixture could not be fitted (")
    assert re.search(r"\((non finite|not positive|too few)", reason)
    # later refreshes keep the first report, and the neighbours never notice
    launch = advance(launch, 5, start=4)
    assert launch.failures()[6] == failures[6] and list(launch.failures()) == [6]
    undisturbed = advance(launch_of(algorithm, form, seeds=(5, 7)), 9).run_states()
    found = launch.run_states()
    for seed in (5, 7):
        for name, tensor in undisturbed[seed].items():
            torch.testing.assert_close(found[seed][name], tensor, rtol=1e-9, atol=1e-12, msg=name)


def test_rows_that_are_not_numbers_are_named_as_the_reason() -> None:
    launch = advance(launch_of("td3_bc", C4Config(K=2, period=2), seeds=(0, 1)), 1)
    launch.update(2)
    critic = launch.algorithm.networks["critic"]
    assert isinstance(critic, Critic)
    with torch.no_grad():
        critic.mlp.weights[0][0] = torch.nan
    launch.refresh(2)
    assert list(launch.failures()) == [0]
    update, reason = launch.failures()[0]
    assert update == 2 and "could not be fitted" in reason and "non finite rows" in reason


# -- the seams


# the styles of trajectories are a mixture of their own
OWN_MIXTURE = "trajectory_styles.py"
ALGORITHM_FILES = [path for path in sorted((SOURCES / "algorithms").glob("*.py")) if path.name != OWN_MIXTURE]


@pytest.mark.parametrize("path", ALGORITHM_FILES, ids=lambda path: path.name)
def test_no_algorithm_knows_c4(path: Path) -> None:
    found = re.findall(r"c4(?!rl)|cluster|cross.?covariance|mixture", path.read_text(), re.IGNORECASE)
    assert not found


@pytest.mark.parametrize("path", sorted((SOURCES / "plugins" / "c4").glob("*.py")), ids=lambda path: path.name)
def test_c4_knows_no_algorithm(path: Path) -> None:
    names = "|".join([*ALGORITHMS, *(kind.__name__ for kind in ALGORITHMS.values()), r"td3\+bc", "sac"])
    assert not re.findall(rf"\b({names})\b", path.read_text(), re.IGNORECASE)

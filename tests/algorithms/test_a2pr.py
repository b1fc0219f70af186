"""A2PR: which action is cloned, when, and by whose gradient; on networks whose outputs are known by hand."""

import math

import pytest
import torch

from c4rl.algorithms.a2pr import A2PR, Reconstruction
from c4rl.core.buffer import Batch
from c4rl.core.errors import InputError
from c4rl.core.networks import StackedMLP
from c4rl.jobs.preset_fields import published_fields
from c4rl.training.launch import Launch
from tests.helpers import advance, make_launch, small_config

# rows of (logged first action, V, next V'); the logged second action is 0.5. The VAE proposes (0, 0), of Q = 0
ROWS = [
    (0.5, 0.3, 0.9),  # only the logged action is above V: it is cloned
    (-0.5, -0.1, -0.9),  # only the proposal is: it is cloned
    (-0.5, -0.7, 0.9),  # both are: the better one is cloned, once
    (-0.5, 0.4, 0.1),  # neither is: nothing is cloned
    (0.0, 0.4, -0.2),  # equally good actions: the proposal counts as chosen
    (-0.5, 0.0, 0.7),  # a proposal as good as V is cloned ...
    (0.5, 0.5, 0.7),  # ... a logged action as good as V is not
]
AUGMENTED = [False, True, True, True, True, True, False]
CLONED = [True, True, True, False, False, True, False]
POSITIVE = [True, False, True, False, False, False, False]
POLICY = 0.25  # the actor's first action everywhere; its second is 0


def give(mlp: StackedMLP, column: int) -> None:
    """Make the MLP return its input's column (for values above -4), whatever the rest."""
    with torch.no_grad():
        for w, b in zip(mlp.weights, mlp.biases, strict=True):
            w.zero_()
            b.zero_()
            w[..., 0, 0] = 1
        mlp.weights[0][..., 0, 0] = 0
        mlp.weights[0][..., column, 0] = 1
        mlp.biases[0][..., 0], mlp.biases[-1][..., 0] = 4, -4


def give_constant(mlp: StackedMLP, values: list[float]) -> None:
    with torch.no_grad():
        for w, b in zip(mlp.weights, mlp.biases, strict=True):
            w.zero_()
            b.zero_()
        mlp.biases[-1].copy_(torch.tensor(values).expand_as(mlp.biases[-1]))


def algorithm_of(**options) -> tuple[A2PR, Launch]:
    launch = make_launch(small_config("a2pr", **options))
    assert isinstance(launch.algorithm, A2PR)
    return launch.algorithm, launch


def by_hand(**options) -> tuple[A2PR, Batch]:
    """Q1(s, a) = Q2 = the first action, Q̄(s, a) = V(s) = the first observation; nothing but V moves."""
    algorithm, launch = algorithm_of(critic_lr=1e-300, vae_lr=1e-300, value_lr=1.0, policy_noise=0.0, **options)
    give(algorithm.critic.mlp, 5)
    give(algorithm.target_critic.mlp, 0)
    give(algorithm.value.mlp, 0)
    give_constant(algorithm.vae.encoder, [0.0] * 8)
    give_constant(algorithm.vae.decoder, [0.0, 0.0])
    for actor in (algorithm.actor, algorithm.target_actor):
        give_constant(actor.mlp, [math.atanh(POLICY), 0.0])
    logged, value, next_value = (torch.tensor(column, dtype=torch.float64) for column in zip(*ROWS, strict=True))
    actions = torch.stack([logged, torch.full_like(logged, 0.5)], dim=1)
    states, next_states = (torch.cat([v.unsqueeze(1), torch.zeros(len(v), 4)], dim=1) for v in (value, next_value))
    pairs, next_pairs = torch.cat([states, actions], 1)[None], torch.cat([next_states, actions], 1)[None]
    ones = torch.ones(1, len(ROWS), dtype=torch.float64)
    continues = ones.clone()
    continues[0, 0] = 0
    batch = Batch(
        pairs, pairs[..., :5], pairs[..., 5:], next_pairs, next_pairs[..., :5], 0.1 * ones, continues, ones
    )  # fmt: skip
    launch.step.fill_(2)
    return algorithm, batch


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


# -- V and the VAE


@pytest.mark.parametrize("critic_cloning", [0.0, 0.4])
def test_v_regresses_on_the_smaller_of_the_targets_of_both_critics(critic_cloning: float) -> None:
    algorithm, batch = by_hand(critic_cloning=critic_cloning)
    far = [critic_cloning * ((POLICY - logged) ** 2 + 0.5**2) for logged, _, _ in ROWS]  # the next action from a'
    targets = [0.1 + 0.99 * (min(row[2], POLICY) - distance) for row, distance in zip(ROWS, far, strict=True)]
    targets[0] = 0.1  # terminal
    expected = mean([(value - y) ** 2 for (_, value, _), y in zip(ROWS, targets, strict=True)])
    assert algorithm.update(batch, 2, batch)["value_loss"].item() == pytest.approx(expected)


def test_the_vae_learns_logged_actions_above_v_as_it_was_before_its_step() -> None:
    """V moves far in this very update (step size 1), and the filter does not see it."""
    algorithm, batch = by_hand(reconstruction_weight=1.5)
    metrics = algorithm.update(batch, 2, batch)
    after = algorithm.value(batch.observations).detach()[0]
    assert [q > v for (q, _, _), v in zip(ROWS, after.tolist(), strict=True)] != POSITIVE
    errors = [(q**2 + 0.5**2) / 2 if positive else 0.0 for (q, _, _), positive in zip(ROWS, POSITIVE, strict=True)]
    assert metrics["reconstruction_loss"].item() == pytest.approx(1.5 * mean(errors))
    assert metrics["positive_advantage"].item() == pytest.approx(mean(POSITIVE))


def test_the_vae_is_trained_on_kl_and_filtered_reconstruction_alone() -> None:
    """The actor's loss runs through the VAE and leaves its weights alone."""
    after = []
    for step in (1, 2):  # without and with an actor update, on the same batch and random numbers
        algorithm, launch = algorithm_of(detach_target=False)
        launch.step.fill_(2)
        batch = launch.buffer.gather(launch.sampler.rows(launch.streams, 32))
        algorithm.update(batch, step, batch)
        after.append([p.detach().clone() for p in algorithm.vae.parameters()])
    assert all(torch.equal(without, with_actor) for without, with_actor in zip(*after, strict=True))


def test_the_latent_spread_is_clamped_and_its_divergence_the_closed_form() -> None:
    algorithm, _ = algorithm_of()
    vae = algorithm.vae
    states, actions, noise = torch.zeros(1, 3, 5), torch.zeros(1, 3, 2), torch.zeros(1, 3, 4)
    arguments = [t.double() for t in (states, actions, noise)]
    for raw, clamped in ((100.0, 15.0), (-100.0, -4.0), (-0.5, -0.5)):
        give_constant(vae.encoder, [0.3] * 4 + [raw] * 4)
        out = vae(*arguments)
        assert (out.log_std == clamped).all()
        expected = 0.5 * (0.3**2 + math.exp(2 * clamped) - 1) - clamped
        assert out.kl().item() == pytest.approx(expected)
    standard = Reconstruction(actions, torch.zeros(1, 3, 4), torch.zeros(1, 3, 4))
    assert standard.kl().item() == 0


def test_the_vae_decodes_a_draw_of_its_own_latent() -> None:
    algorithm, launch = algorithm_of()
    give_constant(algorithm.vae.encoder, [0.3] * 4 + [math.log(0.2)] * 4)
    launch.step.fill_(1)
    batch = launch.buffer.gather(launch.sampler.rows(launch.streams, 32))
    noise = algorithm._latent_noise("vae_latent", batch)
    expected = torch.tanh(algorithm.vae.decoder(torch.cat([batch.observations, 0.3 + 0.2 * noise], dim=2)))
    torch.testing.assert_close(algorithm.vae(batch.observations, batch.actions, noise).actions, expected)


# -- the actor


def test_the_better_action_is_cloned_where_either_is_better_than_v() -> None:
    algorithm, batch = by_hand(cloning_weight=0.4, alpha=2.5)
    metrics = algorithm.update(batch, 2, batch)
    assert metrics["augmented"].item() == pytest.approx(mean(AUGMENTED))
    assert metrics["cloned"].item() == pytest.approx(mean(CLONED))
    errors = []
    for (logged, _, _), augmented, cloned in zip(ROWS, AUGMENTED, CLONED, strict=True):
        target = (0.0, 0.0) if augmented else (logged, 0.5)
        errors.append(((POLICY - target[0]) ** 2 + target[1] ** 2) / 2 if cloned else 0.0)
    # Q1 is POLICY everywhere: divided by its own mean size it is one
    assert metrics["actor_loss"].item() == pytest.approx(0.4 * mean(errors) - 2.5)


@pytest.mark.parametrize(("logged", "same"), [(1.0, True), (-1.0, False)])
def test_the_cloned_proposal_is_a_constant_unless_asked_otherwise(logged: float, same: bool) -> None:
    """The gradient through the VAE matters where its proposal is chosen, and only there."""
    after = []
    for detach in (True, False):
        algorithm, launch = algorithm_of(detach_target=detach, alpha=0.0)
        give(algorithm.critic.mlp, 5)
        with torch.no_grad():
            algorithm.value.mlp.biases[-1].fill_(-3.0)
        launch.buffer.packed[:, 5] = logged
        advance(launch, 2)
        assert algorithm.last["cloned"].item() == 1 and algorithm.last["augmented"].item() == float(not same)
        after.append([p.detach().clone() for p in algorithm.actor.parameters()])
    assert all(torch.equal(with_, without) for with_, without in zip(*after, strict=True)) == same


def test_without_a_gradient_of_its_own_the_proposal_pulls_the_actor_towards_itself() -> None:
    """alpha = 0: the actor's loss is the distance to the fixed proposal, and training brings it down."""
    algorithm, batch = by_hand(alpha=0.0, actor_lr=1e-2)
    batch = Batch(*(t[:, 1:3] for t in batch[:8]))  # rows whose proposal (0, 0) is cloned
    first = algorithm.update(batch, 2, batch)["actor_loss"].item()
    with torch.no_grad():
        before = algorithm.actor(batch.observations).abs().sum()
        for _ in range(20):
            give(algorithm.value.mlp, 0)
            with torch.enable_grad():
                algorithm.update(batch, 2, batch)
        assert algorithm.actor(batch.observations).abs().sum() < before
    assert algorithm.last["actor_loss"].item() < first


def test_actor_and_targets_move_on_every_second_update_and_the_rest_on_each() -> None:
    algorithm, launch = algorithm_of()

    def snapshot() -> dict[str, torch.Tensor]:
        return {
            name: torch.cat([p.detach().reshape(-1) for p in module.parameters()])
            for name, module in algorithm.networks.items()
        }

    initial = snapshot()
    advance(launch, 1)
    first = snapshot()
    advance(launch, 1, start=1)
    second = snapshot()
    moved_first = {name for name in initial if not torch.equal(initial[name], first[name])}
    moved_second = {name for name in initial if not torch.equal(first[name], second[name])}
    assert moved_first == {"critic", "value", "vae"}
    assert moved_second == set(initial)


# -- settings


def test_networks_have_the_published_depths() -> None:
    algorithm = make_launch(small_config("a2pr", hidden_layers=4, actor_layers=3, vae_width=750)).algorithm
    assert isinstance(algorithm, A2PR)
    depths = [len(mlp.weights) - 1 for mlp in (algorithm.actor.mlp, algorithm.critic.mlp, algorithm.value.mlp)]
    assert depths == [3, 4, 4]
    assert [w.shape[-1] for w in algorithm.vae.encoder.weights] == [750, 750, 8]  # mean and spread of 2 x 2 numbers
    assert [w.shape[-1] for w in algorithm.vae.decoder.weights] == [750, 750, 2]


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("halfcheetah-medium-v2", (40.0, 1.0, 1.0, 0.99)),
        ("halfcheetah-medium-replay-v2", (40.0, 1.5, 0.8, 0.995)),
        ("hopper-medium", (2.5, 1.0, 0.4, 0.995)),
        ("hopper-medium-expert-v2", (2.5, 1.0, 4.0, 0.99)),
        ("walker2d-medium-replay-v2", (2.5, 1.5, 1.2, 0.995)),
        ("ant-medium-v2", (2.5, 1.0, 0.5, 0.99)),
        ("antmaze-large-play-v2", (2.5, 1.0, 1.0, 0.995)),
        ("pen-cloned-v1", (1.0, 1.0, 0.5, 0.99)),
    ],
)
def test_published_settings_of_single_tasks(task: str, expected: tuple[float, ...]) -> None:
    options = published_fields("a2pr", (), task)["options"]
    assert (options.alpha, options.reconstruction_weight, options.cloning_weight, options.discount) == expected
    assert not options.detach_target  # as the code behind the published scores


@pytest.mark.parametrize("wrong", [{"actor_layers": 0}, {"vae_width": 0}, {"policy_delay": 0}])
def test_settings_without_meaning_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InputError, match="expected a whole number at least 1"):
        small_config("a2pr", **wrong)

"""TSRL (Cheng et al., 2023): TD3+BC in the latent space of a dynamics model that is symmetric under time reversal.

Stage one trains the model (t_symmetry_dynamics.py), stage two the policy. The critic sees latent pairs; the policy is
held near the data's latent actions and where the model is symmetric, and asks the critic about noisy latent states too,
as far as the model stays symmetric there.
"""

from collections.abc import Hashable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from c4rl.algorithms.algorithm import Algorithm, Metrics, Published, Stage
from c4rl.algorithms.losses import clipped_target, squared_error
from c4rl.algorithms.t_symmetry_dynamics import ResidualStatistics, TSymmetryDynamics, mean_over
from c4rl.algorithms.td3 import TD3Config
from c4rl.core.buffer import Batch, TransitionBuffer
from c4rl.core.errors import InputError
from c4rl.core.networks import Critic, Stack, per_row
from c4rl.core.optimizers import FlatAdam, Polyak
from c4rl.core.policies import DeterministicPolicy, dropout_masks
from c4rl.core.random import Streams
from c4rl.plugins.seams import ActorStep, CriticStep, Plugins

CHECKED_ROWS = 4096  # of the comparison between true and shuffled transitions


@dataclass(frozen=True)
class TSRLConfig(TD3Config):
    stackable: ClassVar[frozenset[str]] = frozenset(
        {"actor_lr", "critic_lr", "dynamics_lr", "discount", "tau", "alpha", "latent_cloning", "policy_symmetry"}
        | {"quantile", "noise_scale", "encoder_ode_weight", "decoder_ode_weight", "symmetry_weight", "l1_weight"}
    )

    hidden_layers: int = 2
    """Hidden layers of the actor and the critics."""
    hidden_width: int = 512
    """Units per hidden layer of the actor and the critics."""
    actor_lr: float = 3e-4
    """Adam's step size for the policy."""
    latent_cloning: float = 100.0
    """Weight of the squared distance between the policy's and the data's latent actions."""
    policy_symmetry: float = 100.0
    """Weight of the policy's violation of T-symmetry."""
    quantile: float = 0.7
    """A noisy latent state is used where its T-symmetry residual is within this quantile of the data's."""
    noise_scale: float = 0.01
    """Standard deviation of the latent states' noise, in units of their own."""
    noise: Literal["centred", "shifted"] = "centred"
    """One zero-mean draw per row, or (authors' release) one for the whole batch, around the mean latent state."""
    acceptance: Literal["row", "batch"] = "row"
    """Rows are used one by one, or (authors' release) all or none, by their residual averaged over rows and dimensions
    against the quantile of residuals scaled to [0, 1]."""
    drop_terminals: bool = False
    """Authors' release on reduced data: rows that end an episode are left out, so that no episode seems to end."""
    dropout: float = 0.1
    """Share of the policy's hidden units that each update leaves out; none when it acts."""
    dynamics_updates: int = 35_000
    """Updates of the dynamics model, before --updates of the policy; 35,000 is 2,000 passes over 9,000 rows."""
    dynamics_batch_size: int = 512
    """Rows per update of the dynamics model."""
    dynamics_lr: float = 3e-4
    """Adam's step size for the dynamics model."""
    encoder_ode_from: int = 3_500
    """Updates of the dynamics model before the encoder's side of the ODE joins the loss."""
    encoder_ode_weight: float = 0.1
    """Weight of the encoder's side of the ODE."""
    decoder_ode_weight: float = 1.0
    """Weight of the decoder's side of the ODE."""
    symmetry_weight: float = 0.1
    """Weight of the symmetry between the forward and the reverse dynamics."""
    l1_weight: float = 1e-5
    """Weight of the absolute weights of the forward and the reverse dynamics."""
    encoder_widths: tuple[int, ...] = (512, 256, 128)
    """Hidden layers of the encoder; the decoders' are the same backwards."""
    field_widths: tuple[int, ...] = (512, 512, 512)
    """Hidden layers of the forward and the reverse dynamics."""


_RELEASE = "pcheng2/TSRL at 392420f, its 10k-row runs"
_OURS = "ours, as nobody published any"
_NETWORKS: dict[str, Any] = {"hidden_layers": 2, "hidden_width": 512, "actor_lr": 3e-4, "critic_lr": 3e-4}
_LOCOMOTION = _NETWORKS | {"latent_cloning": 100.0, "policy_symmetry": 100.0, "quantile": 0.7}
_ADROIT = _LOCOMOTION | {"latent_cloning": 10_000.0, "encoder_ode_from": 0}
_SCHEDULE: dict[str, Any] = {"updates": 1_000_000, "eval_every": 3_000, "eval_episodes": 5}
_MAZES = {"updates": 1_000_000, "eval_episodes": 100}


class TSRL(Algorithm):
    config_type = TSRLConfig
    has_density = False
    published: ClassVar[tuple[Published, ...]] = (
        Published(("hopper-*", "halfcheetah-*", "walker2d-*"), f"{_RELEASE}, tsrl_loco.sh", _LOCOMOTION, _SCHEDULE),
        Published(("walker2d-*",), f"{_RELEASE}, tsrl_loco.sh", {"latent_cloning": 200.0, "quantile": 0.5}),
        Published(("pen-*", "hammer-*", "door-*", "relocate-*"), f"{_RELEASE}, tsrl_adroit.sh", _ADROIT, _SCHEDULE),
        Published(("ant-*",), f"{_OURS}: as locomotion", _LOCOMOTION, _SCHEDULE),
        Published(("maze2d-*",), f"{_OURS}: as locomotion", _LOCOMOTION, _MAZES),
        Published(("antmaze-*",), f"{_OURS}: as locomotion; r - 1", _LOCOMOTION, _MAZES | {"reward_shift": -1.0}),
        Published(("kitchen-*",), f"{_OURS}: cloning as Adroit", _LOCOMOTION | {"latent_cloning": 10_000.0}, _SCHEDULE),
    )

    def __init__(self, config: TSRLConfig, stack: Stack, streams: Streams, plugins: Plugins) -> None:
        super().__init__(config, stack, streams, plugins)
        self.config, self.discount = config, config.discount
        self.dynamics = TSymmetryDynamics(stack, "dynamics", config.encoder_widths, config.field_widths)
        self.actor = DeterministicPolicy(stack, "actor", config.hidden)
        self.critic = Critic(stack, "critic", config.hidden, layer_norm=plugins.critic_layer_norm)  # on [z_s, z_a]
        self.target_actor, self.target_critic = deepcopy(self.actor), deepcopy(self.critic)
        self.networks = {
            "dynamics": self.dynamics,
            "actor": self.actor,
            "critic": self.critic,
            "target_actor": self.target_actor,
            "target_critic": self.target_critic,
        }
        self.optimizers = {
            "dynamics": FlatAdam(self.dynamics, config.dynamics_lr),
            "actor": FlatAdam(self.actor, config.actor_lr),
            "critic": FlatAdam(self.critic, config.critic_lr),
        }
        self.polyak = [
            Polyak(self.optimizers["actor"], self.target_actor, config.tau),
            Polyak(self.optimizers["critic"], self.target_critic, config.tau),
        ]

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(stack.runs, *shape, device=stack.device, dtype=stack.dtype)

        s = stack.observation_dim
        self.data = ResidualStatistics(zeros(s), zeros(s), zeros(3))  # known from the end of stage one on
        self._actor_report = zeros(4)  # of the last actor update

    @classmethod
    def check(cls, config: TSRLConfig, task: str) -> None:
        def require(name: str, holds: bool, expected: str) -> None:
            if not holds:
                found = getattr(config, name)
                raise InputError(f"--{name.replace('_', '-')}: found {found}, expected {expected}")

        for name in ("dynamics_updates", "policy_delay"):
            require(name, getattr(config, name) >= 1, "1 or more")
        require("dynamics_batch_size", config.dynamics_batch_size >= 2, "2 or more rows")
        require("encoder_ode_from", config.encoder_ode_from >= 0, "0 or more updates")
        require("dynamics_lr", config.dynamics_lr > 0, "a positive number")
        require("quantile", 0 <= config.quantile <= 1, "a number from 0 to 1")
        require("noise_scale", config.noise_scale >= 0, "0 or more")
        require("dropout", 0 <= config.dropout < 1, "a probability below 1")
        for name in ("encoder_widths", "field_widths"):
            widths = getattr(config, name)
            require(name, len(widths) > 0 and min(widths) > 0, "one or more widths of 1 or more units")

    @classmethod
    def plan(cls, config: Any, updates: int) -> tuple[Stage, ...]:
        return (
            Stage(
                "dynamics model", config.dynamics_updates, config.dynamics_batch_size, plugged=False, evaluated=False
            ),
            Stage("training", updates, config.batch_size),
        )

    @classmethod
    def launch_key(cls, config: TSRLConfig, rows: int, data: int) -> Hashable:
        return 0  # what the model says of the data is each run's own

    def attach(self, buffer: TransitionBuffer) -> None:
        self.buffer = buffer

    def phase(self, step: int) -> tuple[int, bool]:
        """The stage, and whether the encoder's ODE (stage one) or the actor (stage two) takes part."""
        stage, step = self.stage_at(step)
        if stage == 0:
            return stage, step > self.config.encoder_ode_from
        return stage, step % self.config.policy_delay == 0

    def critic_inputs(self, state_actions: Tensor) -> Tensor:
        with torch.no_grad():
            return self.dynamics.encoder(state_actions)

    def update(self, batch: Batch, step: int) -> Metrics:
        stage, takes_part = self.phase(step)
        self.dynamics.requires_grad_(stage == 0)  # in stage two gradients pass through the model, into the policy
        if stage == 0:
            return self._update_dynamics(batch, with_encoder_ode=takes_part)
        return self._update_policy(batch, with_actor=takes_part)

    # -- stage one

    def _update_dynamics(self, batch: Batch, with_encoder_ode: bool) -> Metrics:
        config = self.config
        losses = self.dynamics.losses(batch)
        loss = (
            losses.reconstruction
            + config.decoder_ode_weight * losses.decoder_ode
            + config.symmetry_weight * losses.symmetry
            + config.l1_weight * self.dynamics.field_l1()
        )
        if with_encoder_ode:
            loss = loss + config.encoder_ode_weight * losses.encoder_ode
        self.optimizers["dynamics"].step(loss)
        return {
            "dynamics_loss": loss.detach(),
            "dynamics_reconstruction": losses.reconstruction.detach(),
            "dynamics_encoder_ode": losses.encoder_ode.detach(),
            "dynamics_decoder_ode_to_change": (losses.decoder_ode / losses.change.clamp_min(1e-12)).detach(),
            "dynamics_symmetry": losses.symmetry.detach(),
        }

    def after_update(self, step: int) -> Metrics:
        """At the end of stage one: what the model, which changes no more, says of the data."""
        if step != self.stages[0].updates:
            return {}
        found = self.dynamics.statistics(self.buffer, self.config.quantile)
        for kept, new in zip(self.data, found, strict=True):
            kept.copy_(new)
        report = self._true_and_shuffled_symmetry()
        report["symmetry_threshold"] = found.residuals[:, 0]
        for plugin in self.plugins.all:  # the critic's inputs have only now become what they stay
            if plugin.period is not None:
                report |= plugin.refresh(self, step)
        return report

    @torch.no_grad()
    def _true_and_shuffled_symmetry(self) -> Metrics:
        """A model that learned the dynamics finds transitions between rows of different times far less symmetric."""
        offsets = self.buffer.offsets.unsqueeze(1)
        rows, others = (
            self.streams.integers(f"symmetry_check/{name}", self.buffer.lengths, CHECKED_ROWS) + offsets
            for name in ("rows", "others")
        )
        batch = self.buffer.gather(rows)
        shuffled = batch._replace(next_observations=self.buffer.gather(others).observations)
        return {
            "dynamics_symmetry_true": self.dynamics.losses(batch).symmetry,
            "dynamics_symmetry_shuffled": self.dynamics.losses(shuffled).symmetry,
        }

    # -- stage two

    def _update_policy(self, batch: Batch, with_actor: bool) -> Metrics:
        config, model = self.config, self.dynamics
        rows = batch.rewards.shape[1]
        used = batch.continues if config.drop_terminals else torch.ones_like(batch.continues)
        with torch.no_grad():
            z = model.encoder(batch.state_actions)
            noise = self.streams.normal("target_noise", *batch.actions.shape[1:]) * config.policy_noise
            noise = noise.clamp(-config.noise_clip, config.noise_clip)
            masks = self._dropout("target_dropout", rows)
            next_actions = (self.target_actor(batch.next_observations, masks) + noise).clamp(-1, 1)
            next_z = model.encoder(torch.cat([batch.next_observations, next_actions], dim=2))
            y = clipped_target(batch, config.discount, self.target_critic.at(next_z).q)

        output = self.critic.at(z)
        td_loss = mean_over(squared_error(output.q, y.unsqueeze(1)), used.unsqueeze(1))  # [R, M]
        latent, backup = self._as_the_critic_sees(batch, z, next_z)
        penalty = self.plugins.critic_penalty(
            CriticStep(latent, self.critic, self.target_critic, output, backup, td_loss)
        )
        self.optimizers["critic"].step(td_loss + penalty)

        if with_actor:
            both = torch.cat([batch.observations, batch.next_observations], dim=1)
            actions, policy_next = self.actor(both, self._dropout("dropout", 2 * rows)).split(rows, dim=1)
            z_s, z_a = model.encode(batch.observations, actions)
            next_z_s, _ = model.encode(batch.next_observations, policy_next)
            forward_step = model.forward_step(z_s, z_a)
            trip = model.round_trip(z_s, z_a, forward_step, next_z_s)
            asymmetry = mean_over(trip.square().mean(2), batch.continues)  # a terminal's s' is another episode's
            cloning = mean_over(squared_error(z_a, model.split(z)[1]).mean(2), used)

            noise, trusted = self._trusted_noise(batch, z_s, z_a, forward_step)
            asked = torch.cat([torch.cat([z_s, z_s + noise], dim=1), z_a.repeat(1, 2, 1)], dim=2)
            q, weights = self.critic.at(asked, frozen=True).q.amin(1), torch.cat([used, trusted], dim=1)
            scale = config.alpha / mean_over(q.detach().abs(), weights)
            actor_loss = (
                config.latent_cloning * cloning + config.policy_symmetry * asymmetry - scale * mean_over(q, weights)
            )
            term = self.plugins.actor_term(ActorStep(batch, self.critic, actions, None, None))
            self.optimizers["actor"].step(actor_loss + term)
            for polyak in self.polyak:
                polyak.step()
            report = torch.stack([actor_loss, cloning, asymmetry, trusted.mean(1)], dim=1)
            self._actor_report.copy_(report.detach())

        names = ("actor_loss", "latent_cloning", "policy_asymmetry", "trusted_noise")
        return {
            "critic_loss": td_loss.detach().sum(1),
            "q": output.q.detach().mean((1, 2)),
            **dict(zip(names, self._actor_report.unbind(1), strict=True)),
        }

    @torch.no_grad()
    def _trusted_noise(self, batch: Batch, z_s: Tensor, z_a: Tensor, forward_step: Tensor) -> tuple[Tensor, Tensor]:
        """Noise for latent states [R, B, s], and where the model stays symmetric under it, 1 or 0 [R, B]."""
        config, model, data = self.config, self.dynamics, self.data
        std = (per_row(config.noise_scale) * data.latent_std).unsqueeze(1)
        rows, s = z_s.shape[1:]
        if config.noise == "centred":
            noise = self.streams.normal("latent_noise", rows, s) * std
        else:
            noise = (data.latent_mean.unsqueeze(1) + self.streams.normal("latent_noise", 1, s) * std).expand_as(z_s)
        next_z_s, _ = model.encode(batch.next_observations, batch.actions)
        noisy, noisy_next = z_s + noise, next_z_s + noise
        predicted = noisy_next + model.forward_step(noisy, z_a) - forward_step
        residual = (noisy_next + model.reverse_step(predicted, z_a) - noisy).square().sum(2)  # [R, B]
        threshold, least, largest = data.residuals.unsqueeze(2).unbind(1)  # [R, 1] each
        if config.acceptance == "batch":
            residual = (residual.mean(1, keepdim=True) / s).expand_as(residual)
            threshold = (threshold - least) / (largest - least)
        # a terminal's s' is another episode's: nothing can be said of it
        return noise, (residual <= threshold).to(z_s.dtype) * batch.continues

    def _as_the_critic_sees(self, batch: Batch, z: Tensor, next_z: Tensor) -> tuple[Batch, Tensor]:
        """The batch and the backup's actions in latent space, for plug-ins: there, [next_observations, backup_actions]
        is the point of the TD target, and next_state_actions the image of the logged next pair."""
        (z_s, z_a), (next_z_s, backup) = self.dynamics.split(z), self.dynamics.split(next_z)
        latent = batch._replace(
            state_actions=z,
            observations=z_s,
            actions=z_a,
            next_state_actions=self.critic_inputs(batch.next_state_actions),
            next_observations=next_z_s,
        )
        return latent, backup

    def _dropout(self, stream: str, rows: int) -> list[Tensor] | None:
        return dropout_masks(self.streams, stream, self.config.dropout, self.config.hidden, rows)

    def state(self) -> dict[str, Tensor]:
        data = {f"data/{name}": tensor for name, tensor in self.data._asdict().items()}
        return super().state() | data | {"actor_report": self._actor_report}

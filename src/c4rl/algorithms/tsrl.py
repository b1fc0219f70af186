"""TSRL (Cheng et al., 2023): TD3+BC in the latent space of a dynamics model that is symmetric under time reversal.

Stage one trains the model (t_symmetry_dynamics.py), stage two the policy. The critic sees latent pairs. The policy
stays near the data's latent actions and where the model is symmetric; it also maximises the critic at noisy latent
states, as long as the model stays symmetric there.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from c4rl.algorithms.algorithm import Metrics, Stage
from c4rl.algorithms.losses import clipped_target, squared_error
from c4rl.algorithms.t_symmetry_dynamics import ResidualStatistics, TSymmetryDynamics, mean_over
from c4rl.algorithms.td3 import TD3, TD3Config
from c4rl.core.buffer import Batch, TransitionBuffer
from c4rl.core.errors import InputError
from c4rl.core.networks import Stack, per_row
from c4rl.core.options import PerRun, option
from c4rl.core.policies import dropout_masks
from c4rl.core.random import Streams
from c4rl.data.dataset import Dataset
from c4rl.plugins.seams import Plugins

DYNAMICS = 0  # the first stage


@dataclass(frozen=True)
class TSRLConfig(TD3Config):
    hidden_layers: int = option(2, at_least=1, at_most=100)
    """Hidden layers of the actor and the critics."""
    hidden_width: int = option(512, at_least=1, at_most=100_000)
    """Units per hidden layer of the actor and the critics."""
    actor_lr: PerRun = option(3e-4, above=0, at_most=1)
    """Adam's step size for the policy."""
    latent_cloning: PerRun = option(100.0, at_least=0, at_most=1e9)
    """Weight of the squared distance between the policy's and the data's latent actions."""
    policy_symmetry: PerRun = option(100.0, at_least=0, at_most=1e9)
    """Weight of the policy's violation of T-symmetry."""
    quantile: PerRun = option(0.7, at_least=0, at_most=1)
    """A noisy latent state is used where its T-symmetry residual is within this quantile of the data's."""
    noise_scale: PerRun = option(0.01, at_least=0, at_most=1e6)
    """Standard deviation of the latent states' noise, relative to their own."""
    noise: Literal["centred", "shifted"] = "centred"
    """One zero-mean draw per row, or (authors' release) one for the whole batch, around the mean latent state."""
    acceptance: Literal["row", "batch"] = "row"
    """Rows are used one by one, or (authors' release) all or none, by their residual averaged over rows and dimensions
    against the quantile of residuals scaled to [0, 1]."""
    drop_terminals: bool = False
    """Authors' release on reduced data: rows that end an episode are left out, so that no episode seems to end."""
    dropout: float = option(0.1, at_least=0, below=1)
    """Share of the policy's hidden units that each update leaves out; none when it acts."""
    dynamics_updates: int = option(35_000, at_least=1, at_most=1e9)
    """Updates of the dynamics model, before --updates of the policy; 35,000 is 2,000 passes over 9,000 rows."""
    dynamics_batch_size: int = option(512, at_least=2, at_most=1_000_000)
    """Rows per update of the dynamics model."""
    dynamics_lr: PerRun = option(3e-4, above=0, at_most=1)
    """Adam's step size for the dynamics model."""
    encoder_ode_from: int = option(3_500, at_least=0, at_most=1e9)
    """Updates of the dynamics model before the encoder's side of the ODE joins the loss."""
    encoder_ode_weight: PerRun = option(0.1, at_least=0, at_most=1e6)
    """Weight of the encoder's side of the ODE."""
    decoder_ode_weight: PerRun = option(1.0, at_least=0, at_most=1e6)
    """Weight of the decoder's side of the ODE."""
    symmetry_weight: PerRun = option(0.1, at_least=0, at_most=1e6)
    """Weight of the symmetry between the forward and the reverse dynamics."""
    l1_weight: PerRun = option(1e-5, at_least=0, at_most=1e6)
    """Weight of the absolute weights of the forward and the reverse dynamics."""
    encoder_widths: tuple[int, ...] = option((512, 256, 128), at_least=1, at_most=100_000)
    """Hidden layers of the encoder; the decoders' are the same backwards."""
    field_widths: tuple[int, ...] = option((512, 512, 512), at_least=1, at_most=100_000)
    """Hidden layers of the forward and the reverse dynamics."""

    def check(self) -> None:
        self.refuse("its targets are of latent actions", "critic_cloning")
        self.refuse("it has --dropout, in targets too", "actor_dropout")


class TSRL(TD3):
    """The critics are TD3's, on [z_s, z_a]."""

    mixes_datasets = True
    config_type = TSRLConfig
    config: TSRLConfig
    remembered = ("actor_loss", "latent_cloning", "policy_asymmetry", "trusted_noise")

    def __init__(self, config: TSRLConfig, stack: Stack, streams: Streams, plugins: Plugins) -> None:
        super().__init__(config, stack, streams, plugins)
        model = TSymmetryDynamics(stack, "dynamics", config.encoder_widths, config.field_widths)
        self.dynamics = self.learner("dynamics", model, config.dynamics_lr)
        s = stack.observation_dim
        self.data = ResidualStatistics(  # known from the end of stage one on
            self.kept("data/latent_mean", s), self.kept("data/latent_std", s), self.kept("data/residuals", 3)
        )

    @classmethod
    def select_rows(cls, config: Any, dataset: Dataset) -> Dataset:
        if (found := int((~dataset.terminals).sum())) < 2:
            what = f"{found} rows to train on that end no episode"
            raise InputError(f"{dataset.source}: found {what}, expected 2 or more: the dynamics model learns from them")
        return dataset

    @classmethod
    def plan(cls, config: Any, updates: int) -> tuple[Stage, ...]:
        rows = config.dynamics_batch_size
        return (
            Stage("dynamics model", config.dynamics_updates, rows, plugged=False, evaluated=False),
            Stage("training", updates, config.batch_size),
        )

    def attach(self, buffer: TransitionBuffer) -> None:
        self.buffer = buffer

    def phase(self, step: int) -> tuple[int, bool]:
        """The stage, and whether the encoder's ODE (stage one) or the actor (stage two) takes part."""
        stage, update = self.stage_at(step)
        return stage, update > self.config.encoder_ode_from if stage == DYNAMICS else self.updates_actor(update)

    def critic_inputs(self, state_actions: Tensor) -> Tensor:
        with torch.no_grad():
            return self.dynamics.encoder(state_actions)

    def update(self, batch: Batch, step: int, actor_batch: Batch) -> Metrics:
        stage, takes_part = self.phase(step)
        self.dynamics.requires_grad_(stage == DYNAMICS)  # later, gradients pass through the model into the policy
        if stage == DYNAMICS:
            return self._update_dynamics(batch, with_encoder_ode=takes_part)
        z = self.critic_inputs(batch.state_actions)
        metrics = self._update_critics(batch, z)
        if takes_part:
            same = actor_batch is batch
            self._update_actor(actor_batch, z if same else self.critic_inputs(actor_batch.state_actions))
        return metrics | self.last

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
            "dynamics_loss": loss,
            "dynamics_reconstruction": losses.reconstruction,
            "dynamics_encoder_ode": losses.encoder_ode,
            "dynamics_decoder_ode_to_change": losses.decoder_ode / losses.change.clamp_min(1e-12),
            "dynamics_symmetry": losses.symmetry,
        }

    def after_update(self, step: int) -> Metrics:
        """At the end of stage one: statistics of the data under the final model."""
        if step != self.stages[0].updates:
            return {}
        found = self.dynamics.statistics(self.buffer, self.config.quantile)
        for kept, new in zip(self.data, found, strict=True):
            kept.copy_(new)
        report = self.dynamics.true_and_shuffled_symmetry(self.buffer, self.streams)
        report["symmetry_threshold"] = found.residuals[:, 0]
        for plugin in self.plugins.all:  # the critic's inputs are final only now: what was seen before is of no use
            if plugin.period is not None:
                report |= plugin.refresh(self, 0)
        return report

    # -- stage two

    def _update_critics(self, batch: Batch, z: Tensor) -> Metrics:
        """TD3's step at latent pairs z = φ(s, a)."""
        next_z, y = self._backup(batch)
        output = self.critic.at(z)
        td_loss = mean_over(squared_error(output.q, y.unsqueeze(1)), self._used(batch).unsqueeze(1))  # [R, M]
        latent, backup = self._as_the_critic_sees(batch, z, next_z)
        return self.critic_step(latent, output, backup, td_loss)

    @torch.no_grad()
    def _backup(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The latent pair φ(s', ã') [R, B, s + a], and y [R, B]."""
        masks = self._dropout("target_dropout", batch.rewards.shape[1])
        next_actions = self.smoothed_actions(batch, masks)
        next_z = self.critic_inputs(torch.cat([batch.next_observations, next_actions], dim=2))
        return next_z, clipped_target(batch, self.config.discount, self.target_critic.at(next_z).q)

    def regression_target(self, batch: Batch) -> Tensor:
        return self._backup(batch)[1]

    def _update_actor(self, batch: Batch, z: Tensor) -> None:
        """Cloning and symmetry in latent space, minus Q at latent states and, where trusted, around them."""
        config, model, used = self.config, self.dynamics, self._used(batch)
        rows = batch.rewards.shape[1]
        both = torch.cat([batch.observations, batch.next_observations], dim=1)
        actions, policy_next = self.actor(both, self._dropout("dropout", 2 * rows)).split(rows, dim=1)
        z_s, z_a = model.encode(batch.observations, actions)
        next_z_s, _ = model.encode(batch.next_observations, policy_next)
        forward_step = model.forward_step(z_s, z_a)
        trip = model.round_trip(z_s, z_a, forward_step, next_z_s)
        asymmetry = mean_over(trip.square().mean(2), batch.continues)  # a terminal's s' belongs to another
        cloning = mean_over(squared_error(z_a, model.split(z)[1]).mean(2), used)

        noise, trusted = self._trusted_noise(batch, z_s, z_a, forward_step)
        asked = torch.cat([torch.cat([z_s, z_s + noise], dim=1), z_a.repeat(1, 2, 1)], dim=2)
        q, weights = self.critic.at(asked, frozen=True).q.amin(1), torch.cat([used, trusted], dim=1)
        scale = config.alpha / mean_over(q.detach().abs(), weights).clamp_min(1e-12)  # 0 where no row counts
        held = config.latent_cloning * cloning + config.policy_symmetry * asymmetry
        self.actor_step(batch, actions, held - scale * mean_over(q, weights))
        self.remember(latent_cloning=cloning, policy_asymmetry=asymmetry, trusted_noise=trusted.mean(1))

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
            residual = (mean_over(residual, batch.continues) / s).unsqueeze(1).expand_as(residual)
            threshold = (threshold - least) / (largest - least)
        # a terminal's s' belongs to another episode
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

    def _used(self, batch: Batch) -> Tensor:
        """1 for the rows that losses see, [R, B]."""
        return batch.continues if self.config.drop_terminals else torch.ones_like(batch.continues)

    def _dropout(self, stream: str, rows: int) -> list[Tensor] | None:
        return dropout_masks(self.streams, stream, self.config.dropout, self.config.hidden, rows)

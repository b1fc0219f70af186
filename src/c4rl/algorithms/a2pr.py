"""A2PR (Liu et al., ICML 2024): TD3+BC that clones the better of the logged action and a proposal of a filtered VAE."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from c4rl.algorithms.algorithm import Metrics
from c4rl.algorithms.losses import mean_squared_error, squared_error
from c4rl.algorithms.td3 import TD3, TD3Config
from c4rl.core.buffer import Batch
from c4rl.core.networks import Stack, StackedMLP, Value
from c4rl.core.options import PerRun, option
from c4rl.core.random import Streams
from c4rl.plugins.seams import Plugins

LOG_STD_MINIMUM, LOG_STD_MAXIMUM = -4.0, 15.0  # of the VAE's latent


@dataclass(frozen=True)
class A2PRConfig(TD3Config):
    hidden_layers: int = option(4, at_least=1, at_most=100)
    """Hidden layers of the critics and of V."""
    actor_layers: int = option(3, at_least=1, at_most=100)
    """Hidden layers of the actor."""
    actor_lr: PerRun = option(3e-4, above=0, at_most=1)
    """Adam's step size for the policy."""
    value_lr: PerRun = option(3e-4, above=0, at_most=1)
    """Adam's step size for V."""
    vae_width: int = option(750, at_least=1, at_most=100_000)
    """Units of each of the two hidden layers of the VAE's encoder and decoder."""
    vae_lr: PerRun = option(1e-3, above=0, at_most=1)
    """Adam's step size for the VAE."""
    reconstruction_weight: PerRun = option(1.0, at_least=0, at_most=1e6)
    """w1: weight of the VAE's reconstruction error (the original's vae_weight)."""
    kl_weight: PerRun = option(0.5, at_least=0, at_most=1e6)
    """Weight of the VAE's KL term."""
    cloning_weight: PerRun = option(0.5, at_least=0, at_most=1e6)
    """w2: weight of cloning (the original's mask)."""
    detach_target: bool = True
    """The cloned action is a constant; off: the actor's gradient also runs through the VAE into it, as in the original
    code."""

    @property
    def actor_hidden(self) -> tuple[int, ...]:
        return (self.hidden_width,) * self.actor_layers


class Reconstruction(NamedTuple):
    actions: Tensor  # [R, B, a]
    mean: Tensor  # [R, B, 2a], of the latent
    log_std: Tensor

    def kl(self) -> Tensor:
        """KL(q(z|s, a) || N(0, I)) per latent dimension, averaged over rows and dimensions, [R]."""
        return -0.5 * (1 + 2 * self.log_std - self.mean.square() - (2 * self.log_std).exp()).mean((1, 2))


class ConditionalVAE(nn.Module):
    """Encoder q(z|s, a) and decoder p(a|s, z), with a latent twice as wide as the action."""

    def __init__(self, stack: Stack, name: str, width: int) -> None:
        super().__init__()
        s, a = stack.observation_dim, stack.action_dim
        self.latent_dim = 2 * a
        self.encoder = StackedMLP(stack, f"{name}.encoder", (s + a, width, width, 2 * self.latent_dim))
        self.decoder = StackedMLP(stack, f"{name}.decoder", (s + self.latent_dim, width, width, a))

    def forward(self, observations: Tensor, actions: Tensor, noise: Tensor, frozen: bool = False) -> Reconstruction:
        """Encode, draw z with standard normal noise [R, B, 2a], decode. frozen: as for a Critic."""
        latent = self.encoder(torch.cat([observations, actions], dim=2), frozen=frozen)
        mean, log_std = latent.split(self.latent_dim, dim=2)
        log_std = log_std.clamp(LOG_STD_MINIMUM, LOG_STD_MAXIMUM)
        z = mean + log_std.exp() * noise
        decoded = torch.tanh(self.decoder(torch.cat([observations, z], dim=2), frozen=frozen))
        return Reconstruction(decoded, mean, log_std)


class A2PR(TD3):
    config_type = A2PRConfig
    config: A2PRConfig
    remembered = ("actor_loss", "augmented", "cloned")

    def __init__(self, config: A2PRConfig, stack: Stack, streams: Streams, plugins: Plugins) -> None:
        super().__init__(config, stack, streams, plugins)
        self.value = self.learner("value", Value(stack, "value", config.hidden), config.value_lr)
        self.vae = self.learner("vae", ConditionalVAE(stack, "vae", config.vae_width), config.vae_lr)

    def update(self, batch: Batch, step: int, actor_batch: Batch) -> Metrics:
        config = self.config
        next_actions = self.smoothed_actions(batch)
        y = self.target(batch, next_actions)
        metrics = self.td_step(batch, next_actions, y)

        # V regresses on the smaller of the targets of the target critics and of the online ones
        value = self.value(batch.observations)
        value_loss = mean_squared_error(value, torch.minimum(y, self.target(batch, next_actions, self.critic)))
        with torch.no_grad():  # advantages below are over V as it was before its step
            baseline = value.detach() if actor_batch is batch else self.value(actor_batch.observations)
        self.optimizers["value"].step(value_loss)

        # the VAE reconstructs logged actions of positive advantage
        with torch.no_grad():
            logged_q = self.critic.at(actor_batch.state_actions, members=slice(1)).q.squeeze(1)
        positive = logged_q > baseline
        noise = self._latent_noise("vae_latent", actor_batch)
        reconstruction = self.vae(actor_batch.observations, actor_batch.actions, noise)
        error = squared_error(reconstruction.actions, actor_batch.actions).mean(2)
        reconstruction_loss = config.reconstruction_weight * (positive * error).mean(1)
        kl = reconstruction.kl()
        self.optimizers["vae"].step(reconstruction_loss + config.kl_weight * kl)

        if self.updates_actor(step):
            actions = self.trained_policy(actor_batch.observations)
            target, augmented, cloned = self._cloning_target(actor_batch, actions, logged_q, baseline)
            cloning = config.cloning_weight * (cloned * squared_error(actions, target).mean(2)).mean(1)
            self.actor_step(actor_batch, actions, cloning - self.scaled_q(actor_batch, actions))
            self.remember(augmented=augmented.to(value.dtype).mean(1), cloned=cloned.to(value.dtype).mean(1))

        return metrics | {
            "value_loss": value_loss,
            "value": value.mean(1),
            "positive_advantage": positive.to(value.dtype).mean(1),
            "reconstruction_loss": reconstruction_loss,
            "kl": kl,
            **self.last,
        }

    def _cloning_target(
        self, batch: Batch, actions: Tensor, logged_q: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The action to clone [R, B, a]; whether it is the VAE's; whether it is cloned at all, [R, B] each."""
        with torch.set_grad_enabled(not self.config.detach_target):
            noise = self._latent_noise("vae_proposal", batch)
            proposal = self.vae(batch.observations, actions, noise, frozen=True).actions
        with torch.no_grad():
            proposal_q = self.critic(batch.observations, proposal, members=slice(1)).q.squeeze(1)
        augmented = proposal_q >= logged_q
        cloned = (proposal_q >= value) | (logged_q > value)
        return torch.where(augmented.unsqueeze(2), proposal, batch.actions), augmented, cloned

    def _latent_noise(self, stream: str, batch: Batch) -> Tensor:
        return self.streams.normal(stream, batch.actions.shape[1], self.vae.latent_dim)

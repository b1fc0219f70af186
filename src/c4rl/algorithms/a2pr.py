"""A2PR (Liu et al., ICML 2024): TD3+BC that clones the better of the logged action and a proposal of a filtered VAE."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from c4rl.algorithms.algorithm import Metrics, Published
from c4rl.algorithms.losses import clipped_target, mean_squared_error, squared_error
from c4rl.algorithms.td3 import TD3, TD3Config
from c4rl.core.buffer import Batch
from c4rl.core.errors import InputError
from c4rl.core.networks import Stack, StackedMLP, Value
from c4rl.core.optimizers import FlatAdam
from c4rl.core.random import Streams
from c4rl.plugins.seams import Plugins

LOG_STD_MINIMUM, LOG_STD_MAXIMUM = -4.0, 15.0  # of the VAE's latent


@dataclass(frozen=True)
class A2PRConfig(TD3Config):
    stackable: ClassVar[frozenset[str]] = frozenset(
        {"actor_lr", "critic_lr", "discount", "tau", "alpha", "reconstruction_weight", "cloning_weight"}
    )

    hidden_layers: int = 4
    """Hidden layers of the critics and of V."""
    actor_layers: int = 3
    """Hidden layers of the actor."""
    actor_lr: float = 3e-4
    """Adam's step size for the policy."""
    value_lr: float = 3e-4
    """Adam's step size for V."""
    vae_width: int = 750
    """Units of each of the two hidden layers of the VAE's encoder and decoder."""
    vae_lr: float = 1e-3
    """Adam's step size for the VAE."""
    reconstruction_weight: float = 1.0
    """w1: weight of the VAE's reconstruction error (the original's vae_weight)."""
    kl_weight: float = 0.5
    """Weight of the VAE's KL term."""
    cloning_weight: float = 0.5
    """w2: weight of cloning (the original's mask)."""
    detach_target: bool = True
    """The cloned action is a constant; off: the actor's gradient also runs through the VAE into it, as in the original
    code."""


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
        """Encode, draw z with standard normal noise [R, B, 2a], decode. frozen: as of a Critic."""
        latent = self.encoder(torch.cat([observations, actions], dim=2), frozen=frozen)
        mean, log_std = latent.split(self.latent_dim, dim=2)
        log_std = log_std.clamp(LOG_STD_MINIMUM, LOG_STD_MAXIMUM)
        z = mean + log_std.exp() * noise
        decoded = torch.tanh(self.decoder(torch.cat([observations, z], dim=2), frozen=frozen))
        return Reconstruction(decoded, mean, log_std)


_RELEASE = "ltlhuuu/A2PR at f92a2a4"
_DEFAULTS: dict[str, Any] = {
    "hidden_layers": 4,
    "actor_layers": 3,
    "hidden_width": 256,
    "batch_size": 256,
    "actor_lr": 3e-4,
    "critic_lr": 3e-4,
    "discount": 0.99,
    "alpha": 2.5,
    "reconstruction_weight": 1.0,
    "cloning_weight": 0.5,
    "detach_target": False,
}
_TRAINING: dict[str, Any] = {"updates": 1_000_000, "normalize_observations": True}


def _for(tasks: str, alpha: float, w1: float, w2: float, discount: float, source: str) -> Published:
    options = {"alpha": alpha, "reconstruction_weight": w1, "cloning_weight": w2, "discount": discount}
    return Published(tuple(tasks.split()), source, options)


_README, _HISTORY = f"README.md, {_RELEASE}", "READMEv0.md in the history of ltlhuuu/A2PR"
_AS_EXPERT, _AS_REPLAY = "ours: as medium-expert", "ours: as medium-replay"


class A2PR(TD3):
    config_type = A2PRConfig
    config: A2PRConfig
    published: ClassVar[tuple[Published, ...]] = (
        Published(
            ("hopper-*", "halfcheetah-*", "walker2d-*"), f"A2PR.py, utils/config.py, {_RELEASE}", _DEFAULTS, _TRAINING
        ),
        _for("hopper-medium-v*", 2.5, 1.0, 0.4, 0.995, _README),
        _for("hopper-medium-replay*", 2.5, 1.5, 0.5, 0.99, _HISTORY),
        _for("hopper-full-replay*", 2.5, 1.5, 0.5, 0.99, _AS_REPLAY),
        _for("hopper-medium-expert*", 2.5, 1.0, 4.0, 0.99, _HISTORY),
        _for("hopper-expert*", 2.5, 1.0, 4.0, 0.99, _AS_EXPERT),
        _for("halfcheetah-medium-v*", 40.0, 1.0, 1.0, 0.99, _README),
        _for("halfcheetah-medium-replay*", 40.0, 1.5, 0.8, 0.995, _HISTORY),
        _for("halfcheetah-full-replay*", 40.0, 1.5, 0.8, 0.995, _AS_REPLAY),
        _for("halfcheetah-medium-expert*", 40.0, 1.0, 15.0, 0.99, _HISTORY),
        _for("halfcheetah-expert*", 40.0, 1.0, 15.0, 0.99, _AS_EXPERT),
        _for("walker2d-medium-v*", 2.5, 1.5, 1.0, 0.99, _README),
        _for("walker2d-medium-replay*", 2.5, 1.5, 1.2, 0.995, _HISTORY),
        _for("walker2d-full-replay*", 2.5, 1.5, 1.2, 0.995, _AS_REPLAY),
        _for("walker2d-medium-expert*", 2.5, 1.0, 0.8, 0.99, _HISTORY),
        _for("walker2d-expert*", 2.5, 1.0, 0.8, 0.99, _AS_EXPERT),
        Published(("ant-*",), "ours: the release's defaults", _DEFAULTS, _TRAINING),
        Published(
            ("antmaze-*",),
            "ours: the release's α, with the discount, reward and raw states usual there",
            _DEFAULTS | {"cloning_weight": 1.0, "discount": 0.995},
            {"updates": 1_000_000, "normalize_observations": False, "reward_shift": -1.0, "eval_episodes": 100},
        ),
        Published(("maze2d-*",), "ours: the release's defaults", _DEFAULTS, _TRAINING | {"eval_episodes": 100}),
        Published(
            ("pen-*", "hammer-*", "door-*", "relocate-*", "kitchen-*"),
            "ours: the release's defaults with a smaller α for demonstrations",
            _DEFAULTS | {"alpha": 1.0},
            _TRAINING,
        ),
    )

    def __init__(self, config: A2PRConfig, stack: Stack, streams: Streams, plugins: Plugins) -> None:
        super().__init__(config, stack, streams, plugins, (config.hidden_width,) * config.actor_layers)
        self.value = Value(stack, "value", config.hidden)
        self.vae = ConditionalVAE(stack, "vae", config.vae_width)
        self.networks |= {"value": self.value, "vae": self.vae}
        self.optimizers["value"] = FlatAdam(self.value, config.value_lr)
        self.optimizers["vae"] = FlatAdam(self.vae, config.vae_lr)
        zeros = torch.zeros(stack.runs, device=stack.device, dtype=stack.dtype)
        self._last = {name: zeros.clone() for name in ("actor_loss", "augmented", "cloned")}  # of the last actor update

    @classmethod
    def check(cls, config: Any, task: str) -> None:
        for name in ("actor_layers", "vae_width", "policy_delay"):
            if getattr(config, name) < 1:
                raise InputError(f"--{name.replace('_', '-')}: found {getattr(config, name)}, expected 1 or more")

    def update(self, batch: Batch, step: int) -> Metrics:
        config = self.config
        next_actions, y = self.smoothed_target(batch)
        output, td_loss = self.critic_step(batch, next_actions, y)

        # V regresses on the smaller of the targets of the target critics and of the online ones
        with torch.no_grad():
            online_next_q = self.critic(batch.next_observations, next_actions).q
            online_y = clipped_target(batch, config.discount, online_next_q)
        value = self.value(batch.observations)
        value_loss = mean_squared_error(value, torch.minimum(y, online_y))
        self.optimizers["value"].step(value_loss)
        value = value.detach()  # advantages below are over V as it was before its step

        # the VAE reconstructs logged actions of positive advantage
        with torch.no_grad():
            logged_q = self.critic.at(batch.state_actions, members=slice(1)).q.squeeze(1)
        positive = logged_q > value
        reconstruction = self.vae(batch.observations, batch.actions, self._latent_noise("vae_latent", batch))
        error = squared_error(reconstruction.actions, batch.actions).mean(2)
        reconstruction_loss = config.reconstruction_weight * (positive * error).mean(1)
        kl = reconstruction.kl()
        self.optimizers["vae"].step(reconstruction_loss + config.kl_weight * kl)

        if self.phase(step):
            actions = self.actor(batch.observations)
            target, augmented, cloned = self._cloning_target(batch, actions, logged_q, value)
            cloning = config.cloning_weight * (cloned * squared_error(actions, target).mean(2)).mean(1)
            actor_loss = cloning - self.scaled_q(batch, actions)
            self.actor_step(batch, actions, actor_loss)
            self._last["actor_loss"].copy_(actor_loss.detach())
            self._last["augmented"].copy_(augmented.to(value.dtype).mean(1))
            self._last["cloned"].copy_(cloned.to(value.dtype).mean(1))

        return {
            "critic_loss": td_loss.sum(1),
            "q": output.q.detach().mean((1, 2)),
            "value_loss": value_loss.detach(),
            "value": value.mean(1),
            "positive_advantage": positive.to(value.dtype).mean(1),
            "reconstruction_loss": reconstruction_loss.detach(),
            "kl": kl.detach(),
            **self._last,
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

    def state(self) -> dict[str, Tensor]:
        return super().state() | self._last

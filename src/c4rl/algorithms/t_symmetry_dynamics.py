"""TDM, the T-symmetry enforced dynamics model of TSRL (Cheng et al., 2023).

An encoder z = φ(s, a) whose first |S| numbers z_s move by a latent ODE: forwards by f(z_s, z_a) = ż_s, and backwards in
time by g(z_s', z_a) = -ż_s. Decoders lead back to s and a. Where f and g disagree, a state is not to be trusted.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from c4rl.core.buffer import Batch, TransitionBuffer
from c4rl.core.networks import Stack, StackedMLP, per_row
from c4rl.core.ops.mlp import jacobian_vector_product
from c4rl.core.random import Streams

CHECKED_ROWS = 4096  # of the comparison between true and shuffled transitions
CHUNK = {"cpu": 1024, "cuda": 4096}  # rows times runs per pass over the data


class DynamicsLosses(NamedTuple):
    """Squared norms, summed over dimensions and averaged over rows, [R] each."""

    reconstruction: Tensor  # of s and a by the decoders
    encoder_ode: Tensor  # the encoder's image of ds against f and g
    decoder_ode: Tensor  # the decoder's image of f and g against ds
    symmetry: Tensor  # between f and g
    change: Tensor  # ||ds||²: the `decoder_ode` of a model that predicts no motion


class ResidualStatistics(NamedTuple):
    """Statistics of each run's data under the frozen model."""

    latent_mean: Tensor  # [R, s], of z_s
    latent_std: Tensor  # [R, s]
    residuals: Tensor  # [R, 3]: quantile, least and largest T-symmetry residual


class TSymmetryDynamics(nn.Module):
    """Latent sizes are those of s and a, so that the critic's are the usual ones."""

    def __init__(self, stack: Stack, name: str, encoder_widths: Sequence[int], field_widths: Sequence[int]) -> None:
        super().__init__()
        s, a = self.sizes = stack.observation_dim, stack.action_dim

        def mlp(part: str, inputs: int, hidden: Sequence[int], outputs: int) -> StackedMLP:
            return StackedMLP(stack, f"{name}/{part}", (inputs, *hidden, outputs))

        self.encoder = mlp("encoder", s + a, encoder_widths, s + a)
        self.state_decoder = mlp("state_decoder", s, encoder_widths[::-1], s)
        self.action_decoder = mlp("action_decoder", a, encoder_widths[::-1], a)
        self.forward_field = mlp("forward_field", s + a, field_widths, s)
        self.reverse_field = mlp("reverse_field", s + a, field_widths, s)

    def encode(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """z_s [R, B, s] and z_a [R, B, a]. Both depend on both: φ is joint."""
        return self.split(self.encoder(torch.cat([observations, actions], dim=-1)))

    def split(self, z: Tensor) -> tuple[Tensor, Tensor]:
        z_s, z_a = z.split(self.sizes, dim=-1)
        return z_s, z_a

    def forward_step(self, z_s: Tensor, z_a: Tensor) -> Tensor:
        """f(z_s, z_a) [R, B, s]."""
        return self.forward_field(torch.cat([z_s, z_a], dim=-1))

    def reverse_step(self, z_s: Tensor, z_a: Tensor) -> Tensor:
        """g(z_s, z_a) [R, B, s]."""
        return self.reverse_field(torch.cat([z_s, z_a], dim=-1))

    def round_trip(self, z_s: Tensor, z_a: Tensor, step: Tensor, next_z_s: Tensor) -> Tensor:
        """z_s' + g(z_s + f, z_a) - z_s: forwards by the model, backwards from the data. `step` is f(z_s, z_a)."""
        return next_z_s + self.reverse_step(z_s + step, z_a) - z_s

    def losses(self, batch: Batch) -> DynamicsLosses:
        """Terms of the training loss. Rows that end an episode are skipped: their next observation is another's."""
        rows = batch.rewards.shape[1]
        transitions = batch.continues
        ds = batch.next_observations - batch.observations
        # both ends of a transition with its one action; along it, the action does not change
        ends = torch.cat([batch.state_actions, torch.cat([batch.next_observations, batch.actions], dim=2)], dim=1)
        along = torch.cat([ds, -ds], dim=1)
        no_change = torch.zeros_like(batch.actions).repeat(1, 2, 1)
        z, z_dot = jacobian_vector_product(ends, torch.cat([along, no_change], dim=2), self.encoder.layers())
        z_s, z_a = self.split(z)
        (here, there), action = z_s.split(rows, dim=1), z_a[:, :rows]

        f = self.forward_field(z[:, :rows])
        g = self.reverse_field(z[:, rows:])
        steps = torch.cat([f, g], dim=1)
        decoded, s_dot = jacobian_vector_product(z_s, steps, self.state_decoder.layers())

        def both(error: Tensor) -> Tensor:
            """[R, 2B, s] -> the sum of both directions' means, [R]."""
            forwards, backwards = _square(error).split(rows, dim=1)
            return mean_over(forwards + backwards, transitions)

        state_error = _square(decoded[:, :rows] - batch.observations)
        action_error = _square(self.action_decoder(action) - batch.actions)
        asymmetry = _square(f + g) + _square(self.round_trip(here, action, f, there))
        return DynamicsLosses(
            reconstruction=(state_error + action_error).mean(1),
            encoder_ode=both(z_dot[..., : self.sizes[0]] - steps),
            decoder_ode=both(s_dot - along),
            symmetry=mean_over(asymmetry, transitions),
            change=mean_over(_square(ds), transitions),
        )

    def field_l1(self) -> Tensor:
        """Absolute weights of f and g, summed, [R]."""
        parameters = [*self.forward_field.parameters(), *self.reverse_field.parameters()]
        return torch.stack([p.abs().flatten(1).sum(1) for p in parameters]).sum(0)

    @torch.no_grad()
    def statistics(self, buffer: TransitionBuffer, quantile: float | Tensor) -> ResidualStatistics:
        """Over all transitions of every run's data; runs may have different numbers of rows, and quantiles [R]."""
        offsets, lengths = buffer.offsets.unsqueeze(1), buffer.lengths.unsqueeze(1)
        chunk = max(CHUNK[buffer.packed.device.type] // len(lengths), 1)
        residuals, sums, squares, valid = [], [], [], []
        for rows in torch.arange(int(lengths.max()), device=lengths.device).split(chunk):
            batch = buffer.gather(offsets + torch.minimum(rows, lengths - 1))
            inside = (rows < lengths) & (batch.continues > 0)  # [R, n]
            z_s, z_a = self.split(self.encoder(batch.state_actions))
            next_z_s, _ = self.encode(batch.next_observations, batch.actions)
            residuals.append(_square(self.round_trip(z_s, z_a, self.forward_step(z_s, z_a), next_z_s)))
            valid.append(inside)
            masked = z_s.double() * inside.unsqueeze(2)
            sums.append(masked.sum(1))
            squares.append(masked.square().sum(1))
        residual, inside = torch.cat(residuals, dim=1), torch.cat(valid, dim=1)
        count = inside.sum(1, keepdim=True)
        mean = torch.stack(sums).sum(0) / count
        variance = (torch.stack(squares).sum(0) - count * mean.square()) / (count - 1)
        least = residual.masked_fill(~inside, torch.inf).amin(1)
        largest = residual.masked_fill(~inside, -torch.inf).amax(1)
        return ResidualStatistics(
            latent_mean=mean.to(residual.dtype),
            latent_std=variance.clamp_min(0).sqrt().to(residual.dtype),
            residuals=torch.stack([masked_quantile(residual, inside, quantile), least, largest], dim=1),
        )

    @torch.no_grad()
    def true_and_shuffled_symmetry(self, buffer: TransitionBuffer, streams: Streams) -> dict[str, Tensor]:
        """A model that learned the dynamics finds shuffled transitions far less symmetric than true ones."""
        rows, others = (
            streams.integers(f"symmetry_check/{name}", buffer.lengths, CHECKED_ROWS) + buffer.offsets.unsqueeze(1)
            for name in ("rows", "others")
        )
        batch = buffer.gather(rows)
        shuffled = batch._replace(next_observations=buffer.gather(others).observations)
        return {
            "dynamics_symmetry_true": self.losses(batch).symmetry,
            "dynamics_symmetry_shuffled": self.losses(shuffled).symmetry,
        }


def mean_over(values: Tensor, weights: Tensor) -> Tensor:
    """The mean of values [..., B] over the rows with weight 1 (others have 0); 0 if there are none."""
    return (values * weights).sum(-1) / weights.sum(-1).clamp_min(1)


def masked_quantile(values: Tensor, valid: Tensor, q: float | Tensor) -> Tensor:
    """The q-quantile of each row's valid values, linear in between: [R, N] -> [R]. torch.quantile takes no mask."""
    ordered = values.masked_fill(~valid, torch.inf).sort(1).values
    position = (valid.sum(1, keepdim=True) - 1).double() * per_row(q)
    below, above = (ordered.gather(1, index.long()) for index in (position.floor(), position.ceil()))
    return torch.lerp(below, above, (position - position.floor()).to(values.dtype)).squeeze(1)


def _square(error: Tensor) -> Tensor:
    """||error||² of each row."""
    return error.square().sum(-1)

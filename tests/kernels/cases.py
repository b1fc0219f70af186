"""Every kernel does what the plain PyTorch code does, up to the order of additions; run by test_kernels.py.

Tensors lie in memory as they do in training: they are columns of packed rows, rows of a layer's weights, some of a
critic's members.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from c4rl.algorithms.losses import (
    clipped_target,
    mean_squared_error,
    relative_mean,
    soft_actor_loss,
    soft_maximum_gap,
)
from c4rl.core import ops
from c4rl.core.buffer import Batch
from c4rl.core.networks import Critic, Stack, StackedMLP
from c4rl.core.ops.metrics import add_metrics
from c4rl.core.ops.mlp import jacobian_vector_product, proven, stacked_mlp
from c4rl.core.ops.tanh_gaussian import uniform_and_sampled
from c4rl.core.optimizers import FlatAdam
from c4rl.core.policies import TanhGaussian, dropout_masks
from c4rl.core.random import Streams
from c4rl.data.packing import pack_datasets
from c4rl.plugins.c4.cluster_sampler import ClusterSampler
from c4rl.plugins.c4.cross_covariance import penalty
from c4rl.plugins.c4.plugin import C4Config
from c4rl.plugins.c4.principal_directions import principal_directions
from c4rl.plugins.layer_norm import LayerNormConfig
from c4rl.training.launch import Launch
from tests.helpers import advance, plain_scaling, small_config, small_dataset
from tests.kernels.ways import Way, all_kernels, errors, needs

WAY = Way(os.environ.get("KERNELS_BY", "gpu"))
USED_BY_ALL = {  # in training with C4
    "random._draw_kernel",
    "linear._linear_kernel",
    "tall_product._tall_product_kernel",
    "covariance._centre_kernel",
    "adam._adam_kernel",
}
Numbers = Callable[[], tuple[Tensor, ...]]


@pytest.fixture
def way() -> Iterator[Way]:
    """Within it the kernels are run; in the end one must have been."""
    WAY.used.clear()
    with WAY.running():
        yield WAY
    assert WAY.used, "no kernel was used"


@pytest.fixture
def all_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter's few rows are treated as many are."""
    for name in ("is_large", "is_vast", "is_tall") if WAY.name == "interpreter" else ():
        monkeypatch.setattr(WAY.kernels("tiles"), name, lambda *sizes: True)
    if WAY.name == "interpreter":
        monkeypatch.setattr(WAY.kernels("mlp"), "MANY_ROWS", 1)


def fused_and_plain(numbers: Numbers, mode: str = "fp32") -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """mode: of the fused kernels' products. What is only compiled is not compared."""
    with ops.products(mode):
        fused = numbers()
    if not WAY.computes:
        return fused, fused
    with ops.kernels(False):
        return fused, numbers()


# -- losses


@needs("losses")
@pytest.mark.parametrize("per_run", [False, True])
@pytest.mark.parametrize("rows", [37, 1500])
def test_losses(way: Way, rows: int, per_run: bool) -> None:
    """Against the plain code in float64; tensors lie in memory as in training: columns of rows, one of N actions."""
    packed, q_drawn = way.normal(3, rows, 19), way.normal(3, 2, rows, 4, seed=1).requires_grad_()
    actions, value = way.normal(3, rows, 5, seed=2).requires_grad_(), way.normal(3, rows, seed=3).requires_grad_()
    setting = torch.tensor([0.9, 0.5, 0.99], device=way.device) if per_run else 0.9

    def numbers(dtype: torch.dtype) -> tuple[Tensor, ...]:
        rows_, q, a, v = (t.to(dtype) for t in (packed, q_drawn, actions, value))
        given = setting.to(dtype) if isinstance(setting, Tensor) else setting
        empty = [rows_[..., :0]] * 5
        batch = Batch(*empty, rewards=rows_[..., 7], continues=(rows_[..., 8] > 0).to(dtype), next_valid=rows_[..., 0])
        batch = batch._replace(continues=torch.stack([batch.continues, batch.rewards], dim=2)[..., 0])
        y = clipped_target(batch, given, q[..., 2].detach())
        losses = (
            mean_squared_error(q[..., 0], y.unsqueeze(1), keep=2),
            mean_squared_error(a, rows_[..., 3:8]),
            mean_squared_error(v, y),
            relative_mean(v, given),
            soft_actor_loss(torch.tensor([0.1, 2.0, 0.5], device=way.device).to(dtype), v, q[..., 1]),
            soft_maximum_gap(q[..., 1:], rows_[..., 9:12], q[..., 0]),
        )
        total = sum(
            (loss * torch.arange(1, loss.numel() + 1, device=way.device).view_as(loss)).sum() for loss in losses
        )
        return y, *(loss.detach() for loss in losses), *torch.autograd.grad(total, [q_drawn, actions, value])

    way.within(2e-6, numbers(torch.float32), numbers(torch.float64))


@needs("losses")
def test_a_target_of_no_number_is_none(way: Way) -> None:
    q = torch.tensor([[[1.0, float("nan")], [float("nan"), 2.0]]], device=way.device)
    rewards = torch.ones(1, 2, device=way.device)
    batch = Batch(*[rewards] * 5, rewards=rewards, continues=rewards, next_valid=rewards)
    way.equal(clipped_target(batch, 0.9, q).isnan(), torch.ones(1, 2, dtype=torch.bool, device=way.device))


@needs("losses")
def test_equal_values_share_the_actors_gradient_and_large_ones_have_a_soft_maximum(way: Way) -> None:
    q = torch.tensor([[[1.0, 3.0, 2.0], [1.0, 2.0, 5.0]]], device=way.device).requires_grad_()
    far = torch.tensor([[[[1e4, 1e4 + 1], [-1e4, -1e4]]]], device=way.device).requires_grad_()
    alpha, zero = torch.ones(1, device=way.device), torch.zeros(1, 3, device=way.device)

    def numbers() -> tuple[Tensor, ...]:
        loss = soft_actor_loss(alpha, zero, q)
        gap = soft_maximum_gap(far, torch.zeros(1, 2, 2, device=way.device), torch.zeros(1, 1, 2, device=way.device))
        return loss.detach(), gap.detach(), *torch.autograd.grad(loss.sum() + gap.sum(), [q, far])

    fused, plain = fused_and_plain(numbers)
    way.within(1e-6, fused, plain)
    way.close(fused[2][0, :, 0], torch.full((2,), -1 / 6, device=way.device), rtol=1e-6, atol=0)


# -- random numbers


@needs("random")
@pytest.mark.parametrize("kind", ["uniform", "integers", "normal"])
def test_draws_are_the_same_numbers(way: Way, kind: str) -> None:
    streams = Streams([1, 2, 3], torch.tensor(123_456_789_012, device=way.device))
    arguments: tuple[Any, ...] = (torch.tensor([5, 7, 100_000], device=way.device),) if kind == "integers" else ()
    (fused,), (plain,) = fused_and_plain(lambda: (getattr(streams, kind)("stream", *arguments, 37, 3),))
    if kind == "normal":
        way.close(fused, plain, rtol=1e-6, atol=1e-6)
    else:
        way.equal(fused, plain)


@needs("random")
def test_single_cluster_batches_are_the_same_rows(way: Way) -> None:
    streams = Streams([3, 7], torch.zeros((), dtype=torch.int64, device=way.device))
    sampler = ClusterSampler([3, 7], [0, 300], [300, 200], [4, 3], device=way.device)
    for refreshed in (False, True):
        if refreshed:
            sampler.refresh(way.normal(2, 300, 4).softmax(2), 0)
        for step in range(way.sized(20, 5)):
            streams.step.fill_(step)
            for fused, plain in zip(*fused_and_plain(lambda: sampler.rows(streams, 64)), strict=True):
                way.equal(fused, plain)


# -- Adam, metrics


@needs("adam")
@pytest.mark.parametrize("lr", [1e-3, [1e-3, 2e-3]])
@pytest.mark.parametrize("scheduled", [True, False])
def test_adam(way: Way, lr: float | list[float], scheduled: bool) -> None:
    """scheduled: by a factor on the device; otherwise by a number."""
    factor = torch.tensor(0.5, device=way.device) if scheduled else 0.5
    after = []
    for enabled in (True, False):
        critic = Critic(Stack((0, 1), 5, 2, way.device), "critic", (32, 32))
        adam = FlatAdam(critic, torch.tensor(lr, device=way.device) if isinstance(lr, list) else lr)
        rows = way.normal(2, 50, 7)
        for _ in range(20):
            with ops.kernels(False):
                loss = critic.at(rows).q.square().mean((1, 2)).sum()
            with ops.kernels(enabled):
                adam.step(loss, factor)
        after.append(adam.flat.clone())
    way.close(after[0], after[1], rtol=1e-4, atol=1e-6)


@needs("adam", "mlp")
@pytest.mark.parametrize("layer_norm", [False, True])
def test_adam_reads_gradients_where_networks_write_them(way: Way, layer_norm: bool) -> None:
    critic = Critic(Stack((0, 1), 5, 2, way.device), "critic", (32, 32), layer_norm=layer_norm)
    parameters, rows = list(critic.parameters()), way.normal(2, 50, 7)
    gradients = torch.autograd.grad(critic.at(rows).q.square().mean(), parameters)
    flat = way.kernels("adam").in_a_row(gradients)
    assert torch.equal(flat, torch.cat([gradient.flatten() for gradient in gradients]))
    assert way.kernels("adam").in_a_row(gradients[::-1]) is None
    assert way.kernels("adam").in_a_row([gradient.clone() for gradient in gradients]) is None
    adam = way.kernels("adam").adam_step
    state = [torch.zeros_like(flat) for _ in range(3)]
    adam(*state[:1], flat, *state[1:], torch.zeros((), device=way.device), 1e-3, 1.0, 0.9, 0.999, 1e-8)
    way.close(state[1], 0.1 * flat, rtol=1e-5, atol=0)


@needs("metrics")
def test_metrics_and_failures(way: Way) -> None:
    """NaN and infinities are failures, from the first update that has them."""
    values, sums = way.normal(5, 40), way.normal(5, 40, seed=1)
    values[1, 3], values[4, 33], values[0, 34] = torch.nan, torch.inf, -torch.inf
    failed_at = torch.full((40,), -1, device=way.device)
    failed_at[33] = 2
    expected = failed_at.clone()
    expected[[3, 34]] = 7
    total = sums + values
    add_metrics(values, sums, failed_at, torch.tensor(7, device=way.device))
    way.equal(sums.nan_to_num(), total.nan_to_num())
    way.equal(failed_at, expected)


# -- policies, cross-covariances, principal directions


@needs("tanh_gaussian")
@pytest.mark.parametrize("clamped", [False, True])
@pytest.mark.parametrize("shape", [(2, 20, 3), (2, 20, 4, 3)])
def test_actions_of_a_tanh_gaussian(way: Way, shape: tuple[int, ...], clamped: bool) -> None:
    """From the halves of a network's output."""
    raw, noise = way.normal(2, 20, 6).requires_grad_(len(shape) == 3), way.normal(*shape, seed=1)

    def numbers() -> tuple[Tensor, ...]:
        mean, log_std = raw.split(3, -1)
        actions, log_prob = TanhGaussian(mean, log_std.clamp(-5, 2) if clamped else log_std).sample(noise)
        loss = (actions * noise).sum() + log_prob.square().sum()
        return actions.detach(), log_prob.detach(), *(torch.autograd.grad(loss, raw) if raw.requires_grad else ())

    fused, plain = fused_and_plain(numbers)
    way.close(fused[:2], plain[:2], rtol=1e-5, atol=1e-5)
    way.within(1e-5, fused, plain)


@needs("tanh_gaussian")
def test_actions_of_three_kinds(way: Way) -> None:
    """Uniform ones and those of two policies, each of them half of a network's output."""
    raw, uniform = way.normal(2, 2, 20, 6), way.normal(2, 20, 4, 3, seed=1).sigmoid()
    noise = way.normal(2, 2, 20, 4, 3, seed=2)
    policies = [TanhGaussian(*own.split(3, -1)) for own in raw]
    fused, plain = fused_and_plain(lambda: uniform_and_sampled(uniform, policies[0], noise[0], policies[1], noise[1]))
    way.close(fused, plain, rtol=1e-5, atol=1e-5)


@needs("covariance")
@pytest.mark.parametrize("beta", [1.0, [0.5, 2.0]])
@pytest.mark.parametrize("mask", ["dense", "a column of packed rows", "one for all runs"])
@pytest.mark.parametrize("members", [1, 2])
def test_the_cross_covariance_penalty(way: Way, members: int, mask: str, beta: float | list[float]) -> None:
    rows, width = way.sized((100, 48), (37, 40))
    g = way.normal(2, members, rows, width).requires_grad_()
    g_next = way.normal(2, members, rows, width, seed=1) + 0.3 * g.detach()
    valid = (way.normal(2, rows, 3, seed=2) > -1).float()[..., 1].unsqueeze(1)
    if mask == "dense":
        valid = valid.contiguous()
    elif mask == "one for all runs":
        valid = valid[:1].expand(2, -1, -1)
    weight = torch.tensor(beta, device=way.device).unsqueeze(1) if isinstance(beta, list) else beta

    def numbers() -> tuple[Tensor, ...]:
        found = penalty(g_next, g, valid, beta=weight)
        return found.detach(), torch.autograd.grad((found * found).sum(), g)[0]

    fused, plain = fused_and_plain(numbers)
    way.close(fused[0], plain[0], rtol=1e-5, atol=1e-6)
    way.within(1e-5, fused, plain)


@needs("subspace", "tall_product")
def test_principal_directions(way: Way) -> None:
    runs, count, width, wanted = way.sized((3, 2000, 64, 8), (2, 300, 20, 4))
    rows = way.normal(runs, count, width) * torch.logspace(0, -3, width, device=way.device)
    fused = principal_directions(rows, wanted)
    if way.computes:  # zeros prove nothing, and the plain code takes over
        assert {
            "subspace._orthonormal_kernel",
            "subspace._eigen_kernel",
            "tall_product._tall_product_kernel",
        } <= way.used
    with ops.kernels(False):
        plain = principal_directions(rows, wanted)
    way.close(fused.kept_variance, plain.kept_variance, rtol=1e-4, atol=0)
    way.close(fused.directions, plain.directions, rtol=0, atol=1e-3)


@needs("subspace")
def test_principal_directions_of_features_that_hardly_vary(way: Way) -> None:
    """None of them, one of them, or one so much more than the others that the rest is rounding noise beside it."""
    rows = torch.zeros(3, 500, 64, device=way.device)
    rows[1, :, 0] = torch.arange(500, device=way.device)
    rows[2] = 1e-8 * way.normal(500, 64)
    rows[2, :, 5] += 10 * way.normal(500, seed=1)
    found = principal_directions(rows, 8)
    way.close(found.directions[1, 0, 0], torch.ones((), device=way.device), rtol=1e-6, atol=1e-12)
    way.equal(found.kept_variance <= 1 + 1e-6, torch.ones(3, dtype=torch.bool, device=way.device))
    identity = torch.eye(8, device=way.device).expand(3, -1, -1)
    way.close(found.directions.mT @ found.directions, identity, rtol=0, atol=1e-5)


@needs("subspace")
def test_kernels_for_principal_directions_prove_themselves(way: Way) -> None:
    way.kernels("subspace").proven.cache_clear()
    assert way.kernels("subspace").proven(way.device) == way.computes
    way.kernels("subspace").proven.cache_clear()


@needs("subspace")
def test_orthonormal_columns(way: Way) -> None:
    columns = way.normal(2, 20, 5, dtype=torch.float64)
    spare = torch.linalg.qr(way.normal(20, 5, dtype=torch.float64))[0]
    columns[1, :, 3] = 2 * columns[1, :, 0] - columns[1, :, 2]  # adds no direction
    found = way.kernels("subspace").orthonormal(columns, spare)
    q, r = torch.linalg.qr(columns[0])
    way.close(found[0], q * r.diagonal().sign(), rtol=0, atol=1e-12)
    way.close(found.mT @ found, torch.eye(5, device=way.device).double().expand(2, -1, -1), rtol=0, atol=1e-12)


@needs("subspace")
@pytest.mark.parametrize("size", [1, 5, 8])
def test_eigenvectors_of_symmetric_matrices(way: Way, size: int) -> None:
    half = way.normal(2, size, size, dtype=torch.float64)
    matrices = half + half.mT
    matrices[1].fill_diagonal_(0.5)  # rotations by 45 degrees
    values, vectors = way.kernels("subspace").symmetric_eigen(matrices)
    way.close(values, torch.linalg.eigvalsh(matrices), rtol=0, atol=1e-12)
    way.close(matrices @ vectors, vectors * values.unsqueeze(1), rtol=0, atol=1e-12)
    identity = torch.eye(size, device=way.device).double().expand(2, -1, -1)
    way.close(vectors.mT @ vectors, identity, rtol=0, atol=1e-12)


# -- linear maps


def part_of_rows(way: Way, *shape: int, seed: int = 0) -> Tensor:
    """Random, with other columns before and after."""
    return way.normal(*shape[:-1], shape[-1] + 3, seed=seed)[..., 1:-2]


def later_members(way: Way, *shape: int, seed: int = 0) -> Tensor:
    """Random [R, M, ...], with another member before them."""
    return way.normal(shape[0], shape[1] + 1, *shape[2:], seed=seed)[:, 1:]


# no size is a multiple of a tile's; the second pair is for rows that are multiplied whole
@needs("linear")
@pytest.mark.parametrize(("depth", "columns"), [(20, 40), (70, 5), (9, 1)])
def test_linear_maps(way: Way, depth: int, columns: int) -> None:
    linear = way.kernels("linear").linear
    shared, own = part_of_rows(way, 2, 37, depth), part_of_rows(way, 2, 2, 37, depth)
    weight = later_members(way, 2, 2, depth + 2, columns, seed=1)[:, :, 2:]
    bias = later_members(way, 2, 2, columns, seed=2)
    for x, all_x in ((shared, shared.unsqueeze(1)), (own, own)):
        exact = all_x.double() @ weight.double() + bias.unsqueeze(2)
        across = weight.mT.contiguous().mT  # a transpose, as on the way back through few rows or columns
        found = linear(x, weight, bias), linear(x, weight, bias, relu=True), linear(x, across, bias)
        way.within(1e-6, found, (exact, exact.relu(), exact))


@needs("linear")
@pytest.mark.parametrize(("rows", "columns"), [(500, 821), (1030, 400)])
def test_linear_maps_in_large_tiles(way: Way, rows: int, columns: int) -> None:
    x, weight = part_of_rows(way, 2, rows, 9), later_members(way, 2, 2, 9, columns, seed=1)
    way.within(1e-6, (way.kernels("linear").linear(x, weight),), (x.unsqueeze(1).double() @ weight.double(),))


@needs("linear")
@pytest.mark.parametrize("group", [1, 3])
def test_what_is_added_to_a_linear_map_and_left_out_of_it(way: Way, group: int) -> None:
    x, weight = part_of_rows(way, 2, 2, 36, 20), later_members(way, 2, 2, 20, 40, seed=1)
    add, mask = way.normal(2, 2, 36 // group, 40, seed=2), way.normal(2, 2, 36, 40, seed=3)
    exact = (x.double() @ weight.double() + add.repeat_interleave(group, 2)) * (mask > 0)
    way.within(1e-6, (way.kernels("linear").linear(x, weight, add=add, group=group, mask=mask),), (exact,))


@needs("linear")
def test_what_is_added_to_the_first_row_of_a_group(way: Way) -> None:
    x, weight, add = way.normal(2, 2, 36, 20), way.normal(2, 2, 20, 40, seed=1), way.normal(2, 2, 12, 40, seed=2)
    exact = x.double() @ weight.double()
    exact[:, :, ::3] += add
    way.within(1e-6, (way.kernels("linear").linear(x, weight, add=add, group=3, add_to_first=True),), (exact,))


@needs("linear")
@pytest.mark.parametrize("rows", [37, 600, 1030])
def test_weight_gradients_of_linear_maps(way: Way, rows: int) -> None:
    """Of rows taken all at once, in two pieces, and so many that PyTorch takes them; into rows of a larger tensor."""
    shared, own = part_of_rows(way, 2, rows, 20), part_of_rows(way, 2, 2, rows, 20)
    gradient = part_of_rows(way, 2, 2, rows, 40, seed=1)
    for x, all_x in ((shared, shared.unsqueeze(1)), (own, own)):
        whole, bias = torch.zeros(2, 2, 23, 40, device=way.device), torch.zeros(2, 2, 40, device=way.device)
        way.kernels("tall_product").weight_gradient(x, gradient, whole[:, :, 3:], bias=bias)
        way.within(1e-6, (whole[:, :, 3:], bias), (all_x.double().mT @ gradient.double(), gradient.double().sum(2)))
        assert not whole[:, :, :3].any()
    way.note("cuBLAS")  # which is all of 1030 rows


@needs("linear")
@pytest.mark.parametrize(("mode", "bound"), [("fp32", 1e-6), ("bf16x3", 1e-4)])
@pytest.mark.usefixtures("all_large")
def test_products_in_each_precision(way: Way, mode: str, bound: float) -> None:
    """In float32, and in bf16x3, which has two thirds of its digits.

    Tensor cores cut sums off where float32 is rounded, so that an error remains that grows with the number of terms.
    """
    linear, weight_gradient = way.kernels("linear").linear, way.kernels("tall_product").weight_gradient
    rows, columns = way.sized((2100, 208), (100, 72))
    own, shared = way.normal(2, 2, rows, 80), way.normal(2, rows, 90)[..., 4:84]  # by members, columns of packed rows
    gradient = way.normal(2, 2, rows, columns, seed=1)
    weight, bias = way.normal(2, 3, 80, columns, seed=2)[:, 1:], way.normal(2, 2, columns, seed=3)
    rounding, bf16x3 = [], mode == "bf16x3"
    for x, every_x in ((own, own.double()), (shared, shared.unsqueeze(1).double())):
        exact = every_x @ weight.double() + bias.double().unsqueeze(2)
        of_weight, of_bias = torch.zeros(2, 2, 80, columns, device=way.device), torch.zeros_like(bias)
        weight_gradient(x, gradient, of_weight, bias=of_bias, bf16x3=bf16x3)
        found = linear(x, weight, bias, bf16x3=bf16x3)
        rounding += errors((found, of_weight), (exact, every_x.mT @ gradient.double()))
        way.within(1e-6, (of_bias,), (gradient.sum(2, dtype=torch.float64),))
    if way.computes:
        assert max(rounding) < bound
        assert mode == "fp32" or min(rounding) > 1e-6, "nothing was split"


@needs("linear")
@pytest.mark.parametrize("columns", [128, 136])
@pytest.mark.usefixtures("all_large")
def test_products_of_whole_blocks(way: Way, columns: int) -> None:
    """As Hopper's engine copies them: members one after another, a last tile that reaches into the next one's rows."""
    own, rows = way.kernels("linear"), way.sized(3136, 160)
    split = way.kernels("split").split
    x, y = way.normal(3, 2, rows, 128), way.normal(3, 2, rows, columns, seed=1)
    weights, mask = way.normal(2, 3, 2, 128, columns, seed=2), way.normal(3, 2, rows, columns, seed=3)
    second = split(weights).unbind(1)[1]  # of several layers' weights
    dot, sums, dots = way.normal(3, 2, columns, seed=4), [], []
    found = own.linear(split(x), second, mask=mask, tile_sums=sums, dots=(dot, dots), keep_split=True, bf16x3=True)
    of_weight = torch.zeros(3, 2, 128, columns, device=way.device)
    way.kernels("tall_product").weight_gradient(split(x), split(y), of_weight, bf16x3=True)
    exact = (x.double() @ weights[1].double()) * (mask > 0)
    products = (exact.sum(2), (exact * dot.unsqueeze(2)).sum(3), x.double().mT @ y.double())
    way.within(1e-4, (found.double().sum(0), sums[0].sum(0), dots[0].sum(0), of_weight), (exact, *products))


@needs("mlp", "layer_norm")
@pytest.mark.parametrize("programs", [1056, 4])
def test_layer_norm_and_its_gradients(way: Way, programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more rows than one program takes, in one step or in several."""
    own = way.kernels("layer_norm")
    monkeypatch.setattr(own, "PROGRAMS", programs)
    z, dy = way.normal(2, 2, 150, 24), way.normal(2, 2, 150, 24, seed=1)
    gain, shift = later_members(way, 2, 2, 24, seed=2), later_members(way, 2, 2, 24, seed=3)
    inputs = [tensor.double().requires_grad_() for tensor in (z, gain, shift)]
    exact = (F.layer_norm(inputs[0], (24,), eps=1e-5) * inputs[1].unsqueeze(2) + inputs[2].unsqueeze(2)).relu()
    of_z, *of_others = torch.autograd.grad(exact, inputs, dy.double())
    for keep_split in (False, True):
        y, moments, _ = own.norm_relu(z, gain, shift, 1e-5, keep_split)
        dz, *sums, _ = own.norm_relu_gradient(dy, z, moments, gain, shift, keep_split)
        if keep_split:
            y, dz = y.double().sum(0), dz.double().sum(0)
        way.within(1e-5 if keep_split else 1e-6, (y, dz), (exact.detach(), of_z))
        way.within(1e-6, [tiles.sum(0) for tiles in sums[1:]], of_others)
        way.close(sums[0].sum(0).double(), of_z.sum(2), rtol=1e-5, atol=1e-5)  # far smaller than its terms


@needs("mlp", "output")
@pytest.mark.parametrize("group", [1, 3])
def test_the_gradient_through_an_output_of_one_unit(way: Way, group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows in several pieces of several steps."""
    own = way.kernels("output")
    monkeypatch.setattr(own, "PROGRAMS", 4)
    z, d, add = way.normal(2, 2, 150, 24), way.normal(2, 2, 150, seed=1), way.normal(2, 2, 150 // group, 24, seed=2)
    h, weight = z.relu(), later_members(way, 2, 2, 24, seed=3)
    for rest in (None, add):
        exact = d.double().unsqueeze(3) * weight.double().unsqueeze(2)
        exact[:, :, ::group] += rest if rest is not None else 0
        exact *= h > 0
        of_weight = torch.einsum("rmi,rmij->rmj", d.double(), h.double())
        for keep_split in (False, True):
            dz, *sums = own.output_gradient(d, h, weight, rest, group, keep_split)
            way.within(1e-5, (dz.double().sum(0) if keep_split else dz,), (exact,))
            way.within(1e-6, [pieces.sum(0) for pieces in sums], (exact.sum(2), of_weight))


# -- networks


def critic_numbers(
    way: Way, runs: int, rows: int, drawn: int, dtype: torch.dtype, fused: bool, layer_norm: bool
) -> tuple[Tensor, ...]:
    """Q values and gradients of a loss that uses outputs and features at data, and outputs at drawn actions."""
    stack = Stack(tuple(range(runs)), 5, 3, way.device, dtype)
    critic = Critic(stack, "critic", (64, 48, 64), layer_norm=layer_norm)
    pairs = way.normal(runs, rows, 8, dtype=dtype)
    actions = way.normal(runs, rows, drawn, 3, seed=1, dtype=dtype).requires_grad_()
    with ops.kernels(fused):
        output, drawn_output = critic.at(pairs), critic(pairs[..., :5], actions)
        loss = output.q.square().mean() + output.features.square().mean() + (drawn_output.q**2).mean()
        return output.q.detach(), drawn_output.q.detach(), *torch.autograd.grad(loss, [actions, *critic.parameters()])


@needs("mlp")
@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("sizes", WAY.sized([(1, 33, 1), (3, 256, 7), (2, 128, 31)], [(2, 20, 3)]))
def test_a_critic_and_its_gradients(way: Way, sizes: tuple[int, int, int], layer_norm: bool) -> None:
    exact = critic_numbers(way, *sizes, torch.float64, False, layer_norm)
    fused = errors(critic_numbers(way, *sizes, torch.float32, True, layer_norm), exact)
    plain = errors(critic_numbers(way, *sizes, torch.float32, False, layer_norm), exact)
    assert not way.computes or max(fused) < 3 * max(plain) + 1e-6, (fused, plain)


@needs("mlp")
@pytest.mark.parametrize("mode", ops.OFFERED)
@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.usefixtures("all_large")
def test_logged_and_drawn_actions_in_one_pass(way: Way, layer_norm: bool, mode: str) -> None:
    """Features are those at logged actions, alone in their loss or together with Q."""
    runs, rows, count = way.sized((2, 128, 30), (2, 8, 2))
    critic = Critic(Stack(tuple(range(runs)), 5, 3, way.device), "critic", (72, 80, 72), layer_norm=layer_norm)
    states, logged = way.normal(runs, rows, 5), way.normal(runs, rows, 3, seed=1)
    drawn = way.normal(runs, rows, count, 3, seed=2)

    def numbers() -> tuple[Tensor, ...]:
        output, q_drawn = critic.at_logged_and_more(states, logged, drawn)
        of_features = torch.autograd.grad(output.features.square().mean(), critic.mlp.weights[0], retain_graph=True)
        loss = output.q.square().mean() + output.features.square().mean() + q_drawn.square().mean()
        of_all = torch.autograd.grad(loss, list(critic.parameters()))
        return output.q.detach(), output.features.detach(), q_drawn.detach(), *of_features, *of_all

    way.within(1e-4 if mode == "fp32" else 1e-3, *fused_and_plain(numbers, mode))


@needs("mlp")
@pytest.mark.parametrize("layer_norm", [False, True])
def test_layers_of_odd_widths(way: Way, layer_norm: bool) -> None:
    critic = Critic(Stack((0, 1), 5, 3, way.device), "critic", (20, 13), layer_norm=layer_norm)
    pairs, drawn = way.normal(2, 33, 8), way.normal(2, 33, 2, 3, seed=1)

    def numbers() -> tuple[Tensor, ...]:
        output, q = critic.at(pairs), critic(pairs[..., :5], drawn).q
        loss = output.q.square().mean() + output.features.square().mean() + q.square().mean()
        found = output.q, *output.hidden, output.features, q, *torch.autograd.grad(loss, list(critic.parameters()))
        return tuple(number.detach() for number in found)

    way.within(1e-5, *fused_and_plain(numbers))


@needs("mlp")
@pytest.mark.parametrize("mode", ops.OFFERED)
@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.skipif(WAY.name != "gpu", reason="a proof for the GPU at hand; it would take half a minute each")
def test_networks_prove_themselves(way: Way, layer_norm: bool, mode: str) -> None:
    assert proven(way.kernels("mlp"), way.device, layer_norm, mode == "bf16x3")


@needs("mlp")
def test_gradients_of_features_alone_and_of_frozen_critics(way: Way) -> None:
    stack = Stack((0, 1), 5, 3, way.device)
    critic = Critic(stack, "critic", (64, 64))
    states, actions = way.normal(2, 40, 5), way.normal(2, 40, 3, seed=1).requires_grad_()

    def of_features() -> tuple[Tensor, ...]:
        features = critic(states, actions).features
        return torch.autograd.grad(features.square().sum(), [actions, *list(critic.mlp.weights)[:-1]])

    def of_frozen() -> tuple[Tensor, ...]:
        return torch.autograd.grad(critic(states, actions, slice(1), frozen=True).q.sum(), [actions])

    for numbers in (of_features, of_frozen):
        way.within(1e-5, *fused_and_plain(numbers))


@needs("mlp")
def test_a_layer_that_the_features_do_not_depend_on_has_no_gradient(way: Way) -> None:
    critic = Critic(Stack((0,), 5, 3, way.device), "critic", (64, 64))
    features, last = critic.at(way.normal(1, 40, 8)).features, [critic.mlp.weights[-1], critic.mlp.biases[-1]]
    assert torch.autograd.grad(features.sum(), last, allow_unused=True) == (None, None)


@needs("mlp")
def test_a_network_of_one_member(way: Way) -> None:
    mlp = StackedMLP(Stack((0, 1, 2), 7, 2, way.device), "net", (7, 32, 32, 5))
    rows = way.normal(3, 50, 7)
    way.close(*fused_and_plain(lambda: (mlp(rows),)), rtol=1e-5, atol=1e-6)


def alike(way: Way, hidden: Callable[[], Sequence[Tensor]], rows: int, mode: str) -> Tensor:
    """The rows at which every ReLU of every run is on the side of 0 where the plain code has it: most.

    One unit on the other side changes a row's gradients by far more than rounding does.
    """
    fused, plain = fused_and_plain(lambda: tuple(h > 0 for h in hidden()), mode)
    if not way.computes:
        return torch.arange(rows)
    same = [(f == p).flatten(0, -3).all(0).view(rows, -1).all(1) for f, p in zip(fused, plain, strict=True)]
    found = torch.stack(same).all(0).nonzero().squeeze(1)
    assert len(found) > 0.7 * rows
    return found


def hidden_layers(mlp: StackedMLP, x: Tensor, masks: Sequence[Tensor] | None = None) -> list[Tensor]:
    return [h.squeeze(1) for h in stacked_mlp(x, None, mlp.layers(), [mask.unsqueeze(1) for mask in masks or ()])[1]]


@needs("mlp")
@pytest.mark.parametrize("mode", ops.OFFERED)
@pytest.mark.usefixtures("all_large")
def test_jacobian_vector_products(way: Way, mode: str) -> None:
    rows, widths = way.sized((4500, (208, 256, 200)), (40, (72, 80, 66)))
    mlp = StackedMLP(Stack((0, 1), 7, 2, way.device), "net", (7, *widths, 18))
    x = way.normal(2, rows, 7)
    x = x[:, alike(way, lambda: hidden_layers(mlp, x), rows, mode)]
    v = way.normal(*x.shape, seed=1).requires_grad_()

    def numbers() -> tuple[Tensor, ...]:
        y, along = jacobian_vector_product(x, v, mlp.layers())
        loss = y.square().mean() + (along * y.detach().cos()).mean()
        return y.detach(), along.detach(), *torch.autograd.grad(loss, [v, *mlp.parameters()])

    way.within(1e-5 if mode == "fp32" else 1e-4, *fused_and_plain(numbers, mode))
    assert ("split._split_kernel" in way.used) == (mode == "bf16x3")


@needs("mlp")
@pytest.mark.parametrize("mode", ops.OFFERED)
@pytest.mark.parametrize("outputs", [3, 1])
@pytest.mark.usefixtures("all_large")
def test_dropout(way: Way, outputs: int, mode: str) -> None:
    rows, width = way.sized((4500, 200), (40, 70))
    mlp = StackedMLP(Stack((0, 1), 7, 2, way.device), "net", (7, width, width, width, outputs))
    x, streams = way.normal(2, rows, 7), Streams([1, 2], torch.tensor(3, device=way.device))
    masks = dropout_masks(streams, "dropout", 0.4, (width,) * 3, rows)
    assert masks is not None
    chosen = alike(way, lambda: hidden_layers(mlp, x, masks), rows, mode)
    x, masks = x[:, chosen].requires_grad_(), [mask[:, chosen] for mask in masks]

    def numbers() -> tuple[Tensor, ...]:
        y = mlp(x, masks)
        return y.detach(), *torch.autograd.grad(y.square().mean(), [x, *mlp.parameters()])

    way.within(1e-5 if mode == "fp32" else 1e-4, *fused_and_plain(numbers, mode))


@needs("mlp")
@pytest.mark.parametrize(
    ("runs", "rows", "widths"),
    WAY.sized([(2, 1300, (208, 256, 240)), (9, 200, (208, 256, 240)), (40, 100, (256,) * 3)], [(2, 40, (72, 80, 64))]),
)
@pytest.mark.usefixtures("all_large")
def test_a_network_whose_layers_are_kept_split(way: Way, runs: int, rows: int, widths: tuple[int, ...]) -> None:
    critic = Critic(Stack(tuple(range(runs)), 5, 3, way.device), "critic", widths)
    states, actions = way.normal(runs, rows, 5), way.normal(runs, rows, 2, 3, seed=1)
    chosen = alike(way, lambda: critic(states, actions).hidden, rows, "bf16x3")
    states, actions = states[:, chosen], actions[:, chosen].requires_grad_()

    def numbers() -> tuple[Tensor, ...]:
        output = critic(states, actions)
        parameters = [actions, *critic.parameters()]
        of_q = torch.autograd.grad(output.q.square().mean() + output.features.mean(), parameters)
        of_features = torch.autograd.grad(critic(states, actions).features.square().mean(), parameters[: len(widths)])
        of_frozen = torch.autograd.grad(critic(states, actions, slice(1), frozen=True).q.sum(), [actions])
        active = [(h > 0).double() for h in output.hidden]
        return (*of_q, *of_features, *of_frozen, output.q.detach(), output.features.detach(), *active)

    with ops.products("bf16x3"):
        lower = [h.dtype for h in critic(states, actions).hidden]
        assert lower == [torch.bfloat16] * (len(widths) - 1) + [torch.float32]
    way.within(1e-4, *fused_and_plain(numbers, "bf16x3"))


@needs("mlp")
@pytest.mark.parametrize(
    ("runs", "rows", "widths", "layer_norm"),
    WAY.sized(
        [(2, 256, (256,) * 3, False), (1, 8192, (128, 256, 128), False), (1, 4096, (256, 256), True)],
        [(2, 40, (72, 72), True), (2, 40, (72, 72, 72), False)],
    ),
)
@pytest.mark.usefixtures("all_large")
def test_critics_in_bf16x3(way: Way, runs: int, rows: int, widths: tuple[int, ...], layer_norm: bool) -> None:
    critic = Critic(Stack(tuple(range(runs)), 5, 3, way.device), "critic", widths, layer_norm=layer_norm)
    pairs = way.normal(runs, rows, 8)
    pairs = pairs[:, alike(way, lambda: critic.at(pairs).hidden, rows, "bf16x3")]

    def numbers() -> tuple[Tensor, ...]:
        q = critic.at(pairs).q
        return q.detach(), *torch.autograd.grad(q.square().mean(), list(critic.parameters()))

    way.within(1e-4, *fused_and_plain(numbers, "bf16x3"))


# -- all together


def trained_weights(
    way: Way, fused: bool, algorithm: str, updates: int = 4, layer_norm: bool = False, **values: Any
) -> list[dict[str, Tensor]]:
    """Before the first of so many updates with C4 and after the last; batches are uniform but where c4 says otherwise:
    a cluster's border may put a row on its other side."""
    c4 = C4Config(**{"K": 2, "period": 1000, "sampler": "uniform"} | values.pop("c4", {}))
    plugins, options = (("c4", "layer_norm"), (c4, LayerNormConfig())) if layer_norm else (("c4",), (c4,))
    values |= {"hidden_width": way.sized(64, 16), "plugin_options": options, "cuda_graph": False}
    config = small_config(algorithm, plugins, fused_kernels=fused, **values)
    data = small_dataset(300)
    buffer = pack_datasets([(data, plain_scaling(data))], way.device, torch.float32)
    launch = Launch(config, list(config.seeds), buffer, way.device, torch.float32)
    weights = []
    for count in (0, updates):
        advance(launch, count)
        weights.append({name: own.flat.clone() for name, own in launch.algorithm.optimizers.items()})
    return weights


@needs("mlp")
@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("td3_bc", {"seeds": (0, 1)}),
        ("td3_bc", {"c4": {"mode": "exact"}}),
        ("td3_bc", {"updates": 2, "layer_norm": True}),
        ("cql", {"cql_actions": 2}),
        ("iql", {}),
        ("bppo", {"updates": 9}),  # through all of its stages
        ("sorl", {"updates": 6}),  # beyond the first, of its styles
    ],
    ids=str,
)
def test_training(way: Way, algorithm: str, options: dict[str, Any]) -> None:
    """In a few updates rounding hardly moves the weights; a kernel that does something else leads them elsewhere."""
    plain_start, plain = trained_weights(way, False, algorithm, **options)
    assert not way.used
    fused_start, fused = trained_weights(way, True, algorithm, **options)
    assert USED_BY_ALL & all_kernels() <= way.used
    for name, weights in plain.items():
        assert torch.equal(fused_start[name], plain_start[name])
        if way.computes:
            assert (fused[name] - weights).norm() <= 0.01 * (weights - plain_start[name]).norm(), name


@needs("mlp")
@pytest.mark.parametrize(("algorithm", "layer_norm"), [("td3_bc", False), ("cql", True)])
def test_training_with_clusters(way: Way, algorithm: str, layer_norm: bool) -> None:
    """With re-clustering after each update."""
    c4 = {"period": 1, "directions": 4, "sampler": "soft"}
    for weights in trained_weights(way, True, algorithm, way.sized(2, 1), layer_norm, c4=c4)[1].values():
        assert weights.isfinite().all()


def test_a_family_can_be_switched_off(way: Way) -> None:
    keys, step = torch.zeros(2, 1, dtype=torch.int64, device=way.device), torch.tensor(3, device=way.device)
    families = sorted({kernel.partition(".")[0] for kernel in all_kernels()})
    assert all(ops.kernels_for(step, family) for family in families)
    for family in families:
        with ops.without(family):
            assert [other for other in families if ops.kernels_for(keys, other)] == [f for f in families if f != family]
    way.note("none")


def test_every_kernel_has_been_used() -> None:
    assert all_kernels() <= WAY.ever_used

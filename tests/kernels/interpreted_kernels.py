"""The Triton kernels do what the plain PyTorch code beside them does; run by test_kernels_without_a_gpu.py.

Much is test_fused_kernels.py and test_fused_networks.py on another device, with fewer rows. Tensors lie in memory as
they do in training: they are columns of packed rows, parts of a layer's weights, some of a critic's members.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from c4rl.core import ops as kernels
from c4rl.core.networks import Critic, Stack
from c4rl.core.policies import TanhGaussian
from c4rl.core.triton import linear as linear_maps
from c4rl.core.triton.layer_norm import norm_relu, norm_relu_gradient
from c4rl.core.triton.linear import linear, weight_gradient
from c4rl.core.triton.subspace import orthonormal, symmetric_eigen
from c4rl.plugins.c4.cross_covariance import penalty
from c4rl.plugins.c4.plugin import C4Config
from c4rl.plugins.c4.principal_directions import principal_directions
from c4rl.plugins.layer_norm import LayerNormConfig
from tests.helpers import CPU, advance, make_launch, small_config, small_dataset
from tests.kernels import support
from tests.kernels import test_fused_kernels as on_gpu
from tests.kernels import test_fused_networks as networks_on_gpu
from tests.kernels.interpreter import interpreted
from tests.kernels.support import errors, normal


@pytest.fixture(autouse=True)
def used(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """The names of the kernels that a test has used so far; in the end there must be some."""
    for module in (support, on_gpu, networks_on_gpu):
        monkeypatch.setattr(module, "CUDA", CPU)
    with interpreted() as names:
        yield names
    assert names, "no kernel was used"


# -- as on a GPU

test_gradients_of_features_alone_and_of_frozen_critics = (
    networks_on_gpu.test_gradients_of_features_alone_and_of_frozen_critics
)
test_a_network_of_one_member = networks_on_gpu.test_a_network_of_one_member
test_draws_are_the_same_numbers = on_gpu.test_draws_are_the_same_numbers
test_single_cluster_batches_are_the_same_rows = on_gpu.test_single_cluster_batches_are_the_same_rows
test_adam = on_gpu.test_adam
test_losses = on_gpu.test_losses
test_a_target_of_no_number_is_none = on_gpu.test_a_target_of_no_number_is_none
test_actions_of_a_tanh_gaussian = on_gpu.test_actions_of_a_tanh_gaussian
test_metrics_and_failures = on_gpu.test_metrics_and_failures
test_kernels_for_principal_directions_prove_themselves = on_gpu.test_kernels_for_principal_directions_prove_themselves


@pytest.mark.parametrize("layer_norm", [False, True])
def test_a_critic_and_its_gradients(layer_norm: bool) -> None:
    networks_on_gpu.test_a_critic_and_its_gradients(2, 20, 3, layer_norm)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_layers_of_odd_widths(layer_norm: bool) -> None:
    critic = Critic(Stack((0, 1), 5, 3, CPU), "critic", (20, 13), layer_norm=layer_norm)
    pairs, drawn = normal(2, 33, 8), normal(2, 33, 2, 3, seed=1)
    numbers = []
    for enabled in (True, False):
        with kernels.kernels(enabled):
            output, q = critic.at(pairs), critic(pairs[..., :5], drawn).q
            loss = output.q.square().mean() + output.features.square().mean() + q.square().mean()
            found = output.q, *output.hidden, output.features, q, *torch.autograd.grad(loss, list(critic.parameters()))
            numbers.append([number.detach() for number in found])
    fused, plain = numbers
    assert max(errors(tuple(fused), tuple(number.double() for number in plain))) < 1e-5


@pytest.fixture
def all_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows are treated as many are."""
    for name in ("_is_large", "_is_tall"):
        monkeypatch.setattr(linear_maps, name, lambda *sizes: True)


@on_gpu.PRECISIONS
@pytest.mark.usefixtures("all_large")
def test_products_in_each_precision(mode: str, bound: float) -> None:
    on_gpu.test_products_in_each_precision(mode, bound, rows=100, columns=72)


@pytest.mark.usefixtures("all_large")
def test_a_network_whose_layers_are_kept_split() -> None:
    networks_on_gpu.test_a_network_whose_layers_are_kept_split(2, rows=40, widths=(72, 80, 64))


@pytest.mark.parametrize("mode", ["fp32", "bf16x3"])
@pytest.mark.usefixtures("all_large")
def test_jacobian_vector_products(mode: str, used: set[str]) -> None:
    networks_on_gpu.test_jacobian_vector_products(mode, rows=40, widths=(72, 80, 66))
    assert ("_split_kernel" in used) == (mode == "bf16x3")


@pytest.mark.parametrize("mode", ["fp32", "bf16x3"])
@pytest.mark.usefixtures("all_large")
def test_dropout(mode: str) -> None:
    networks_on_gpu.test_dropout(mode, rows=40, widths=(70, 70, 70))


def test_principal_directions(used: set[str]) -> None:
    rows = normal(2, 300, 20) * torch.logspace(0, -3, 20)
    fused = principal_directions(rows, 4)
    assert {"_orthonormal_kernel", "_eigen_kernel", "_tall_product_kernel"} <= used
    with kernels.kernels(False):
        plain = principal_directions(rows, 4)
    torch.testing.assert_close(fused.kept_variance, plain.kept_variance, rtol=1e-4, atol=0)
    torch.testing.assert_close(fused.directions, plain.directions, rtol=0, atol=1e-3)


# -- one kernel at a time


def part_of_rows(*shape: int, seed: int = 0) -> Tensor:
    """Random, with other columns before and after."""
    return normal(*shape[:-1], shape[-1] + 3, seed=seed)[..., 1:-2]


def later_members(*shape: int, seed: int = 0) -> Tensor:
    """Random [R, M, ...], with another member before them."""
    return normal(shape[0], shape[1] + 1, *shape[2:], seed=seed)[:, 1:]


# no size is a multiple of a tile's; the second pair is for rows that are multiplied whole
@pytest.mark.parametrize(("depth", "columns"), [(20, 40), (70, 5), (9, 1)])
def test_linear_maps(depth: int, columns: int) -> None:
    shared, own = part_of_rows(2, 37, depth), part_of_rows(2, 2, 37, depth)
    weight = later_members(2, 2, depth + 2, columns, seed=1)[:, :, 2:]
    bias = later_members(2, 2, columns, seed=2)
    for x, all_x in ((shared, shared.unsqueeze(1)), (own, own)):
        exact = all_x.double() @ weight.double() + bias.unsqueeze(2)
        found = linear(x, weight, bias), linear(x, weight, bias, relu=True), linear(x, weight.mT.contiguous().mT, bias)
        assert max(errors(found, (exact, exact.relu(), exact))) < 1e-6


@pytest.mark.parametrize(("rows", "columns"), [(500, 821), (1030, 400)])
def test_linear_maps_in_large_tiles(rows: int, columns: int) -> None:
    x, weight = part_of_rows(2, rows, 9), later_members(2, 2, 9, columns, seed=1)
    assert errors((linear(x, weight),), (x.unsqueeze(1).double() @ weight.double(),))[0] < 1e-6


@pytest.mark.parametrize("group", [1, 3])
def test_what_is_added_to_a_linear_map_and_left_out_of_it(group: int) -> None:
    x, weight = part_of_rows(2, 2, 36, 20), later_members(2, 2, 20, 40, seed=1)
    add, mask = normal(2, 2, 36 // group, 40, seed=2), normal(2, 2, 36, 40, seed=3)
    exact = (x.double() @ weight.double() + add.repeat_interleave(group, 2)) * (mask > 0)
    assert errors((linear(x, weight, add=add, group=group, mask=mask),), (exact,))[0] < 1e-6


def test_weight_gradients_of_linear_maps() -> None:
    """Of rows taken all at once, in two parts, and so many that they are left to PyTorch."""
    for rows in (37, 600, 1030):
        shared, own = part_of_rows(2, rows, 20), part_of_rows(2, 2, rows, 20)
        gradient = part_of_rows(2, 2, rows, 40, seed=1)
        for x, all_x in ((shared, shared.unsqueeze(1)), (own, own)):
            weight, bias = torch.empty(2, 2, 23, 40)[:, :, 3:], torch.empty(2, 2, 40)
            weight_gradient(x, gradient, weight, bias=bias)
            exact = all_x.double().mT @ gradient.double(), gradient.double().sum(2)
            assert max(errors((weight, bias), exact)) < 1e-6


def test_layer_norm_and_its_gradients() -> None:
    """With more rows than one program takes."""
    z, dy = normal(2, 2, 150, 24), normal(2, 2, 150, 24, seed=1)
    gain, shift = later_members(2, 2, 24, seed=2), later_members(2, 2, 24, seed=3)
    inputs = [tensor.double().requires_grad_() for tensor in (z, gain, shift)]
    exact = (F.layer_norm(inputs[0], (24,), eps=1e-5) * inputs[1].unsqueeze(2) + inputs[2].unsqueeze(2)).relu()
    y, n, rstd = norm_relu(z, gain, shift, 1e-5)
    of_gain, of_shift = torch.empty(2, 2, 2, 24)
    gradients = norm_relu_gradient(dy, n, y, rstd, gain, of_gain, of_shift), of_gain, of_shift
    assert max(errors((y, *gradients), (exact.detach(), *torch.autograd.grad(exact, inputs, dy.double())))) < 1e-6


@pytest.mark.parametrize("mask", ["dense", "a column of packed rows", "one for all runs"])
@pytest.mark.parametrize("members", [1, 2])
def test_the_cross_covariance_penalty(members: int, mask: str) -> None:
    g = normal(2, members, 37, 40).requires_grad_()
    g_next = normal(2, members, 37, 40, seed=1) + 0.3 * g.detach()
    valid = (normal(2, 37, 3, seed=2) > -1).float()[..., 1].unsqueeze(1)
    if mask == "dense":
        valid = valid.contiguous()
    elif mask == "one for all runs":
        valid = valid[:1].expand(2, -1, -1)
    numbers = []
    for enabled in (True, False):
        with kernels.kernels(enabled):
            found = penalty(g_next, g, valid, beta=torch.tensor([[0.5], [2.0]]))
            numbers.append((found.detach(), torch.autograd.grad((found * found).sum(), g)[0]))
    fused, plain = numbers
    assert max(errors(fused, tuple(number.double() for number in plain))) < 1e-5


@pytest.mark.parametrize("shape", [(2, 20, 3), (2, 20, 4, 3)])
def test_actions_from_the_halves_of_an_output(shape: tuple[int, ...]) -> None:
    output, noise = normal(2, 20, 6).requires_grad_(len(shape) == 3), normal(*shape, seed=1)
    numbers = []
    for enabled in (True, False):
        with kernels.kernels(enabled):
            actions, log_prob = TanhGaussian(*output.split(3, -1)).sample(noise)
            numbers.append([actions.detach(), log_prob.detach()])
            if output.requires_grad:
                numbers[-1] += torch.autograd.grad((actions * noise).sum() + log_prob.square().sum(), output)
    fused, plain = numbers
    assert max(errors(tuple(fused), tuple(number.double() for number in plain))) < 1e-5


def test_orthonormal_columns() -> None:
    columns, spare = normal(2, 20, 5, dtype=torch.float64), torch.linalg.qr(normal(20, 5, dtype=torch.float64))[0]
    columns[1, :, 3] = 2 * columns[1, :, 0] - columns[1, :, 2]  # adds no direction
    found = orthonormal(columns, spare)
    q, r = torch.linalg.qr(columns[0])
    torch.testing.assert_close(found[0], q * r.diagonal().sign(), rtol=0, atol=1e-12)
    torch.testing.assert_close(found.mT @ found, torch.eye(5).double().expand(2, -1, -1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [1, 5, 8])
def test_eigenvectors_of_symmetric_matrices(size: int) -> None:
    half = normal(2, size, size, dtype=torch.float64)
    matrices = half + half.mT
    matrices[1].fill_diagonal_(0.5)  # rotations by 45 degrees
    values, vectors = symmetric_eigen(matrices)
    torch.testing.assert_close(values, torch.linalg.eigvalsh(matrices), rtol=0, atol=1e-12)
    torch.testing.assert_close(matrices @ vectors, vectors * values.unsqueeze(1), rtol=0, atol=1e-12)
    torch.testing.assert_close(vectors.mT @ vectors, torch.eye(size).double().expand(2, -1, -1), rtol=0, atol=1e-12)


# -- all together


def trained_weights(
    fused: bool, algorithm: str, updates: int = 4, mode: str = "proxy", layer_norm: bool = False, **values: Any
) -> list[dict[str, Tensor]]:
    """Before the first of so many updates with C4 and after the last."""
    c4 = C4Config(K=2, period=1000, sampler="uniform", mode=mode)
    plugins, options = (("c4", "layer_norm"), (c4, LayerNormConfig())) if layer_norm else (("c4",), (c4,))
    config = small_config(algorithm, plugins, plugin_options=options, fused_kernels=fused, **values)
    launch = make_launch(config, small_dataset(300), torch.float32)
    weights = []
    for count in (0, updates):
        advance(launch, count)
        weights.append({name: own.flat.clone() for name, own in launch.algorithm.optimizers.items()})
    return weights


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("td3_bc", {"seeds": (0, 1)}),
        ("td3_bc", {"mode": "exact"}),
        ("td3_bc", {"updates": 2, "layer_norm": True}),
        ("cql", {"cql_actions": 2}),
        ("iql", {}),
        ("bppo", {"updates": 9}),  # through all of its stages
        ("sorl", {"updates": 6}),  # beyond the first, of its styles
    ],
    ids=str,
)
def test_training(algorithm: str, options: dict[str, Any], used: set[str]) -> None:
    """In a few updates rounding hardly moves the weights; a kernel that does something else leads them elsewhere."""
    plain_start, plain = trained_weights(False, algorithm, **options)
    assert not used
    fused_start, fused = trained_weights(True, algorithm, **options)
    assert {"_draw_kernel", "_linear_kernel", "_tall_product_kernel", "_centre_kernel", "_adam_kernel"} <= used
    for name, weights in plain.items():
        assert torch.equal(fused_start[name], plain_start[name])
        assert (fused[name] - weights).norm() <= 0.01 * (weights - plain_start[name]).norm(), name

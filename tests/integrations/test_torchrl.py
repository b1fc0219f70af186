"""C4 in TorchRL's own losses, on real data."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from c4rl.core.errors import InputError
from c4rl.data import load_dataset
from c4rl.integrations.stacked_critics import StackedCritics
from c4rl.integrations.torchrl import with_c4
from c4rl.plugins.c4.any_critic import penultimate_features
from c4rl.plugins.c4.anywhere import C4AnywhereConfig
from c4rl.plugins.c4.cross_covariance import traces

pytest.importorskip("torchrl", reason="C4 in TorchRL needs the package torchrl")
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torchrl.data import Bounded, LazyTensorStorage, TensorDictReplayBuffer
from torchrl.modules import MLP, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import CQLLoss, IQLLoss, SoftUpdate, TD3BCLoss, TD3Loss

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torchrl.*", "ignore::UserWarning:tensordict.*")
LOSSES = ["td3_bc", "cql", "iql"]


@pytest.fixture(scope="module")
def storage(shared: Callable[[str], Path]) -> Any:
    data = load_dataset(shared("data/d4rl-10k/hopper-medium-expert-v2.npz"))
    mean, std = data.observations.mean(0), data.observations.std(0) + 1e-3
    rows = {
        "observation": (data.observations - mean) / std,
        "action": data.actions,
        ("next", "observation"): (data.next_observations - mean) / std,
        ("next", "reward"): data.rewards[:, None],
        ("next", "terminated"): data.terminals[:, None],
        ("next", "done"): (data.terminals | data.timeouts)[:, None],
    }
    tensors = {key: torch.tensor(values) for key, values in rows.items()}
    storage = LazyTensorStorage(len(data))
    TensorDictReplayBuffer(storage=storage).extend(TensorDict(tensors, batch_size=len(data)))
    return storage


def mlp(inputs: int, outputs: int) -> nn.Module:
    return MLP(in_features=inputs, out_features=outputs, num_cells=[256, 256], activation_class=nn.ReLU)


def loss_of(name: str, **options: Any) -> Any:
    torch.manual_seed(0)
    critic = ValueOperator(mlp(14, 1), in_keys=["observation", "action"])
    options = {"loss_function": "l2"} | options
    if name == "td3_bc":
        actor = TensorDictModule(nn.Sequential(mlp(11, 3), nn.Tanh()), in_keys=["observation"], out_keys=["action"])
        loss = TD3BCLoss(actor, critic, bounds=(-torch.ones(3), torch.ones(3)), **options)
    else:
        body = nn.Sequential(mlp(11, 6), NormalParamExtractor())
        module = TensorDictModule(body, in_keys=["observation"], out_keys=["loc", "scale"])
        actor = ProbabilisticActor(
            module, in_keys=["loc", "scale"], distribution_class=TanhNormal, return_log_prob=True
        )
        if name == "cql":
            loss = CQLLoss(actor, critic, action_spec=Bounded(-torch.ones(3), torch.ones(3)), **options)
        else:
            loss = IQLLoss(actor, critic, ValueOperator(mlp(11, 1), in_keys=["observation"]), expectile=0.7, **options)
    loss.make_value_estimator(gamma=0.99)
    return loss


def train(loss: Any, storage: Any, updates: int, batch_size: int = 256, **buffer: Any) -> Any:
    """The loop of TorchRL's examples."""
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=batch_size, **buffer)
    target, optimizer = SoftUpdate(loss, tau=0.005), torch.optim.Adam(loss.parameters(), 3e-4)
    for _ in range(updates):
        out = loss(buffer.sample())
        optimizer.zero_grad()
        sum(value for key, value in out.items() if key.startswith("loss_")).backward()
        optimizer.step()
        target.step()
    return out


def trace(loss: Any, storage: Any) -> float:
    """tr C / m of the first critic on 1,024 rows."""
    c4 = with_c4(loss, storage, C4AnywhereConfig(K=1)).c4 if not hasattr(loss, "_c4rl") else loss._c4rl
    rows = torch.linspace(0, len(c4.x) - 1, 1024).long()
    pairs = (c4.target, c4.x_next), (c4.critic, c4.x)
    return traces(*(penultimate_features(q, x[rows]).detach() for q, x in pairs), c4.valid[rows])[0].item()


@pytest.mark.parametrize(
    ("name", "batch_size", "prefetch"), [("td3_bc", 256, 3), ("cql", 64, None), ("iql", 256, None)]
)
def test_the_trace_stays_below_a_third_of_that_without_c4(
    storage: Any, name: str, batch_size: int, prefetch: int
) -> None:
    loss, plain = loss_of(name), loss_of(name)
    sampler = with_c4(loss, storage, C4AnywhereConfig(lambda_=0.3))
    train(loss, storage, 500, batch_size, sampler=sampler, prefetch=prefetch)
    train(plain, storage, 500, batch_size)
    assert sampler.c4.report["c4_penalty"] > 0
    assert trace(loss, storage) < trace(plain, storage) / 3


@pytest.mark.parametrize("name", LOSSES)
def test_without_weight_the_losses_are_torchrls_on_the_same_rows(storage: Any, name: str) -> None:
    loss, plain = loss_of(name), loss_of(name)
    sampler = with_c4(loss, storage, C4AnywhereConfig(lambda_=0.0, K=1))
    batches = TensorDictReplayBuffer(storage=storage, batch_size=64, sampler=sampler)
    optimizers = [torch.optim.Adam(one.parameters(), 3e-4) for one in (loss, plain)]
    for update in range(3):
        batch = batches.sample()
        found = []
        for one, optimizer in zip((loss, plain), optimizers, strict=True):
            torch.manual_seed(update)  # the policy's noise
            out = one(batch.clone())
            optimizer.zero_grad()
            sum(value for key, value in out.items() if key.startswith("loss_")).backward()
            optimizer.step()
            found.append({key: value.tolist() for key, value in out.items() if key != "c4_penalty"})
        assert found[0] == found[1]
    # one cluster: every row is as likely as any other
    rows = torch.cat([sampler.sample(storage, 1000)[0] for _ in range(200)])
    drawn = torch.bincount(rows, minlength=len(storage)).double()
    assert drawn.var() / drawn.mean() == pytest.approx(1, abs=0.1)


def test_saved_losses_are_torchrls_own_and_samplers_go_on_where_they_stopped(storage: Any, tmp_path: Path) -> None:
    loss = loss_of("td3_bc")
    sampler = with_c4(loss, storage, C4AnywhereConfig(K=2, period=5))
    train(loss, storage, 8, 32, sampler=sampler)
    torch.save(loss.state_dict(), tmp_path / "loss.pt")
    plain, again = loss_of("td3_bc"), loss_of("td3_bc")
    assert plain.state_dict().keys() == loss.state_dict().keys()
    for one in (plain, again):
        one.load_state_dict(torch.load(tmp_path / "loss.pt", weights_only=True))
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=32, sampler=sampler)
    continued = with_c4(again, storage, C4AnywhereConfig(K=2, period=5))
    continued.load_state_dict(buffer.state_dict()["_sampler"])
    sampler.dumps(tmp_path / "sampler")
    from_files = with_c4(plain, storage, C4AnywhereConfig(K=2, period=5))
    from_files.loads(tmp_path / "sampler")
    for _ in range(4):
        rows = [one.sample(storage, 32)[0] for one in (sampler, continued, from_files)]
        assert torch.equal(rows[0], rows[1]) and torch.equal(rows[0], rows[2])


def test_batches_drawn_ahead_take_their_own_rows_and_clusters_are_renewed(storage: Any) -> None:
    loss = loss_of("td3_bc")
    sampler = with_c4(loss, storage, C4AnywhereConfig(K=2, period=4))
    penalised: list[torch.Tensor] = []
    penalty = sampler.c4.joint_penalty
    sampler.c4.joint_penalty = lambda critics, td, rows, *features: (
        penalised.append(rows) or penalty(critics, td, rows, *features)
    )
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=16, sampler=sampler, prefetch=3)
    first = sampler.c4.clustering.responsibilities.clone()
    with torch.no_grad():
        loss.qvalue_network_params.mul_(1.5)  # clusters of other features are other ones
    for _ in range(9):
        batch = buffer.sample()
        loss.qvalue_loss(batch)
        assert torch.equal(penalised[-1], batch["index"])
    assert sampler.c4._clustered_at in (8, 12)  # up to three batches are drawn ahead
    assert not torch.equal(sampler.c4.clustering.responsibilities, first)


def test_critics_follow_weights_that_move_in_memory(storage: Any) -> None:
    loss = loss_of("td3_bc")
    c4 = with_c4(loss, storage).c4
    before = c4.features(c4.target, c4.x_next[:8])
    for weight in loss.target_qvalue_network_params.values(True, True):
        weight.data = 2 * weight.data  # as `loss.to(...)` does
    after = c4.features(c4.target, c4.x_next[:8])
    assert not torch.allclose(after, before)
    with torch.enable_grad():  # the weights swapped in anew
        torch.testing.assert_close(penultimate_features(c4.target, c4.x_next[:8]), after)


def test_exact_gradients_in_one_pass_are_those_of_each_critic(storage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loss = loss_of("td3_bc")
    sampler = with_c4(loss, storage, C4AnywhereConfig(lambda_=30.0, mode="exact"))
    batch = TensorDictReplayBuffer(storage=storage, batch_size=64, sampler=sampler).sample()
    weights = list(loss.qvalue_network_params.values(True, True))

    def value_and_gradients() -> tuple[torch.Tensor, Any]:
        torch.manual_seed(0)  # of the targets' noise
        value, metadata = loss.qvalue_loss(batch.clone())
        assert metadata["c4_penalty"] > 0
        return value, torch.autograd.grad(value, weights)

    plain = StackedCritics.gradients
    in_one_pass: list[Any] = []
    monkeypatch.setattr(
        StackedCritics, "gradients", lambda *args, **kw: in_one_pass.append(plain(*args, **kw)) or in_one_pass[-1]
    )
    found = [value_and_gradients() for _ in range(2)]
    assert len(in_one_pass) == 4 and all(one is not None for one in in_one_pass)
    monkeypatch.setattr(StackedCritics, "gradients", lambda *_, **__: None)
    expected = value_and_gradients()
    for one in found:
        torch.testing.assert_close(one, expected, rtol=1e-4, atol=1e-6)


class Arithmetic(TorchDispatchMode):
    """Counts the products' floating-point operations (PyTorch's own counter stumbles over TorchRL's modules)."""

    operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if (count := flop_registry.get(func.overloadpacket)) is not None:
            self.operations += count(*args, **(kwargs or {}), out_val=out)
        return out


def test_it_takes_less_than_half_as_much_arithmetic_again(storage: Any) -> None:
    """An update of TD3+BC, the cheapest of the three; a clock would judge the machine's other work."""
    counts = []
    for weight in (0.3, None):
        loss = loss_of("td3_bc")
        buffer = {} if weight is None else {"sampler": with_c4(loss, storage, C4AnywhereConfig(lambda_=weight))}
        train(loss, storage, 5, **buffer)  # C4 compares ways to compute on batches 1, 2, 3 and 5, not on the 6th
        with Arithmetic() as counted:
            train(loss, storage, 1, **buffer)
        counts.append(counted.operations)
    assert 1 < counts[0] / counts[1] < 1.5


def test_misuse_is_refused(storage: Any) -> None:
    loss = loss_of("td3_bc")
    sampler = with_c4(loss, storage)
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=8, sampler=sampler)
    with pytest.raises(InputError, match="has C4 already"):
        with_c4(loss, storage)
    with pytest.raises(InputError, match="a batch without 'index'"):
        loss(buffer.sample().exclude("index"))
    batch = buffer.sample()
    batch["observation"] *= 2
    with pytest.raises(InputError, match="differs from the storage's rows"):
        loss(batch)
    with pytest.raises(InputError, match="found a buffer to be emptied"):
        buffer.empty()
    with pytest.raises(InputError, match="found delay_qvalue=False"):
        with_c4(loss_of("td3_bc", delay_qvalue=False), storage)
    with pytest.raises(InputError, match="found reduction='sum'"):
        with_c4(loss_of("iql", reduction="sum"), storage)
    other = TD3Loss(
        loss.actor_network, ValueOperator(mlp(14, 1), in_keys=["observation", "action"]), bounds=(-1.0, 1.0)
    )
    with pytest.raises(InputError, match="found a TD3Loss, expected one of TD3BCLoss, CQLLoss, IQLLoss"):
        with_c4(other, storage)

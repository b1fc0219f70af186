"""C4 in d3rlpy's own algorithms, on real data."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from c4rl.core.errors import InputError
from c4rl.data import load_dataset
from c4rl.integrations.d3rlpy import with_c4
from c4rl.plugins.c4.anywhere import C4AnywhereConfig
from c4rl.plugins.c4.cross_covariance import traces

d3rlpy = pytest.importorskip("d3rlpy", reason="C4 in d3rlpy needs the package d3rlpy")
QUIET: dict[str, Any] = {"show_progress": False}


@pytest.fixture(scope="module")
def dataset(shared: Callable[[str], Path]) -> Any:
    data = load_dataset(shared("data/d4rl-10k/hopper-medium-expert-v2.npz"))
    observations, actions, rewards, terminals = data.observations, data.actions, data.rewards, data.terminals
    ends = np.flatnonzero(terminals | data.timeouts)
    starts = np.concatenate([[0], ends[:-1] + 1])
    episodes = [
        d3rlpy.dataset.Episode(
            observations[a : z + 1], actions[a : z + 1], rewards[a : z + 1, None], bool(terminals[z])
        )
        for a, z in zip(starts, ends, strict=True)
        if z - a > 1
    ]
    return d3rlpy.dataset.ReplayBuffer(d3rlpy.dataset.InfiniteBuffer(), episodes=episodes)


def algorithm(name: str) -> Any:
    torch.manual_seed(0)
    config = {
        "td3_bc": d3rlpy.algos.TD3PlusBCConfig,
        "cql": d3rlpy.algos.CQLConfig,
        "iql": d3rlpy.algos.IQLConfig,
    }[name]
    return config(observation_scaler=d3rlpy.preprocessing.StandardObservationScaler()).create(device=False)


def fit(algo: Any, data: Any, steps: int) -> dict[str, float]:
    ((_, metrics),) = algo.fit(
        data, n_steps=steps, n_steps_per_epoch=steps, logger_adapter=d3rlpy.logging.NoopAdapterFactory(), **QUIET
    )
    return metrics


def trace(algo: Any, c4: Any) -> float:
    """tr C / m of the first critic on 1,024 rows."""
    rows = torch.linspace(0, len(c4.x) - 1, 1024).long()
    modules, s = algo.impl.modules, c4.x.shape[1] - c4.action_dim
    features = [
        q.encoder(x[rows, :s], x[rows, s:]).detach()
        for q, x in ((modules.targ_q_funcs[0], c4.x_next), (modules.q_funcs[0], c4.x))
    ]
    return traces(*features, c4.valid[rows])[0].item()


@pytest.mark.parametrize(("name", "steps"), [("td3_bc", 500), ("cql", 300), ("iql", 500)])
def test_the_trace_stays_below_a_third_of_that_without_c4(dataset: Any, name: str, steps: int, tmp_path: Path) -> None:
    algo = algorithm(name)
    data = with_c4(algo, dataset, C4AnywhereConfig(lambda_=0.3))
    metrics = fit(algo, data, steps)
    plain = algorithm(name)
    assert "c4_penalty" not in fit(plain, dataset, steps)
    assert metrics["c4_penalty"] > 0 and trace(algo, data.c4) < trace(plain, data.c4) / 3
    # a saved model is d3rlpy's own
    algo.save_model(str(tmp_path / "model.pt"))
    other = algorithm(name)
    other.build_with_dataset(dataset)
    other.load_model(str(tmp_path / "model.pt"))
    observations = dataset.episodes[0].observations[:5]
    other.observation_scaler.fit_with_transition_picker(dataset.episodes, dataset.transition_picker)
    np.testing.assert_array_equal(other.predict(observations), algo.predict(observations))


def test_without_weight_the_losses_are_d3rlpys_on_the_same_rows(dataset: Any) -> None:
    algo, plain = algorithm("td3_bc"), algorithm("td3_bc")
    data = with_c4(algo, dataset, C4AnywhereConfig(lambda_=0.0))
    d3rlpy.algos.utility.build_scalers_with_transition_picker(plain, dataset)
    plain.build_with_dataset(dataset)
    for name in ("q_funcs", "targ_q_funcs", "policy", "targ_policy"):
        getattr(plain.impl.modules, name).load_state_dict(getattr(algo.impl.modules, name).state_dict())
    for update in range(4):
        batch = data.sample_transition_batch(64)
        losses = []
        for one in (algo, plain):
            torch.manual_seed(update)  # the target policy's noise
            losses.append(one.update(batch))
        assert losses[0].pop("c4_penalty") == 0
        assert losses[0] == losses[1]


def test_it_takes_less_than_half_as_much_arithmetic_again(dataset: Any) -> None:
    """An update of TD3+BC, the cheapest of the three; a clock would judge the machine's other work."""
    algo, plain = algorithm("td3_bc"), algorithm("td3_bc")
    data = with_c4(algo, dataset)
    d3rlpy.algos.utility.build_scalers_with_transition_picker(plain, dataset)
    plain.build_with_dataset(dataset)
    counts = []
    for one, rows in ((algo, data), (plain, dataset)):
        for _ in range(5):  # C4 compares ways to compute on batches 1, 2, 3 and 5, not on 6 and 7
            one.update(rows.sample_transition_batch(256))
        with FlopCounterMode(display=False) as counter:
            for _ in range(2):  # one of them with the actor's
                one.update(rows.sample_transition_batch(256))
        counts.append(counter.get_total_flops())
    assert 1 < counts[0] / counts[1] < 1.5


def test_rows_are_scaled_and_chosen_as_d3rlpys_batches_are(dataset: Any) -> None:
    algo = algorithm("td3_bc")
    data = with_c4(algo, dataset, C4AnywhereConfig(K=2))
    assert len(data.c4.x) == dataset.transition_count and data.episodes is dataset.episodes
    batch = data.sample_transition_batch(32)
    rows = data._drawn[1]
    scaled = data._scaled(batch)
    assert torch.equal(data.c4.x[rows], torch.cat([scaled.observations, scaled.actions], 1))
    assert torch.equal(data.c4.x_next[rows], torch.cat([scaled.next_observations, scaled.next_actions], 1))
    assert torch.equal(data.c4.valid[rows], scaled.terminals.flatten() == 0)
    assert abs(float(data.c4.x[:, 0].mean())) < 0.1  # normalised


def test_misuse_is_refused(dataset: Any) -> None:
    algo = algorithm("td3_bc")
    data = with_c4(algo, dataset)
    with pytest.raises(InputError, match="has C4 already"):
        with_c4(algo, dataset)
    with pytest.raises(InputError, match="a batch of another dataset"):
        fit(algo, dataset, 1)
    algo._impl = None
    algo.build_with_dataset(dataset)
    with pytest.raises(InputError, match="was rebuilt"):
        fit(algo, data, 1)
    with pytest.raises(InputError, match="found BC, expected TD3PlusBC, CQL or IQL"):
        with_c4(d3rlpy.algos.BCConfig().create(device=False), dataset)
    quantiles = d3rlpy.models.QRQFunctionFactory()
    with pytest.raises(InputError, match=r"not the output of an nn\.Linear"):
        with_c4(d3rlpy.algos.TD3PlusBCConfig(q_func_factory=quantiles).create(device=False), dataset)

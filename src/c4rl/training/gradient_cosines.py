"""The paper's first figure: which part of the TD loss moves the critic?

E[delta^2] = (E[delta])^2 + Var[delta]. The cosine of the loss's gradient with the gradient of each part says which one
an update follows. Gradients are those of an update: with respect to the critic, the target fixed.
"""

import torch
from torch import Tensor

from c4rl.core.buffer import Batch
from c4rl.core.ops import kernels
from c4rl.training.launch import Launch

BATCH = 256


def gradient_cosines(launch: Launch, batch: Batch, batch_size: int = BATCH) -> list[dict[str, float]]:
    """One dictionary per run; averages over critics and over batches of the sample."""
    sums: dict[str, Tensor] = {}
    count = max(1, batch.rewards.shape[1] // batch_size)
    for i in range(count):
        rows = slice(i * batch_size, (i + 1) * batch_size)
        part = Batch(*(value[:, rows] for value in batch if value is not None))
        with kernels(False):  # differentiated three times
            found = _of_batch(launch, part)
        for name, value in found.items():
            sums[name] = sums.get(name, torch.zeros_like(value)) + value / count
    runs = range(len(launch.runs))
    return [{name: float(value[run].mean()) for name, value in sums.items()} for run in runs]


def _of_batch(launch: Launch, batch: Batch) -> dict[str, Tensor]:
    """[R, M] each."""
    assert launch.algorithm.critics is not None
    delta = launch.algorithm.td_errors(batch)  # [R, M, B]
    mean = delta.mean(2)
    parts = {"loss": delta.square().mean(2), "variance": delta.var(dim=2, correction=0), "mean": mean.square()}
    parameters = list(launch.algorithm.critics[0].parameters())
    gradients = {}
    for name, value in parts.items():
        found = torch.autograd.grad(value.sum(), parameters, retain_graph=True)
        gradients[name] = torch.cat([g.flatten(2) for g in found], dim=2)  # [R, M, parameters]
    cosine = torch.nn.functional.cosine_similarity
    second = parts["loss"].detach()
    return {
        "td_cosine_with_variance": cosine(gradients["loss"], gradients["variance"], dim=2),
        "td_cosine_with_mean": cosine(gradients["loss"], gradients["mean"], dim=2),
        "variance_share": parts["variance"].detach() / second.clamp_min(torch.finfo(second.dtype).tiny),
    }

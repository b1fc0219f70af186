"""BPPO's two policies: π_old, first the clone and then the best accepted policy, and π, which is improved from it."""

from abc import abstractmethod
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from c4rl.algorithms.algorithm import Algorithm, Metrics
from c4rl.core.networks import Stack
from c4rl.core.policies import EvaluatedPolicy, TanhHeadGaussianPolicy
from c4rl.core.random import Streams
from c4rl.plugins.seams import Plugins

CRITIC, VALUE, CLONING, IMPROVEMENT = range(4)  # stages
CLONE_JUDGED_EVERY = 2000  # updates of the cloning stage, by online_best


class AcceptedPolicies(Algorithm):
    """Both policies, and which of them is the better one by the rule of --acceptance."""

    actor: TanhHeadGaussianPolicy

    def __init__(self, config: Any, stack: Stack, streams: Streams, plugins: Plugins) -> None:
        super().__init__(config, stack, streams, plugins)
        clone = TanhHeadGaussianPolicy(stack, "actor", config.hidden, initialization="orthogonal_weights")
        # while cloning, under online_best, π is the best clone so far
        self.actor = self.learner("actor", deepcopy(clone), config.actor_lr, clip_norm=0.5)
        self.old_actor = self.learner("old_actor", clone, config.actor_lr)
        # what π has to beat; the lowest finite number, as an infinite one would count as a failed run
        self._best = self.kept("best", value=torch.finfo(stack.dtype).min)
        self.accepted, self._acceptances = self.kept("accepted"), self.kept("acceptances")
        self._shows_new = torch.zeros((), dtype=torch.bool, device=stack.device)  # π is evaluated, not π_old

    @abstractmethod
    def expected_q(self, policy: TanhHeadGaussianPolicy) -> Tensor:
        """The critic's opinion of a policy, [R]."""

    def judge_improvement(self) -> None:
        """After each improvement update."""
        if self.config.acceptance == "offline_q":
            self._judge(self.expected_q(self.actor))
        else:
            self._shows_new.fill_(True)  # to stay (never), or until the simulator's verdict

    def after_update(self, step: int) -> Metrics:
        stage, update = self.stage_at(step)
        if update != self.stages[stage].updates:
            return {}
        if stage == CLONING and self.config.acceptance != "online_best":
            self.optimizers["actor"].flat.copy_(self.optimizers["old_actor"].flat)
            self._best.copy_(self.expected_q(self.old_actor))
        if stage == IMPROVEMENT:  # under online_best the last update's verdict is still to come
            return {f"acceptances_{self.config.acceptance}": self._acceptances}
        return {}

    def asks_environment(self, step: int) -> bool:
        stage, update = self.stage_at(step)
        clone_is_judged = update % CLONE_JUDGED_EVERY == 0 or update == self.stages[CLONING].updates
        judged = stage == IMPROVEMENT or (stage == CLONING and clone_is_judged)
        return self.config.acceptance == "online_best" and judged

    def receive_scores(self, scores: Tensor) -> None:
        stage, update = self.stage_at(int(self.streams.step))
        scores = scores.to(self._best.dtype)
        if stage == CLONING:
            self._keep_better(scores, self.old_actor, self.actor)
            if update == self.stages[CLONING].updates:  # go on from the best clone
                self.optimizers["old_actor"].flat.copy_(self.optimizers["actor"].flat)
        else:
            self._judge(scores)
            self._shows_new.fill_(False)

    def _judge(self, scores: Tensor) -> None:
        """π_old ← π in the runs whose score [R] is the best so far."""
        self.accepted.copy_(self._keep_better(scores, self.actor, self.old_actor))
        self._acceptances.add_(self.accepted)

    @torch.no_grad()
    def _keep_better(self, scores: Tensor, found: TanhHeadGaussianPolicy, kept: TanhHeadGaussianPolicy) -> Tensor:
        better = scores > self._best
        self._best.copy_(torch.where(better, scores, self._best))
        for mine, new in zip(kept.parameters(), found.parameters(), strict=True):
            mine.copy_(torch.where(better.view(-1, *(1,) * (new.dim() - 1)), new, mine))
        return better

    @property
    def shown(self) -> TanhHeadGaussianPolicy:
        """π_old, or π where none is accepted (never) or where its verdict is due (online_best)."""
        return self.actor if bool(self._shows_new) else self.old_actor

    def evaluated_policy(self) -> EvaluatedPolicy:
        return EvaluatedPolicy.of(self.shown.mlp, self.stack.action_dim)

    def state(self) -> dict[str, Tensor]:
        return super().state() | {"shows_new": self._shows_new}

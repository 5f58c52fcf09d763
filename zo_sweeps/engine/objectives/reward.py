"""Reward of generated texts, as a loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from zo_sweeps.engine.later import Batch, Tensor, torch
from zo_sweeps.methods.metric import Of
from zo_sweeps.methods.objective import Objective
from zo_sweeps.methods.registry import member
from zo_sweeps.methods.task import Task


@dataclass(frozen=True)
class Reward(Objective):
    """f = -mean over a minibatch's rows of the mean reward of the texts that are generated for each.

    Centring rewards per prompt over the points of a step, as EGGROLL does, changes f by a constant of the step, because
    all points see the same prompts: an estimator that compares points (es, rloo, rge) has it already.

    Texts have no gradient, and those that were sampled an unbiased estimate of it: see the kind `policy_gradient`.
    """

    examples = ((([[1.0, 0.0], [0.5, 0.5], [0.25, 0.0]], [["a", "b"], ["c", "d"], ["e", "f"]]), -3 / 8),)
    differentiable: ClassVar[bool] = False
    generates: ClassVar[bool] = True
    gold_only: ClassVar[bool] = True

    def fits(self, task: Task) -> str:
        return "" if task.kind.predicts is Of.REWARDS else "it needs rewards, and the task has none"

    def loss(self, logprobs: Tensor, batch: Batch) -> Tensor:
        """Return f of a batch whose candidates were sampled, [P]; its gradient is a policy gradient with baselines."""
        assert batch.rewards is not None
        texts = logprobs.new_zeros(len(logprobs), len(batch.candidate_length))
        texts = texts.index_add(1, batch.token_candidate, logprobs).view(-1, *batch.rewards.shape)  # [P, B, slots]
        centred = batch.rewards - batch.rewards.mean(dim=1, keepdim=True)
        advantage = centred * batch.slots / (batch.slots - 1)  # the reward less the mean of the other texts'
        score = -(advantage * texts).mean(dim=(1, 2))
        return score - score.detach() - batch.rewards.mean()

    def of_texts(self, predictions: Sequence[Sequence[float]], references: Sequence[Sequence[str]]) -> Tensor:
        metric: Any = member("metric", "reward")()
        return torch.tensor([-metric.compute(predictions, references)])

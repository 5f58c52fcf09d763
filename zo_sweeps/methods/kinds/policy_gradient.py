"""First-order training on rewards."""

from __future__ import annotations

from dataclasses import dataclass

from zo_sweeps.methods.definition import option
from zo_sweeps.methods.kinds.fo import FirstOrder


@dataclass(frozen=True)
class PolicyGradient(FirstOrder):
    """Backpropagation through the log-probabilities of sampled answers, with leave-one-out baselines (RLOO).

        g = -1/(B n) sum_b sum_i A_bi grad log p(y_bi | x_b),   A_bi = r_bi - mean over j != i of r_bj

    for n = `group` answers y_bi with rewards r_bi to each of B prompts x_b, drawn anew at every step from the model
    itself (temperature 1), by addressed noise. E[g] is the gradient of the objective `reward` at temperature 1. log p
    sums over all tokens of an answer, the one that ended it included: no clipping, KL penalty, or division by lengths
    or standard deviations. Dev and test are generated as the task says, which may be greedily.

    Cost per step: a generation of n answers per prompt, and a forward and a backward of them. Source: Kool et al.,
    Buy 4 REINFORCE samples, get a baseline for free, 2019; of language models Ahmadian et al. (arXiv:2402.14740).
    """

    group: int = option(8, "answers sampled to each prompt of a step", least=2)

    @property
    def answers(self) -> int:
        return self.group

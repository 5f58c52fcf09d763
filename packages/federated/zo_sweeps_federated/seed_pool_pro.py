"""Gaussian directions from a pool, more often those that had large coefficients: FedKSeed-Pro."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import ClassVar

from zo_sweeps.methods.definition import bound, option
from zo_sweeps.methods.perturbation import Params, Reads, State
from zo_sweeps.methods.points import Estimate, NoiseKey
from zo_sweeps_federated.seed_pool import SeedPool

History = Mapping[int, tuple[float, int]]  # direction of the pool -> sum and number of its |coefficients|
UNIT = 1 << 30  # the weight of the least probable direction


@dataclass(frozen=True)
class SeedPoolPro(SeedPool):
    """z = one of K Gaussian directions of the run, j with probability p_j, independently for each query.

        p_j = exp(x_j) / sum_k exp(x_k),  x_j = (a_j - min a) / (max a - min a + 1e-10)
        a_j = sum_i min(|g_i|, clip) / (1 + n_j),  over the n_j coefficients of direction j in the log

    Probabilities are uniform in the first `every` steps and change after that many: over clients, after each round.
    They follow from the log, so that nobody sends them, and are whole numbers of exact operations: all machines draw
    the same directions. Source: Qin et al. (FedKSeed-Pro), 2023; a_j, whose mean begins with a 0, and clip as in the
    released code, which draws with numpy's global generator and sends each client the K probabilities. Where clients
    share directions, g_i is their mean.
    """

    reads: ClassVar[Reads] = Reads.LOG

    clip: float = option(1000.0, "largest |coefficient| that counts", above=0)
    every: int = option(1, "steps after which probabilities change; over clients: method.local_steps", least=1)
    ends: tuple[int, ...] | None = bound()  # sums of the first weights: 1, 2, ..., K of them; None: they are equal

    @property
    def steady(self) -> int:
        return self.every

    def drawn(self, key: NoiseKey) -> NoiseKey:
        if self.ends is None:
            return super().drawn(key)
        return NoiseKey(key.seed, 0, bisect_right(self.ends, self.word(key) * self.ends[-1] >> 32))

    def init(self, params: Params) -> State:
        return {"t": 0, "history": {}, "ends": None}

    def at(self, params: Params, state: State, step: int) -> SeedPoolPro:
        return replace(self, ends=state["ends"])

    def observe(self, params: Params, estimate: Estimate, state: State) -> State:
        t, history = state["t"] + 1, dict(state["history"])
        for key, _ in estimate.terms:
            j = self.drawn(key).query
            total, count = history.get(j, (0.0, 0))
            history[j] = total + min(abs(estimate.coefs[key.query]), self.clip), count + 1
        return {"t": t, "history": history, "ends": state["ends"] if t % self.every else self._ends(history)}

    def _ends(self, history: History) -> tuple[int, ...]:
        means = {j: total / (1 + count) for j, (total, count) in history.items()}
        low = min(means.values()) if len(means) == self.seeds else 0.0
        spread = max(means.values(), default=0.0) - low + 1e-10
        return tuple(accumulate(int(UNIT * _exp((means.get(j, 0.0) - low) / spread)) for j in range(self.seeds)))


def _exp(x: float) -> float:
    """Return exp(x), 0 <= x <= 1, within 1e-15: by sums and products, which round alike on all machines."""
    total = term = 1.0
    for n in range(1, 18):
        term *= x / n
        total += term
    return total

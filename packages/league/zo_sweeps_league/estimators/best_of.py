"""Random search: the step goes to the best of the points, or to the mean of the best few."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zo_sweeps.engine.estimators._population import Population
from zo_sweeps.methods.definition import option


@dataclass(frozen=True)
class BestOf(Population):
    """-ghat = (eps / k) sum of the z_i of the k = `keep` points theta + eps z_i of lowest loss; the first of equals.

    With lr = 1, theta moves to the mean of these k points. Of the losses only their order matters. On a linear f, for
    Gaussian z and k = 1, the step's mean is eps E[max of q normal numbers] along -grad f / |grad f|, while its length
    is eps sqrt(d).

    Cost: q forwards of the batch. Source: random search as a baseline at equal cost; RandOpt (2026) draws once around
    the pretrained weights and lets the best k vote, where this is repeated at every step.
    """

    keep: int = option(1, "points whose mean the step goes to", least=1)

    @classmethod
    def outside(cls, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        yield from super().outside(values)
        keep, q = (values.get(name, cls.__dataclass_fields__[name].default) for name in ("keep", "q"))
        if keep > q:
            yield "keep", f"{cls._called('keep')} must be at most q = {q}, not {keep}"

    @property
    def bound(self) -> float:
        return self.eps * self.q / self.keep

    def shaped(self, losses: Sequence[float]) -> Sequence[float]:
        best = sorted(range(len(losses)), key=losses.__getitem__)[: self.keep]
        return [-self.eps * len(losses) / len(best) if i in best else 0.0 for i in range(len(losses))]

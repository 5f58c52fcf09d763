"""z in a cone around the momentum of the estimates: ConMeZO."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from zo_sweeps.engine.later import Tensor, direction, noise, torch
from zo_sweeps.engine.perturbations._bases import Whole
from zo_sweeps.methods.definition import bound, option
from zo_sweeps.methods.perturbation import Params, Reads, State
from zo_sweeps.methods.points import Estimate, NoiseKey


@dataclass(frozen=True)
class Cone(Whole):
    """z = sqrt(d) cos(angle) m / ||m|| + sin(angle) g, g of N(0, I), and m <- beta m + (1 - beta) ghat after a step.

    In step 1, when m = 0, z = g. ||m|| is of all parameters together.

    Args:
        angle: pi / 2: MeZO.
        warmup: the step from which on the decay is `beta`; up to a tenth of it the decay is 0.1, then beta - (beta -
            0.1) / (1 + 8 x^1.8)^3 with x from 0 to 1. 0: none. The authors take a tenth of the run.

    Given m, E[z z^T] = sin^2 I + d cos^2 m m^T / ||m||^2: not I, so an estimate is longer along m than the gradient.
    State: {"m": {name: fp32}}, its norm, the steps done. Cost: MeZO's noise, a read of m with each, and a pass to
    update it. Source: ConMeZO: Adaptive directional sampling for gradient-free fine-tuning of language models, 2025;
    the warm-up as a port of it has it (its own code is not at hand).
    """

    reads: ClassVar[Reads] = Reads.LOG
    state_copies: ClassVar[int] = 1

    angle: float = option(1.35, "half the cone's opening, in radians", least=0, most=math.pi / 2)
    beta: float = option(0.99, "decay of the momentum", least=0, most=1)
    warmup: int = option(0, "steps until the decay is beta", least=0)
    m: State | None = bound()
    norm: float = bound()

    def remarks(self, steps: int) -> list[str]:
        if self.warmup <= steps:
            return []
        what = f"perturbation.warmup={self.warmup} is longer than the run, at whose end the momentum's decay"
        return [f"{what} is {self.decay(steps):.2g}, not {self.beta:g}: set it to a tenth of the steps"]

    def init(self, params: Params) -> State:
        m = {name: torch.zeros_like(param, dtype=torch.float32) for name, param in params.items()}
        return {"m": m, "norm": 0.0, "t": 0}

    def at(self, params: Params, state: State, step: int) -> Cone:
        return replace(self, m=state["m"], norm=state["norm"])

    def second_moment(self, shape: torch.Size) -> float | None:
        return None if self.norm else 1.0

    def decay(self, t: int) -> float:
        """Return the momentum's decay at the t-th step."""
        begin = self.warmup / 10
        if t <= begin:
            return 0.1
        x = min(1.0, (t - begin) / (self.warmup - begin)) if self.warmup else 1.0
        return self.beta if x == 1 else self.beta - (self.beta - 0.1) / (1 + 8 * x**1.8) ** 3

    def observe(self, params: Params, estimate: Estimate, state: State) -> State:
        t, total = state["t"] + 1, 0.0
        beta = self.decay(t)
        with torch.no_grad():
            for name, param in params.items():
                g = direction.ghat(estimate, self, name, param)
                m = state["m"][name].mul_(beta).add_(g, alpha=1 - beta)
                total += float(torch.linalg.vector_norm(m, dtype=torch.float64)) ** 2
        return {"m": state["m"], "norm": math.sqrt(total), "t": t}

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        z = noise.gaussian(key, name, shape, device)
        if not self.norm:
            return z
        assert self.m is not None
        ahead = math.sqrt(self.layout.d) * math.cos(self.angle) / self.norm
        return z.mul_(math.sin(self.angle)).add_(self.m[name], alpha=ahead)

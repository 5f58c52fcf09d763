"""z with a learned covariance of the rows of every matrix: LOREN."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from zo_sweeps.engine.later import Tensor, noise, torch
from zo_sweeps.methods.definition import bound, option
from zo_sweeps.methods.perturbation import Params, Perturbation, Reads, State
from zo_sweeps.methods.points import Estimate, Layout, NoiseKey

START = "loren/a"


@dataclass(frozen=True)
class LOREN(Perturbation):
    """Each row of Z is of N(0, S), S = (damping I + a a^T)^-1, for a matrix [m, n] with a [n]; N(0, 1) elsewhere.

    a follows the score-function gradient of the loss at the points, after each step, from one draw of N(0, 1 / n) that
    all seeds share:

        a <- a - lr_cov mean_k(A_k G_k),   G_k = m a / (damping + ||a||^2) - Z_k^T Z_k a

    with A_k = eps g_k the k-th loss minus the step's mean, times q / (q - 1), and G_k the gradient of log p(Z_k).

    Args:
        released: whether directions are those of the released code (b80a32b). There S = damping (damping I + A A^T)^-1
            is the covariance of a whole parameter, vectors too, with A [m, n] the vector a in every row, which begins
            at N(0, 1): the direction A shrinks and all others have variance 1. G_k is the gradient of that log p, times
            sqrt(damping) eps^2, so that a stays where it began (it moves by 1e-8 of its length in three steps).

    For estimator rloo, whose coefficients are differences from a mean. Given a, E[z z^T] = S in every row, which is 1 /
    damping across a: for the same length of directions, the released code's eps is 1 / sqrt(damping) times this one.
    State: {"a": {name: [n]}}, one vector a matrix. Cost: MeZO's noise and a product with a for each; two thin products
    to update it. Source: Seung et al., Low-rank curvature for zeroth-order optimization in LLM fine-tuning (LOREN),
    2025.
    """

    reads: ClassVar[Reads] = Reads.LOG
    portable: ClassVar[bool] = False

    damping: float = option(0.1, "the eigenvalues of the covariance across a are 1 / damping", above=0)
    lr_cov: float = option(1e-3, "rate of a", least=0)
    released: bool = option(False, "directions as released: a covariance of whole parameters, that does not learn")
    a: State | None = bound()
    eps: float = bound()

    def bind(self, layout: Layout) -> LOREN:
        return replace(self, a=None, eps=layout.eps)

    def init(self, params: Params) -> State:
        having = {name: param for name, param in params.items() if self._has_a(param.shape)}
        return {"a": {name: self._start(name, param.shape, param.device) for name, param in having.items()}}

    def at(self, params: Params, state: State, step: int) -> LOREN:
        return replace(self, a=state["a"])

    def second_moment(self, shape: torch.Size) -> float | None:
        return None if self.released or len(shape) == 2 else 1.0

    def observe(self, params: Params, estimate: Estimate, state: State) -> State:
        scale = self.eps * (self.eps**2 * self.damping**0.5 if self.released else 1.0) * self.lr_cov
        learned = {}
        with torch.no_grad():
            for name, a in state["a"].items():
                moved, rows = torch.zeros_like(a), params[name].numel() // len(a)
                for key, weight in estimate.terms:  # weight holds the 1 / q of the mean
                    Z = self.sample(key, name, params[name].shape, a.device).view(rows, -1)
                    if self.released:
                        G = a * (rows / (self.damping + rows * (a @ a))) - Z.sum(0) * ((Z @ a).sum() / self.damping)
                    else:
                        G = a * (rows / (self.damping + a @ a)) - Z.T @ (Z @ a)
                    moved.add_(G, alpha=weight)
                learned[name] = a - scale * moved
        return {"a": learned}

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        z = noise.gaussian(key, name, shape, device)
        if not self._has_a(shape):
            return z
        a = self._start(name, shape, device) if self.a is None else self.a[name]
        if self.released:
            length = shape.numel() // len(a) * (a @ a)
            shrink = (1 + (self.damping / (self.damping + length)).sqrt()) / length
            return z.sub_(a * ((z @ a).sum() * shrink))
        length = a @ a
        # (damping I + a a^T)^-1/2 is 1 / sqrt(damping) across a, and 1 / sqrt(damping + ||a||^2) along it.
        shrink = (1 - (self.damping / (self.damping + length)).sqrt()) / length
        return z.addr_(z @ a, a * -shrink).mul_(self.damping**-0.5)

    def _has_a(self, shape: torch.Size) -> bool:
        return len(shape) == 2 or (self.released and len(shape) > 0)

    def _start(self, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        a = noise.gaussian(NoiseKey(0, 0, 0), f"{name}/{START}", torch.Size((shape[-1],)), device)
        return a if self.released else a.mul_(shape[-1] ** -0.5)

"""z = U V^T for a matrix, scaled: LOZO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from zo_sweeps.engine.later import Tensor, noise, torch
from zo_sweeps.engine.perturbations._bases import Factored, window
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.points import NoiseKey


@dataclass(frozen=True)
class LowRank(Factored):
    """Z = U V^T / sqrt(r), U [m, r] and V [n, r] of N(0, 1), for a matrix [m, n]; N(0, 1) for any other shape.

    Args:
        interval: steps 1 .. nu share one V, then nu + 1 .. 2 nu (LOZO's nu). U is drawn at each step. Each of the q
            queries has its own U and V.
        scale: `released`: Z = U V^T, without the factor, so that eps and lr are those of the authors' trainer.
        sum: how a step's directions are added to a matrix. `terms`: W + c_1 z_1 + c_2 z_2 + ..., in this order, each
            rounded. `product`: W + [c_1 U_1, c_2 U_2, ...] [V_1, V_2, ...]^T, one matrix product that reads and writes
            W once; it rounds otherwise, so runs of the two differ by rounding.
        slip: whether the update draws another U, and another z elsewhere, in the step that draws a new V, as the
            trainer does: in that step it moves along other directions than were evaluated.

    `unit`: E[z z^T] = I over U and V; for a fixed V, the expected estimate is the gradient times V V^T / r. For one
    direction and a matrix E||ghat||^2 / ||grad f||^2 = d + 2 + 2 (m + n + 1) / r, d = m n; with q directions this
    number, plus q - 1, over q. `released`: E[z z^T] = r I in matrices, I in other shapes, and so the expected estimate.

    Cost: (m + n) r Gaussians instead of m n, and one product; an update of q directions takes 2 q r operations per
    weight, as many as a forward of q r tokens. Source: Chen et al., Enhancing zeroth-order fine-tuning for language
    models with low-rank structures, Algorithm 1, and its released code (LOZOtrainer.py, 5d1ade5). The paper divides the
    estimate by r and the trainer does not: lr of the trainer is the paper's / r. Over matrices alone, `unit` with
    sqrt(r) eps and r lr is `released` with eps and lr. The slip comes from drawing V before U for the forwards, U alone
    in an update, which shifts all that is drawn later; parameters before the first matrix, which models seldom have,
    would not slip.
    """

    keeps_factor: ClassVar[bool] = True

    rank: int = option(2, "r, the rank of a matrix's direction", least=1)
    interval: int = option(50, "steps between draws of V", least=1)
    scale: Literal["unit", "released"] = option("unit", "unit: E[z z^T] = I; released: U V^T, as LOZO's trainer")
    sum: Literal["terms", "product"] = option(
        "terms", "of an update: direction after direction, or one matrix product", added=True
    )
    slip: bool = option(False, "the update draws another U where V is new, as LOZO's trainer", added=True, kw_only=True)
    _updates: bool = field(default=False, repr=False, kw_only=True, metadata={"option": False})

    def stepped(self) -> LowRank:
        return replace(self, _updates=True) if self.slip else self

    def slips(self, key: NoiseKey) -> bool:
        return self._updates and window(key, self.interval).step == key.step

    @property
    def one_product(self) -> bool:
        return self.sum == "product"

    def factors(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> tuple[Tensor, Tensor]:
        U, V = self.factors_of([key], name, shape, device)
        return U[0], V[0]

    def factors_of(
        self, keys: Sequence[NoiseKey], name: str, shape: torch.Size, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        of_U = [(key, f"{name}/{'slip' if self.slips(key) else 'U'}") for key in keys]
        of_V = [(window(key, self.interval), f"{name}/V") for key in keys]
        U = noise.each(of_U, torch.Size((shape[0], self.rank)), device)
        V = noise.each(of_V, torch.Size((shape[1], self.rank)), device)
        return (U.mul_(self.rank**-0.5) if self.scale == "unit" else U), V

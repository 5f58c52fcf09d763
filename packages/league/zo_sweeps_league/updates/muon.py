"""The estimate of a matrix, orthogonalized: ZO-Muon."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.engine.later import Tensor, rounding, torch
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import Estimate
from zo_sweeps.methods.update import Params, RoundedUpdate, State

A, B, C = 3.4445, -4.775, 2.0315


@dataclass(frozen=True)
class Muon(RoundedUpdate):
    """W <- W - lr * msign(ghat) in matrices; theta <- theta - lr * vector_scale * ghat in other shapes.

    msign(U S V^T) = U V^T, about, by Newton-Schulz iterations. With ghat = P G, P of orthonormal columns (perturbation
    `projected`), this is P msign(G). The step of a matrix has length lr sqrt(rank of ghat), whatever f and eps are. The
    released code has 1e-7 in other shapes and 1e-2 in matrices: a vector_scale of 1e-5.

    No state. Cost: q noise passes, and 6 m n min(m, n) operations a matrix and iteration (the released code, within r
    rows: 6 r^2 n). Source: ZO-Muon, 2026, and its released code (166a8f3); the iteration of Jordan et al., Muon, 2024.
    """

    portable: ClassVar[bool] = False

    iterations: int = option(5, "of Newton-Schulz", least=1)
    vector_scale: float = option(1.0, "rate of other shapes than matrices, over lr", least=0)
    weight_decay: float = option(0.0, "decoupled, of parameters of two or more dimensions", least=0)
    lr: float = option(1e-2, "learning rate of step 1", least=0, kw_only=True)

    def last_moves(self, ghats: Sequence[Tensor], coefs: Sequence[Sequence[float]], lr: float) -> Tensor:
        return -lr * self._direction(ghats[-1])

    def _direction(self, ghat: Tensor) -> Tensor:
        return orthogonalized(ghat, self.iterations) if ghat.dim() == 2 else ghat * self.vector_scale

    def apply(self, params: Params, estimate: Estimate, noise: Perturbation, state: State, lr: float) -> State:
        rounding.move_all(self, params, estimate, noise, lr, lambda name, ghat: self._direction(ghat))
        return state


def orthogonalized(G: Tensor, iterations: int) -> Tensor:
    """Return about U V^T of G = U S V^T, by Newton-Schulz iterations of the quintic a X + b X X^T X + c (X X^T)^2 X.

    X begins as G / ||G||_F. After five iterations singular values above .01 of the norm are between .7 and 1.2; a zero
    stays zero. Cost: 6 m n min(m, n) operations an iteration.
    """
    X: Tensor = G / (torch.linalg.vector_norm(G) + 1e-30)
    if wide := G.shape[0] > G.shape[1]:
        X = X.T
    for _ in range(iterations):
        square = X @ X.T
        X = A * X + (B * square + C * square @ square) @ X
    return X.T if wide else X

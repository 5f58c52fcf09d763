"""The leading directions of the estimate of a matrix, orthogonalized: ZO-MOPI."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from zo_sweeps.engine.later import Tensor, noise, rounding, torch
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import Estimate, NoiseKey
from zo_sweeps.methods.update import Params, RoundedUpdate, State

START = NoiseKey(0, 0, 0)  # of the subspace iteration, at every step


@dataclass(frozen=True)
class MOPI(RoundedUpdate):
    """m <- momentum * m + ghat;  W <- W - lr * sum_{i <= k} u_i v_i^T in matrices, of the largest singular values of m.

    In other shapes theta <- theta - lr * vector_scale * m (the released code has 1e-7 there and 1e-2 in matrices:
    1e-5). u_i and v_i come from subspace iteration, from the same addressed noise at every step. k = `components`, or
    the smaller side, if that is less.

    State: {"m": {name: fp32}}. Cost: q noise passes, and 4 m n k operations a matrix and iteration. Source: ZO-MOPI,
    2026, and its released code (2ba4f71), which makes one iteration per step, from the last step's v, and begins anew
    where P is drawn; it keeps m as r rows, which belong to another P from there on, and here m is of the whole matrix.
    """

    state_copies: ClassVar[int] = 1
    portable: ClassVar[bool] = False

    components: int = option(32, "k, the directions of a matrix that are kept", least=1)
    iterations: int = option(2, "of the subspace iteration", least=1)
    momentum: float = option(0.0, "mu", least=0)
    vector_scale: float = option(1.0, "rate of other shapes than matrices, over lr", least=0)
    weight_decay: float = option(0.0, "decoupled, of parameters of two or more dimensions", least=0)
    lr: float = option(1e-2, "learning rate of step 1", least=0, kw_only=True)

    def to_identity(self) -> dict[str, Any]:
        corrected = (
            {"numerics": 2} if self.iterations == 1 else {}
        )  # it moved along rounding; further iterations did not
        return {**super().to_identity(), **corrected}

    def last_moves(self, ghats: Sequence[Tensor], coefs: Sequence[Sequence[float]], lr: float) -> Tensor:
        m = sum((self.momentum**age * ghat for age, ghat in enumerate(reversed(ghats))), 0 * ghats[0])
        return -lr * self._direction(m)

    def _direction(self, m: Tensor) -> Tensor:
        if m.dim() != 2:
            return m * self.vector_scale
        shape = torch.Size((m.shape[1], min(self.components, *m.shape)))
        return leading(m, noise.gaussian(START, "mopi", shape, m.device), self.iterations)

    def init(self, params: Params) -> State:
        return {"m": rounding.zeros(params)}

    def apply(self, params: Params, estimate: Estimate, noise: Perturbation, state: State, lr: float) -> State:
        def step(name: str, ghat: Tensor) -> Tensor:
            return self._direction(state["m"][name].mul_(self.momentum).add_(ghat))

        rounding.move_all(self, params, estimate, noise, lr, step)
        return state


def leading(M: Tensor, start: Tensor, iterations: int) -> Tensor:
    """Return about the sum of u_i v_i^T over the k largest singular values of M [m, n], by subspace iteration.

    V [n, k] becomes Q of M^T M V at each of the iterations, from `start`; then u_i = M v_i / ||M v_i||. A direction in
    which M is 0 adds nothing. Cost: 4 m n k operations an iteration, 2 m k^2 for the directions in which it is 0.
    """
    V: Tensor = torch.linalg.qr(start).Q
    for _ in range(iterations):
        V = torch.linalg.qr(M.T @ (M @ V)).Q
    U: Tensor = M @ V
    # Beyond the rank of M, v_i is of rounding: M v_i may be long, but lies between the M v before it.
    own = torch.linalg.qr(U, mode="r").R.diagonal().abs()
    lengths = torch.linalg.vector_norm(U, dim=0)
    inverse = torch.where(own > 1e-6 * own.max(), 1 / lengths.clamp(min=1e-30), 0.0)
    return (U * inverse).matmul(V.T)

"""Matrix functions of an estimate. Not a member of the axis."""

from __future__ import annotations

import torch
from torch import Tensor

A, B, C = 3.4445, -4.775, 2.0315


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


def leading(M: Tensor, start: Tensor, iterations: int) -> Tensor:
    """Return about the sum of u_i v_i^T over the k largest singular values of M [m, n], by subspace iteration.

    V [n, k] becomes Q of M^T M V at each of the iterations, from `start`; then u_i = M v_i / ||M v_i||. A direction in
    which M is 0 adds nothing. Cost: 4 m n k operations an iteration.
    """
    V: Tensor = torch.linalg.qr(start).Q
    for _ in range(iterations):
        V = torch.linalg.qr(M.T @ (M @ V)).Q
    U: Tensor = M @ V
    lengths = torch.linalg.vector_norm(U, dim=0)
    inverse = torch.where(lengths > 1e-6 * lengths.max(), 1 / lengths.clamp(min=1e-30), 0.0)
    return (U * inverse).matmul(V.T)

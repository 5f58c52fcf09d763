"""z between the leading directions of each layer's inputs and random ones: AGZO."""

from __future__ import annotations

from dataclasses import dataclass

from zo_sweeps.engine.later import Tensor, noise, torch
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.perturbation import ActivationPerturbation
from zo_sweeps.methods.points import NoiseKey


@dataclass(frozen=True)
class AGZO(ActivationPerturbation):
    """Z = U A^T, U [m, r] of N(0, 1) and A [n, r] orthonormal, for a linear layer's matrix [m, n]; N(0, 1) for others.

    A spans about the r leading right singular vectors of the layer's inputs H [N, n] in the step's minibatch at theta:
    A <- Q of the QR factors of H^T H A, `iterations` times, from a Gaussian A. All queries of a step share it; U is
    drawn for each direction. A matrix with fewer than r columns has that many for r.

    The gradient of a linear layer is D^T H, in the span of H: with r at least the rank of H, the estimate has the
    gradient's mean, in r m dimensions of m n; with a smaller r, the gradient's part in A. Cost: no forward beside
    f(theta) for an estimator that evaluates it, one otherwise; per matrix and iteration 4 N n r operations, and n r
    floats for the step; r m Gaussians and a thin product a direction. A replay takes the forward again. Source: Lin et
    al., AGZO: Activation-guided zeroth-order optimization for LLM fine-tuning, 2026.
    """

    rank: int = option(8, "r, the directions of a layer's inputs", least=1)
    iterations: int = option(3, "power iterations", least=1)

    def second_moment(self, shape: torch.Size) -> float | None:
        return None if len(shape) == 2 else 1.0

    def basis(self, key: NoiseKey, name: str, inputs: Tensor) -> Tensor:
        H = inputs.float()
        A = noise.gaussian(key, f"{name}/A", torch.Size((H.shape[1], min(self.rank, H.shape[1]))), H.device)
        for _ in range(self.iterations):
            A = torch.linalg.qr(H.T @ (H @ A)).Q
        return A

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        assert self.bases is not None, "give it the bases of a step's minibatch first"
        if name not in self.bases:
            return noise.gaussian(key, name, shape, device)
        A, transposed = self.bases[name]
        U = noise.gaussian(key, f"{name}/U", torch.Size((shape[transposed], A.shape[1])), device)
        return A @ U.T if transposed else U @ A.T

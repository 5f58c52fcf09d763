"""A few columns of every matrix at a time, in turn: LOZO over weights that are stored as codes."""

from __future__ import annotations

from dataclasses import dataclass

from zo_sweeps.engine.later import Tensor, noise, torch
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import NoiseKey


@dataclass(frozen=True)
class Columns(Perturbation):
    """Z is N(0, 1) in `width` columns of a matrix [m, n] and 0 in the others; N(0, 1) for any other shape.

    The columns of step t are k, ..., k + width - 1 modulo n, with k = width * floor((t - 1) / interval) (interval:
    LOZO's nu). A matrix with fewer columns moves as a whole. With space lora_fa, W + c B A and A frozen, a point is W +
    c B A + eps c Z A: LOZO's theta + eps U V^T with U the moving columns of B and V^T the rows of A that they meet. W
    is only read, so it may be codes, and B, in fp32, sums the steps of every window; the rank of the space says how
    many windows are kept apart before the first is moved again. Norms, biases and embeddings stay as they are.

    Within a window E[z z^T] is the projection on its columns: the expected estimate is the gradient there, 0 elsewhere.
    For one direction E||ghat||^2 = (m width + 2) ||grad f there||^2. Cost: m * width Gaussians, and zeros for the rest.
    """

    width: int = option(2, "columns of a matrix that move in a step", least=1)
    interval: int = option(50, "steps before the next columns have their turn", least=1)

    def second_moment(self, shape: torch.Size) -> float:
        return min(self.width / shape[1], 1.0) if len(shape) == 2 else 1.0

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        if len(shape) != 2 or shape[1] <= self.width:
            return noise.gaussian(key, name, shape, device)
        first = (key.step - 1) // self.interval * self.width
        moving = torch.arange(first, first + self.width, device=device) % shape[1]
        z = torch.zeros(shape, device=device)
        z[:, moving] = noise.gaussian(key, name, torch.Size((shape[0], self.width)), device)
        return z

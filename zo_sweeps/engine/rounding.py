"""How an update is written into parameters: rounded to the nearest or stochastically, and how much of it is lost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from zo_sweeps.engine import noise
from zo_sweeps.engine.direction import ghat, ghat_parts
from zo_sweeps.engine.layers.weight_only import Integers
from zo_sweeps.methods.perturbation import PartialPerturbation, Perturbation
from zo_sweeps.methods.points import Estimate, NoiseKey
from zo_sweeps.methods.update import Params, Update

CHUNK = 1 << 20  # elements rounded at a time: bounds the memory for their random numbers
ROUNDING = -1  # noise address of the random numbers that round a step's weights; no direction has it
PROBE = 1024  # elements per parameter at which lost updates are counted, and drift is measured


class LostUpdates:
    """The share of an update that rounding lost: elements whose weight stayed as it was though it was to move.

    Not for updates that round stochastically: there most elements stay too, and the mean is right.

    Counted at up to PROBE evenly spaced elements of each parameter in half precision (in fp32, none is counted: 2^-24
    of a weight is far below any update that matters). An element is taken as meant to move if the step's estimate, or
    its backpropagated gradient, is not 0 there: not by momentum or decay alone, which may be all that moves it.

    Cost: two gathers of PROBE elements per parameter and, of an estimate, its q noise passes, at a step that is
    measured; see `is_measured`.
    """

    def __init__(self) -> None:
        self._stayed = self._counted = 0

    @staticmethod
    def is_measured(step: int) -> bool:
        """Tell whether to measure at a step: 1, 2, 4, 8, ..., so at 15 of 20,000 steps."""
        return step & (step - 1) == 0

    @contextmanager
    def around(
        self, params: Params, estimated: Callable[[str, nn.Parameter], Tensor] = lambda _, param: _gradient(param)
    ) -> Iterator[None]:
        """Compare the parameters before and after the block; `estimated`: name, parameter -> ghat as `probe` has it."""
        halves = [(name, one) for name, one in params.items() if one.dtype in (torch.bfloat16, torch.float16)]
        before = [(param, probe(param), estimated(name, param) != 0) for name, param in halves]
        yield
        for param, old, moves in before:
            self._stayed += int(((probe(param) == old) & moves).sum())
            self._counted += int(moves.sum())

    def share(self, moves: bool) -> float:
        """Return the share; NaN if nothing is in half precision, or the step was not to move anything (not `moves`)."""
        return self._stayed / self._counted if moves and self._counted else math.nan


def zeros(params: Params) -> dict[str, Tensor]:
    """Return an fp32 buffer for each parameter, whatever its dtype: 4 bytes per trainable value."""
    return {name: torch.zeros_like(param, dtype=torch.float32) for name, param in params.items()}


def add_square(sums: Tensor, values: Tensor, weight: float) -> Tensor:
    """Add weight * values^2 to `sums`, and return them; `values` are overwritten by their squares.

    Two roundings on every device: `addcmul` takes three on a CPU and fewer on a GPU, whose logs would not replay here.
    """
    return sums.add_(values.square_(), alpha=weight)


def root(values: Tensor) -> Tensor:
    """Replace values by their square roots, rounded alike on every device, and return them."""
    for part in values.view(-1).split(CHUNK):
        noise.square_root(part, part)
    return values


def rounding_key(update: Update, estimate: Estimate) -> NoiseKey | None:
    """Return the address of the random numbers that round a step's weights; None: they are rounded to the nearest."""
    first, _ = estimate.terms[0]
    return NoiseKey(first.seed, first.step, ROUNDING) if update.rounds_randomly else None


def move(
    param: Tensor, direction: Tensor, lr: float, weight_decay: float, random: NoiseKey | None = None, name: str = ""
) -> None:
    """Set param <- param - lr * (direction + weight_decay * param), in place, in the parameter's dtype.

    With `random`, the address of the step's random rounding, a parameter `name` in half precision is computed in fp32
    and rounded stochastically.

    Decay is decoupled (as in AdamW: it never enters a moment or a sign), and the same for every update. It applies to
    parameters of two or more dimensions, that is to matrices and embeddings; biases, norms, magnitude and scale
    vectors, and the value vectors of sparse spaces do not decay; scales of groups, [out, groups], do. (MeZO's code
    excludes names that contain "bias", "layer_norm" or "layernorm": equivalent for OPT and RoBERTa, which have no other
    vectors.)
    """
    if weight_decay and param.dim() >= 2:
        direction = direction.add(param, alpha=weight_decay)
    if random is not None and param.dtype != torch.float32:
        stochastic(param.float().sub_(direction, alpha=lr), random, name, out=param)
        return
    param.sub_(direction.to(param.dtype), alpha=lr)


def move_all(
    update: Update,
    params: Params,
    estimate: Estimate,
    noise: Perturbation,
    lr: float,
    step: Callable[[str, Tensor], Tensor] = lambda name, ghat: ghat,
) -> None:
    """Move every parameter by `step`, of its name and ghat, which it may change, and by its decay; see `move`."""
    random, weight_decay = rounding_key(update, estimate), getattr(update, "weight_decay", 0.0)
    with torch.no_grad():
        for name, param in params.items():
            move(param, step(name, ghat(estimate, noise, name, param)), lr, weight_decay, random, name)


def move_integers(
    param: Integers,
    estimate: Estimate,
    noise: Perturbation,
    lr: float,
    weight_decay: float,
    random: NoiseKey,
    name: str,
) -> None:
    """Set codes <- codes - Q(lr * (ghat + weight_decay * codes)), in place, clipped to their range; Q is `whole`."""
    for start, codes, step in ghat_parts(estimate, noise, name, param):
        if weight_decay:
            step += codes.float().mul_(weight_decay)
        there = codes - whole(step.mul_(lr), random, name, start)
        codes.copy_(there.clamp_(-param.largest, param.largest))


def stochastic(values: Tensor, key: NoiseKey, name: str, out: Tensor) -> None:
    """Round fp32 values to the half-precision dtype of `out`, up or down at random, so that E[out] = values.

    With a <= |v| <= b the neighbouring numbers of the dtype, |v| becomes b if u < (|v| - a) / (b - a), else a; the sign
    stays. u is the addressed uniform number of (key, name, element), in steps of 2^-23: the result depends neither on
    CHUNK nor on the order of parameters, and has the same bits on every device. A value that the dtype holds stays as
    it is; one beyond its largest number becomes that. Both tensors are contiguous, of one shape; `out` may be a
    parameter.

    Cost: one noise pass and about ten passes over each chunk; memory: that of CHUNK elements.
    """
    flat, into = values.view(-1), out.detach().view(-1)
    for start in range(0, flat.numel(), CHUNK):
        part = flat[start : start + CHUNK]
        u = noise.uniform(key, name, part.shape, part.device, start=start)
        into[start : start + CHUNK] = _up_or_down(part, out.dtype, u)


def whole(values: Tensor, key: NoiseKey, name: str, start: int) -> Tensor:
    """Return each value rounded down or up at random to an integer, so that the mean is the value; a new fp32 tensor.

        Q(x) = sign(x) (floor(|x|) + [u < |x| - floor(|x|)])

    u is the addressed uniform number of (key, name, element), in steps of 2^-23, the values being the elements start,
    start + 1, ...: Q(-x) = -Q(x), and Q has the same bits on every device and in chunks of any size. A value below
    2^-24 becomes 0.
    """
    size = values.abs()
    low = size.floor()
    up = noise.uniform(key, name, values.shape, values.device, start=start) < size.sub_(low)
    return low.add_(up).copysign_(values)


def _up_or_down(values: Tensor, dtype: torch.dtype, u: Tensor) -> Tensor:
    """Return the neighbour in `dtype`: the one of larger magnitude where u is below the share of the way to it."""
    size, nearest = values.abs(), values.to(dtype)
    # A float's bits as an integer count up with its magnitude, whatever its sign.
    lower = nearest.view(torch.int16) - (nearest.float().abs() > size).to(torch.int16)
    a, b = (bits.view(dtype).float().abs() for bits in (lower, lower + 1))
    return (lower + (u < (size - a) / (b - a)).to(torch.int16)).view(dtype)


def probe(param: Tensor) -> Tensor:
    """Return a copy of up to PROBE evenly spaced elements of a parameter."""
    flat = param.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // PROBE)][:PROBE].clone()


def probed(estimate: Estimate, noise: Perturbation, name: str, param: Tensor) -> Tensor:
    """Return ghat at the elements that `probe` copies. Memory: a direction, or CHUNK elements of a partial one."""
    if not isinstance(noise, PartialPerturbation):
        return probe(ghat(estimate, noise, name, param))
    size, every, found = param.numel(), max(1, param.numel() // PROBE), []
    for start in range(0, size, CHUNK):
        shape = torch.Size((min(CHUNK, size - start),))
        part = noise.combine(estimate.terms, name, shape, param.device, start=start)
        found.append(part[-start % every :: every])
    return torch.cat(found)[:PROBE]


def _gradient(param: Tensor) -> Tensor:
    return torch.ones_like(probe(param)) if param.grad is None else probe(param.grad)

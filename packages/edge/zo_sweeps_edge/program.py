"""The module whose forward call is a training step, for `torch.export`: P-RGE's dual forwarding.

    theta  <- theta - (lr / q) sum_i g_i z(past_i)            the pending update of the step before
    points  = theta + eps z_0, theta - eps z_0, theta + ...    P of them
    losses  = f at each point, in one forward of all P groups of rows

The caller reads the losses, computes the projected gradients g and passes them to the next call; a last `Apply`
flushes.

Letters: P points and D directions per call, q queries per step, W addresses per direction (see noise.py), N = P * R
rows, T tokens, A places per row, S slots per row, B examples per point, C slots per example (see rows.py).

Source: P-RGE (arXiv:2409.15520), Algorithm 1 and section 4.3; Bytebots 4.2 for the seed in place of the second copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod

import torch
from torch import Tensor, nn

from zo_sweeps.engine.noise import words_of
from zo_sweeps.engine.types import LanguageModel
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.points import NoiseKey
from zo_sweeps.methods.space import InstalledSpace
from zo_sweeps_edge.noise import Cycles, Noise, padded
from zo_sweeps_edge.rows import Frame

FORWARD, APPLY = "forward", "apply"  # a program's methods
OfScores = Callable[[Tensor, Tensor], Tensor]  # scores [P, B, C], gold slots [P, B] -> terms of f [P, B]


@dataclass(frozen=True)
class Calls:
    """How a step's 2q points are divided into calls.

    Args:
        q: queries per step.
        mode: the points that share a forward, and so a call.
    """

    q: int
    mode: Mode

    @property
    def directions(self) -> int:
        """D."""
        return self.q if self.mode.mixes_queries else 1

    @property
    def points(self) -> int:
        """P."""
        return self.mode.points_per_forward(self.q)

    @property
    def both_signs(self) -> bool:
        """Whether a call holds both points of its directions; else those at +eps or those at -eps."""
        return self.points > self.directions

    @property
    def per_step(self) -> int:
        """Calls per step."""
        return 2 * self.q // self.points


@dataclass(frozen=True)
class Program:
    """The sizes of a program, which its callers need.

    Args:
        calls: the points of a call.
        frame: the sizes of the rows.
        batch: B.
        names, shapes: the trained parameters, in the space's order.
        cycles: where the directions begin, if parameters have no addresses of their own.
        planned_bytes: memory that the runtime plans for intermediate values and theta; weights are not included.
    """

    calls: Calls
    frame: Frame
    batch: int
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    cycles: Cycles | None
    planned_bytes: int

    @property
    def rows(self) -> int:
        """N."""
        return self.calls.points * self.batch * self.frame.rows_per_example

    @property
    def starts(self) -> tuple[int, ...]:
        """Where each parameter begins in theta as one vector."""
        return starts_of(self.shapes)[:-1]

    def words(self, keys: Sequence[NoiseKey]) -> Tensor:
        """Return the addresses of directions, [len(keys), W, 2] int32; step 0, of no update, has some address."""
        if self.cycles is None:
            each = [[words_of(key, name) for name in self.names] for key in keys]
        else:
            each = [[self.cycles.start((max(key.step, 1) - 1) * self.calls.q + key.query)] for key in keys]
        return torch.tensor(each, dtype=torch.int32)


def starts_of(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return where each parameter begins in theta as one vector, and at the end the vector's length."""
    return tuple(accumulate((padded(prod(shape)) for shape in shapes), initial=0))


class ThetaVector(nn.Module):
    """The trained parameters as one vector, and the only arithmetic on it: the engine's, in the engine's rounding.

    Only operations that have the same bits in every kernel are delegated (see noise.py).

    Args:
        params: initial values, in the space's order.
        calls: the points of a call.
        noise: the directions.
    """

    value: Tensor
    initial: Tensor

    def __init__(self, params: Mapping[str, Tensor], calls: Calls, noise: Noise) -> None:
        super().__init__()
        self.names, self.calls, self.noise = tuple(params), calls, noise
        self.shapes = tuple(tuple(param.shape) for param in params.values())
        *self.starts, end = starts_of(self.shapes)
        initial = torch.zeros(end)
        for start, param in zip(self.starts, params.values(), strict=True):
            initial[start : start + param.numel()] = param.detach().flatten()
        self.register_buffer("value", torch.zeros(*self._held(), end))  # a program's buffers begin at zero
        # LoRA-FA begins at zero, and needs no second vector in the program for it.
        self.register_buffer("initial", initial if initial.any() else torch.zeros(1), persistent=False)

    def forward(self, words: Tensor, eps: Tensor, past: Tensor, grads: Tensor, lr: Tensor) -> list[Tensor]:
        """Apply the pending update; return each parameter at the P points, [P, *shape]."""
        stacked = self._points(words, eps, past, grads, lr)
        return [
            stacked[:, start : start + prod(shape)].unflatten(1, shape)
            for start, shape in zip(self.starts, self.shapes, strict=True)
        ]

    def flushed(self, past: Tensor, grads: Tensor, lr: Tensor, fresh: Tensor) -> Tensor:
        """Apply an update alone, to the initial values if `fresh` is 1; return theta as one vector."""
        before = torch.where(fresh > 0, self.initial, self.current())
        theta = self.updated(before, past, grads, lr)
        self.value.copy_(theta)
        return theta.clone()

    def current(self) -> Tensor:
        """Return theta as one vector."""
        return self.value

    def _held(self) -> tuple[int, ...]:
        """Return the leading sizes of the buffer."""
        return ()

    def _points(self, words: Tensor, eps: Tensor, past: Tensor, grads: Tensor, lr: Tensor) -> Tensor:
        """Apply the pending update; return theta at the P points, [P, d]."""
        theta = self.updated(self.current(), past, grads, lr)
        self.value.copy_(theta)
        moved: Tensor = self.noise(words) * eps
        if self.calls.both_signs:
            return torch.stack([theta + moved, theta - moved], dim=1).flatten(0, 1)
        return theta + moved

    def updated(self, theta: Tensor, past: Tensor, grads: Tensor, lr: Tensor) -> Tensor:
        """Return theta - (lr / q) sum_i g_i z(past_i): coefficients in fp64, each rounded once; the sum in fp32."""
        coefficients = (-lr * (grads / self.calls.q)).to(torch.float32)
        directions = self.noise(past)
        total: Tensor = directions[0] * coefficients[0]
        for i in range(1, self.calls.q):
            total = total + directions[i] * coefficients[i]
        return theta + total


class Dual(ThetaVector):
    """Theta as the perturbed copies of the last call, B+ and B- for each direction: P-RGE's Algorithm 1.

        diff_i = (B+_i - B-_i) / 2                               the last call's eps z_i
        step   = (lr / q) sum_i g_i diff_i / eps
        B+_i  <- B+_i - diff_i - step + eps z_i,     B-_i <- B-_i + diff_i - step - eps z_i

    The update needs no noise again, and theta is known up to the rounding of the copies only, which 1 / eps magnifies:
    the log's theta differs by a few units of 2^-24 |B| lr |g| / eps per step.

    Args:
        eps: the scale of all training calls.

    Source: the paper prints q = 1; the sum over q directions is ours. Memory: 2 q copies of theta.
    """

    def __init__(self, params: Mapping[str, Tensor], calls: Calls, noise: Noise, eps: float) -> None:
        assert calls.per_step == 1, "the copies of a step's points are those of one call"
        super().__init__(params, calls, noise)
        self.eps = eps

    def current(self) -> Tensor:
        return (self.value[0, 0] + self.value[1, 0]) * 0.5

    def _held(self) -> tuple[int, ...]:
        return 2, self.calls.q

    def _points(self, words: Tensor, eps: Tensor, past: Tensor, grads: Tensor, lr: Tensor) -> Tensor:
        plus, minus = self.value[0], self.value[1]
        diff = (plus - minus) * 0.5
        coefficients = (lr * (grads / self.calls.q) / self.eps).to(torch.float32)
        step = (diff * coefficients.unsqueeze(1)).sum(0)
        moved = self.noise(words) * eps
        plus, minus = plus - diff - step + moved, minus + diff - step - moved
        self.value.copy_(torch.stack([plus, minus]))
        return torch.stack([plus, minus], dim=1).flatten(0, 1)


class Forward(nn.Module):
    """The program's `forward`: one call of a step, or the scores of rows.

    Args:
        model: the model, with `space` installed.
        of_scores: the objective's terms; see `zo_sweeps.methods.objective`.
    """

    def __init__(
        self,
        model: LanguageModel,
        space: InstalledSpace,
        theta: ThetaVector,
        frame: Frame,
        batch: int,
        of_scores: OfScores,
    ) -> None:
        super().__init__()
        self.module, self.theta = model.module, theta
        self._model, self._space, self._of_scores = model, space, of_scores
        self.scored = (theta.calls.points, batch, frame.slots)

    def forward(
        self,
        ids: Tensor,
        columns: Tensor,
        tokens: Tensor,
        weights: Tensor,
        bias: Tensor,
        share: Tensor,
        gold: Tensor,
        words: Tensor,
        eps: Tensor,
        past: Tensor,
        grads: Tensor,
        lr: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return (losses [P], scores [P, B, C]).

        Args:
            ids: [N, T] int64, rows padded on the right; point p has the rows p R .. (p + 1) R - 1.
            columns: [N, A] int64, the tokens whose next token is an answer token.
            tokens: [N, A, S] int64, the answer tokens, per slot.
            weights: [N, A, S] fp32, the weight of each token's log-probability in its slot's score.
            bias: [N, S] fp32, 0; -inf for an empty slot.
            share: [P, B] fp32, the share of each example in the loss.
            gold: [P, B] int64, slots of the gold candidates.
            words: [D, W, 2] int32, the addresses of this call's directions.
            eps: [1] fp32, the scale of the points; 0 evaluates theta itself.
            past: [q, W, 2] int32, the addresses of the pending update's directions.
            grads: [q] fp64, their projected gradients; 0 for no update.
            lr: [1] fp64, its learning rate.
        """
        values = self.theta(words, eps, past, grads, lr)
        self._space.hold(dict(zip(self.theta.names, values, strict=True)))
        try:
            hidden = self._model.hidden(ids, None, None)
            A, D = columns.shape[1], hidden.shape[2]
            places = hidden.gather(1, columns.unsqueeze(2).expand(-1, -1, D))
            logits = self._model.head(places.flatten(0, 1)).float().unflatten(0, (-1, A))
        finally:
            self._space.hold({})
        logprobs = logits.gather(2, tokens) - logits.logsumexp(2, keepdim=True)
        scores = ((logprobs * weights).sum(1) + bias).view(self.scored)
        return (self._of_scores(scores, gold) * share).sum(1), scores


class Apply(nn.Module):
    """The program's `apply`: the update alone, for a flush and to replay a log."""

    def __init__(self, theta: ThetaVector) -> None:
        super().__init__()
        self.theta = theta

    def forward(self, past: Tensor, grads: Tensor, lr: Tensor, fresh: Tensor) -> Tensor:
        """Return theta after the update, as one vector in which each parameter begins at a multiple of 1,024 elements.

        Args:
            past, grads, lr: as for `Forward`.
            fresh: [1] int64, 1 to begin at the initial values.
        """
        return self.theta.flushed(past, grads, lr, fresh)

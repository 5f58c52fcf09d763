"""A trial's steps in an inference engine: the program evaluates f, keeps theta and updates it.

A session is to `engine.train` what a team of peers is: it is asked for the losses of a step's points, and told the
coefficients of each step. The engine applies the same updates to a theta of its own, so that the two can be compared,
and the log alone is the record of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zo_sweeps.core.light_client import without_dropped
from zo_sweeps.engine.batch import Example
from zo_sweeps.engine.types import Evaluate
from zo_sweeps.methods.objective import Objective
from zo_sweeps.methods.points import NoiseKey, Point
from zo_sweeps.methods.schedule import Rates
from zo_sweeps_edge.program import APPLY, FORWARD, Program
from zo_sweeps_edge.rows import Row, call_of

Method = Callable[[Sequence[Tensor]], Sequence[Tensor]]  # a method of a program: inputs -> outputs


def load(file: Path | bytes) -> tuple[Method, Method]:
    """Return the methods `forward` and `apply` of a program (.pte); see `program_of`."""
    program = program_of(file)
    forward, apply = (partial(_execute, program, program.load_method(name)) for name in (FORWARD, APPLY))
    return forward, apply


def program_of(file: Path | bytes) -> Any:
    """Return a program (.pte) in ExecuTorch's Python runtime.

    It computes with as many threads as torch; its own default is one per core. Cost: packs the delegate's weights once
    more, beside those in the file.
    """
    from executorch.extension.pybindings import portable_lib
    from executorch.runtime import Runtime

    if portable_lib._threadpool_get_thread_count() != torch.get_num_threads():
        portable_lib._unsafe_reset_threadpool(torch.get_num_threads())
    return Runtime.get().load_program(file)


def _execute(program: Any, method: Any, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """Run a method; `program` must live as long as it does."""
    outputs: Sequence[Tensor] = method.execute(inputs)
    return outputs


class Session:
    """A program at theta after the steps that it was told.

    Args:
        program: the sizes of the program.
        methods: its `forward` and `apply`.
        objective: f of the steps.
        examples_of: step -> its minibatch.
        rates: step -> its learning rate.
        seed: of the directions' addresses.

    Attributes:
        tokens: forwarded in the last step, padding included.
    """

    def __init__(
        self,
        program: Program,
        methods: tuple[Method, Method],
        objective: Objective,
        examples_of: Callable[[int], Sequence[Example]],
        rates: Rates,
        seed: int,
    ) -> None:
        self._forward, self._apply = methods
        self._program, self._objective, self._examples_of = program, objective, examples_of
        self._rates, self._seed = rates, seed
        self.tokens = 0
        self.restart()

    def restart(self) -> None:
        """Return to the initial theta."""
        self._steps, self._pending = 0, (0.0,) * self._program.calls.q
        self._updated(fresh=True)

    def tell(self, coefs: Sequence[float]) -> None:
        """Take the coefficients of the next step; theta moves at the next call."""
        self._flush()
        self._steps, self._pending = self._steps + 1, tuple(without_dropped(coefs))

    def losses(self, points: Sequence[Point], f: Evaluate | None = None) -> tuple[Sequence[Point], list[float]]:
        """Return the points of the next step and f at each, which the program computes; `f` is not called."""
        calls, values = self._program.calls, [0.0] * len(points)
        arrays = self._of_step(self._examples_of(self._steps + 1))
        self.tokens = arrays[0].size * calls.per_step
        if calls.per_step > 1:
            self._flush()
        for group in calls.mode.groups(points):
            first = points[group[0]]
            losses, _ = self._call(arrays, [points[i].key for i in group], first.scale)
            for i, loss in zip(group, losses.tolist(), strict=True):
                values[i] = loss
        return points, values

    def scores(self, rows: Sequence[Row]) -> list[list[float]]:
        """Return the scores of each row's slots at theta. Rows of similar length share a call."""
        self._flush()
        program, scores = self._program, [[0.0]] * len(rows)
        P, B, N = program.calls.points, program.batch, program.rows
        nothing = np.zeros((P, B), np.float32), np.zeros((P, B), np.int64)
        anywhere = [NoiseKey(self._seed, 0, point // (P // program.calls.directions)) for point in range(P)]
        order = sorted(range(len(rows)), key=lambda i: (len(rows[i].ids), i))
        for start in range(0, len(rows), N):
            chosen = order[start : start + N]
            call = call_of([rows[i] for i in chosen] + [rows[chosen[-1]]] * (N - len(chosen)), program.frame)
            _, values = self._call((*call, *nothing), anywhere, 0.0)
            for i, row in zip(chosen, values.view(N, -1).tolist(), strict=False):
                scores[i] = row
        return scores

    def theta(self) -> dict[str, Tensor]:
        """Return the trained parameters as the program holds them."""
        self._flush()
        flat, program = self._updated(), self._program
        each = zip(program.names, program.starts, program.shapes, strict=True)
        return {name: flat[start : start + prod(shape)].view(shape) for name, start, shape in each}

    def _of_step(self, examples: Sequence[Example]) -> tuple[Any, ...]:
        """Return the arrays of a minibatch; one that is too small is filled up with examples without a share in f."""
        program, frame = self._program, self._program.frame
        P, missing = program.calls.points, program.batch - len(examples)
        filled = [*examples, *[examples[0]] * missing]
        call = call_of([row for example in filled for row in frame.of_step(example)], frame)
        masses = [self._objective.mass(example.candidates[example.gold].answer_length) for example in examples]
        share = np.array([[*(mass / sum(masses) for mass in masses), *[0.0] * missing]] * P, np.float32)
        gold = np.array([[frame.gold(example) for example in filled]] * P, np.int64)
        return (*(np.concatenate([part] * P) for part in call), share, gold)

    def _call(self, arrays: Sequence[Any], keys: Sequence[NoiseKey], scale: float) -> tuple[Tensor, Tensor]:
        """Apply the pending update; return (losses [P], scores [P, B, C]).

        Args:
            keys: of each point.
            scale: of the first point.
        """
        words, eps = self._program.words(list(dict.fromkeys(keys))), torch.tensor([scale], dtype=torch.float32)
        inputs = (*(torch.from_numpy(array) for array in arrays), words, eps, *self._update())
        losses, scores = self._forward(inputs)
        self._pending = (0.0,) * self._program.calls.q
        return losses, scores

    def _flush(self) -> None:
        if any(self._pending):
            self._updated()

    def _updated(self, *, fresh: bool = False) -> Tensor:
        """Apply the pending update; return theta as one vector."""
        (theta,) = self._apply((*self._update(), torch.tensor([int(fresh)])))
        self._pending = (0.0,) * self._program.calls.q
        flat: Tensor = theta
        return flat.clone()

    def _update(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the pending update as the program takes it: words, projected gradients, learning rate."""
        past = self._program.words([NoiseKey(self._seed, self._steps, query) for query in range(self._program.calls.q)])
        grads = torch.tensor(self._pending, dtype=torch.float64)
        return past, grads, torch.tensor([self._rates(max(1, self._steps))], dtype=torch.float64)

"""The forward below the first block that a space changes: computed once per minibatch, for all points of its step.

Shapes: N rows, T tokens, D features, P points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from zo_sweeps.core.memory_parts import Part, counted_as
from zo_sweeps.engine.batch import Batch
from zo_sweeps.engine.linear import replaced
from zo_sweeps.engine.types import LanguageModel
from zo_sweeps.methods.space import InstalledSpace


class Below:
    """The blocks below every parameter of a space, at one minibatch: they run once, and their output is kept.

    The model's own forward runs, with embeddings and masks; only these blocks return what was kept, for each point. So
    bits are those of whole forwards where a forward holds one point. Where it holds P, the blocks below run on N rows
    instead of P N, as for one point: a product of another number of rows may round otherwise (docs/SPEED.md).

    Cost: l of L blocks once per minibatch, and the other L - l once per point: (l + n (L - l)) / (n L) of n forwards.
    Memory: [N, T, D], as long as this object lives.
    """

    def __init__(self, model: LanguageModel, space: InstalledSpace, batch: Batch) -> None:
        self._model, self._batch = model, batch
        names = {module: name for name, module in model.module.named_modules()}
        self._blocks = model.blocks[: space.untouched([names[block] for block in model.blocks])]
        self._kept: Any = None

    @contextmanager
    def shared(self, points: int) -> Iterator[None]:
        """Let one forward, at `points` points, go on from the blocks' output within the block."""
        if not self._blocks:
            yield
            return
        if self._kept is None:
            self._kept = self._computed()
        with counted_as(Part.ACTIVATIONS):
            held = [_repeated(self._kept, points)]  # taken by the last block: it ends with the forward's use of it
        last = self._blocks[-1]
        with replaced(self._blocks, lambda block, _: lambda *args, **kwargs: held.pop() if block is last else held[0]):
            yield

    def _computed(self) -> Any:
        """Return the output of the last of the blocks."""

        def ends(block: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any, **kwargs: Any) -> Any:
                raise _Reached(forward(*args, **kwargs))

            return run

        try:
            with counted_as(Part.ACTIVATIONS), replaced(self._blocks[-1:], ends):
                self._model.hidden(self._batch.input_ids, self._batch.attention_mask, self._batch.positions)
        except _Reached as reached:
            output = reached.output
            return output if isinstance(output, Tensor) else (output[0], *[None] * (len(output) - 1))  # no attention
        raise AssertionError("the model's forward does not call its blocks")


class _Reached(Exception):  # noqa: N818  # no error
    def __init__(self, output: Any) -> None:
        self.output = output


def _repeated(output: Any, points: int) -> Any:
    """Return a block's output (hidden states [N, T, D], alone or first in a tuple) for P points, [P N, T, D]."""
    if isinstance(output, Tensor):
        return output.repeat(points, 1, 1) if points > 1 else output
    return (_repeated(output[0], points), *output[1:])

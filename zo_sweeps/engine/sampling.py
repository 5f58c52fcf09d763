"""Sampling of tokens with addressed noise: a text can be drawn again from its seed, step and place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from zo_sweeps.core.memory_parts import Part, counted_as
from zo_sweeps.engine.noise import uniform
from zo_sweeps.methods.points import NoiseKey


@dataclass(frozen=True)
class Sampler:
    """Scores whose argmax is a draw from softmax(logits / temperature), by Gumbel noise.

        s_v = logits_v / temperature - log(-log u_v)

    u_v is the uniform number with the address (seed, step, text/row), element t V + v: t counts the tokens of a text,
    row the texts of a minibatch. The texts of all points of a step share their noise, as they share its examples: their
    rewards differ by theta alone. Cost per token: V uniform numbers per text, drawn once for all points; memory: these,
    and a copy of the logits.
    """

    seed: int
    step: int
    temperature: float

    def __call__(self, rows: Sequence[int], token: int, logits: Tensor) -> Tensor:
        """Return s of the next token of each row, [N, V], after `token` tokens; logits [N, V]."""
        key, size = NoiseKey(self.seed, self.step, 0), logits[0].shape
        start = token * size.numel()
        with counted_as(Part.WORKSPACE):
            drawn = {row: uniform(key, f"text/{row}", size, logits.device, start=start) for row in {*rows}}
            for u in drawn.values():
                u.log_().neg_().log_()
        scores = logits / self.temperature
        for of_row, row in zip(scores, rows, strict=True):
            of_row.sub_(drawn[row])
        return scores

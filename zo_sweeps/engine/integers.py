"""Integer codes as parameters: points and updates move them by whole numbers and keep them in their range."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from zo_sweeps.engine.chunk import rows_at_once
from zo_sweeps.engine.types import IntegerDirections
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import Estimate, Point

CHUNK = 1 << 22  # codes moved at a time, at most: they take about 40 bytes each meanwhile


class Integers(nn.Parameter):
    """Codes from -largest to largest, int8: 1 byte each, without gradients.

    Args:
        codes: contiguous; used, not copied.
        largest: at most 127.
    """

    largest: int

    def __new__(cls, codes: Tensor, largest: int) -> Integers:
        made = super().__new__(cls, codes, requires_grad=False)
        made.largest = largest
        return made


def parts(param: Integers) -> Iterator[tuple[int, Tensor]]:
    """Yield (index of the first, codes), as many codes at a time as one chunk holds: flat views of the parameter."""
    flat, at_once = param.detach().view(-1), min(rows_at_once(1, param.device), CHUNK)
    for start in range(0, len(flat), at_once):
        yield start, flat[start : start + at_once]


def moved(noise: Perturbation, point: Point, name: str, param: Integers) -> Tensor:
    """Return a parameter's codes at a point, int8. Memory: 1 byte per code, and one chunk in fp32."""
    assert isinstance(noise, IntegerDirections), f"integer codes move by integers, which {noise.name} does not draw"
    out = torch.empty_like(param, requires_grad=False)
    for start, codes in parts(param):
        there = noise.point(point, name, codes, param.largest, start)
        out.view(-1)[start : start + len(codes)] = there
    return out


def ghat_parts(
    estimate: Estimate, noise: Perturbation, name: str, param: Integers
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield (index of the first, codes, ghat) for one chunk after the other.

    The codes are a view of the parameter, to be moved in place; ghat is a new fp32 tensor: sum_i weight_i z(key_i).
    """
    assert isinstance(noise, IntegerDirections), f"integer codes move by integers, which {noise.name} does not draw"
    for start, codes in parts(param):
        yield start, codes, noise.ghat(estimate.terms, name, codes, param.largest, start)

"""Frozen weights as 4-bit integers with a scale per group, multiplied by activations of 8 bits, as XNNPACK does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from zo_sweeps.engine.later import Tensor, scaled, weight_only
from zo_sweeps.engine.precisions._encoded import Encoded
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.precision import UNITS


@dataclass(frozen=True)
class W4A8(Encoded):
    """y = Q8(x) W^T + b, w = c * s_group with c an integer from -8 to 7: 0.5 bytes per value, 2 per scale.

    Unlike the other codes, these take activations rounded to 256 levels per token
    (`zo_sweeps.engine.codes.scaled.rounded`): no gradient passes a forward, so that methods of backpropagation are
    refused. The arithmetic is that of XNNPACK's dynamically quantized linear, on every device: codes are those of
    torchao's Int8DynamicActivationIntxWeightConfig (weight_dtype=torch.int4, weight_granularity=PerGroup), its scales
    rounded to bfloat16 as XNNPACK stores them. Activations before their rounding, and the weights that are not stored
    as codes, are fp32. Rows of a weight whose length is no multiple of the group are filled up with zeros.

    A layer's outputs are those of XNNPACK, to fp32 rounding. A model's losses agree less: sums in another order move an
    activation by an ulp, some then get the next level, and so do more in every layer after them. On the demo model (6 M
    weights, q = 1, loss 0.8), losses at the same theta by XNNPACK and by torch differ by 8e-4 in the median and 3e-3 at
    most, and those by torch with 1/s two ulps off by as much (1e-3, 6e-3). Projected gradients of the two then
    correlate 0.86 at eps = 0.01, and 0.997 at eps = 0.1.

    Source: torchao 0.18 and ExecuTorch 1.5 ("8da4w"); XNNPACK's qd8-f32-qb4w kernels.
    """

    largest_error: ClassVar[float] = 0.5 / 7.5  # half a step
    scale_rounding: ClassVar[float] = UNITS["bfloat16"]
    rounds_activations: ClassVar[bool] = True
    compute: ClassVar[Literal["fp32"]] = "fp32"  # type: ignore[misc]  # of XNNPACK's kernels: not an option here

    group_size: Literal[32, 64, 128, 256] = option(32, "consecutive values of a row with one scale")

    def scales(self, out: int, into: int) -> int:
        return out * -(-into // self.group_size)

    def code_bytes(self, out: int, into: int) -> int:
        return self.scales(out, into) * self.group_size // 2 + self.scale_bytes(out, into)

    def scale_bytes(self, out: int, into: int) -> int:
        return 2 * self.scales(out, into)

    def encode(self, weight: Tensor) -> weight_only.WeightCodes:
        return scaled.Groupwise(weight, self.dtype, self.group_size)

"""Quantization scales: the space of QZO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from zo_sweeps.engine.later import nn, weight_only
from zo_sweeps.methods.arch import Arch
from zo_sweeps.methods.definition import bound
from zo_sweeps.methods.points import Theta
from zo_sweeps.methods.precision import Precision, WeightOnlyPrecision
from zo_sweeps.methods.space import Found, InstalledSpace, LayerSpace


@dataclass(frozen=True)
class Scales(LayerSpace):
    """w = scale * code, with the codes frozen and the scales trained in fp32: d = the scales of the target layers.

    The codes come from the precision: a scale per row (int8) or per block of values (nf4, fp4). Scales that are
    quantized themselves are trained from their decoded values, and then take 4 bytes each. QZO keeps scales from
    changing sign (`update.nonnegative`) and bounds the directional derivative (`estimator.clip`). A scale is the
    largest |w| of its block or row. QZO's release trains the quantization step D of w = D c, and m D is our scale, m
    the largest code (int4: 7, int8: 127): its eps, lr and C are m eps, m^2 lr and C / m here, for the same points and
    updates. `method=qzo_released` has its numbers for int4.

    Cost: a point decodes every target weight once. Source: QZO (Shang et al., 2025, arXiv:2505.13430), sections 3.2 and
    3.3, and the example of its released code.
    """

    batched: ClassVar[bool] = False
    theta: ClassVar[Theta] = Theta.SCALES

    precision: WeightOnlyPrecision | None = bound()

    def bind(self, precision: Precision) -> Scales:
        assert isinstance(precision, WeightOnlyPrecision)
        return replace(self, precision=precision)

    def trainable(self, arch: Arch) -> int:
        assert self.precision is not None, "bind the precision first"
        shapes = (arch.linears[role] for role in arch.roles(self.targets))
        return arch.layers * sum(self.precision.scales(*shape) for shape in shapes)

    def install(self, module: nn.Module, layers: Sequence[str], seed: int, mask: Found | None = None) -> InstalledSpace:
        return weight_only.TrainedScales(module, layers)

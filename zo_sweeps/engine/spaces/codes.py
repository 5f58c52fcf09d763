"""Integer codes of quantized weights: the space of QuZO and QES."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.engine.later import nn, weight_only
from zo_sweeps.methods.arch import Arch
from zo_sweeps.methods.points import Theta
from zo_sweeps.methods.precision import Precision, WeightOnlyPrecision
from zo_sweeps.methods.space import Found, InstalledSpace, LayerSpace


@dataclass(frozen=True)
class Codes(LayerSpace):
    """w = scale * code, with the scales frozen and the integer codes trained: d = the codes of the target layers.

    The codes come from a movable precision (int8, int4), and stay integers in its range at every step and point. They
    are moved by the perturbation `quantized` and by sgd with stochastic rounding (QuZO) or error_feedback (QES). eps,
    lr and the estimate are in units of one code. They are trained in place of the stored codes, without a copy: the
    base model is loaded again after the trial.

    Memory: 1 byte per code, also for 4 bits, and one weight's codes at a point. Cost: a point decodes every target
    weight once. Source: QuZO (Zhou et al., 2025, arXiv:2502.12346), QES (Xu et al., 2026, arXiv:2602.03120).
    """

    batched: ClassVar[bool] = False
    moves_base: ClassVar[bool] = True
    theta: ClassVar[Theta] = Theta.CODES

    def trainable(self, arch: Arch) -> int:
        return arch.entries(self.targets)

    def added_bytes(self, arch: Arch, precision: Precision) -> int:
        assert isinstance(precision, WeightOnlyPrecision)
        shapes = (arch.linears[role] for role in arch.roles(self.targets))
        return arch.layers * sum(precision.unpacked_bytes(*shape) for shape in shapes)

    def install(self, module: nn.Module, layers: Sequence[str], seed: int, mask: Found | None = None) -> InstalledSpace:
        return weight_only.TrainedCodes(module, layers)

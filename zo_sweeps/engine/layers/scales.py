"""The space of quantization scales: the codes stay as they are, what multiplies them is trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from zo_sweeps.core.memory_parts import Part
from zo_sweeps.engine.layers.weight_only import WeightOnly
from zo_sweeps.methods.space import InstalledSpace


class InstalledScales(InstalledSpace):
    """The scales of the target layers' codes, in fp32. One point per forward: it decodes every weight anew."""

    batched = False

    def __init__(self, module: nn.Module, layers: Sequence[str]) -> None:
        self._codes = {}
        for name in layers:
            layer = module.get_submodule(name)
            assert isinstance(layer, WeightOnly), f"{name} has no codes"
            self._codes[f"{name}.scales"] = layer.codes
        self.params = {name: codes.train_scales() for name, codes in self._codes.items()}

    def tensors(self) -> Iterator[tuple[Part, Tensor]]:
        yield from super().tensors()
        yield from ((Part.SCALES, codes.stored_scales) for codes in self._codes.values())

    def uninstall(self) -> None:
        for codes in self._codes.values():
            codes.freeze_scales()

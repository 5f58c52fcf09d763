"""Spaces of weights that are stored as codes: their integers are trained, or the scales that multiply them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from zo_sweeps.core.memory_parts import Part
from zo_sweeps.engine.layers.weight_only import IntegerCodes, WeightOnly
from zo_sweeps.methods.space import InstalledSpace


class TrainedCodes(InstalledSpace):
    """The integer codes of the target layers, int8. One point per forward: it decodes every weight anew."""

    batched = False

    def __init__(self, module: nn.Module, layers: Sequence[str]) -> None:
        self._codes: dict[str, IntegerCodes] = {}
        for name in layers:
            layer = module.get_submodule(name)
            assert isinstance(layer, WeightOnly), f"{name} has no codes"
            assert isinstance(layer.codes, IntegerCodes), f"the codes of {name} are not integers"
            self._codes[f"{name}.codes"] = layer.codes
        self.params = {name: codes.train_codes() for name, codes in self._codes.items()}

    def tensors(self) -> Iterator[tuple[Part, Tensor]]:
        """Yield nothing: the codes are the model's own."""
        yield from ()

    def uninstall(self) -> None:
        """Store the codes as they are now: they have changed, so the caller must reload the base model."""
        for codes in self._codes.values():
            codes.freeze_codes()


class TrainedScales(InstalledSpace):
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

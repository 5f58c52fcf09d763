"""Base of LoRA, LoRA-FA, DoRA and VeRA: a module in place of each target Linear that can hold several points."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from zo_sweeps.core.memory_parts import Part
from zo_sweeps.engine import linear
from zo_sweeps.methods.points import NoiseKey
from zo_sweeps.methods.space import InstalledSpace

INIT_STEP = -1  # noise address of initial values; no training step uses it


def initial_key(seed: int) -> NoiseKey:
    """Return the noise address of a run's initial values."""
    return NoiseKey(seed, INIT_STEP, 0)


class PointLinear(nn.Module):
    """A frozen Linear (or Conv1D) with trained parts that can hold P points.

    `points` maps a part to [P, ...] values; the rows of x are then P groups (`engine.rows`) and group p uses the p-th
    values, in one forward: the P-RGE loops. Empty: theta itself. W is multiplied once, whatever P is.
    """

    parts: tuple[str, ...] = ()  # attribute names of the trained parts

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base: Any = base
        self.points: dict[str, Tensor] = {}

    def held(self, part: str) -> Tensor:
        """Return the values of a part, [P, *shape]; P = 1 for theta."""
        value: Tensor = self.points[part] if part in self.points else getattr(self, part).unsqueeze(0)
        return value


class Wrapped(InstalledSpace):
    """A space with `wrap(base, name)` in place of each target Linear; the trained parameters are its parts, in fp32."""

    batched = True

    def __init__(
        self, module: nn.Module, targets: Iterable[str], wrap: Callable[[nn.Module, str], PointLinear]
    ) -> None:
        self._module = module
        self.layers: dict[str, PointLinear] = {}
        self.params: dict[str, nn.Parameter] = {}
        for name in targets:
            base = module.get_submodule(name)
            linear.check(base, name)
            layer = wrap(base, name)
            self.layers[name] = layer
            module.set_submodule(name, layer)
            self.params.update({f"{name}.{part}": getattr(layer, part) for part in layer.parts})

    def hold(self, values: Mapping[str, Tensor]) -> None:
        for name, layer in self.layers.items():
            layer.points = {part: values[f"{name}.{part}"] for part in layer.parts if f"{name}.{part}" in values}

    def tensors(self) -> Iterator[tuple[Part, Tensor]]:
        yield from super().tensors()
        for layer in self.layers.values():  # frozen factors
            yield from ((Part.TRAINABLE, buffer) for buffer in layer.buffers(recurse=False))

    def uninstall(self) -> None:
        for name, layer in self.layers.items():
            self._module.set_submodule(name, layer.base)

"""The full space: all parameters of the model are trained (FT, MeZO's own setting)."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from zo_sweeps.core.memory_parts import Part
from zo_sweeps.methods.space import InstalledSpace


class FullModel(InstalledSpace):
    """A model with all its parameters trained: tied ones once, in the model's own dtype. One point per forward."""

    batched = False

    def __init__(self, module: nn.Module) -> None:
        self.params = dict(module.named_parameters())

    def tensors(self) -> Iterator[tuple[Part, Tensor]]:
        yield from ()

    def uninstall(self) -> None:
        """Do nothing: no module was added. The weights have changed, so the caller must reload the base model."""

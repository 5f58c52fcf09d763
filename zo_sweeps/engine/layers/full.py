"""All parameters of the model move: FT, MeZO's own setting."""

from __future__ import annotations

from torch import nn

from zo_sweeps.methods.space import InstalledSpace


class FullModel(InstalledSpace):
    """d = every parameter, tied ones once, in the model's own dtype. One forward holds one point."""

    batched = False

    def __init__(self, module: nn.Module) -> None:
        self.params = dict(module.named_parameters())

    def uninstall(self) -> None:
        """Nothing was added. The weights have moved: the caller loads the base model again."""

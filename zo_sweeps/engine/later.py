"""torch, and the engine's modules that import it, for members of the axes: imported when something of them is used.

Plans, tables and the command line read members and do without torch. Types are for annotations alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = [
    "Batch", "Tensor", "direction", "four_bit", "lfsr", "linear", "lookup", "losses", "low_rank", "masks", "nn",
    "noise", "pezo", "prefix", "rounding", "scaled", "sparse", "torch", "weight_only",
]  # fmt: skip

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from zo_sweeps.engine import direction, lfsr, linear, losses, masks, noise, pezo, rounding
    from zo_sweeps.engine.batch import Batch
    from zo_sweeps.engine.codes import four_bit, lookup, scaled
    from zo_sweeps.engine.layers import low_rank, prefix, sparse, weight_only
else:

    class _Later:
        """A module that is imported when one of its names is asked for."""

        def __init__(self, module: str) -> None:
            self._module = module

        def __getattr__(self, name: str) -> Any:
            value = getattr(import_module(self._module), name)
            setattr(self, name, value)  # members ask a thousand times per step
            return value

    Batch = Tensor = nn = Any
    torch = _Later("torch")
    for _package, _names in {
        "engine": ("direction", "lfsr", "linear", "losses", "masks", "noise", "pezo", "rounding"),
        "engine.codes": ("four_bit", "lookup", "scaled"),
        "engine.layers": ("low_rank", "prefix", "sparse", "weight_only"),
    }.items():
        globals().update({name: _Later(f"zo_sweeps.{_package}.{name}") for name in _names})

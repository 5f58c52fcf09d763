"""The shared zeroth-order engine: torch only. These names are enough to write your own loop over your own model.

Those that load torch are loaded on first use, so that planning with a member does not.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from zo_sweeps.engine.estimators.rge import RGE
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.spaces.full import Full
from zo_sweeps.engine.spaces.lora_fa import LoRAFA
from zo_sweeps.engine.updates.adam import Adam
from zo_sweeps.engine.updates.sgd import SGD
from zo_sweeps.methods.evaluation import Mode

if TYPE_CHECKING:
    from zo_sweeps.engine.replay import replay
    from zo_sweeps.engine.step import Method, step
    from zo_sweeps.engine.train import train
    from zo_sweeps.engine.types import DivergedError

__all__ = [
    "RGE", "SGD", "Adam", "DivergedError", "Full", "Gaussian", "LoRAFA", "Method", "Mode", "replay", "step", "train",
]  # fmt: skip
_HOME = {"DivergedError": "types", "Method": "step", "replay": "replay", "step": "step", "train": "train"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


class _Engine(ModuleType):
    """The package's module type. Keeps `step`, `train` and `replay` bound to the functions when their modules load."""

    def __setattr__(self, name: str, value: Any) -> None:
        hidden = isinstance(value, ModuleType) and _HOME.get(name) == name
        super().__setattr__(name, getattr(value, name) if hidden else value)


sys.modules[__name__].__class__ = _Engine

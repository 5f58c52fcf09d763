"""A log replays to the same bits on every device: no member computes with what CPUs and GPUs round differently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.engine import contract
from zo_sweeps.engine.replay import replay
from zo_sweeps.engine.rounding import root
from zo_sweeps.engine.schedules.constant import Constant
from zo_sweeps.engine.step import Method
from zo_sweeps.methods.perturbation import Reads

pytestmark = pytest.mark.unit

# Of fp32: approximations on a CPU, other numbers of roundings than on a GPU, and sums in an order of the library's.
IN_THEIR_OWN_WAYS = {"sqrt", "rsqrt", "addcmul", "addcdiv", "exp", "log", "log1p", "expm1", "sin", "cos", "tanh"}
IN_THEIR_OWN_WAYS |= {"mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "addr", "dot", "linalg_qr", "sum", "mean"}


class Operations(TorchDispatchMode):
    """The names of the operations on fp32 tensors that run within it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        if any(isinstance(value, Tensor) and value.dtype == torch.float32 and value.numel() > 1 for value in args):
            self.found.add(func.overloadpacket.__name__.rstrip("_"))
        return func(*args, **(kwargs or {}))


def operations(perturbation: str, update: str) -> set[str]:
    """What the replay of three steps computes with."""
    noise = contract.member("perturbation", perturbation)
    estimator = next(n for n in contract.names("estimator") if noise.needs == contract.kind("estimator", n).gives)
    method = Method(contract.estimator(estimator), noise, contract.member("update", update))
    draw = torch.Generator().manual_seed(0)
    params = {name: torch.nn.Parameter(torch.randn(shape, generator=draw)) for name, shape in contract.SHAPES.items()}
    log = [[0.5] * (4 if noise.needs else 2)] * 3
    with Operations() as seen:
        replay(method, params, log, Constant().over(1e-2, 3), seed=0)
    return seen.found


@pytest.mark.parametrize(
    "name",
    [name for name in contract.REAL_PERTURBATIONS if contract.kind("perturbation", name).reads is not Reads.DATA],
)
def test_portable_directions_are_of_what_every_device_rounds_alike(name: str) -> None:
    assert contract.kind("perturbation", name).portable == (not operations(name, "sgd") & IN_THEIR_OWN_WAYS)


@pytest.mark.parametrize(
    "name", [name for name in contract.REAL_UPDATES if not contract.kind("update", name).needs_factors]
)
def test_portable_updates_are_of_what_every_device_rounds_alike(name: str) -> None:
    assert contract.kind("update", name).portable == (not operations("gaussian", name) & IN_THEIR_OWN_WAYS)


def test_a_root_is_the_one_of_ieee() -> None:
    values = torch.rand(3_000_000, generator=torch.Generator().manual_seed(0)) * 1e-6
    assert torch.equal(root(values.clone()), torch.from_numpy(np.sqrt(values.numpy())))

"""Whether a library's kernels run on this machine: a precision encodes and multiplies 64 numbers, an update moves some.

An import proves nothing: a wheel without kernels for the GPU at hand imports, and fails or crashes at its first kernel.
So this runs in a process of its own: `python -m zo_sweeps.devices.kernels`.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from zo_sweeps.core.files import cache_folder, replace_text
from zo_sweeps.core.fingerprint import fingerprint
from zo_sweeps.core.host import version_of
from zo_sweeps.methods import registry
from zo_sweeps.methods.precision import WeightOnlyPrecision
from zo_sweeps.methods.update import Update

DRIVER = Path("/proc/driver/nvidia/version")
PACKAGES = ("torch", "bitsandbytes", "zo-sweeps")
VALUES = 1 << 13  # of a parameter that an update moves: bitsandbytes keeps fp32 states below 4,096
SECONDS = 300.0  # for importing torch and bitsandbytes on a slow board


@cache
def troubles() -> Mapping[str, str]:
    """Return name -> why it does not work here, "" if it does: of every shipped precision and update with such kernels.

    Tried on the GPU where torch sees one, else on the CPU. Cost: a process that imports torch, some seconds; none if
    all worked with these versions, driver and kernel before, by a note in the cache folder.
    """
    return _unless_noted(_tried)


@cache
def troubles_here() -> Mapping[str, str]:
    """Return the same, tried by this process, which a kernel may end, or leave without a GPU that works."""
    return _unless_noted(lambda: dict(_try_each()))


def _unless_noted(trying: Callable[[], dict[str, str]]) -> Mapping[str, str]:
    conditions = _conditions()
    worked = cache_folder() / "kernels" / f"{fingerprint(conditions)}.json"
    if worked.is_file():
        return dict.fromkeys(_shipped(), "")
    found = trying()
    if found and not any(found.values()):
        with suppress(OSError):  # it is tried again the next time
            worked.parent.mkdir(parents=True, exist_ok=True)
            replace_text(worked, json.dumps(conditions, indent=2) + "\n")
    return found


def _conditions() -> dict[str, str]:
    """Return what decides whether kernels run."""
    versions = {name: version for name in PACKAGES if (version := version_of(name))}
    driver = DRIVER.read_text(errors="replace") if DRIVER.is_file() else ""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    machine = {"python": sys.executable, "kernel": platform.release(), "driver": driver, "visible": visible}
    return {**versions, **machine, "tried": " ".join(_shipped())}


def _tried() -> dict[str, str]:
    command = [sys.executable, "-m", __spec__.name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return dict.fromkeys(_shipped(), f"trying it took longer than {SECONDS:.0f} s")
    found: dict[str, str] = {}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            found |= json.loads(line)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        why = f"trying it ended with {signal.Signals(-done.returncode).name}" if done.returncode < 0 else last
        found = {name: found.get(name, why) for name in _shipped()}
    return found


def trouble(member: WeightOnlyPrecision | Update, device: str) -> str:
    """Return why a member's kernels do not work on a torch device; "" if they computed what they should."""
    try:
        return _product(member, device) if isinstance(member, WeightOnlyPrecision) else _step(member, device)
    except Exception as error:  # a library that does not fit the device can raise anything
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _product(precision: WeightOnlyPrecision, device: str) -> str:
    import torch
    from torch import nn

    layer = nn.Linear(8, 8, bias=False, dtype=precision.dtype, device=device)
    x = torch.ones(1, 8, dtype=precision.dtype, device=device)
    with torch.no_grad():
        wanted, got = layer(x), precision.stored(layer, layer.weight.detach())(x)
    largest = float(8 * layer.weight.detach().abs().max())
    if not float((got - wanted).abs().max()) <= 0.5 * largest:  # 4-bit codes are at most 0.15 of the largest off
        return f"a product of 64 numbers is {got.tolist()}, and {wanted.tolist()} without codes"
    return ""


def _step(update: Update, device: str) -> str:
    import torch

    param = torch.nn.Parameter(torch.zeros(VALUES, device=device))
    stepper = update.optimizer([{"params": [param], "weight_decay": 0.0}])
    for _ in range(2):  # the second step decodes what the first one encoded
        param.grad = torch.ones_like(param)
        stepper.step()
    moved = float(param.detach().sum()) / (-2 * update.lr * VALUES)
    if not 0.9 < moved < 1.1:  # by lr per step under a constant gradient
        return f"two steps under a constant gradient went {moved:.2f} of their way"
    return ""


def _shipped() -> dict[str, WeightOnlyPrecision | Update]:
    made = {name: one() for axis in ("precision", "update") for name, one in registry.members(axis).items()}
    precisions = {name: one for name, one in made.items() if isinstance(one, WeightOnlyPrecision)}
    return {**precisions, **{name: one for name, one in made.items() if isinstance(one, Update) and one.has_kernels}}


def _try_each() -> Iterator[tuple[str, str]]:
    import torch

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for name, member in _shipped().items():
        yield name, trouble(member, device)


if __name__ == "__main__":
    for name, why in _try_each():
        print(json.dumps({name: why}), flush=True)

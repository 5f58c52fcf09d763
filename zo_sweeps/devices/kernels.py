"""Whether this machine can store weights as codes: each precision encodes, decodes and multiplies 64 numbers.

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
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

from zo_sweeps.core.files import cache_folder, replace_text
from zo_sweeps.core.fingerprint import fingerprint
from zo_sweeps.methods import registry
from zo_sweeps.methods.precision import WeightOnlyPrecision

DRIVER = Path("/proc/driver/nvidia/version")
PACKAGES = ("torch", "bitsandbytes", "zo-sweeps")
SECONDS = 300.0  # for importing torch and bitsandbytes on a slow board


@cache
def troubles() -> Mapping[str, str]:
    """Return name -> why weights cannot be stored so here, "" if they can, for every shipped precision with codes.

    Tried on the GPU where torch sees one, else on the CPU. Cost: a process that imports torch, some seconds; none if
    all worked with these versions, driver and kernel before, by a note in the cache folder.
    """
    conditions = _conditions()
    worked = cache_folder() / "kernels" / f"{fingerprint(conditions)}.json"
    if worked.is_file():
        return dict.fromkeys(_coded(), "")
    found = _tried()
    if found and not any(found.values()):
        with suppress(OSError):  # it is tried again the next time
            worked.parent.mkdir(parents=True, exist_ok=True)
            replace_text(worked, json.dumps(conditions, indent=2) + "\n")
    return found


def _conditions() -> dict[str, str]:
    """Return what decides whether kernels run."""
    versions = {one.name.lower(): one.version for one in map(_distribution, PACKAGES) if one is not None}
    driver = DRIVER.read_text(errors="replace") if DRIVER.is_file() else ""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return {**versions, "python": sys.executable, "kernel": platform.release(), "driver": driver, "visible": visible}


def _distribution(name: str) -> metadata.Distribution | None:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None


def _tried() -> dict[str, str]:
    command = [sys.executable, "-m", __spec__.name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return dict.fromkeys(_coded(), f"trying it took longer than {SECONDS:.0f} s")
    found: dict[str, str] = {}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            found |= json.loads(line)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        why = f"trying it ended with {signal.Signals(-done.returncode).name}" if done.returncode < 0 else last
        found = {name: found.get(name, why) for name in _coded()}
    return found


def trouble(precision: WeightOnlyPrecision, device: str) -> str:
    """Return why weights cannot be stored this way on a torch device; "" if 64 numbers were encoded and multiplied."""
    import torch
    from torch import nn

    try:
        layer = nn.Linear(8, 8, bias=False, dtype=precision.dtype, device=device)
        x = torch.ones(1, 8, dtype=precision.dtype, device=device)
        with torch.no_grad():
            wanted, got = layer(x), precision.stored(layer, layer.weight.detach())(x)
        largest = float(8 * layer.weight.detach().abs().max())
        if not float((got - wanted).abs().max()) <= 0.5 * largest:  # 4-bit codes are at most 0.15 of the largest off
            return f"a product of 64 numbers is {got.tolist()}, and {wanted.tolist()} without codes"
    except Exception as error:  # a library that does not fit the device can raise anything
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return ""


def _coded() -> dict[str, WeightOnlyPrecision]:
    shipped = {name: one() for name, one in registry.members("precision").items()}
    return {name: one for name, one in shipped.items() if isinstance(one, WeightOnlyPrecision)}


if __name__ == "__main__":
    import torch

    torch.manual_seed(0)
    for name, precision in _coded().items():
        print(json.dumps({name: trouble(precision, "cuda" if torch.cuda.is_available() else "cpu")}), flush=True)

"""Live readings of a node: free memory, temperature, power; None or "" where the host provides none."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import psutil

from zo_sweeps.devices import kernels
from zo_sweeps.devices.energy import EnergyMeter
from zo_sweeps.devices.probe import probe

L4T = Path("/etc/nv_tegra_release")
NVPMODEL_STATUS = Path("/var/lib/nvpmodel/status")


def unchanging() -> dict[str, Any]:
    """Return the static facts of this host.

    `probe()`; `l4t`, the release of NVIDIA's system on a Jetson; `codes`, see `devices.kernels.troubles`.
    """
    return {**probe(), "l4t": l4t(), "codes": dict(kernels.troubles())}


def changing(meter: EnergyMeter) -> dict[str, Any]:
    """Return the readings of this host.

    `ram_free_bytes`; `temperature` (Celsius or None); `power_mode` ("" where there is none); `watts` (now, or since the
    last call; None without an energy meter) and `throttled` (causes since the last call).
    """
    condition = meter.report()
    return {
        "ram_free_bytes": psutil.virtual_memory().available,
        "temperature": condition.get("celsius"),
        "power_mode": power_mode(),
        "watts": meter.watts(),
        "throttled": condition.get("throttled", []),
    }


def power_mode(status: Path = NVPMODEL_STATUS) -> str:
    """Return a Jetson's power mode: its name from `nvpmodel -q`, else its number; "" on any other host."""
    if program := shutil.which("nvpmodel"):
        try:
            output = subprocess.run([program, "-q"], capture_output=True, text=True, timeout=5).stdout
        except (OSError, subprocess.SubprocessError):
            output = ""
        if match := re.search(r"NV Power Mode:\s*(\S+)", output):
            return match[1]
    try:
        match = re.search(r"pmode:0*(\d+)", status.read_text())
    except OSError:
        return ""
    return f"mode {match[1]}" if match else ""


def l4t(release: Path = L4T) -> str:
    """Return "36.4.3" from "# R36 (release), REVISION: 4.3, ..."; "" on a host that is not a Jetson."""
    try:
        match = re.search(r"R(\d+).*?REVISION:\s*([\d.]+)", release.read_text())
    except OSError:
        return ""
    return f"{match[1]}.{match[2]}" if match else ""

"""What changes while a node works: free memory, temperature, power mode. Says "unknown" where a host does not."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import psutil

from zo_sweeps.devices.probe import probe

THERMAL = Path("/sys/class/thermal")
L4T = Path("/etc/nv_tegra_release")
NVPMODEL_STATUS = Path("/var/lib/nvpmodel/status")
HOTTEST = 150.0  # a zone above this many degrees is switched off, not hot: NVIDIA's boards then report 256 and more


def unchanging() -> dict[str, Any]:
    """Return what does not change on this host: `probe()`, and `l4t`, the release of NVIDIA's system on a Jetson."""
    return {**probe(), "l4t": l4t()}


def changing() -> dict[str, Any]:
    """Return what changes: `ram_free_bytes`, `temperature` (Celsius or None), `power_mode` ("" where there is none)."""
    free = psutil.virtual_memory().available
    return {"ram_free_bytes": free, "temperature": temperature(), "power_mode": power_mode()}


def temperature(folder: Path = THERMAL) -> float | None:
    """The hottest zone that the kernel reports, in degrees Celsius; None where it reports none."""
    found = []
    for path in sorted(folder.glob("thermal_zone*/temp")):
        try:
            found.append(int(path.read_text()) / 1000)
        except (OSError, ValueError):  # a zone that is switched off answers with an error
            continue
    return max((degrees for degrees in found if -40 < degrees < HOTTEST), default=None)


def power_mode(status: Path = NVPMODEL_STATUS) -> str:
    """The Jetson's power mode: its name as `nvpmodel -q` says it, else its number; "" on any other host."""
    if program := shutil.which("nvpmodel"):
        try:
            said = subprocess.run([program, "-q"], capture_output=True, text=True, timeout=5).stdout
        except (OSError, subprocess.SubprocessError):
            said = ""
        if found := re.search(r"NV Power Mode:\s*(\S+)", said):
            return found[1]
    try:
        found = re.search(r"pmode:0*(\d+)", status.read_text())
    except OSError:
        return ""
    return f"mode {found[1]}" if found else ""


def l4t(release: Path = L4T) -> str:
    """As in "36.4.3", of "# R36 (release), REVISION: 4.3, ..."; "" on any other host."""
    try:
        found = re.search(r"R(\d+).*?REVISION:\s*([\d.]+)", release.read_text())
    except OSError:
        return ""
    return f"{found[1]}.{found[2]}" if found else ""

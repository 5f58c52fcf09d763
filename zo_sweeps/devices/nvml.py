"""One GPU's energy, power, temperature, clock and slowdowns, by NVML: the library that NVIDIA's driver brings.

Called through ctypes, so that no package is needed. Source of names, numbers and units: NVIDIA, NVML API reference.
"""

from __future__ import annotations

import ctypes
from typing import Any

from zo_sweeps.devices.sysfs import UnreadableError

LIBRARY = "libnvidia-ml.so.1"
ERRORS = {3: "not supported by this GPU", 4: "no permission", 6: "no such GPU"}  # nvmlReturn_t
TEMPERATURE_GPU, CLOCK_SM = 0, 1  # nvmlTemperatureSensors_t, nvmlClockType_t
# Bits of the reasons why clocks are below what was asked for (nvmlClocksEventReasons). The others do not slow work
# down: idle, a setting of the user's, a display, boards that follow the slowest one.
HEAT = 0x20 | 0x40  # thermal slowdown by software, by hardware
HARDWARE = 0x08  # has heat's own bit as well if that is the cause
POWER = 0x04 | HARDWARE | 0x80  # power cap, power brake


class Gpu:
    """One GPU, as NVML knows it. Every method raises UnreadableError where driver or GPU have no such reading.

    Args:
        uuid: as torch names the device, without "GPU-".
        library: the loaded library; default: LIBRARY.
    """

    def __init__(self, uuid: str, library: Any = None) -> None:
        try:
            self._library = ctypes.CDLL(LIBRARY) if library is None else library
        except OSError:
            raise UnreadableError(f"{LIBRARY}, a part of NVIDIA's driver, cannot be loaded") from None
        self._call("nvmlInit_v2")
        self._handle = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByUUID", f"GPU-{uuid}".encode(), ctypes.byref(self._handle))

    def joules(self) -> float:
        """Return the GPU's energy since the driver was loaded (Volta and later); the counter is in millijoules."""
        return self._read("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong()) / 1e3

    def watts(self) -> float:
        """Return the GPU's power; the reading is in milliwatts."""
        return self._read("nvmlDeviceGetPowerUsage", ctypes.c_uint()) / 1e3

    def celsius(self) -> float:
        """Return the temperature of the GPU's die."""
        return float(self._read("nvmlDeviceGetTemperature", ctypes.c_uint(), TEMPERATURE_GPU))

    def mhz(self) -> float:
        """Return the clock of the streaming multiprocessors."""
        return float(self._read("nvmlDeviceGetClockInfo", ctypes.c_uint(), CLOCK_SM))

    def throttled(self) -> tuple[str, ...]:
        """Return the causes, "heat" and "power", that keep the clocks down now."""
        bits = self._read("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong())
        power = POWER & ~HARDWARE if bits & HEAT else POWER
        return tuple(cause for cause, mask in (("heat", HEAT), ("power", power)) if bits & mask)

    def _read(self, name: str, value: Any, *arguments: int) -> int:
        self._call(name, self._handle, *arguments, ctypes.byref(value))
        return int(value.value)

    def _call(self, name: str, *arguments: Any) -> None:
        function = getattr(self._library, name, None)
        if function is None:
            raise UnreadableError(f"{name} of NVML: missing from this driver")
        if status := function(*arguments):
            raise UnreadableError(f"{name} of NVML: {ERRORS.get(status, f'error {status}')}")

"""Counters of joules, by what a device has to read them from.

    Jetson         INA3221 monitors through hwmon: power, integrated      (the module, without its carrier board)
    another GPU    NVML's counter of energy, else its power, integrated   (the GPU's board, without the host)
    a processor    RAPL through powercap: counters                        (packages and memory, without the rest)

A source measures a whole device: idle power and all other work are in it. One that cannot be read
raises UnreadableError with the reason.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

from zo_sweeps.devices.nvml import Gpu
from zo_sweeps.devices.sysfs import SYS, UnreadableError, number, text

PERIOD = 0.1  # seconds between two samples of a power
MOST_WATTS = 1000.0  # of a processor's package: sets how often a counter that wraps has to be read
# The rails whose sum is a module's power, by the labels of its INA3221s; the first complete set counts.
TOTALS = (
    ("VDD_IN",),  # Orin Nano, Orin NX: the module's input; its other rails are parts of it
    ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"),  # AGX Orin: VDDQ_VDD2_1V8AO is fed from the last of them
)


class Counter:
    """Joules since some moment, growing.

    Attributes:
        definition: what is measured, and by what, in one line.
        has_cpu: whether the processor's work is in it.
        period: seconds after which a thread reads the counter again; 0: only the caller reads it.
    """

    definition = ""
    has_cpu = True
    period = 0.0

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None  # (seconds, joules)
        self._ticker: _Ticker | None = None

    def joules(self) -> float:
        """Return the counter. Raises UnreadableError."""
        raise NotImplementedError

    def watts(self) -> float | None:
        """Return the mean power since the last call, None at the first. Raises UnreadableError."""
        last, self._last = self._last, (time.monotonic(), self.joules())
        return None if last is None else (self._last[1] - last[1]) / max(self._last[0] - last[0], 1e-9)

    def start(self) -> None:
        """Begin to read it every `period` seconds."""
        if self.period:
            self._ticker = _Ticker(self.period, self.joules)
            self._ticker.start()

    def stop(self) -> None:
        """End what `start` began."""
        if self._ticker is not None:
            self._ticker.stop()
            self._ticker = None


class _Ticker(threading.Thread):
    """Call a function every `period` seconds."""

    def __init__(self, period: float, call: Callable[[], object]) -> None:
        super().__init__(name="energy-meter", daemon=True)
        self._period, self._call, self._done = period, call, threading.Event()

    def run(self) -> None:
        while not self._done.wait(self._period):
            with contextlib.suppress(UnreadableError):  # the next reading at a step's border will say so
                self._call()

    def stop(self) -> None:
        self._done.set()
        self.join()


class Integral(Counter):
    """The integral of a power over time, by the trapezoidal rule.

        E = sum_k (P_k + P_{k+1}) / 2 * (t_{k+1} - t_k)

    A thread samples every PERIOD seconds, and so does each call of `joules`: an interval begins and ends with a sample.
    Where P is monotone between samples, the error is at most sum_k |P_{k+1} - P_k| / 2 * (t_{k+1} - t_k); a swing
    within a period goes unseen. A sample of the thread that fails is bridged.

    Args:
        power: returns watts; raises UnreadableError.
        definition: of the power.
        clock: returns seconds.
    """

    period = PERIOD

    def __init__(
        self,
        power: Callable[[], float],
        definition: str,
        *,
        has_cpu: bool,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__()
        self.definition, self.has_cpu = f"{definition}; sampled every {PERIOD:g} s and integrated", has_cpu
        self._power, self._clock, self._lock = power, clock, threading.Lock()
        self._sum = 0.0
        self._sample: tuple[float, float] | None = None  # (seconds, watts)

    def joules(self) -> float:
        with self._lock:
            watts, now = self._power(), self._clock()
            if self._sample is not None:
                before, last = self._sample
                self._sum += (last + watts) / 2 * (now - before)
            self._sample = (now, watts)
            return self._sum

    def watts(self) -> float:
        return self._power()


class Rapl(Counter):
    """A processor's energy by its running average power limit counters (Intel, AMD), from the kernel's powercap.

    The sum over sockets of `package` and, where it is a zone of its own, `dram`. Zones that overlap these are not
    added: `core` and `uncore` are parts of a package, and `psys` contains it. A counter starts again at 0 after
    max_energy_range_uj (4 minutes at 1000 W for the usual 262 kJ): a thread reads it often enough to see each wrap.

    Raises UnreadableError if there is no counter, or it may not be read: the kernel leaves it to root alone.
    """

    def __init__(self, sys: Path = SYS) -> None:
        super().__init__()
        named = {zone: text(zone / "name") for zone in sorted(sys.glob("class/powercap/intel-rapl:*"))}
        kinds = {zone: name.split("-")[0] for zone, name in named.items() if name.startswith(("package", "dram"))}
        if "package" not in kinds.values():
            raise UnreadableError(f"the kernel has no RAPL counter of this processor ({SYS}/class/powercap)")
        names = " + ".join(dict.fromkeys(kinds.values()))
        self.definition = f"RAPL counters of the processor ({names}), idle power and other work included"
        self._zones, self._lock = tuple(kinds), threading.Lock()
        self._ranges = [number(zone / "max_energy_range_uj") for zone in self._zones]
        self.period = min(self._ranges) / 1e6 / MOST_WATTS
        self._counts = self._read()
        self._sum = 0  # microjoules

    def joules(self) -> float:
        with self._lock:
            counts = self._read()
            for now, before, span in zip(counts, self._counts, self._ranges, strict=True):
                self._sum += now - before + (span if now < before else 0)
            self._counts = counts
            return self._sum / 1e6

    def _read(self) -> list[int]:
        return [number(zone / "energy_uj") for zone in self._zones]


class NvmlCounter(Counter):
    """A GPU's own counter of energy. The driver updates it every 20 to 100 ms, which is its error at a border.

    Raises UnreadableError where the GPU has none.
    """

    definition = "NVML's energy counter of the GPU's board, idle power included, without the host"
    has_cpu = False

    def __init__(self, gpu: Gpu) -> None:
        super().__init__()
        self._gpu = gpu
        self.joules()

    def joules(self) -> float:
        return self._gpu.joules()


def ina3221(sys: Path = SYS) -> Integral:
    """Return the integral of a Jetson module's power: the sum of the rails in TOTALS.

    By the kernel's hwmon interface: channel N has a name in inN_label, and its power in powerN_input (microwatts), or
    as inN_input (millivolts) times currN_input (milliamperes). Raises UnreadableError naming the rails if no sum is
    known.
    """
    channels: dict[str, Path] = {}
    for chip in sorted(sys.glob("class/hwmon/hwmon*")):
        if text(chip / "name") == "ina3221":
            channels |= {text(label): label for label in sorted(chip.glob("in[123]_label"))}
    if not channels:
        raise UnreadableError(f"the kernel shows no INA3221 power monitor ({SYS}/class/hwmon)")
    rails = next((total for total in TOTALS if channels.keys() >= set(total)), None)
    if rails is None:
        raise UnreadableError(f"no known sum of the INA3221's rails {', '.join(channels)} is this board's power")
    files = [channels[rail] for rail in rails]

    def power() -> float:
        return sum(map(_channel_microwatts, files)) / 1e6

    power()  # raises where a channel cannot be read
    what = f"INA3221 rail{'s' if len(rails) > 1 else ''} {' + '.join(rails)}"
    return Integral(power, f"{what}: the module, idle power and other work included, no carrier board", has_cpu=True)


def _channel_microwatts(label: Path) -> int:
    """Return the power of the channel that has this label file."""
    n = label.name[2]
    power = label.with_name(f"power{n}_input")
    if power.exists():
        return number(power)
    return number(label.with_name(f"in{n}_input")) * number(label.with_name(f"curr{n}_input"))


def of_gpu(gpu: Gpu) -> Counter:
    """Return a GPU's energy counter; one from before Volta has none, and its power is integrated."""
    try:
        return NvmlCounter(gpu)
    except UnreadableError:
        gpu.watts()  # raises where the GPU has neither
        what = "NVML's power of the GPU's board, idle power included, without the host"
        return Integral(gpu.watts, what, has_cpu=False)

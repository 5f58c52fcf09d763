"""The meter of a trial's steps: their joules, and the condition of the device meanwhile."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from zo_sweeps.devices.condition import GpuCondition, HostCondition
from zo_sweeps.devices.counters import Counter, Rapl, ina3221, of_gpu
from zo_sweeps.devices.load import cpu_seconds
from zo_sweeps.devices.nvml import Gpu
from zo_sweeps.devices.probe import board, jetson_profile
from zo_sweeps.devices.sysfs import SYS, UnreadableError


class EnergyMeter:
    """Joules, temperature, clock and throttling of a device; as a context, it reads what has to be read in between.

    Args:
        counter: of the device's joules; None: there is none.
        condition: of the device; None: it is not read.
        reason: why there is no counter.

    Attributes:
        reason: why joules are NaN; "" as long as they are not.
    """

    def __init__(
        self, counter: Counter | None, condition: HostCondition | GpuCondition | None = None, reason: str = ""
    ) -> None:
        self._counter, self._condition, self.reason = counter, condition, reason
        self._own = _OwnWork()

    @classmethod
    def of(cls, device: Any, sys: Path = SYS) -> EnergyMeter:
        """Return the meter of a torch device, or of its name."""
        jetson, cuda = bool(jetson_profile(board())), str(device).startswith("cuda")
        condition: HostCondition | GpuCondition = HostCondition(gpu=cuda and jetson, sys=sys)
        try:
            if jetson or not cuda:
                return cls(ina3221(sys) if jetson else Rapl(sys), condition)
            gpu = Gpu(_uuid(device))
            condition = GpuCondition(gpu)
            return cls(of_gpu(gpu), condition)
        except UnreadableError as error:
            return cls(None, condition, str(error))

    @property
    def definition(self) -> str:
        """What the joules are of, and by what, in one line; "" if there are none."""
        return "" if self._counter is None else self._counter.definition

    @property
    def definitions(self) -> dict[str, str]:
        """What is measured: `energy_definition` and `condition_definition`; {} if nothing is."""
        condition = "" if self._condition is None else self._condition.definition
        parts = {"energy_definition": self.definition, "condition_definition": condition}
        return {name: text for name, text in parts.items() if text}

    def joules(self) -> float:
        """Return the counter's joules, NaN if it cannot be read; `reason` then says why."""
        if self._counter is None:
            return math.nan
        try:
            return self._counter.joules()
        except UnreadableError as error:
            self.reason = str(error)
            return math.nan

    def watts(self) -> float | None:
        """Return the power now, or the mean since the last call; None if there is none to read."""
        try:
            return None if self._counter is None else self._counter.watts()
        except UnreadableError:
            return None

    def report(self) -> dict[str, Any]:
        """Return the device's condition: `celsius`, `mhz`, `throttled` (causes since the last report), `own_share`.

        A reading that this device does not have is left out. `own_share`: this process's part of the CPU time that the
        machine spent since the last report, if the joules are of its processor.
        """
        report = {} if self._condition is None else self._condition.read()
        if self._counter is not None and self._counter.has_cpu and (share := self._own.share()) is not None:
            report["own_share"] = share
        return report

    def __enter__(self) -> EnergyMeter:
        if self._counter is not None:
            self._counter.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._counter is not None:
            self._counter.stop()


class _OwnWork:
    """This process's part of the machine's busy CPU time, from one call to the next."""

    def __init__(self) -> None:
        self._last = cpu_seconds()

    def share(self) -> float | None:
        (own, every), last = cpu_seconds(), self._last
        if every <= last[1]:
            return None
        self._last = (own, every)
        return min(1.0, (own - last[0]) / (every - last[1]))


def _uuid(device: Any) -> str:
    """Return the id of a CUDA device, by which NVML finds it whatever CUDA_VISIBLE_DEVICES says."""
    import torch

    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    if uuid is None:
        raise UnreadableError("this torch does not tell the GPU's UUID")
    return str(uuid)

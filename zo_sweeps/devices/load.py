"""The load of this machine by other processes than this one."""

from __future__ import annotations

import time

import psutil

from zo_sweeps.devices.probe import busy_cores, cores

SHORTEST = 0.1  # seconds over which a share can be told: the kernel counts CPU time in hundredths


class Load:
    """The share of the machine's cores that other processes take, from the making of this object on."""

    def __init__(self) -> None:
        self._before = min(1.0, busy_cores() / cores())
        self._began, self._first = time.monotonic(), cpu_seconds()

    def read(self) -> dict[str, float]:
        """Return the share just `before`, as the tasks that ran then, and `during`: the mean since, by CPU time."""
        seconds, (own, every) = time.monotonic() - self._began, cpu_seconds()
        if seconds < SHORTEST:
            return {"before": round(self._before, 3)}
        others = (every - self._first[1]) - (own - self._first[0])
        during = min(1.0, max(0.0, others / (seconds * (psutil.cpu_count() or 1))))
        return {"before": round(self._before, 3), "during": round(during, 3)}


def cpu_seconds() -> tuple[float, float]:
    """Return the CPU time of this process with its ended children, and that of the whole machine, since their start."""
    own, every = psutil.Process().cpu_times(), psutil.cpu_times()
    busy = (getattr(every, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq"))
    return own.user + own.system + own.children_user + own.children_system, sum(busy)

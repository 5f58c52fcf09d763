"""Timing: compared functions run interleaved in one process, and the minimum over the rounds is reported."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Row:
    """One row of the table: a ratio with its required value, its target and its limit.

    Args:
        ratio: the measured value.
        unit: "x" for a speed-up (more is better), "of" for a relative cost (less is better); absolute values: "MiB",
            "s", "ms" (less is better), "/s" for a rate (more is better).
        must: the required value.
        aim: the target.
        limit: the bound on the value, or its cause.
        detail: the measurements behind the ratio.
    """

    name: str
    ratio: float
    unit: str
    must: float
    aim: float
    limit: str
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def more_is_better(self) -> bool:
        """Whether the ratio is a speed-up or a rate, not a cost."""
        return self.unit in ("x", "/s")

    @property
    def reached(self) -> bool:
        """Whether the ratio meets `must`."""
        return self.ratio >= self.must if self.more_is_better else self.ratio <= self.must


def awaited(function: Callable[[], Any], device: Any) -> Callable[[], None]:
    """Return the function followed by a synchronization of its torch device."""
    import torch

    def run() -> None:
        function()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return run


def host() -> dict[str, Any]:
    """Describe the host of the measurements."""
    import torch

    from zo_sweeps.core.host import processor
    from zo_sweeps.engine import noise

    return {
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "compiled_noise": noise.is_compiled(),
        "load_average": [round(value, 2) for value in os.getloadavg()],
    }

"""The speed of this machine as its probe measured it, kept in the cache folder: one file per device and threads."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import cache_folder, replace_text
from zo_sweeps.core.fingerprint import fingerprint


@dataclass(frozen=True)
class Speed:
    """What a machine does in one process, on its GPU or on `threads` threads, with nothing else running.

    Args:
        device: name of the processor or the GPU.
        threads: of torch.
        operations: floating-point operations per second of a forward of the demo model.
        start: seconds of the first trial of a process: imports, the first model.
        load: the machine's load average when it was probed, per core.
    """

    device: str
    threads: int
    operations: float
    start: float
    load: float = field(default=0.0, compare=False)


def known(device: str, threads: int) -> Speed | None:
    """Return the speed of a device of this machine; None if it was not probed with this number of threads.

    Raises UserError for a file that does not hold one.
    """
    path = _path(device, threads)
    try:
        speed = Speed(**json.loads(path.read_text(encoding="utf-8")))
        if not (0 < speed.operations < math.inf and 0 <= speed.start < math.inf):
            raise ValueError("a number is missing, or not positive")
        return speed
    except FileNotFoundError:
        return None
    except (OSError, TypeError, ValueError) as error:
        raise UserError(f"cannot read this machine's speed: {error}", where=str(path), fix="plan --probe") from None


def keep(speed: Speed) -> None:
    """Write a speed to the cache folder; where that cannot be written, the machine is probed again the next time."""
    path = _path(speed.device, speed.threads)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, json.dumps(asdict(speed), indent=1) + "\n")


def _path(device: str, threads: int) -> Path:
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        version = ""
    return cache_folder() / "speed" / f"{fingerprint([device, threads, version])}.json"

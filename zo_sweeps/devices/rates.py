"""The rates of this machine as its probe measured them, kept in the cache folder: one file per device and threads."""

from __future__ import annotations

import json
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import cache_folder, replace_text
from zo_sweeps.core.fingerprint import fingerprint
from zo_sweeps.core.work import Rates

# Of one core of an AMD EPYC (Zen 5, AVX512-bf16), where nothing was probed: only ratios to them are shown, by which
# finished trials predict others.
REFERENCE = Rates(
    device="reference",
    threads=1,
    products={"float32": {1: 1.5e10, 16: 8e10, 128: 1.1e11, 2048: 1.2e11}},
    memory_bytes=2e10,
    layer_bytes={1024: 5e9, 8192: 3e9},
    numbers=5e8,
    layer=4e-4,
    tensor=1e-5,
    trial=0.3,
    start=4.0,
)


def known(device: str, threads: int) -> Rates | None:
    """Return the rates of a device of this machine; None if it was not probed with this number of threads.

    Raises UserError for a file that does not hold rates.
    """
    path = _path(device, threads)
    try:
        return Rates.from_json(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read this machine's rates: {error}", where=str(path), fix="plan --probe") from None


def keep(rates: Rates) -> None:
    """Write the rates to the cache folder; where that cannot be written, the machine is probed again the next time."""
    path = _path(rates.device, rates.threads)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, json.dumps(rates.to_json(), indent=1) + "\n")


def _path(device: str, threads: int) -> Path:
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        version = ""
    return cache_folder() / "rates" / f"{fingerprint([device, threads, version])}.json"

"""Checks whether this host can run a sweep: one line per check, with the fix."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.host import EXTRAS, GIB, version_of
from zo_sweeps.core.units import bytes_text
from zo_sweeps.devices import kernels
from zo_sweeps.devices.energy import EnergyMeter
from zo_sweeps.devices.probe import EDGE, has_cuda, kinds_with_tools, probe
from zo_sweeps.devices.speed import known
from zo_sweeps.methods import registry

Status = Literal["ok", "warn", "fail"]
PACKAGE = "zo-sweeps"
TIMEOUT = 3.0  # seconds
OLDEST_CLOCK = 1_735_689_600  # 2025-01-01: boards without a clock battery start in 1970, and TLS then fails


@dataclass(frozen=True)
class Check:
    """The result of one check. `fail`: no sweep will run; `warn`: some will not."""

    name: str
    status: Status
    detail: str
    fix: str = ""


def check(name: str, good: bool, detail: str, fix: str, otherwise: Status = "warn") -> Check:
    """Return the result of a check that is `good`, and needs no fix, or else `otherwise`."""
    return Check(name, "ok", detail) if good else Check(name, otherwise, detail, fix)


def checks(state_dir: str | Path = "zo_runs") -> list[Check]:
    """Run all checks of this host, in the order in which to fix them. Writes (and removes) one file in `state_dir`.

    Cost: a few seconds (imports torch; at most 3 s for the hub).
    """
    folder = Path(state_dir).expanduser().absolute()
    results = [_python(), *_packages(), imports("torch", "fail"), *codes(), executorch(), *tools(), *extras(), *_host()]
    results += [_energy(), measured(), disk(folder), _writable(folder), _loopback(), _hub_cache(), _hub(), _demo()]
    return [*results, _clock(time.time())]


def _python() -> Check:
    good = (3, 10) <= sys.version_info[:2] <= (3, 13)
    return check("python", good, ".".join(map(str, sys.version_info[:3])), "use Python 3.10 to 3.13", "fail")


def _packages() -> Iterator[Check]:
    """Check the installed versions of what the package declares, and those of this project's that are there."""
    from packaging.requirements import Requirement

    if not version_of(PACKAGE):
        yield Check("packages", "warn", f"{PACKAGE} is not installed, so versions were not checked", "pip install -e .")
        return
    there = filter(version_of, (PACKAGE, *(extra.distribution for extra in EXTRAS)))
    declared = dict.fromkeys(text for one in there for text in metadata.requires(one) or [])
    for need in map(Requirement, declared):
        if need.name.startswith(PACKAGE) or (need.marker and not need.marker.evaluate({"extra": ""})):
            continue
        have = version_of(need.name)
        fits = bool(have) and need.specifier.contains(have, prereleases=True)
        detail = have if fits else f"{have}, needs {need.specifier}" if have else "not installed"
        yield check(need.name, fits, detail, f"pip install '{need}'", "fail")


def executorch() -> Check:
    """Check that exported programs can run here."""
    return imports("executorch.runtime", "warn", f"{EDGE} (only for device=executorch and phones)")


def tools() -> Iterator[Check]:
    """Check that the tools of each kind of trial that runs some are installed."""
    for kind in kinds_with_tools():
        there = kind.installed_tools()
        absent = [f"no {name}" for name in kind.tools if name not in there]
        detail = " and ".join(absent) or ", ".join(f"{tool} {version}" for tool, version in there.items())
        yield check(f"tools of {kind.name}", not absent, detail, f"{kind.extra} (only for such trials)")


def extras() -> Iterator[Check]:
    """Warn of the packages of this project that are not installed."""
    for extra in EXTRAS:
        if not all(name in registry.offered(group) for group, every in extra.offers.items() for name in every):
            offered = "; ".join(f"{group} {', '.join(every)}" for group, every in extra.offers.items())
            yield Check(f"extra {extra.name}", "warn", "not installed", f"{extra.install} (only for {offered})")


def imports(module: str, otherwise: Status, fix: str = "reinstall it") -> Check:
    """Check that a module can be imported; the status is `otherwise` if it cannot."""
    logging.disable(logging.WARNING)  # libraries log messages about optional parts on import
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import_module(module)
    except Exception as error:  # a broken native library can raise anything
        reason = (str(error).splitlines() or [""])[0]
        return Check(f"import {module}", otherwise, f"{type(error).__name__}: {reason}", fix)
    finally:
        logging.disable(logging.NOTSET)
    return Check(f"import {module}", "ok", "works")


def codes() -> Iterator[Check]:
    """Check each precision and update with a library's kernels: whether they computed a few numbers on this device."""
    for name, trouble in kernels.troubles().items():
        fix = "install a bitsandbytes built for this device; precision=fp16 or bf16, and update=adam, need none"
        yield check(name, not trouble, trouble or "its kernels ran", fix)


def _host() -> Iterator[Check]:
    host = probe()
    if host["kind"] == "cpu":
        yield Check("gpu", "warn", "no CUDA GPU: trials run on the CPU", "join a GPU node: cluster.address=…")
    else:
        yield Check("gpu", "ok", f"{host['name']}, {bytes_text(host['memory_bytes'])} ({host['profile']})")
    yield Check("cores", "ok", f"{host['cores']} ({host['name'] if host['kind'] == 'cpu' else 'CPU'})")
    fix = "close other programs: a trial of the demo model needs about 1 GiB, Ray about as much"
    free = bytes_text(host["ram_free_bytes"], host["ram_bytes"])
    yield check("memory", host["ram_free_bytes"] >= 2 * GIB, f"{free} free", fix)


def _energy() -> Check:
    meter = EnergyMeter.of("cuda" if has_cuda() else "cpu")
    fix = "only energy is not measured, see docs/ENERGY.md"
    return check("energy", not meter.reason, meter.reason or meter.definition, fix)


def measured() -> Check:
    """Show the speed that this machine's probe has kept, for each number of threads: predictions are made of it."""
    host = probe()
    try:
        kept = [one for threads in range(1, host["cores"] + 1) if (one := known(host["name"], threads))]
    except UserError as error:
        return Check("speed", "warn", str(error))
    if not kept:
        return Check("speed", "ok", "not measured yet; plan --probe +grid=quickstart measures it (10 s)")
    each = (f"{one.operations / 1e9:.0f} GFLOP/s with {one.threads} thread{'s' * (one.threads > 1)}" for one in kept)
    return Check("speed", "ok", "; ".join(each))


def disk(folder: Path) -> Check:
    """Check the free disk space where `folder` is, or will be."""
    place = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(place).free
    status: Status = "ok" if free >= 5 * GIB else "warn" if free >= GIB / 2 else "fail"
    fix = "" if status == "ok" else "free some, or use another state_dir=…"
    return Check("disk", status, f"{bytes_text(free)} free at {place}", fix)


def _writable(folder: Path) -> Check:
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
    except OSError as error:
        return Check("state_dir", "fail", f"{folder}: {error.strerror}", "state_dir=FOLDER with one you can write to")
    finally:
        for path in new:  # remove the folders created by this check
            try:
                path.rmdir()
            except OSError:
                break
    return Check("state_dir", "ok", f"{folder} is writable")


def _loopback() -> Check:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT).close()
    except OSError as error:
        return Check("loopback", "fail", f"no port on 127.0.0.1: {error}", "Ray and MLflow need one")
    return Check("loopback", "ok", "a port on 127.0.0.1 can be bound and reached")


def _hub_cache() -> Check:
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE)
    place = next(parent for parent in (cache, *cache.parents) if parent.exists())
    good = os.access(place, os.W_OK)
    return check("hub cache", good, f"{cache}{'' if good else ' is not writable'}", "set HF_HOME to a folder that is")


def _hub() -> Check:
    from huggingface_hub import constants

    fix = "models and data from the hub need it; local ones (model=local, data.dir=…) and the demo do not"
    if constants.HF_HUB_OFFLINE:
        return Check("hub", "warn", "HF_HUB_OFFLINE is set", fix)
    url = urlsplit(constants.ENDPOINT)
    host, port = url.hostname or "", url.port or (80 if url.scheme == "http" else 443)
    try:
        socket.create_connection((host, port), timeout=TIMEOUT).close()
    except OSError as error:
        return Check("hub", "warn", f"{host} cannot be reached ({error.strerror or error})", fix)
    return Check("hub", "ok", f"{host} answers")


def _demo() -> Check:
    folder = Path(__file__).parents[1] / "models" / "demo"
    missing = [name for name in ("config.json", "model.safetensors", "tokenizer.json") if not (folder / name).is_file()]
    if missing:
        return Check("demo model", "fail", f"{', '.join(missing)} missing in {folder}", f"reinstall {PACKAGE}")
    return Check("demo model", "ok", f"{sum(f.stat().st_size for f in folder.iterdir()) / 2**20:.0f} MiB in {folder}")


def _clock(now: float) -> Check:
    text = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    return check("clock", now >= OLDEST_CLOCK, text, "set the time (timedatectl set-ntp true)", "fail")

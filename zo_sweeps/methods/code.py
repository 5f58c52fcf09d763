"""The digest of the code that measures a trial: recorded with each result, and compared when the result is shown."""

from __future__ import annotations

import sys
from collections.abc import Collection
from functools import cache
from pathlib import Path

from zo_sweeps.core.fingerprint import file_digests, fingerprint
from zo_sweeps.core.host import EXTRAS
from zo_sweeps.methods.registry import PACKAGES
from zo_sweeps.methods.trial_config import TrialConfig

ROOT = Path(__file__).parents[1]
# Step, noise, losses, forwards, batches, scores; in `methods`, the addresses of points and which share a forward.
MEASURING = ("engine", "methods", "models", "run", "tasks")
METERS = tuple(ROOT / "devices" / f"{name}.py" for name in ("counters", "energy", "peak_memory"))


def code_of(config: TrialConfig) -> str:
    """Return a digest of the code that measures the trial: of MEASURING, METERS, the shipped members that it uses,
    and this project's other packages if it uses a member of theirs.

    Comments, docstrings and formatting do not count. The user's own members are part of the trial_id instead. Cost:
    reads the files once per process, 10 ms; parses those that this machine has not seen, half a second for all.
    """
    modules = {base.__module__ for kind in config.members_used for base in kind.__mro__}
    members = frozenset(name for name in modules if name.rpartition(".")[0] in PACKAGES.values())
    packages = frozenset(
        extra.module for extra in EXTRAS if any(name.startswith(f"{extra.module}.") for name in modules)
    )
    return _digest(members, packages)


@cache
def _digest(members: Collection[str], packages: Collection[str]) -> str:
    files = [*common_files(), *(ROOT.joinpath(*name.split(".")[1:]).with_suffix(".py") for name in sorted(members))]
    named = {file.relative_to(ROOT).as_posix(): file for file in files}
    for name in sorted(packages):
        (folder,) = sys.modules[name].__path__
        named |= {f"{name}/{file.relative_to(folder).as_posix()}": file for file in sorted(Path(folder).rglob("*.py"))}
    return fingerprint([[name, one] for name, one in zip(named, file_digests(named.values()), strict=True)])


def common_files() -> list[Path]:
    """Return the files that every trial may use: those of MEASURING but the axes' members, and METERS."""
    axes = [ROOT.joinpath(*package.split(".")[1:]) for package in PACKAGES.values()]
    files = (file for package in MEASURING for file in (ROOT / package).rglob("*.py"))
    return sorted([*METERS, *(file for file in files if file.parent not in axes or file.name.startswith("_"))])

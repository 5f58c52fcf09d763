"""Lookup of each axis's members: shipped, from installed packages, and from the user's own folders.

Shipped members are modules of the axis's package. An installed package offers members as entry points of the group
`zo_sweeps.<axis>`. In a folder given with --config-dir, `<axis>/<name>.py` is a member.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module, metadata, util
from pathlib import Path
from typing import Any

from zo_sweeps.core.errors import NotInstalledError, UserError, unknown
from zo_sweeps.core.fingerprint import fingerprint
from zo_sweeps.core.host import offering
from zo_sweeps.methods.definition import Definition, public_classes

PACKAGES = {
    "estimator": "zo_sweeps.engine.estimators",
    "perturbation": "zo_sweeps.engine.perturbations",
    "space": "zo_sweeps.engine.spaces",
    "precision": "zo_sweeps.engine.precisions",
    "update": "zo_sweeps.engine.updates",
    "schedule": "zo_sweeps.engine.schedules",
    "kind": "zo_sweeps.methods.kinds",
    "objective": "zo_sweeps.engine.objectives",
    "metric": "zo_sweeps.tasks.metrics",
    "runtime": "zo_sweeps.methods.runtimes",
    "task_kind": "zo_sweeps.tasks.kinds",
    "reward": "zo_sweeps.tasks.rewards",
    "executor": "zo_sweeps.schedule.executors",
    "figure_kind": "zo_sweeps.tables.figure_kinds",  # shipped by zo-sweeps-report: that folder has none
}
_folders: tuple[Path, ...] = ()
_Stamp = tuple[str, int, int]  # file, modification time in ns, bytes
_files: tuple[_Stamp, ...] = ()  # the user's own members


def use_folders(folders: Iterable[str | Path]) -> None:
    """Look for the user's own members in these folders only, from now on.

    A file runs on its member's first use, and again on the first use after a later call if it has changed by then.
    """
    global _folders, _files
    _folders = tuple(dict.fromkeys(Path(folder).resolve() for folder in folders))
    _files = tuple(_stamp(path) for folder in _folders for axis in PACKAGES for path in (folder / axis).glob("*.py"))


def _stamp(path: Path) -> _Stamp:
    stat = path.stat()
    return str(path), stat.st_mtime_ns, stat.st_size


@contextmanager
def using_folders(folders: Iterable[str | Path]) -> Iterator[None]:
    """Look for the user's own members in these folders only, within the `with` block."""
    before = _folders
    use_folders(folders)
    try:
        yield
    finally:
        use_folders(before)


def folders() -> tuple[Path, ...]:
    """Return the folders set by `use_folders`."""
    return _folders


def names(axis: str) -> tuple[str, ...]:
    """Return the names of the axis's members, sorted."""
    return _names(axis, _folders, _files)


@cache
def _names(axis: str, folders: tuple[Path, ...], files: tuple[_Stamp, ...]) -> tuple[str, ...]:
    shipped = {path.stem for path in _package_folder(axis).glob("*.py") if not path.name.startswith("_")}
    own = {path.stem for folder in folders for path in (folder / axis).glob("*.py") if not path.name.startswith("_")}
    return tuple(sorted(shipped | own | set(offered(axis))))


def member(axis: str, name: str, *, where: str = "") -> type[Definition]:
    """Return the class of a member.

    Raises UserError for an unknown name (with the choices, or what to install), a name taken twice, or a member that
    cannot be loaded.
    """
    if name not in names(axis):
        raise absent(axis, name, where) or unknown(axis, name, names(axis), where=where)
    return _load(axis, name, _folders, _files)


def members(axis: str) -> dict[str, type[Definition]]:
    """Return every member of an axis, by name. Raises UserError as `member` does."""
    return {name: member(axis, name) for name in names(axis)}


@cache
def _load(axis: str, name: str, folders: tuple[Path, ...], stamps: tuple[_Stamp, ...]) -> type[Definition]:
    """Load a member whose name is known to exist. Raises UserError if several places define it or it cannot be used."""
    shipped = (_package_folder(axis) / f"{name}.py").is_file()
    files = [path for folder in folders if (path := folder / axis / f"{name}.py").is_file()]
    point = offered(axis).get(name)
    places = [*([_place(point)] if point else []), *map(str, files)]
    if shipped + len(places) > 1:
        taken = f"the {axis} {name!r} already exists"
        raise UserError(taken, where=places[-1], fix="give it another name")
    if point:
        return _check(axis, [_loaded(point, axis, name)], places[0])
    module = f"{PACKAGES[axis]}.{name}" if shipped else _run(_stamp(files[0]), axis, name)
    if shipped:
        import_module(module)
    return _check(axis, public_classes(module), module if shipped else places[0])


def _check(axis: str, classes: list[type[Definition]], place: str) -> type[Definition]:
    """Return the class in `classes`. Raises UserError unless there is exactly one, a dataclass of the axis."""
    if len(classes) != 1:
        defined = ", ".join(one.__name__ for one in classes) or "none"
        raise UserError(f"it must define exactly one public {axis} class, but defines {defined}", where=place)
    (member,) = classes
    if member.axis != axis:
        raise UserError(f"{member.__name__} is a member of the axis {member.axis}, not {axis}", where=place)
    if "__dataclass_params__" not in vars(member):  # its own options would be ignored silently
        fix = "put @dataclass(frozen=True) above it"
        raise UserError(f"{member.__name__} is not a dataclass", where=place, fix=fix)
    return member


def _loaded(point: metadata.EntryPoint, axis: str, name: str) -> type[Definition]:
    """Load the class that an entry point offers and set its `name` to the entry point's."""
    loaded = load(point)
    if not (isinstance(loaded, type) and issubclass(loaded, Definition)):
        raise UserError(f"it must be a class of the axis {axis}", where=_place(point))
    if loaded.__module__.startswith("zo_sweeps."):  # setting `name` would rename the shipped member
        raise UserError(f"{loaded.__name__} is shipped as {loaded.name!r}", where=_place(point), fix="use that name")
    loaded.name = name
    return loaded


def _place(point: metadata.EntryPoint) -> str:
    return f"entry point {point.name} of {point.group} ({point.value})"


def _broken(error: Exception, place: str) -> UserError:
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return UserError(f"cannot load it ({reason})", where=place)


@cache
def _run(stamp: _Stamp, axis: str, name: str) -> str:
    """Run a user's Python file as a module of its own and return its name. Raises UserError if it fails."""
    file = Path(stamp[0])
    module = f"zo_sweeps_own.{fingerprint(str(file))}.{axis}.{name}"
    spec = util.spec_from_file_location(module, file)
    assert spec is not None
    sys.modules[module] = loaded = util.module_from_spec(spec)
    try:
        # Not by its loader, whose cached bytecode is valid for every version of the same size and second.
        exec(compile(file.read_bytes(), file, "exec"), vars(loaded))
    except Exception as error:  # the file is the user's own
        del sys.modules[module]
        raise _broken(error, str(file)) from error
    return module


def _package_folder(axis: str) -> Path:
    if axis not in PACKAGES:
        raise unknown("axis", axis, PACKAGES)
    return Path(__file__).parents[1].joinpath(*PACKAGES[axis].split(".")[1:])


@cache
def _entry_points() -> Any:  # of another class from Python 3.12 on, which has `select` as well
    """Return those of all installed packages, whose files are read once: 15 ms."""
    return metadata.entry_points()


@cache
def offered(group: str) -> dict[str, metadata.EntryPoint]:
    """Return the entry points of `zo_sweeps.<group>` in installed packages, by name."""
    return {point.name: point for point in _entry_points().select(group=f"zo_sweeps.{group}")}


def load(point: metadata.EntryPoint) -> Any:
    """Return what an entry point names. Raises UserError if it cannot be loaded."""
    try:
        return point.load()
    except Exception as error:  # importing another package runs its code, which can raise anything
        raise _broken(error, _place(point)) from error


def absent(group: str, name: str, where: str = "") -> NotInstalledError | None:
    """Return the error for a name that a package of this project offers which is not installed; None for others."""
    extra = offering(group, name)
    if extra is None or name in offered(group):
        return None
    what = f"{extra.distribution} is not installed, which brings the {group} {name!r}"
    return NotInstalledError(what, where=where, fix=extra.install)

"""Where the members of each axis are found: shipped, in installed packages, and in the user's own folders.

Shipped members are modules of the axis's package. An installed package offers members as entry points of the group
`zo_sweeps.<axis>`. A folder given with --config-dir holds them as `<axis>/<name>.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache
from importlib import import_module, metadata, util
from pathlib import Path

from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.methods.definition import Definition, public_class

PACKAGES = {
    "estimator": "zo_sweeps.engine.estimators",
    "perturbation": "zo_sweeps.engine.perturbations",
    "space": "zo_sweeps.engine.spaces",
    "precision": "zo_sweeps.engine.precisions",
    "update": "zo_sweeps.engine.updates",
    "schedule": "zo_sweeps.engine.schedules",
    "objective": "zo_sweeps.engine.objectives",
    "metric": "zo_sweeps.tasks.metrics",
    "task_kind": "zo_sweeps.tasks.kinds",
    "executor": "zo_sweeps.schedule.executors",
}
_folders: list[Path] = []


def use_folders(folders: Iterable[str | Path]) -> None:
    """Look for members in these folders too, for the rest of the process. Their Python files are run when asked for."""
    for folder in folders:
        resolved = Path(folder).resolve()
        if resolved not in _folders:
            _folders.append(resolved)
            names.cache_clear()
            _load.cache_clear()


def folders() -> tuple[Path, ...]:
    """Return the folders of `use_folders`."""
    return tuple(_folders)


@cache
def names(axis: str) -> tuple[str, ...]:
    """Return the names of the axis's members, sorted."""
    shipped = {path.stem for path in _package_folder(axis).glob("*.py") if not path.name.startswith("_")}
    own = {path.stem for folder in _folders for path in (folder / axis).glob("*.py") if not path.name.startswith("_")}
    return tuple(sorted(shipped | own | set(_offered(axis))))


def member(axis: str, name: str, *, where: str = "") -> type[Definition]:
    """Return the class of a member. Raises UserError with the choices for a name that is none's."""
    if name not in names(axis):
        raise unknown(axis, name, names(axis), where=where)
    return _load(axis, name)


def members(axis: str) -> dict[str, type[Definition]]:
    """Return every member of an axis by name."""
    return {name: member(axis, name) for name in names(axis)}


@cache
def _load(axis: str, name: str) -> type[Definition]:
    if (_package_folder(axis) / f"{name}.py").is_file():
        module = f"{PACKAGES[axis]}.{name}"
        import_module(module)
    elif name in _offered(axis):
        loaded = _offered(axis)[name].load()
        if not (isinstance(loaded, type) and issubclass(loaded, Definition) and loaded.axis == axis):
            raise UserError(f"entry point {name!r} of zo_sweeps.{axis} is not a class of that axis")
        loaded.name = name
        return loaded
    else:
        file = next(path for folder in _folders if (path := folder / axis / f"{name}.py").is_file())
        module = _run(file, axis, name)
    found = public_class(module, Definition)
    if found is None or found.axis != axis:
        raise UserError(f"{module} must define one public {axis} class", where=f"{axis} {name!r}")
    return found


def _run(file: Path, axis: str, name: str) -> str:
    """Load a Python file of the user's as a module; return the module's name."""
    module = f"zo_sweeps_own.{axis}.{name}"
    spec = util.spec_from_file_location(module, file)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[module] = made = util.module_from_spec(spec)
    try:
        spec.loader.exec_module(made)
    except Exception as error:
        del sys.modules[module]
        raise UserError(f"cannot load it ({type(error).__name__}: {error})", where=str(file)) from error
    return module


def _package_folder(axis: str) -> Path:
    if axis not in PACKAGES:
        raise unknown("axis", axis, PACKAGES)
    return Path(__file__).parents[1].joinpath(*PACKAGES[axis].split(".")[1:])


@cache
def _offered(axis: str) -> dict[str, metadata.EntryPoint]:
    return {point.name: point for point in metadata.entry_points(group=f"zo_sweeps.{axis}")}

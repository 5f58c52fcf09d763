"""The YAML files of conf/paper and conf/table, read by name."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.core.files import reading

_PACKAGE = Path(__file__).resolve().parents[1]
OWN = (_PACKAGE / "conf", _PACKAGE.parent / "conf")  # in an installed wheel; in a checkout


def names(group: str, folders: Sequence[Path] | None = None) -> list[str]:
    """Return the names of the files in conf/<group>, without .yaml, in ascending order."""
    return sorted({path.stem for folder in folders or OWN for path in (folder / group).glob("*.yaml")})


def read(group: str, name: str, folders: Sequence[Path] | None = None) -> dict[str, Any]:
    """Return the mapping in conf/<group>/<name>.yaml, from the first folder that has it. Cached: do not modify it."""
    for folder in folders or OWN:
        path = folder / group / f"{name}.yaml"
        if path.is_file():
            return _parse(path, path.stat().st_mtime_ns)
    raise unknown(group, name, names(group, folders), where=f"conf/{group}")


@lru_cache(maxsize=32)
def _parse(path: Path, _changed: int) -> dict[str, Any]:
    import yaml

    try:
        with reading():
            data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: not UTF-8
        raise UserError("not valid YAML: " + " ".join(str(error).split()), where=str(path)) from None
    if not isinstance(data, dict):
        raise UserError("a mapping is expected", where=str(path))
    return data

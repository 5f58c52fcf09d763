"""Published numbers: the tables of the papers as data, one YAML per paper in conf/paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from zo_sweeps.core.errors import UserError, require_known, unknown
from zo_sweeps.core.files import conf_dir, reading
from zo_sweeps.tables.records import Flag


def names(group: str, folders: Sequence[Path] | None = None) -> list[str]:
    """Return the names of the files in conf/<group>, without .yaml, in ascending order."""
    return sorted({path.stem for folder in folders or [conf_dir()] for path in (folder / group).glob("*.yaml")})


def read(group: str, name: str, folders: Sequence[Path] | None = None) -> dict[str, Any]:
    """Return the mapping in conf/<group>/<name>.yaml, from the first folder that has it. Cached: do not modify it."""
    for folder in folders or [conf_dir()]:
        path = folder / group / f"{name}.yaml"
        if path.is_file():
            return _parse(path, path.stat().st_mtime_ns)
    raise unknown(group, name, names(group, folders), where=f"conf/{group}")


@lru_cache(maxsize=256)  # `papers` reads every grid several times
def _parse(path: Path, _changed: int) -> dict[str, Any]:
    import yaml

    try:
        with reading():
            loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's takes a seventh of the time
            parser = loader(path.read_text(encoding="utf-8"))
            node = parser.get_single_node()
            if twice := _twice(node):  # PyYAML takes the last
                raise ValueError(f"the key {twice!r} stands twice in a mapping")
            data = parser.construct_document(node) if node else None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: not UTF-8
        raise UserError("not valid YAML: " + " ".join(str(error).split()), where=str(path)) from None
    if not isinstance(data, dict):
        raise UserError("a mapping is expected", where=str(path))
    return data


def _twice(root: Any) -> str:
    """Return a key that a mapping below a node of YAML has twice; "" if none has."""
    left, seen = [root], set[int]()
    while left:
        node = left.pop()
        if isinstance(node, tuple):  # a key and its value
            left += node
        elif id(node) not in seen and isinstance(getattr(node, "value", None), list):  # an alias is its anchor's node
            seen.add(id(node))
            left += node.value
            if node.id == "mapping":
                keys = Counter(str(key.value) for key, _ in node.value)
                if keys and max(keys.values()) > 1:
                    return keys.most_common(1)[0][0]
    return ""


NUMERIC_KINDS = ("accuracy", "runtime", "memory", "flops")
KINDS = (*NUMERIC_KINDS, "hyperparameters", "hardware")
SAMPLE, POPULATION, NOT_STATED = "sample", "population", "not stated"  # kinds of a printed standard deviation


@dataclass(frozen=True)
class Published:
    """One table of a paper.

    Args:
        reference: "prge/table2".
        paper: name and identifier, for the line below our table.
        rows: row name -> column -> number (any value in a table of hyper-parameters or hardware); None: not printed.
        units: row or column name -> its unit, where it is not the table's (a ratio of two rows, a power).
        std: row name -> column -> standard deviation, of the rows with printed ones.
        std_kind: "sample" (ddof=1), "population" (ddof=0) or "not stated"; "" for a table without printed ones.
        std_note: over how many seeds they are, and how their kind is known.
        conditions: the conditions of measurement that the paper states.
        flags: warnings about rows or columns (by their published names) that a comparison must heed.
    """

    reference: str
    paper: str
    caption: str
    kind: str
    metric: str
    unit: str
    columns: tuple[str, ...]
    rows: Mapping[str, Mapping[str, Any]]
    footnotes: tuple[str, ...] = ()
    std: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    std_kind: str = ""
    std_note: str = ""
    conditions: Mapping[str, Any] | None = None
    flags: tuple[Flag, ...] = ()
    units: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The paper and its number for the table or figure: "table2_memory" is a part of Table 2."""
        name = self.reference.rpartition("/")[2].partition("_")[0]
        kind = "figure" if name.startswith("figure") else "table"
        return f"{self.paper}, {kind.capitalize()} {name.removeprefix(kind)}"

    def unit_of(self, row: str, column: str = "") -> str:
        """Return the unit of a row, in a column with a unit of its own that column's."""
        return self.units.get(column) or self.units.get(row, self.unit)

    @property
    def numeric(self) -> bool:
        """Whether all its values are numbers."""
        cells = [value for row in self.rows.values() for value in row.values()]
        return self.kind in NUMERIC_KINDS or all(value is None or isinstance(value, (int, float)) for value in cells)

    def column(self, label: str, key: str) -> str | None:
        """Return the published column with this label, or else this key, case-insensitive (WiC, WIC); None if none."""
        known = {name.casefold(): name for name in self.columns}
        return known.get(label.casefold()) or known.get(key.casefold())


def load(reference: str, folders: Sequence[Path] | None = None) -> Published:
    """Load the published table "<paper>/<table>", e.g. "prge/table2". Raises UserError if it is missing or broken.

    Args:
        folders: searched in order for paper/<paper>.yaml; defaults to the package's own conf.
    """
    paper, slash, table = reference.partition("/")
    if not slash:
        raise UserError(f"{reference!r} is not a published table", fix="write it as paper/table, e.g. prge/table2")
    where = f"conf/paper/{paper}.yaml"
    data = read("paper", paper, folders)
    if table not in data["tables"]:
        raise unknown("published table", reference, [f"{paper}/{name}" for name in data["tables"]], where=where)
    source, where = data["paper"], f"{where}, {table}"
    data = data["tables"][table]
    if lacking := [name for name in ("caption", "kind", "metric", "unit", "columns", "rows") if name not in data]:
        raise UserError(f"it has no {', '.join(lacking)}", where=where)
    require_known("kind of table", [data["kind"]], KINDS, where=where)
    columns = tuple(data["columns"])
    rows = _rows(data["rows"], columns, where, numeric=data["kind"] in NUMERIC_KINDS)
    std = _rows(data.get("std", {}), columns, where, numeric=True)
    units = dict(data.get("units", {}))
    require_known("row", (*std, *(name for name in units if name not in columns)), rows, where=where)
    std_kind = data.get("std_kind", NOT_STATED) if std else ""
    if std:
        require_known("std_kind", [std_kind], (SAMPLE, POPULATION, NOT_STATED), where=where)
    flags = tuple(Flag.from_mapping(flag, where) for flag in data.get("flags", ()))
    for flag in flags:
        require_known("row", flag.rows, rows, where=where)
        require_known("column", flag.columns, columns, where=where)
    return Published(
        reference,
        f"{source['name']} ({source['id']})",
        data["caption"],
        data["kind"],
        data["metric"],
        data["unit"],
        columns,
        rows,
        tuple(data.get("footnotes", ())),
        std,
        std_kind,
        data.get("std_note", ""),
        data.get("conditions", {}),
        flags,
        units,
    )


def _rows(data: Mapping[str, Any], columns: tuple[str, ...], where: str, *, numeric: bool) -> dict[str, dict[str, Any]]:
    rows = {}
    for name, values in data.items():
        if len(values) != len(columns):
            raise UserError(f"row {name!r} has {len(values)} values for {len(columns)} columns", where=where)
        for value in values if numeric else ():
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
                raise UserError(f"row {name!r}: {value!r} is not a number", where=where)
        rows[str(name)] = dict(zip(columns, values, strict=True))
    return rows

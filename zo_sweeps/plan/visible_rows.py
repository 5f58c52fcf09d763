"""What a grid's tables and figures show: only blocks that it has."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from zo_sweeps.core.errors import UserError, unknown


def shown(grid: Mapping[str, Any], left_out: Collection[str]) -> dict[str, Any]:
    """The grid without rows and series of the blocks that were `left_out` on the command line.

    A table or figure of which nothing is left goes too. Raises UserError for a block that the grid never had.
    """
    blocks = grid["blocks"]

    def kept(of: Mapping[str, Any], where: str) -> dict[str, Any]:
        for block in of:
            if block not in blocks and block not in left_out:
                raise unknown("block", block, blocks, where=f"{where} of grid {grid['name']}")
        return {block: label for block, label in of.items() if block in blocks}

    tables, figures = {}, {}
    for name, table in grid["tables"].items():
        rows = kept(table["rows"], f"table {name}")
        if not table["rows"]:
            raise UserError(f"table {name!r} has no rows", where=f"grid {grid['name']}", fix="list them as block: name")
        if rows:
            tables[name] = {**table, "rows": rows}
    for name, figure in grid["figures"].items():
        series = kept(figure["series"], f"figure {name}")
        points = [p for p in figure["published"] if not isinstance(p, Mapping) or p.get("series") not in left_out]
        if series or not figure["series"]:
            figures[name] = {**figure, "series": series, "published": points}
    return {**grid, "tables": tables, "figures": figures}

"""The rows of a grid's tables and the series of its figures, without the blocks that the command line removed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from zo_sweeps.config.schema import GridConfig
from zo_sweeps.core.errors import UserError, unknown


def shown(grid: GridConfig, left_out: Collection[str]) -> GridConfig:
    """Return the grid without the rows and series of removed blocks, and without tables and figures left empty.

    Args:
        left_out: the blocks that the command line removed.

    Raises UserError for a block that the grid never had, and a table without rows.
    """

    def kept(of: Mapping[str, str], where: str) -> dict[str, str]:
        for block in of:
            if block not in grid.blocks and block not in left_out:
                raise unknown("block", block, grid.blocks, where=f"{where} of grid {grid.name}")
        return {block: label for block, label in of.items() if block in grid.blocks}

    def compared(over: Mapping[str, str], rows: Mapping[str, str], where: str) -> dict[str, str]:
        """Return the rows of a ratio whose two blocks are both left."""
        kept(dict.fromkeys(over.values(), ""), where)
        return {block: other for block, other in over.items() if block in rows and other in grid.blocks}

    for name, block in grid.blocks.items():
        kept({block.setting_of: ""} if block.setting_of else {}, f"setting_of in block {name}")
    tables, figures = {}, {}
    for name, table in grid.tables.items():
        rows = kept(table.rows, f"table {name}")
        if not table.rows:
            raise UserError(f"table {name!r} has no rows", where=f"grid {grid.name}", fix="list them as block: name")
        over = compared(table.over, rows, f"table {name}")
        kept({table.beyond: ""} if table.beyond else {}, f"table {name}")
        if table.over:
            rows = {block: label for block, label in rows.items() if block in over}
        if rows and table.beyond not in left_out:
            tables[name] = replace(table, rows=rows, over=over)
    for name, figure in grid.figures.items():
        series = kept(figure.series, f"figure {name}")
        points = [p for p in figure.published if not isinstance(p, Mapping) or p.get("series") not in left_out]
        over = compared(figure.over, series, f"figure {name}")
        if figure.over:
            series = {block: label for block, label in series.items() if block in over}
            points = [p for p in points if p["series"] in series]
        if series or not figure.series:
            figures[name] = replace(figure, series=series, published=points, over=over)
    return replace(grid, tables=tables, figures=figures)

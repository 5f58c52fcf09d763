"""The rows of a grid's tables and the series of its figures, without the blocks that the command line removed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from zo_sweeps.config.schema import GridConfig, GridDifference
from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.tables.records import ASPECTS


def shown(grid: GridConfig, left_out: Collection[str]) -> GridConfig:
    """Return the grid without the rows and series of removed blocks, and without tables and figures left empty.

    Args:
        left_out: the blocks and columns that the command line removed.

    Raises UserError for a block or column that the grid never had, a difference about nothing known, and a table
    without rows.
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

    def differing(differs: Sequence[GridDifference], where: str) -> list[GridDifference]:
        """Return the differences that are on a row and a column that are left."""
        found = []
        for one in differs:
            if one.about not in ASPECTS:
                raise unknown("aspect", one.about, ASPECTS, where=f"{where}differs of grid {grid.name}")
            rows = [*kept(dict.fromkeys(one.rows, ""), f"{where}differs")]
            for column in one.columns:
                if column not in columns and column not in left_out:
                    raise unknown("column", column, columns, where=f"{where}differs of grid {grid.name}")
            places = [column for column in one.columns if column in columns]
            if bool(rows) == bool(one.rows) and bool(places) == bool(one.columns):
                found.append(replace(one, rows=rows, columns=places))
        return found

    columns = [*(grid.columns or grid.axes.get("task", []))]
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
            tables[name] = replace(table, rows=rows, over=over, differs=differing(table.differs, f"table {name}, "))
    for name, figure in grid.figures.items():
        series = kept(figure.series, f"figure {name}")
        points = [p for p in figure.published if not isinstance(p, Mapping) or p.get("series") not in left_out]
        over = compared(figure.over, series, f"figure {name}")
        if figure.over:
            series = {block: label for block, label in series.items() if block in over}
            points = [p for p in points if p["series"] in series]
        if series or not figure.series:
            figures[name] = replace(
                figure,
                series=series,
                published=points,
                over=over,
                differs=differing(figure.differs, f"figure {name}, "),
            )
    return replace(grid, tables=tables, figures=figures, differs=differing(grid.differs, ""))

"""A table in units that people read: GiB become MiB where the model is small, seconds become milliseconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from zo_sweeps.core.units import scale_of, unit_for
from zo_sweeps.tables.cells import Table, TableCell
from zo_sweeps.tables.records import Measure


def readable(table: Table) -> Table:
    """Return the table with bytes, times and energies in the unit that fits its largest value; one unit per table.

    A unit in which published numbers are shown stays, and so does one whose largest value is from 1 to 1000.
    """
    spec = table.spec
    keys = [key for key, _ in table.columns]
    cells = {key: [table.cells[block, key] for block, _ in table.rows] for key in keys}
    units = {key: _alike(spec.of(key)) for key in keys}
    found: dict[Measure, Measure] = {}
    for unit in dict.fromkeys(units.values()):
        own = [key for key in keys if units[key] == unit]
        shown = [cell for key in own for cell in cells[key] if cell.digits is None]
        if any(cell.published is not None for cell in shown):
            continue
        largest = max((abs(cell.mean) for cell in shown if cell.mean is not None), default=0.0)
        for measure in {spec.of(key) for key in own}:
            if not measure.ratio:
                found[measure] = _in_unit(measure, largest)
    found = {measure: _with_beside(fitting, cells.values()) for measure, fitting in found.items()}
    if all(before == after for before, after in found.items()):
        return table
    measures = {key: found.get(measure, measure) for key, measure in spec.measures.items()}
    return replace(
        table,
        spec=replace(spec, measure=found.get(spec.measure, spec.measure), measures=measures),
        cells={
            (block, key): _converted(cell, spec.of(key), found.get(spec.of(key), spec.of(key)))
            for (block, key), cell in table.cells.items()
        },
    )


def _alike(measure: Measure) -> str:
    return f"{measure.unit} {measure.unit_size}"


def _in_unit(measure: Measure, largest: float) -> Measure:
    """Return the measure in the unit that fits a value, given in the unit that it has."""
    known = scale_of(measure.unit)
    if known is None or not largest or 1 <= largest < 1000:
        return measure
    scale, size = known
    new, name = unit_for(largest * size, scale)
    if new == size:
        return measure
    per = measure.unit.partition("/")
    unit_size, digits = measure.unit_size * new / size, 1 if largest * size / new >= 10 else 2
    return replace(measure, unit="".join((name, *per[1:])), unit_size=unit_size, digits=digits)


def _with_beside(measure: Measure, columns: Iterable[list[TableCell]]) -> Measure:
    if measure.beside is None:
        return measure
    values = (abs(cell.beside) for cells in columns for cell in cells if cell.beside is not None)
    return replace(measure, beside=_in_unit(measure.beside, max(values, default=0.0)))


def _converted(cell: TableCell, before: Measure, after: Measure) -> TableCell:
    if before == after or cell.digits is not None:
        return cell
    factor = before.unit_size / after.unit_size
    beside = cell.beside
    if beside is not None and before.beside and after.beside:
        beside *= before.beside.unit_size / after.beside.unit_size
    values: Mapping[int, float] = {seed: value * factor for seed, value in cell.values.items()}
    mean, std = (None if number is None else number * factor for number in (cell.mean, cell.std))
    return replace(cell, mean=mean, std=std, beside=beside, values=values)

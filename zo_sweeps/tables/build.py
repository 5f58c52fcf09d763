"""records x layout x published numbers -> typed cells, each with one of the distinct states of a cell."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from statistics import fmean, stdev

from zo_sweeps.core.caveats import remarks
from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.core.place import apart
from zo_sweeps.core.trial import TrialState
from zo_sweeps.tables.cells import CellState, Extent, Table, TableCell
from zo_sweeps.tables.cost_notes import place_flags, places_of, together
from zo_sweeps.tables.published import Published
from zo_sweeps.tables.records import (
    AVERAGE,
    IN_CELL,
    LARGEST,
    MISSING,
    NOT_RUN,
    RANK,
    Flag,
    Measure,
    Record,
    TableSpec,
)
from zo_sweeps.tables.select import HyperparameterSetting, edges, select, settings, so_far
from zo_sweeps.tables.stats import mean_ranks

RANK_DIGITS = 2

RUNG = "successive halving on dev"
BEST_SO_FAR = "best so far: not every trial of this cell's search has a result yet"
AT_EDGE = (
    "the selected value is the smallest (↓) or largest (↑) of its searched axis, so the best may lie outside: "
    "see the selected hyper-parameters"
)
OF_WRITTEN = "{} of the grid as written"
SEEDS_SO_FAR = "of the seeds so far: no setting has a result for all of its seeds yet"
NO_SETTING = "no setting has a result for all of its seeds yet"
RANK_AMONG = "ranks are among the {} rows with a value in every column"
FOLLOWS = "shows the setting that is selected in the row of its search, which has none yet"
FOLLOWS_SO_FAR = "shows the setting that is best so far in the row of its search, which is not finished"
NOT_ABOVE = "the row is not above the one that is subtracted, so there is no ratio"
NO_MEAN = "the columns show different metrics, which have no mean"
GUESSES = {"chance": "chance", "majority class": "majority"}  # -> the metric of a run that has its score
BOTH_FAILURES = "some settings diverged, the others ran out of memory"


def build(spec: TableSpec, records: Iterable[Record], published: Published | None = None) -> Table:
    """Build the table of `spec` from `records`; records of rows and columns that it does not show are left out.

    The result does not depend on the order of the records. Raises UserError when the published table does not fit
    the layout, so `build(spec, [], published)` checks a grid before anything runs.
    """
    if published is not None:
        _check(spec, published)
    grouped: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        grouped.setdefault((record.block, record.column), []).append(record)
    drafts: dict[tuple[str, str], tuple[TableCell, list[str]]] = {}
    for block, _ in spec.rows:
        for column, label in spec.columns:
            number = _published_value(spec, published, block, column, label)
            make = _ratio if spec.measure.ratio else _plain
            cell, notes = make(spec, column, grouped, block, number)
            cell = replace(cell, extent=_extent(spec, column, grouped, block))
            if cell.extent and cell.extent.settings and cell.extent.lacks:
                notes = [*notes, OF_WRITTEN.format(cell.extent.lacks)]
            if published is not None and number is not None:
                cell = replace(cell, published_std=_published_std(spec, published, block, column, label))
            drafts[block, column] = cell, notes
        if spec.average:
            drafts[block, AVERAGE] = _average(spec, [drafts[block, column] for column, _ in spec.columns])
        if spec.largest:
            number = _published_value(spec, published, block, LARGEST, "Largest")
            drafts[block, LARGEST] = _largest([drafts[block, column] for column, _ in spec.columns], number)
    columns = (*spec.columns, *([(AVERAGE, "Average")] if spec.average else []))
    columns = (*columns, *([(LARGEST, "Largest")] if spec.largest else []))
    if spec.rank:
        columns = (*columns, (RANK, "Rank"))
        for block, draft in _ranks(spec, drafts, published).items():
            drafts[block, RANK] = draft
    of_column = {key: [r for block, _ in spec.rows for r in grouped.get((block, key), [])] for key, _ in spec.columns}
    table = _with_footnotes(spec, published, columns, drafts, _of_rows(spec, of_column))
    return replace(table, guesses=_guesses(spec, of_column))


def _of_rows(spec: TableSpec, of_column: Mapping[str, list[Record]]) -> list[Flag]:
    """Return what the rows of each column's task say against its scores: duplicates, one label."""
    scores = {key: records for key, records in of_column.items() if spec.of(key).of_scores}
    notes = {key: remarks((record.metrics for record in records), of_data=True) for key, records in scores.items()}
    return [Flag(note, columns=(key,)) for key, of_key in notes.items() for note in of_key]


def _guesses(spec: TableSpec, of_column: Mapping[str, list[Record]]) -> dict[str, dict[str, float]]:
    """Return guess -> column -> its accuracy on the test rows, the mean over the runs."""
    guesses: dict[str, dict[str, float]] = {}
    for name, metric in GUESSES.items():
        for key in (key for key, _ in spec.columns if key in spec.shares):
            if values := [r.metrics[metric] for r in of_column[key] if metric in r.metrics]:
                guesses.setdefault(name, {})[key] = fmean(values) / spec.of(key).unit_size
    return guesses


def _check(spec: TableSpec, published: Published) -> None:
    where = f"table {spec.name!r}"
    if not published.numeric:
        raise UserError(f"{published.reference} is a table of {published.kind}, not of numbers", where=where)
    for name in spec.published_rows.values():
        if name not in published.rows:
            raise unknown(f"row of {published.reference}", name, published.rows, where=where)
        if (unit := published.unit_of(name)) != spec.measure.unit:
            raise UserError(f"{published.reference} is in {unit}, the table in {spec.measure.unit}", where=where)
    for name in spec.published_columns.values():
        if name not in published.columns:
            raise unknown(f"column of {published.reference}", name, published.columns, where=where)


def _published_value(spec: TableSpec, published: Published | None, block: str, column: str, label: str) -> float | None:
    if published is None or block not in spec.published_rows or _altered(spec, block, column):
        return None
    row = spec.published_rows[block]
    name = spec.published_columns.get(column) or published.column(label, column)
    if spec.of(column).unit != published.unit_of(row, name or "") and column != RANK:
        return None
    return published.rows[row][name] if name else None


def _altered(spec: TableSpec, block: str, column: str) -> bool:
    """Return whether a trial behind a cell is not one of the grid as written."""
    if column == RANK:  # among all rows, over all columns
        return not spec.whole or any(name in dict(spec.rows) for name, _ in spec.altered)
    blocks = {block, spec.over.get(block, block), spec.beyond or block}
    return any(name in blocks and column in (key, LARGEST) for name, key in spec.altered)


def _published_std(spec: TableSpec, published: Published, block: str, column: str, label: str) -> float | None:
    name = spec.published_columns.get(column) or published.column(label, column)
    return published.std.get(spec.published_rows[block], {}).get(name or "")


Grouped = Mapping[tuple[str, str], list[Record]]  # (block, column) -> its records


def _plain(
    spec: TableSpec, column: str, grouped: Grouped, block: str, published: float | None
) -> tuple[TableCell, list[str]]:
    records = grouped.get((block, column), [])
    if block not in spec.setting_of:
        return _cell(spec, spec.of(column), records, published)
    search = grouped.get((spec.setting_of[block], column), [])
    chosen = select(settings(search), spec.rule)
    if chosen is None:
        finished = sum(record.is_result for record in records)
        state = CellState.NOT_RUN if search and records else CellState.NOT_PLANNED
        return _without_value(state, records, published, finished), [FOLLOWS] if search else []
    same = [r for r in records if all(chosen.hyperparameters.get(k) == v for k, v in r.hyperparameters.items())]
    cell, notes = _cell(spec, spec.of(column), same, published)
    return cell, notes if all(record.is_result for record in search) else [*notes, FOLLOWS_SO_FAR]


def _ratio(
    spec: TableSpec, column: str, grouped: Grouped, block: str, published: float | None
) -> tuple[TableCell, list[str]]:
    """Return the value of the block that `spec.over` names over the row's own, each minus that of `spec.beyond`."""
    blocks = [spec.over[block], block, *filter(None, [spec.beyond])]
    drafts = [_plain(spec, column, grouped, name, None) for name in blocks]
    means = [cell.mean for cell, _ in drafts if cell.mean is not None]
    finished, planned = (sum(getattr(cell, name) for cell, _ in drafts) for name in ("finished", "planned"))
    if len(means) < len(drafts):
        cell, notes = next(draft for draft in drafts if draft[0].mean is None)
        return replace(cell, published=published, finished=finished, planned=planned), notes
    above, below = (mean - sum(means[2:]) for mean in means[:2])
    cells = [cell for cell, _ in drafts]
    complete = all(cell.state is CellState.DONE for cell in cells)
    ratio = TableCell(
        state=CellState.DONE if complete else CellState.PARTIAL,
        mean=above / below if below > 0 else None,
        published=published,
        difference=None if published is None or below <= 0 else above / below - published,
        finished=finished,
        planned=planned,
        trial_ids=tuple(dict.fromkeys(trial_id for cell in cells for trial_id in cell.trial_ids)),
        places=together(cells),
    )
    if why := apart(ratio.places, spec.may_differ):
        return replace(ratio, state=CellState.PLACES_DIFFER, mean=None, difference=None), [why]
    if below <= 0:
        return replace(ratio, state=CellState.UNMEASURED), [NOT_ABOVE]
    return ratio, list(dict.fromkeys(note for _, notes in drafts for note in notes))


def _extent(spec: TableSpec, column: str, grouped: Grouped, block: str) -> Extent | None:
    """Return how much of a cell of the grid as written has a result; a ratio's is that of all its rows."""
    blocks = [block, *([spec.over[block], *filter(None, [spec.beyond])] if spec.measure.ratio else [])]
    parts = []
    for name in blocks:
        if (written := spec.extents.get((name, column))) is None:
            return None
        records = [] if (name, column) in spec.altered else grouped.get((name, column), [])
        done = [record for record in records if record.is_result]
        seeds = {seed for record in done for seed in (record.seed, *record.also)}
        parts.append((len(settings(done)), min(len(seeds), written[1]), written))
    return Extent(
        settings=sum(part[0] for part in parts),
        of_settings=sum(part[2][0] for part in parts),
        seeds=min(part[1] for part in parts),
        of_seeds=max(part[2][1] for part in parts),
    )


def _largest(drafts: list[tuple[TableCell, list[str]]], published: float | None) -> tuple[TableCell, list[str]]:
    """Return the row's largest value, over the columns that have one."""
    cells = [cell for cell, _ in drafts]
    means = [cell.mean for cell in cells if cell.mean is not None]
    finished, planned = sum(cell.finished for cell in cells), sum(cell.planned for cell in cells)
    if not means:
        return TableCell(cells[0].state, published=published, finished=finished, planned=planned), []
    state = CellState.DONE if finished == planned else CellState.PARTIAL
    difference = None if published is None else max(means) - published
    cell = TableCell(
        state, mean=max(means), published=published, difference=difference, finished=finished, planned=planned
    )
    cell = replace(cell, places=together(cells))
    return cell, [BEST_SO_FAR] if state is CellState.PARTIAL else []


def _cell(
    spec: TableSpec, measure: Measure, records: list[Record], published: float | None
) -> tuple[TableCell, list[str]]:
    """Return the cell of these records, and the texts of its footnotes."""
    candidates = settings(records)
    whole = select(candidates, spec.rule)
    selected = whole or select(so_far(candidates), spec.rule)
    finished = sum(record.is_result for record in records)
    if selected is None:
        state, notes = _empty(candidates, spec)
        return _without_value(state, records, published, finished), notes
    if not measure.metric:
        return _without_value(CellState.NOT_COMPARABLE, records, published, finished), []
    values = _values(selected, measure)
    if values is None:
        state, notes = _unmeasured(selected, measure)
        return _without_value(state, records, published, finished), notes
    mean = fmean(values)
    at_edge = edges(selected, candidates) if whole else {}
    beside = _values(selected, measure.beside) if measure.beside else None
    is_complete = finished == len(records)
    cell = TableCell(
        state=CellState.DONE if is_complete else CellState.PARTIAL,
        mean=mean,
        std=stdev(values) if len(values) > 1 else None,
        n=len(values),
        beside=fmean(beside) if beside else None,
        selected=selected.hyperparameters,
        published=published,
        difference=None if published is None else mean - published,
        finished=finished,
        planned=len(records),
        edges=at_edge,
        values={
            seed: value
            for record, value in zip(selected.records, values, strict=True)
            for seed in (record.seed, *record.also)
        },
        trial_ids=tuple(record.trial_id for record in selected.records),
        places=places_of(selected.records, measure),
    )
    notes = [*([] if is_complete else [BEST_SO_FAR if whole else SEEDS_SO_FAR]), *([AT_EDGE] if at_edge else [])]
    notes += _stopped(records)
    notes += remarks((record.metrics for record in selected.records), measure.metric, of_cost=not measure.of_scores)
    return cell, notes


def _was_stopped(setting: HyperparameterSetting) -> bool:
    return any(record.state == TrialState.STOPPED.value for record in setting.records)


def _stopped(records: Sequence[Record]) -> list[str]:
    """Return how many trials of a cell successive halving stopped, and where: a text for each rung."""
    notes = Counter(record.note for record in records if record.state == TrialState.STOPPED.value)
    return [f"{n} of {len(records)} trials {note}, by {RUNG}" for note, n in notes.items()]


def _values(setting: HyperparameterSetting, measure: Measure) -> list[float] | None:
    values = [measure.value(record.metrics) for record in setting.records]
    return values if all(math.isfinite(value) for value in values) else None


def _unmeasured(setting: HyperparameterSetting, measure: Measure) -> tuple[CellState, list[str]]:
    """Return the state of a cell whose runs have no finite value, and the reasons."""
    if any(measure.value(record.metrics) == math.inf for record in setting.records):
        return CellState.NOT_REACHED, []
    lacking = [record for record in setting.records if not math.isfinite(measure.value(record.metrics))]
    reasons = [why for record in lacking for name, why in record.unmeasured.items() if measure.metric.startswith(name)]
    return CellState.UNMEASURED, list(dict.fromkeys(reasons)) or [f"the selected runs did not measure {measure.metric}"]


def _without_value(state: CellState, records: list[Record], published: float | None, finished: int) -> TableCell:
    ordered = sorted(records, key=lambda record: record.trial_id)
    return TableCell(
        state=state,
        published=published,
        finished=finished,
        planned=len(records),
        trial_ids=tuple(record.trial_id for record in ordered),
    )


def _empty(candidates: list[HyperparameterSetting], spec: TableSpec) -> tuple[CellState, list[str]]:
    """Return the state of a cell without a value, and the texts of its footnotes."""
    records = [record for setting in candidates for record in setting.records]
    states = {record.state for record in records}
    if not records:
        return CellState.NOT_PLANNED, []
    if states <= {NOT_RUN, TrialState.PENDING.value}:
        return CellState.NOT_RUN, []
    if states == {MISSING}:
        return CellState.MISSING, sorted({record.note for record in records if record.note})
    if states <= {TrialState.FAILED.value, TrialState.LOST.value}:
        return CellState.FAILED, [record.note for record in records if record.note][:1]
    if not all(setting.is_finished for setting in candidates):
        return CellState.IN_PROGRESS, [NO_SETTING]
    if any(setting.has_succeeded and _lacks(setting, spec.rule.metric) for setting in candidates):
        return CellState.UNMEASURED, [f"no {spec.rule.metric} to select a setting by"]
    # Every other setting diverged (as a success with a non-finite dev metric did) or ran out of memory in some seed.
    candidates = [setting for setting in candidates if not _was_stopped(setting)]
    out = [any(r.state == TrialState.OUT_OF_MEMORY.value for r in setting.records) for setting in candidates]
    stopped = _stopped(records)
    if all(out):
        return CellState.OUT_OF_MEMORY, stopped
    return CellState.DIVERGED, [*([BOTH_FAILURES] if any(out) else []), *stopped]


def _lacks(setting: HyperparameterSetting, metric: str) -> bool:
    return any(metric not in record.metrics for record in setting.records)


def _average(spec: TableSpec, drafts: list[tuple[TableCell, list[str]]]) -> tuple[TableCell, list[str]]:
    """Average the row's cells if all have a value, and its published numbers if no cell lacks one."""
    cells = [cell for cell, _ in drafts]
    if spec.measures:
        return TableCell(CellState.NOT_PLANNED), [NO_MEAN]
    means = [cell.mean for cell in cells if cell.mean is not None]
    numbers = [cell.published for cell in cells if cell.published is not None]
    mean = fmean(means) if len(means) == len(cells) else None
    published = fmean(numbers) if len(numbers) == len(cells) else None
    finished, planned = sum(cell.finished for cell in cells), sum(cell.planned for cell in cells)
    if mean is not None:
        state = CellState.DONE if finished == planned else CellState.PARTIAL
    else:
        state = CellState.IN_PROGRESS if any(cell.finished for cell in cells) else CellState.NOT_RUN
    cell = TableCell(
        state=state,
        mean=mean,
        published=published,
        difference=None if mean is None or published is None else mean - published,
        finished=finished,
        planned=planned,
        places=together(cells),
    )
    return cell, [BEST_SO_FAR] if state is CellState.PARTIAL else []


def _ranks(
    spec: TableSpec, drafts: Mapping[tuple[str, str], tuple[TableCell, list[str]]], published: Published | None
) -> dict[str, tuple[TableCell, list[str]]]:
    """Compute each row's mean over the columns of its dense rank by the printed (rounded) means, and the paper's own.

    Only rows with a value in every column are ranked.
    """
    columns = []
    for key, _ in spec.columns:
        means = {block: drafts[block, key][0].mean for block, _ in spec.rows}
        measure = spec.of(key)
        sign = 1 if measure.better == "higher" else -1
        columns.append({b: sign * round(mean, measure.digits) for b, mean in means.items() if mean is not None})
    ranks = mean_ranks(columns, "higher")
    among = [] if len(ranks) in (0, len(spec.rows)) else [RANK_AMONG.format(len(ranks))]
    ranked = {}
    for block, _ in spec.rows:
        cells = [drafts[block, key][0] for key, _ in spec.columns]
        finished, planned = sum(cell.finished for cell in cells), sum(cell.planned for cell in cells)
        number = _published_value(spec, published, block, RANK, "Rank")
        if block in ranks:
            state = CellState.DONE if finished == planned else CellState.PARTIAL
        else:
            state = CellState.IN_PROGRESS if 0 < finished < planned else CellState.NOT_RUN
        cell = TableCell(state, mean=ranks.get(block), published=number, finished=finished, planned=planned)
        ranked[block] = replace(cell, digits=RANK_DIGITS), among if block in ranks else []
    return ranked


def _with_footnotes(
    spec: TableSpec,
    published: Published | None,
    columns: tuple[tuple[str, str], ...],
    drafts: Mapping[tuple[str, str], tuple[TableCell, list[str]]],
    of_rows: Sequence[Flag],
) -> Table:
    """Number the footnotes in reading order: column labels, then row by row."""
    differing = {
        place: tuple(flag for flag in spec.flags if flag.about and flag.covers(*place) and not _altered(spec, *place))
        for place in drafts
    }
    beside = [differing[place] for place, (cell, _) in drafts.items() if cell.published is not None]
    in_cells = {flag for flag in chain(*beside) if flag.about in IN_CELL}
    flags = [flag for flag in spec.flags if flag not in in_cells]
    placed = place_flags(
        [block for block, _ in spec.rows], {at: cell for at, (cell, _) in drafts.items()}, spec.may_differ
    )
    flags += [*_published_flags(spec, published, columns), *of_rows, *placed]
    footnotes: list[str] = []

    def number(notes: Iterable[str]) -> tuple[int, ...]:
        for note in notes:
            if note not in footnotes:
                footnotes.append(note)
        return tuple(sorted({footnotes.index(note) for note in notes}))

    column_marks = {
        key: number([flag.note for flag in flags if key in flag.columns and not flag.rows]) for key, _ in columns
    }
    row_marks: dict[str, tuple[int, ...]] = {}
    cells: dict[tuple[str, str], TableCell] = {}
    for block, _ in spec.rows:
        row_marks[block] = number([flag.note for flag in flags if block in flag.rows and not flag.columns])
        for key, _ in columns:
            cell, notes = drafts[block, key]
            notes = [*notes, *(flag.note for flag in flags if block in flag.rows and key in flag.columns)]
            if cell.published is not None:
                notes += [flag.note for flag in differing[block, key] if flag in in_cells]
            cells[block, key] = replace(cell, marks=number(notes), differs=differing[block, key])
    return Table(spec, published, spec.rows, columns, cells, row_marks, column_marks, tuple(footnotes))


def _published_flags(spec: TableSpec, published: Published | None, columns: tuple[tuple[str, str], ...]) -> list[Flag]:
    """Return the paper's flags with its row and column names replaced by our keys."""
    if published is None:
        return []
    names = {key: spec.published_columns.get(key) or published.column(label, key) for key, label in columns}
    flags = []
    for flag in published.flags:
        rows = tuple(block for block, name in spec.published_rows.items() if name in flag.rows)
        keys = tuple(key for key, name in names.items() if name in flag.columns)
        if bool(rows) == bool(flag.rows) and bool(keys) == bool(flag.columns):
            flags.append(Flag(flag.note, rows, keys))
    return flags

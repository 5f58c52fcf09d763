"""records x layout x published numbers -> typed cells, each with one of the distinct states of a cell."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from statistics import fmean, stdev

from zo_sweeps.core.caveats import remarks
from zo_sweeps.core.errors import UserError, require_known
from zo_sweeps.core.place import apart
from zo_sweeps.core.trial import TrialState
from zo_sweeps.tables.cells import CellState, Extent, Table, TableCell, place_flags, places_of, together
from zo_sweeps.tables.page import readable
from zo_sweeps.tables.published import Published
from zo_sweeps.tables.records import AVERAGE, IN_CELL, LARGEST, MISSING, NOT_RUN, RANK, Flag, Measure, Record, TableSpec
from zo_sweeps.tables.select import HyperparameterSetting, edges, select, settings, so_far
from zo_sweeps.tables.stats import CONFIDENCE, interval, mean_ranks

RANK_DIGITS = 2

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
    drafts: dict[tuple[str, str], TableCell] = {}
    for block, _ in spec.rows:
        for column, label in spec.columns:
            made = _ratio if spec.measure.ratio else _paired if spec.measure.paired else _plain
            cell, extent = made(spec, column, grouped, block), _extent(spec, column, grouped, block)
            lacks = [OF_WRITTEN.format(extent.lacks)] if extent and extent.settings and extent.lacks else []
            number, std = _published(spec, published, block, column, label)
            notes = (*cell.notes, *lacks)
            drafts[block, column] = replace(cell, published=number, published_std=std, extent=extent, notes=notes)
        cells = [drafts[block, column] for column, _ in spec.columns]
        if spec.average:
            drafts[block, AVERAGE] = _average(spec, cells)
        if spec.largest:
            number, _ = _published(spec, published, block, LARGEST, "Largest")
            means = [cell.mean for cell in cells if cell.mean is not None]
            drafts[block, LARGEST] = _over_columns(cells, max(means, default=None), number, cells[0].state)
    if spec.rank:
        printed = readable(Table(spec, published, spec.rows, spec.columns, drafts, {}, {}, ()))
        drafts |= _ranks(printed, drafts, published)
    further = ((spec.average, AVERAGE, "Average"), (spec.largest, LARGEST, "Largest"), (spec.rank, RANK, "Rank"))
    columns = (*spec.columns, *((key, label) for there, key, label in further if there))
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
    require_known(f"row of {published.reference}", spec.published_rows.values(), published.rows, where=where)
    for name in spec.published_rows.values():
        if (unit := published.unit_of(name)) != spec.measure.unit:
            raise UserError(f"{published.reference} is in {unit}, the table in {spec.measure.unit}", where=where)
    require_known(f"column of {published.reference}", spec.published_columns.values(), published.columns, where=where)


def _published(
    spec: TableSpec, published: Published | None, block: str, column: str, label: str
) -> tuple[float | None, float | None]:
    """Return the published number of a cell and its standard deviation; None where there is none."""
    if published is None or block not in spec.published_rows or _altered(spec, block, column):
        return None, None
    row = spec.published_rows[block]
    name = spec.published_columns.get(column) or published.column(label, column)
    if not name or (spec.of(column).unit != published.unit_of(row, name) and column != RANK):
        return None, None
    number = published.rows[row][name]
    return number, None if number is None else published.std.get(row, {}).get(name)


def _altered(spec: TableSpec, block: str, column: str) -> bool:
    """Return whether a trial behind a cell is not one of the grid as written."""
    if column == RANK:  # among all rows, over all columns
        return not spec.whole or any(name in dict(spec.rows) for name, _ in spec.altered)
    blocks = {block, spec.over.get(block, block), spec.beyond or block}
    return any(name in blocks and column in (key, LARGEST) for name, key in spec.altered)


Grouped = Mapping[tuple[str, str], list[Record]]  # (block, column) -> its records


def _plain(spec: TableSpec, column: str, grouped: Grouped, block: str) -> TableCell:
    records, measure = grouped.get((block, column), []), spec.of(column)
    if measure.reaches:
        return _search(spec, measure, records)
    if block not in spec.setting_of:
        return _cell(spec, measure, records)
    search = grouped.get((spec.setting_of[block], column), [])
    chosen = select(settings(search), spec.rule)
    if chosen is None:
        state = CellState.NOT_RUN if search and records else CellState.NOT_PLANNED
        return _without_value(state, records, [FOLLOWS] if search else [])
    same = [r for r in records if all(chosen.hyperparameters.get(k) == v for k, v in r.hyperparameters.items())]
    cell = _cell(spec, measure, same)
    return cell if all(record.is_result for record in search) else replace(cell, notes=(*cell.notes, FOLLOWS_SO_FAR))


def _ratio(spec: TableSpec, column: str, grouped: Grouped, block: str) -> TableCell:
    """Return the value of the block that `spec.over` names over the row's own, each minus that of `spec.beyond`."""
    blocks = [spec.over[block], block, *filter(None, [spec.beyond])]
    cells = [_plain(spec, column, grouped, name) for name in blocks]
    means = [cell.mean for cell in cells if cell.mean is not None]
    finished, planned = (sum(getattr(cell, name) for cell in cells) for name in ("finished", "planned"))
    if len(means) < len(cells):
        lacking = next(cell for cell in cells if cell.mean is None)
        return replace(lacking, finished=finished, planned=planned)
    above, below = (mean - sum(means[2:]) for mean in means[:2])
    complete = all(cell.state is CellState.DONE for cell in cells)
    ratio = TableCell(
        state=CellState.DONE if complete else CellState.PARTIAL,
        finished=finished,
        planned=planned,
        trial_ids=tuple(dict.fromkeys(trial_id for cell in cells for trial_id in cell.trial_ids)),
        places=together(cells),
    )
    if why := apart(ratio.places, spec.may_differ):
        return replace(ratio, state=CellState.PLACES_DIFFER, notes=(why,))
    if below <= 0:
        return replace(ratio, state=CellState.UNMEASURED, notes=(NOT_ABOVE,))
    notes = tuple(dict.fromkeys(note for cell in cells for note in cell.notes))
    return replace(ratio, mean=above / below, notes=notes)


def _paired(spec: TableSpec, column: str, grouped: Grouped, block: str) -> TableCell:
    """Return the mean over seeds of the row's value minus that of the block that `spec.over` names."""
    cell, other = (_plain(spec, column, grouped, name) for name in (block, spec.over[block]))
    if cell.mean is None or other.mean is None:
        return cell if cell.mean is None else other
    values = {seed: value - other.values[seed] for seed, value in cell.values.items() if seed in other.values}
    done = all(one.state is CellState.DONE for one in (cell, other))
    behind = min(cell, other, key=lambda one: one.finished / one.planned)  # a difference is as finished as this one
    return replace(
        _difference([*values.values()], len(spec.rows), cell),
        state=CellState.IN_PROGRESS if not values else CellState.DONE if done else CellState.PARTIAL,
        finished=behind.finished,
        planned=behind.planned,
        values=values,
        notes=tuple(dict.fromkeys((*cell.notes, *other.notes))),
    )


def _difference(pairs: Sequence[float], rows: int, cell: TableCell) -> TableCell:
    """Return a cell with the mean of paired differences, and its interval at a confidence for all rows together."""
    ends = interval(pairs, 1 - (1 - CONFIDENCE) / rows)
    return replace(
        cell, mean=fmean(pairs) if pairs else None, std=None, n=len(pairs), interval=ends, selected={}, edges={}
    )


def _search(spec: TableSpec, measure: Measure, records: list[Record]) -> TableCell:
    """Return the expected number of settings, in a random order, until one is as near to the best as `reaches` asks.

    With k of n settings good enough it is (n + 1) / (k + 1). Settings are compared at their first seed, which all have;
    one that diverged, or ran out of memory, is not good enough.
    """
    found = settings(records)
    first = [min(setting.records, key=lambda record: record.seed) for setting in found]
    if len(found) < 2 or not all(record.is_result for record in first):
        return _without_value(CellState.NOT_PLANNED if len(found) < 2 else CellState.IN_PROGRESS, records)
    values = [measure.value(r.metrics) if r.state == TrialState.SUCCEEDED.value else math.nan for r in first]
    sound = [value for value in values if math.isfinite(value)]
    if not sound:
        return _without_value(CellState.DIVERGED, records)
    best = max(sound) if measure.reaches <= 1 else min(sound)
    good = sum(abs(value - best) <= abs((1 - measure.reaches) * best) for value in sound)
    cell = _without_value(CellState.DONE, records)
    return replace(cell, mean=(len(found) + 1) / (good + 1), trial_ids=tuple(record.trial_id for record in first))


def _extent(spec: TableSpec, column: str, grouped: Grouped, block: str) -> Extent | None:
    """Return how much of a cell of the grid as written has a result; a ratio's is that of all its rows."""
    blocks = [block, *filter(None, [spec.over.get(block), spec.beyond])]
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


def _over_columns(
    cells: Sequence[TableCell], mean: float | None, published: float | None, without: CellState
) -> TableCell:
    """Return the cell of a value over a row's cells; in the state `without` if there is none."""
    finished, planned = sum(cell.finished for cell in cells), sum(cell.planned for cell in cells)
    complete = finished == planned
    return TableCell(
        state=without if mean is None else CellState.DONE if complete else CellState.PARTIAL,
        mean=mean,
        published=published,
        finished=finished,
        planned=planned,
        places=together(cells),
        notes=() if mean is None or complete else (BEST_SO_FAR,),
    )


def _cell(spec: TableSpec, measure: Measure, records: list[Record]) -> TableCell:
    candidates = settings(records)
    whole = select(candidates, spec.rule)
    selected = whole or select(so_far(candidates), spec.rule)
    if selected is None:
        state, notes = _empty(candidates, spec)
        return _without_value(state, records, notes)
    if not measure.metric:
        return _without_value(CellState.NOT_COMPARABLE, records)
    values = _values(selected, measure)
    if values is None:
        state, notes = _unmeasured(selected, measure)
        return _without_value(state, records, notes)
    at_edge = edges(selected, candidates) if whole else {}
    beside = _values(selected, measure.beside) if measure.beside else None
    finished = sum(record.is_result for record in records)
    complete = finished == len(records)
    notes = [*([] if complete else [BEST_SO_FAR if whole else SEEDS_SO_FAR]), *([AT_EDGE] if at_edge else [])]
    metrics = (record.metrics for record in selected.records)
    notes += [*_stopped(records), *remarks(metrics, measure.metric, of_cost=not measure.of_scores)]
    return TableCell(
        state=CellState.DONE if complete else CellState.PARTIAL,
        mean=fmean(values),
        std=stdev(values) if len(values) > 1 else None,
        n=len(values),
        beside=fmean(beside) if beside else None,
        selected=selected.hyperparameters,
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
        notes=tuple(notes),
    )


def _stopped(records: Sequence[Record]) -> list[str]:
    """Return how many trials of a cell were stopped, and where: a text for each rung."""
    notes = Counter(record.note for record in records if record.state == TrialState.STOPPED.value)
    return [f"{n} of {len(records)} trials {note}" for note, n in notes.items()]


def _values(setting: HyperparameterSetting, measure: Measure) -> list[float] | None:
    values = [measure.value(record.metrics) for record in setting.records]
    return values if all(map(math.isfinite, values)) else None


def _unmeasured(setting: HyperparameterSetting, measure: Measure) -> tuple[CellState, list[str]]:
    """Return the state of a cell whose runs have no finite value, and the reasons."""
    if any(measure.value(record.metrics) == math.inf for record in setting.records):
        return CellState.NOT_REACHED, []
    lacking = [record for record in setting.records if not math.isfinite(measure.value(record.metrics))]
    reasons = [why for record in lacking for name, why in record.unmeasured.items() if measure.metric.startswith(name)]
    return CellState.UNMEASURED, list(dict.fromkeys(reasons)) or [f"the selected runs did not measure {measure.metric}"]


def _without_value(state: CellState, records: list[Record], notes: Iterable[str] = ()) -> TableCell:
    return TableCell(
        state=state,
        finished=sum(record.is_result for record in records),
        planned=len(records),
        trial_ids=tuple(sorted(record.trial_id for record in records)),
        notes=tuple(notes),
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
    if not all(record.is_result for record in records):
        return CellState.IN_PROGRESS, [NO_SETTING]
    metric = spec.rule.metric
    if any(one.has_succeeded and any(metric not in r.metrics for r in one.records) for one in candidates):
        return CellState.UNMEASURED, [f"no {metric} to select a setting by"]
    # Every other setting diverged (as a success with a non-finite dev metric did) or ran out of memory in some seed.
    of_settings = [{record.state for record in setting.records} for setting in candidates]
    out = [TrialState.OUT_OF_MEMORY.value in of for of in of_settings if TrialState.STOPPED.value not in of]
    stopped = _stopped(records)
    if not out:  # no setting was selected, or kept
        return CellState.NOT_RUN, stopped
    if all(out):
        return CellState.OUT_OF_MEMORY, stopped
    return CellState.DIVERGED, [*([BOTH_FAILURES] if any(out) else []), *stopped]


def _average(spec: TableSpec, cells: Sequence[TableCell]) -> TableCell:
    """Average the row's cells if all have a value, and its published numbers if no cell lacks one."""
    if spec.measures:
        return TableCell(CellState.NOT_PLANNED, notes=(NO_MEAN,))
    means = [cell.mean for cell in cells if cell.mean is not None]
    numbers = [cell.published for cell in cells if cell.published is not None]
    mean, published = (fmean(some) if len(some) == len(cells) else None for some in (means, numbers))
    started = any(cell.finished for cell in cells)
    made = _over_columns(cells, mean, published, CellState.IN_PROGRESS if started else CellState.NOT_RUN)
    if spec.measure.paired and mean is not None:  # the pairs of all columns
        return _difference([value for cell in cells for value in cell.values.values()], len(spec.rows), made)
    return made


def _ranks(
    printed: Table, drafts: Mapping[tuple[str, str], TableCell], published: Published | None
) -> dict[tuple[str, str], TableCell]:
    """Compute each row's mean over the columns of its dense rank by the printed (rounded) means, and the paper's own.

    Only rows with a value in every column are ranked.
    """
    spec, columns = printed.spec, []
    for key, _ in spec.columns:
        means = {block: printed.cells[block, key].mean for block, _ in spec.rows}
        measure = spec.of(key)
        sign = 1 if measure.better == "higher" else -1
        columns.append({b: sign * round(mean, measure.digits) for b, mean in means.items() if mean is not None})
    ranks = mean_ranks(columns)
    among = () if len(ranks) in (0, len(spec.rows)) else (RANK_AMONG.format(len(ranks)),)
    ranked = {}
    for block, _ in spec.rows:
        number, _ = _published(spec, published, block, RANK, "Rank")
        cell = _over_columns(
            [drafts[block, key] for key, _ in spec.columns], ranks.get(block), number, CellState.NOT_RUN
        )
        if block not in ranks and 0 < cell.finished < cell.planned:
            cell = replace(cell, state=CellState.IN_PROGRESS)
        notes = among if block in ranks else ()
        ranked[block, RANK] = replace(cell, digits=RANK_DIGITS, places=(), notes=notes)
    return ranked


def _with_footnotes(
    spec: TableSpec,
    published: Published | None,
    columns: tuple[tuple[str, str], ...],
    drafts: Mapping[tuple[str, str], TableCell],
    of_rows: Sequence[Flag],
) -> Table:
    """Number the footnotes in reading order: column labels, then row by row."""
    differing = {
        place: tuple(flag for flag in spec.flags if flag.about and flag.covers(*place) and not _altered(spec, *place))
        for place in drafts
    }
    beside = [differing[place] for place, cell in drafts.items() if cell.published is not None]
    in_cells = {flag for flag in chain(*beside) if flag.about in IN_CELL}
    flags = [flag for flag in spec.flags if flag not in in_cells]
    placed = place_flags([block for block, _ in spec.rows], drafts, spec.may_differ)
    flags += [*_published_flags(spec, published, columns), *of_rows, *placed]
    footnotes: dict[str, None] = {}

    def numbered(notes: Sequence[str]) -> tuple[str, ...]:
        footnotes.update(dict.fromkeys(notes))
        return tuple(sorted({*notes}, key=list(footnotes).index))

    column_notes = {
        key: numbered([flag.note for flag in flags if key in flag.columns and not flag.rows]) for key, _ in columns
    }
    row_notes: dict[str, tuple[str, ...]] = {}
    cells: dict[tuple[str, str], TableCell] = {}
    for block, _ in spec.rows:
        row_notes[block] = numbered([flag.note for flag in flags if block in flag.rows and not flag.columns])
        for key, _ in columns:
            cell = drafts[block, key]
            notes = [*cell.notes, *(flag.note for flag in flags if block in flag.rows and key in flag.columns)]
            if cell.published is not None:
                notes += [flag.note for flag in differing[block, key] if flag in in_cells]
            cells[block, key] = replace(cell, notes=numbered(notes), differs=differing[block, key])
    return Table(spec, published, spec.rows, columns, cells, row_notes, column_notes, tuple(footnotes))


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

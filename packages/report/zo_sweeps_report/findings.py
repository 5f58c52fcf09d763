"""What a sweep found, in a few sentences and numbers: only what its finished trials say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.memory_parts import TOTAL
from zo_sweeps.core.place import CODE, Place, apart, distinct, under_load
from zo_sweeps.core.trial import ENERGY
from zo_sweeps.core.units import bytes_text, joules_text, seconds_text
from zo_sweeps.methods.kind import Kind
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan.build import Plan
from zo_sweeps.results.tables import places_of
from zo_sweeps.schedule.ledger import Standing
from zo_sweeps.tables import CellState, Measure, Table, TableCell
from zo_sweeps.tables.cells import together
from zo_sweeps.tables.stats import CONFIDENCE, interval
from zo_sweeps.tables.text_cells import signed, value_text
from zo_sweeps_report.paired import paired

ENDED = (
    CellState.DONE,
    CellState.DIVERGED,
    CellState.OUT_OF_MEMORY,
    CellState.NOT_PLANNED,
    CellState.NOT_COMPARABLE,
    CellState.PLACES_DIFFER,
)
FEW = 3  # columns that get a line each
NO_BASELINE = "No row of this sweep is trained by backpropagation, so no distance to it is stated."
BASELINE_UNFINISHED = "No row trained by backpropagation has a result yet, so no distance to it is stated."
NO_ESTIMATE = "No zeroth-order row has a value: see the failures and the trials."
OF_TENSORS = "tensors alive at the peak of a step"
ALIKE = 1.1  # ratio up to which two memories count as the same


@dataclass(frozen=True)
class Headline:
    """A number of the first screen, what it is, the numbers behind it, and whether "higher" or "lower" is better."""

    value: str
    label: str
    detail: str = ""
    better: str = ""


@dataclass(frozen=True)
class BestRow:
    """The best row of a column, or how often a row is the best; so_far: "3 of 5 rows have a result", "" if all have."""

    table: str
    column: str
    row: str
    value: str
    seeds: str
    so_far: str = ""


@dataclass(frozen=True)
class Findings:
    sentences: tuple[str, ...]
    headlines: tuple[Headline, ...]
    best: tuple[BestRow, ...]


@dataclass(frozen=True)
class _Choice:
    """The best of several rows in a column, and how many (of `rows` with a mean) print as good a mean."""

    key: str  # of the column
    block: str
    label: str
    cell: TableCell
    mean: float
    text: str  # its printed value, with the unit
    complete: bool  # whether all of the rows have ended
    equal: int
    rows: int

    @property
    def named(self) -> str:
        """The row, and how many are as good."""
        if self.equal and self.equal + 1 == self.rows:
            return "all rows are equal"
        return f"{self.label} and {self.equal} more" if self.equal else self.label

    @property
    def seeds(self) -> str:
        return f"{self.cell.n} seeds" if self.cell.n > 1 else "1 run" if self.cell.n else ""


_Pair = tuple[_Choice, _Choice]  # the best zeroth-order row of a column, and its best row with backpropagation


def findings(plan: Plan, standing: Standing, tables: Sequence[Table]) -> Findings:
    """Return what the finished trials of a sweep say.

    The baseline is a row whose method backpropagates. Cost: as `paired.differences` of the first table of scores.
    """
    kinds = _kinds(plan)
    best = tuple(line for table in tables for line in _best_rows(table, standing))
    estimates = [block for block, kind in kinds.items() if kind.estimates]
    baselines = [block for block, kind in kinds.items() if kind.backpropagates]
    scored = next((table for table in tables if table.spec.measure.of_scores), None)
    if scored is None:
        return Findings(tuple(_plainly(best)), (), best)
    ours = [choice for key, _ in scored.main_columns if (choice := _choose(scored, key, estimates, standing))]
    if not ours:
        lacking = [NO_ESTIMATE] if best and any(block in dict(scored.rows) for block in estimates) else []
        return Findings((*lacking, *_plainly(best)), (), best)
    sentences, headlines = _scores(scored, ours, estimates)
    against = [(one, theirs) for one in ours if (theirs := _choose(scored, one.key, baselines, standing))]
    if against:
        sentence, headline = _distance(scored, against)
        headlines = [*headlines, headline]
    else:
        sentence = BASELINE_UNFINISHED if baselines else NO_BASELINE
    alike = [pair for pair in against if _same(standing, pair, "energy_definition")]
    costs = (
        _memory(plan, standing, against),
        _at_its_memory(scored, against, baselines, standing),
        _forwards(plan, standing, against),
        _ratio(plan, standing, against, "time of a run's steps", "train_seconds", seconds_text),
        _ratio(plan, standing, alike, "energy of a run's steps", f"{ENERGY}joules", joules_text),
    )
    return Findings((" ".join([*sentences, sentence]),), (*headlines, *filter(None, costs)), best)


def _kinds(plan: Plan) -> dict[str, Kind]:
    """Return block -> the kind of its trials. A block with a member that is not on this machine is left out."""
    kinds: dict[str, Kind] = {}
    for cell in plan.cells:
        if cell.block not in kinds:
            try:
                kinds[cell.block] = TrialConfig.of(plan.every[cell.trial_id].config).method.kind
            except UserError:
                continue
    return kinds


def _choose(table: Table, key: str, blocks: Iterable[str], standing: Standing) -> _Choice | None:
    """Return the row with the best mean in a column; None if no row has one. Ties go to the first.

    Of test scores it is the row with the best dev value, by the rule that selects settings: the maximum on test is high
    by chance.
    """
    labels, measure, rule = dict(table.rows), table.spec.of(key), table.spec.rule
    cells = {block: table.cells[block, key] for block in labels if block in {*blocks}}
    means = {block: cell.mean for block, cell in cells.items() if cell.mean is not None}
    if on_dev := _on_dev(measure):
        values = {block: _mean(standing, cells[block], rule.metric) for block in means}
    else:
        values = {**means}
    sign = 1 if (rule.mode == "max" if on_dev else measure.better == "higher") else -1
    ranked = {block: sign * value for block, value in values.items() if value is not None}
    if not ranked:
        return None
    block = max(ranked, key=lambda name: ranked[name])
    unit = f" {measure.unit}" if measure.unit else ""
    text = value_text(replace(cells[block], state=CellState.DONE), table, key) + unit  # without "4/6" of its search
    printed = {name: round(mean, measure.digits) for name, mean in means.items()}
    equal = sum(printed[name] == printed[block] and (not on_dev or ranked[name] == ranked[block]) for name in ranked)
    complete = all(cell.state in ENDED for cell in cells.values())
    return _Choice(key, block, labels[block], cells[block], means[block], text, complete, equal - 1, len(ranked))


def _on_dev(measure: Measure) -> bool:
    return measure.metric.startswith("test/")


def _best_rows(table: Table, standing: Standing) -> list[BestRow]:
    name = table.spec.measure.name or table.spec.layout.replace("_", " ") or table.spec.title
    name += f", chosen by {table.spec.rule.metric}" if _on_dev(table.spec.measure) else ""
    chosen = {key: _choose(table, key, dict(table.rows), standing) for key, _ in table.main_columns}
    places = {key: together(table.cells[block, key] for block, _ in table.rows) for key in chosen}
    elsewhere = {key: why for key in chosen if (why := apart(places[key], {*table.spec.may_differ, CODE}))}
    have = {key: choice for key, choice in chosen.items() if choice is not None and key not in elsewhere}
    ended = sum(all(table.cells[block, key].state in ENDED for key, _ in table.main_columns) for block, _ in table.rows)
    so_far = "" if ended == len(table.rows) else f"{ended} of {len(table.rows)} rows are complete"
    so_far = "; ".join(filter(None, (so_far, under_load(place for key in have for place in places[key]))))
    if elsewhere and not have:
        return [BestRow(name, "", f"none, {next(iter(elsewhere.values()))}", "", "", so_far)]
    if len(chosen) > FEW and have:
        counts = Counter(choice.label for choice in have.values())
        return [BestRow(name, f"{n} of {len(chosen)} columns", row, "", "", so_far) for row, n in counts.most_common()]
    labels = dict(table.columns) if len(chosen) > 1 else {}
    return [
        BestRow(name, labels.get(key, ""), choice.named, choice.text, choice.seeds, so_far)
        for key, choice in have.items()
    ]


def _plainly(best: Sequence[BestRow]) -> Iterable[str]:
    """Yield a sentence for each line, of a sweep without a table of scores."""
    if not best:
        yield "No cell of this sweep has a result yet."
    for line in best[:FEW]:
        where = f" on {line.column}" if line.column else ""
        value = f"{line.value}, {line.row}" if line.value else line.row
        so_far = f" ({line.so_far})" if line.so_far else ""
        yield f"Best {line.table}{where}: {value}{so_far}."


def _scores(table: Table, ours: Sequence[_Choice], estimates: Sequence[str]) -> tuple[list[str], list[Headline]]:
    """Return what is said of the best of the zeroth-order rows `estimates` in each column."""
    so_far = "" if all(one.complete for one in ours) else "So far, "
    by = f"by {table.spec.rule.metric}" if _on_dev(table.spec.measure) else "by this value"
    if len(ours) > 1:
        counts = Counter(one.label for one in ours).most_common()
        listed = ", ".join(f"{label} ({n})" for label, n in counts[:FEW])
        (first, n), *_ = counts
        label = f"columns in which {first} is the best {by}"
        text = f"{so_far}the best zeroth-order rows {by} in {len(ours)} columns: {listed}."
        return [text], [Headline(f"{n} of {len(ours)}", label, "of the zeroth-order rows")]
    (best,) = ours
    column = dict(table.columns)[best.key]
    sentences = [f"{so_far}{best.label} is the best zeroth-order row {by}: {best.text} on {column} ({best.seeds})."]
    others = [table.cells[block, best.key] for block, _ in table.rows if block in estimates and block != best.block]
    rivals = [cell for cell in others if paired([(best.cell, cell)])]
    if rivals:
        told = sum(_told([(best.cell, cell)]) for cell in rivals)
        which = f"{told} of the {len(rivals)}" if told else "None of the"
        sentences.append(f"{which} others can be told from it.")
    better = table.spec.of(best.key).better
    return sentences, [Headline(best.text, f"{best.label}, on {column}", f"{best.seeds}; best {by}", better)]


def _distance(table: Table, against: Sequence[_Pair]) -> tuple[str, Headline]:
    """Return how far the chosen zeroth-order rows are from those trained by backpropagation, where that can be told."""
    against = _of_one_unit(table, against)
    digits, points = _unit(table, against)
    cells = [(ours.cell, theirs.cell) for ours, theirs in against]
    gaps = [ours.mean - theirs.mean for ours, theirs in against]
    so_far = "" if all(theirs.complete for _, theirs in against) else "so far "
    if len(against) == 1:
        theirs = against[0][1]
        column = f" on {dict(table.columns)[theirs.key]}" * (len(table.main_columns) > 1)
        it, beside, label = "it", f"{theirs.label} ({theirs.text}){column}", f"from backpropagation ({theirs.label})"
        far = f"{abs(gaps[0]):.{digits}f} {points} {'below' if gaps[0] < 0 else 'above'}"
        text = f"That is {far} {beside}, {so_far}the best row trained by backpropagation."
        detail = theirs.text
    else:
        it, beside = "they", f"the rows trained by backpropagation over {len(against)} columns"
        label = f"from backpropagation, mean of {len(against)} columns"
        detail = f"{signed(min(gaps), digits)} to {signed(max(gaps), digits)} {points}"
        text = (
            f"From {so_far}the best row trained by backpropagation in the same column they are {detail}, "
            f"{signed(fmean(gaps), digits)} {points} in the mean over {len(against)} columns."
        )
    pairs = paired(cells)
    ends = interval(pairs)
    within = f"{signed(ends[0], digits)} to {signed(ends[1], digits)}, {len(pairs)} pairs by seed" if ends else ""
    if _told(cells):
        value, better = f"{signed(fmean(gaps), digits)} {points}", table.spec.of(against[0][0].key).better
        return text, Headline(value, label, f"{detail}; {CONFIDENCE:.0%} interval {within}", better)
    alone = "all pairs by seed are equal" if len(pairs) > 1 else "there are fewer than two pairs by seed"
    why = f"the {CONFIDENCE:.0%} interval of the difference is {within}" if ends else f"no interval, {alone}"
    text = f"{it.capitalize()} cannot be told from {beside}: {why}."
    return text, Headline("not told apart", label, f"{detail if len(against) == 1 else ''}; {why}".removeprefix("; "))


def _of_one_unit(table: Table, pairs: Sequence[_Pair]) -> Sequence[_Pair]:
    """Return the pairs of columns whose scores have one unit: that of the table, if it is of any of them."""
    return [pair for pair in pairs if pair[0].key not in table.spec.measures] or pairs[:1]


def _unit(table: Table, against: Sequence[_Pair]) -> tuple[int, str]:
    """Return the decimals and the unit of differences between scores of some columns."""
    measures = [table.spec.of(ours.key) for ours, _ in against]
    unit = measures[0].unit
    return max(measure.digits for measure in measures), "points" if unit == "%" else unit


def _told(cells: Iterable[tuple[TableCell, TableCell]]) -> bool:
    """Return whether the interval of the paired differences excludes zero."""
    ends = interval(paired(cells))
    return ends is not None and (ends[0] > 0 or ends[1] < 0)


def _mean(standing: Standing, cell: TableCell, metric: str) -> float | None:
    """Return the mean of a metric over the runs of a cell; None if one of them lacks it."""
    values = [standing.outcomes[i].metrics.get(metric) for i in cell.trial_ids if i in standing.outcomes]
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(cell.trial_ids) else None


def _runs(standing: Standing, pair: _Pair) -> list[str]:
    return [i for one in pair for i in one.cell.trial_ids if i in standing.outcomes]


def _same(standing: Standing, pair: _Pair, fact: str) -> str:
    """Return the one value that a fact of the device has in all runs of a pair, "" if it differs or is not known."""
    values = {str(standing.outcomes[i].device.get(fact, "")) for i in _runs(standing, pair)}
    return values.pop() if len(values) == 1 else ""


Both = tuple[float, float]


def _both(pair: _Pair, value: Callable[[TableCell], float | None]) -> Both | None:
    ours, theirs = (value(one.cell) for one in pair)
    return (ours, theirs) if ours and theirs else None


def _memory(plan: Plan, standing: Standing, against: Sequence[_Pair]) -> Headline | None:
    """Return the memory saved: of tensors where both rows have it, otherwise as the device defines it."""
    found: list[Both] = []
    definitions = set()
    for pair in against:
        of_tensors = _both(pair, lambda cell: _mean(standing, cell, TOTAL))
        defined = _same(standing, pair, "memory_definition")
        both = of_tensors or (_both(pair, lambda cell: _mean(standing, cell, "peak_memory_bytes")) if defined else None)
        if both and not apart(_places(plan, standing, pair)):
            found.append(both)
            definitions.add(OF_TENSORS if of_tensors else defined)
    if not found or len(definitions) > 1:
        return None
    changes = sorted(100 * (ours / theirs - 1) for ours, theirs in found)
    ends = dict.fromkeys(signed(change, 0) for change in (changes[0], changes[-1]))
    detail = f"{_shown(found, bytes_text)}; {definitions.pop()}"
    return Headline(f"{' to '.join(ends)} %", "memory", detail, "lower")


def _at_its_memory(
    table: Table, against: Sequence[_Pair], baselines: Sequence[str], standing: Standing
) -> Headline | None:
    """Return how far it is to backpropagation in as many bytes, where that is another row than the best one."""
    found = []
    for ours, theirs in against:
        held = {block: _mean(standing, table.cells[block, ours.key], TOTAL) for block in (ours.block, *baselines)}
        most = ALIKE * (held.pop(ours.block) or 0.0)
        small = [block for block, total in held.items() if total is not None and total <= most]
        rival = _choose(table, ours.key, small, standing)
        if rival and rival.block != theirs.block:
            found.append((ours, rival))
    if not (found := [*_of_one_unit(table, found)]):
        return None
    digits, points = _unit(table, found)
    gap = fmean(ours.mean - rival.mean for ours, rival in found)
    label = ", ".join(dict.fromkeys(rival.label for _, rival in found))
    detail = found[0][1].text if len(found) == 1 else f"mean of {len(found)} columns"
    ends = interval(paired((ours.cell, rival.cell) for ours, rival in found))
    within = f"; {CONFIDENCE:.0%} interval {signed(ends[0], digits)} to {signed(ends[1], digits)}" if ends else ""
    label, better = f"from backpropagation at its memory ({label})", table.spec.of(found[0][0].key).better
    if ends and ends[0] <= 0 <= ends[1]:
        return Headline("not told apart", label, f"{detail}; {signed(gap, digits)} {points}{within}")
    return Headline(f"{signed(gap, digits)} {points}", label, detail + within, better)


def _forwards(plan: Plan, standing: Standing, against: Sequence[_Pair]) -> Headline | None:
    def value(cell: TableCell) -> float | None:
        runs = {i: standing.outcomes.get(i) for i in cell.trial_ids}
        counts = {run.steps_done * forwarded_per_step(plan, standing, i) if run else 0 for i, run in runs.items()}
        return float(counts.pop()) if len(counts) == 1 else None

    found = [both for pair in against if (both := _both(pair, value))]
    shown = _shown(found, lambda count: f"{count:,.0f}")
    detail = f"{shown} examples; a backward pass counts as two forwards"
    return Headline(_times(found), "forwards per run", detail, "lower") if found else None


def _ratio(
    plan: Plan, standing: Standing, against: Sequence[_Pair], label: str, metric: str, text: Callable[[float], str]
) -> Headline | None:
    """Return the ratio of a cost over the pairs that each ran in one place; if none did, the places without a value."""
    measured = [(pair, both) for pair in against if (both := _both(pair, lambda cell: _mean(standing, cell, metric)))]
    places = [_places(plan, standing, pair) for pair, _ in measured]
    found = [both for (_, both), where in zip(measured, places, strict=True) if not apart(where)]
    if not measured:
        return None
    if not found:
        return Headline("–", label, apart(places[0]))
    load = under_load(place for where in places for place in where)
    return Headline(_times(found), label, "; ".join(filter(None, (_shown(found, text), load))), "lower")


def _places(plan: Plan, standing: Standing, pair: _Pair) -> tuple[Place, ...]:
    """Return where the runs of a pair were measured."""
    return distinct(place for i in _runs(standing, pair) for place in places_of(plan.every[i], standing.outcomes[i]))


def _times(found: Sequence[Both]) -> str:
    ratios = sorted(ours / theirs for ours, theirs in found)
    return " to ".join(dict.fromkeys(f"{ratio:.2g}" for ratio in (*ratios[:1], *ratios[-1:]))) + " ×"


def _shown(found: Sequence[Both], text: Callable[[float], str]) -> str:
    return f"{text(found[0][0])} instead of {text(found[0][1])}" if len(found) == 1 else f"over {len(found)} columns"


def forwarded_per_step(plan: Plan, standing: Standing, trial_id: str) -> int:
    """Return the examples that a trial forwards per step, a backward pass as two; 0 if it cannot be read here."""
    outcome = standing.outcomes.get(trial_id)
    try:
        config = TrialConfig.of(plan.every[trial_id].config)
    except UserError:
        return 0
    trainable = outcome.metrics.get("trainable_parameters", 0.0) if outcome else 0.0
    return config.forwards(int(trainable)) * (config.train.batch or 1)

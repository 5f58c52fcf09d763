"""Two trials side by side: the differences of their configurations, their measurements, their curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console

from zo_sweeps.cli.parser import grid_parser, parse, trial_ids
from zo_sweeps.cli.text import console, listing, say
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.document import key
from zo_sweeps.core.document import to_text as to_json
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.place import apart, distinct, under_load, unknown
from zo_sweeps.core.trial import COSTS
from zo_sweeps.core.units import metric_text
from zo_sweeps.record.journal import JournalStore, RowPredictions, predictions, trail
from zo_sweeps.record.sweep_book import find_trial
from zo_sweeps.results.tables import places_of
from zo_sweeps.results.trial_record import TrialRecord, flat, recorded
from zo_sweeps.schedule.ledger import read_standing
from zo_sweeps.tables.stats import by_example
from zo_sweeps.tables.text_cells import plain

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 40  # characters of a drawn curve


@dataclass(frozen=True)
class Compared(TrialRecord):
    """One of the two trials."""

    train_loss: Sequence[float] = key("loss of each step, as journalled")
    configuration: Mapping[str, Any] = key("the whole resolved configuration")


@dataclass(frozen=True)
class SettingDifference:
    """A setting in which the two differ."""

    setting: str = key("its name, such as update.lr")
    a: Any = key('its value in A; "–" if it has none')
    b: Any = key("the same of B")


@dataclass(frozen=True)
class BothMeasured:
    """A measurement of the two."""

    metric: str = key("its name in MLflow; bytes, seconds and joules are in the name, scores are fractions")
    a: float | None = key("its value in A; null: not measured")
    b: float | None = key("the same of B")
    difference: float | None = key("b - a; null: one is missing, or it is a cost and they ran in different places")


@dataclass(frozen=True)
class BothEvaluated:
    """An evaluation of the two on dev."""

    name: str = key("dev/loss, or dev/metric: the task's first")
    step: int = key("step that was evaluated")
    a: float | None = key("its value in A; null: not evaluated there")
    b: float | None = key("the same of B")


@dataclass(frozen=True)
class BothPredicted:
    """The test predictions of the two, example by example."""

    examples: int = key("number of examples")
    both_right: int = key("right in both")
    only_a: int = key("right in A only")
    only_b: int = key("right in B only")
    neither: int = key("right in none")
    p: float = key("McNemar's exact p")


@dataclass(frozen=True)
class Comparison:
    """Two trials, A and B."""

    a: Compared = key("the first trial")
    b: Compared = key("the second trial")
    differences: Sequence[SettingDifference] = key("the settings in which they differ")
    measured: Sequence[BothMeasured] = key("their measurements")
    evaluated: Sequence[BothEvaluated] = key("their evaluations on dev, by name and step")
    predicted: BothPredicted | None = key("their test predictions; null, if they cannot be compared")
    not_predicted: str = key("why their test predictions cannot be compared")
    places: Sequence[str] = key(
        "how the places of their costs differ, what is not known of them, and loads; [] if nothing"
    )


def compared(state_dir: Path, names: Sequence[str]) -> Comparison:
    """Return two trials side by side, of any sweeps in `state_dir`.

    Args:
        names: the ids of the trials, or the start of each.

    Raises UserError if a name does not belong to exactly one trial, or a journal is damaged.
    """
    trials = [find_trial(state_dir, name) for name in names]
    standing, journals = read_standing(state_dir), JournalStore(state_dir)
    events = [journals.read(trial.trial_id, ended=standing.has_result(trial.trial_id)) for trial in trials]
    curves = [trail(journal) for journal in events]
    dev = {
        name: [{step: value for step, _, value in curve[name]} for curve in curves]
        for name in ("dev/loss", "dev/metric")
    }
    a, b = (
        Compared(
            **recorded(trial, standing),
            train_loss=[loss for _, _, loss in curve["train/loss"]],
            configuration=trial.config.to_json(),
        )
        for trial, curve in zip(trials, curves, strict=True)
    )
    ran = [(trial, outcome) for trial in trials if (outcome := standing.outcomes.get(trial.trial_id))]
    places = distinct(place for trial, outcome in ran for place in places_of(trial, outcome))
    predicted, why = _predicted(*(predictions(journal) for journal in events))
    return Comparison(
        a,
        b,
        differences=differences(a.configuration, b.configuration),
        measured=_measured(a.metrics, b.metrics, alike=not apart(places)),
        evaluated=[
            BothEvaluated(name, step, one.get(step), two.get(step))
            for name, (one, two) in dev.items()
            for step in sorted({*one, *two})
        ],
        predicted=predicted,
        not_predicted=why,
        places=list(filter(None, (apart(places), unknown(places), under_load(places)))),
    )


def _measured(one: Mapping[str, float], two: Mapping[str, float], *, alike: bool) -> list[BothMeasured]:
    def difference(name: str) -> float | None:
        both = name in one and name in two and (alike or not name.startswith(COSTS))
        return two[name] - one[name] if both else None

    return [BothMeasured(name, one.get(name), two.get(name), difference(name)) for name in dict.fromkeys((*one, *two))]


def _predicted(one: RowPredictions | None, two: RowPredictions | None) -> tuple[BothPredicted | None, str]:
    """Return the comparison of two trials' test predictions, or the reason why there is none."""
    if one is None or two is None:
        return None, f"none of {' and '.join(name for name, has in (('A', one), ('B', two)) if has is None)}"
    if one.rows != two.rows:
        return None, "of different examples"
    both = by_example([one.right], [two.right])
    alike = sum(a and b for a, b in zip(one.right, two.right, strict=True))
    return BothPredicted(both.n, alike, both.one, both.other, both.n - alike - both.one - both.other, both.p), ""


def differences(one: Mapping[str, Any], two: Mapping[str, Any]) -> list[SettingDifference]:
    """Return every leaf of two configurations that differs; "–" where one lacks it."""
    a, b = flat(one), flat(two)
    both = (SettingDifference(name, a.get(name, "–"), b.get(name, "–")) for name in dict.fromkeys((*a, *b)))
    return [each for each in both if each.a != each.b]


def spark(values: Sequence[float], low: float, high: float) -> str:
    """Return the means of up to WIDTH equal parts of a curve as bars from `low` to `high`; "!" for one outside."""
    parts = min(WIDTH, len(values))
    bounds = [round(i * len(values) / parts) for i in range(parts + 1)] if parts else []
    text = ""
    for start, end in pairwise(bounds):
        mean = sum(values[start:end]) / (end - start)
        share = (mean - low) / (high - low) if high > low else 0.0
        text += BARS[round(share * (len(BARS) - 1))] if share == share and 0 <= share <= 1 else "!"
    return text


def compare(given: Sequence[str]) -> int:
    """Show two trials side by side, by their ids: in which settings they differ, measurements, curves."""
    parser = grid_parser("compare", compare.__doc__)
    parser.add_argument("--config", action="store_true", help="all settings, not only those that differ")
    parser.add_json({"": Comparison})
    options = parse(parser, given)
    ids = trial_ids(options)
    if len(ids) != 2:
        raise UserError(f"{len(ids)} trials to compare", fix="give two ids, as `status` lists them")
    both = compared(Composer(options.overrides, options.config_dir).run.folder, ids)
    if options.json:
        print(to_json(both))
    else:
        show_comparison(both, console(), config=options.config)
    return 0


def show_comparison(both: Comparison, to: Console, *, config: bool) -> None:
    """Print two trials side by side: settings that differ (`config`: all), measurements, curves, predictions."""
    sides = (("A", both.a), ("B", both.b))
    for letter, trial in sides:
        say(to, f"{letter}  {trial.trial_id}  {trial.label}  ({trial.grid}; {trial.state})")
    _print(to, "differs", [(one.setting, plain(one.a), plain(one.b)) for one in both.differences], "nothing")
    own = [flat(trial.configuration) for _, trial in sides]
    names = list(dict.fromkeys((*own[0], *own[1])))
    if not config:
        same = len(names) - len(both.differences)
        say(to, f"{same} other settings are the same in both; --config prints all")
    rows: list[tuple[str, ...]] = []
    for one in both.measured:
        form = partial(metric_text, one.metric)
        difference = "" if (by := one.difference) is None else f"{'+' if by >= 0 else ''}{form(by)}"
        rows.append((one.metric, *_texts(form, one.a, one.b), difference))
    _print(to, "measured", rows, "nothing yet")
    for line in both.places:
        say(to, line)
    evaluated: dict[str, list[tuple[str, ...]]] = {}
    for at in both.evaluated:
        difference = "" if at.a is None or at.b is None else f"{at.b - at.a:+.4f}"
        row = f"step {at.step}", *_texts("{:.4f}".format, at.a, at.b), difference
        evaluated.setdefault(at.name, []).append(row)
    for name, rows in evaluated.items():
        _print(to, name, rows, "not evaluated yet")
    say(to, "\ntraining loss, both on the same scale")
    finite = [value for _, trial in sides for value in trial.train_loss if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    for letter, trial in sides:
        say(to, f"{letter}  {spark(trial.train_loss, low, high) or 'no steps'}  {len(trial.train_loss)} steps")
    if (right := both.predicted) is None:
        text = f": {both.not_predicted}"
    else:
        text = f", {right.examples} examples: both right {right.both_right}, only A {right.only_a}, "
        text += f"only B {right.only_b}, neither {right.neither}; McNemar's exact p = {right.p:.2g}"
    say(to, f"\ntest predictions{text}")
    for letter, trial in sides:
        if trial.error:
            say(to, f"{letter}  {trial.error}")
    if config:
        values = ((name, *(plain(one.get(name, "–")) for one in own)) for name in names)
        _print(to, "setting", [(name, a, "the same" if a == b else b) for name, a, b in values], "none")


def _texts(form: Callable[[float], str], *values: float | None) -> list[str]:
    return ["–" if value is None else form(value) for value in values]


def _print(to: Console, title: str, rows: Sequence[Sequence[str]], nothing: str) -> None:
    say(to, "")
    if rows:
        listing(to, (title, "A", "B", "B − A")[: len(rows[0])], rows)
    else:
        say(to, f"{title}: {nothing}")

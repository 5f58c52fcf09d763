"""Two trials side by side: the differences of their configurations, their measurements, their curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from zo_sweeps.core.document import key
from zo_sweeps.core.place import apart, distinct, under_load, unknown
from zo_sweeps.core.trial import COSTS, Trial
from zo_sweeps.record.journal import JournalStore, RowPredictions, predictions, trail
from zo_sweeps.record.sweep_book import find_trial
from zo_sweeps.results.tables import places_of
from zo_sweeps.schedule.ledger import Standing, read_standing
from zo_sweeps.tables.stats import by_example

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 40  # characters of a drawn curve


@dataclass(frozen=True)
class TrialRecord:
    """What every document says of a trial."""

    trial_id: str = key("hash of everything that changes its result")
    label: str = key("its printed name; empty: no record of its sweep is left")
    grid: str = key("name of its grid; empty: not known")
    state: str = key("its state, lower case")
    error: str = key("one line on a failure")
    metrics: Mapping[str, float] = key("measurements, in fractions, bytes, seconds and joules, under MLflow's names")


def recorded(trial: Trial, standing: Standing) -> dict[str, Any]:
    """Return the fields of a TrialRecord, from the ledger."""
    outcome = standing.outcomes.get(trial.trial_id)
    return {
        "trial_id": trial.trial_id,
        "label": trial.label,
        "grid": trial.grid,
        "state": standing.state(trial.trial_id).value.lower(),
        "error": outcome.error if outcome else "",
        "metrics": outcome.metrics if outcome else {},
    }


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


def compare(state_dir: Path, names: Sequence[str]) -> Comparison:
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


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of a configuration by their dotted names."""
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            leaves.update(flat(value, f"{prefix}{name}."))
        else:
            leaves[f"{prefix}{name}"] = value
    return leaves

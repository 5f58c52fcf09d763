"""The order in which a plan's trials are started: `--order NAME`. It changes no trial, and belongs to no id."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from zo_sweeps.core.fingerprint import canonical_json
from zo_sweeps.core.trial import Outcome, TrialState
from zo_sweeps.plan.build import Cell, Plan
from zo_sweeps.tables.select import is_number

Settings = Mapping[str, Sequence[Cell]]  # setting, as text -> its cells, one per seed, in grid order


def by_grid(plan: Plan, outcomes: Mapping[str, Outcome]) -> dict[str, int]:
    """Put every trial into one round: the trials start in grid order, row by row."""
    return {trial.trial_id: 0 for trial in plan.trials}


def by_information(plan: Plan, outcomes: Mapping[str, Outcome]) -> dict[str, int]:
    """Give every row and column a number first, then search, then repeat with further seeds.

    Round 0 has one trial of every (row, column): its best known setting with the first seed. Round 1 has the other
    settings with the first seed. The next rounds have the further seeds of the best known settings, a seed each; the
    last ones, those of the other settings. A trial in several cells is in the earliest of their rounds.
    """
    runs_here = {trial.trial_id for trial in plan.trials}
    cells: dict[tuple[str, str], dict[str, list[Cell]]] = {}
    for cell in plan.cells:
        if cell.trial_id in runs_here:
            settings = cells.setdefault((cell.block, cell.task), {})
            settings.setdefault(canonical_json(cell.hyperparameters), []).append(cell)
    most = max((len(seeds) for settings in cells.values() for seeds in settings.values()), default=1)
    rounds: dict[str, int] = {}
    for settings in cells.values():
        best = best_known(settings, plan, outcomes)
        for setting, seeds in settings.items():
            for number, cell in enumerate(seeds):
                due = _due(number, most, is_best=setting == best)
                rounds[cell.trial_id] = min(due, rounds.get(cell.trial_id, due))
    return rounds


def _due(seed: int, seeds: int, *, is_best: bool) -> int:
    """Return the round of a setting's seed, counted from 0."""
    if not seed:
        return 0 if is_best else 1
    return 1 + seed if is_best else seeds + seed


ORDERS: Mapping[str, Callable[[Plan, Mapping[str, Outcome]], dict[str, int]]] = {
    "grid": by_grid,
    "information": by_information,
}


def best_known(settings: Settings, plan: Plan, outcomes: Mapping[str, Outcome]) -> str:
    """Return the setting of a cell to begin with: the best so far on dev with its first seed, else the middle one.

    Settings whose first seed diverged or ran out of memory are passed over, if there is another.
    """
    rule = plan.grid.select
    sign = 1.0 if rule.mode == "min" else -1.0
    ended = {setting: outcomes.get(seeds[0].trial_id) for setting, seeds in settings.items()}
    values = {
        setting: sign * outcome.metrics.get(rule.metric, math.nan)
        for setting, outcome in ended.items()
        if outcome and outcome.state is TrialState.SUCCEEDED
    }
    if known := {setting: value for setting, value in values.items() if math.isfinite(value)}:
        return min(known, key=lambda setting: known[setting])
    succeeded = [setting for setting in settings if setting in values]
    open_ = [setting for setting, outcome in ended.items() if not (outcome and outcome.state.is_result)]
    left = succeeded or open_ or [*settings]
    return middle({setting: settings[setting][0].hyperparameters for setting in left})


def middle(settings: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the setting that is nearest to the middle of every searched axis; ties go to the first.

    Of an even number of values the middle is the smaller one. An axis without numbers begins with its first value.
    """
    axes: dict[str, list[Any]] = {}
    for values in settings.values():
        for axis, value in values.items():
            seen = axes.setdefault(axis, [])
            if value not in seen:
                seen.append(value)
    centres = dict.fromkeys(axes, 0)
    for axis, seen in axes.items():
        if all(map(is_number, seen)):
            seen.sort()
            centres[axis] = (len(seen) - 1) // 2

    def distance(setting: str) -> int:
        return sum(abs(axes[axis].index(value) - centres[axis]) for axis, value in settings[setting].items())

    return min(settings, key=distance)


def described(plan: Plan, rounds: Mapping[str, int]) -> str:
    """Return the size of the rounds in one line; "" if there is one round."""
    counts = [sum(due == wanted for due in rounds.values()) for wanted in range(2)]
    further = len(rounds) - sum(counts)
    if not any(rounds.values()):
        return ""
    cells = len({(cell.block, cell.task) for cell in plan.cells if cell.trial_id in rounds})
    text = f"{counts[0]} trial{'s' * (counts[0] != 1)} for a first number in each of {cells} cell{'s' * (cells != 1)}"
    return f"order: {text}, then {counts[1]} for the search, then {further} further seeds"

"""Two trials side by side: the differences of their configurations, their measurements, their curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table as Rows
from rich.text import Text

from zo_sweeps.core.trial import TrialState
from zo_sweeps.schedule.ledger import read_standing
from zo_sweeps.tables.stats import by_example
from zo_sweeps.tables.text_cells import plain

if TYPE_CHECKING:
    from zo_sweeps.record.predictions import Predictions

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 40  # characters of a drawn curve


def compare(state_dir: Path, names: Sequence[str], console: Console) -> None:
    """Print two trials side by side, of any sweeps in `state_dir`.

    Args:
        names: the ids of the trials, or the start of each.

    Raises UserError if a name does not belong to exactly one trial, or a journal is damaged.
    """
    from zo_sweeps.record.curves import trail
    from zo_sweeps.record.journal import JournalStore
    from zo_sweeps.record.predictions import predictions
    from zo_sweeps.record.sweep_book import find_trial

    one, two = (find_trial(state_dir, name) for name in names)
    standing, journals = read_standing(state_dir), JournalStore(state_dir)
    for letter, trial in zip("AB", (one, two), strict=True):
        state = standing.states.get(trial.trial_id, TrialState.PENDING).value.lower()
        _say(console, f"{letter}  {trial.trial_id}  {trial.label}  ({trial.grid}; {state})")
    different = differences(one.config.to_json(), two.config.to_json())
    _print(console, "configuration", [(key, plain(a), plain(b), "") for key, a, b in different], "the same")
    outcomes = [standing.outcomes.get(trial.trial_id) for trial in (one, two)]
    metrics = [dict(outcome.metrics) if outcome else {} for outcome in outcomes]
    measured = []
    for name in dict.fromkeys((*metrics[0], *metrics[1])):
        both = [values.get(name) for values in metrics]
        change = f"{both[1] - both[0]:+.4g}" if both[0] is not None and both[1] is not None else ""
        measured.append((name, *("–" if value is None else f"{value:.6g}" for value in both), change))
    _print(console, "measured", measured, "nothing yet")
    ids = (one.trial_id, two.trial_id)
    events = [journals.read(i, ended=standing.has_result(i)) for i in ids]
    curves = [trail(journal) for journal in events]
    for name in ("dev/loss", "dev/metric"):
        runs = [{step: value for step, _, value in each[name]} for each in curves]
        lines = [
            (f"step {step}", *(f"{run[step]:.4f}" if step in run else "–" for run in runs), _change(runs, step))
            for step in sorted({*runs[0], *runs[1]})
        ]
        _print(console, name, lines, "not evaluated yet")
    _say(console, "\ntraining loss, both on the same scale")
    losses = [[value for _, _, value in each["train/loss"]] for each in curves]
    finite = [value for values in losses for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    for letter, values in zip("AB", losses, strict=True):
        _say(console, f"{letter}  {spark(values, low, high) or 'no steps'}  {len(values)} steps")
    _say(console, "\n" + _by_example(*(predictions(journal) for journal in events)))
    for letter, outcome in zip("AB", outcomes, strict=True):
        if outcome and outcome.error:
            _say(console, f"{letter}  {outcome.error}")


def _by_example(one: Predictions | None, two: Predictions | None) -> str:
    """Return the comparison of two trials' test predictions, or the reason why there is none."""
    if one is None or two is None:
        lacking = " and ".join(letter for letter, has in zip("AB", (one, two), strict=True) if has is None)
        return f"test predictions: none of {lacking}"
    if one.rows != two.rows:
        return "test predictions: of different examples"
    both = by_example([one.right], [two.right])
    alike = sum(a and b for a, b in zip(one.right, two.right, strict=True))
    return (
        f"test predictions, {both.n} examples: both right {alike}, only A {both.one}, only B {both.other}, "
        f"neither {both.n - alike - both.one - both.other}; McNemar's exact p = {both.p:.2g}"
    )


def differences(one: Mapping[str, Any], two: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return (key, value in one, value in two) of every leaf that differs; "–" where a configuration lacks it."""
    flat = [_flat(one), _flat(two)]
    keys = dict.fromkeys((*flat[0], *flat[1]))
    return [(k, flat[0].get(k, "–"), flat[1].get(k, "–")) for k in keys if flat[0].get(k, "–") != flat[1].get(k, "–")]


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


def _change(runs: Sequence[Mapping[int, float]], step: int) -> str:
    return f"{runs[1][step] - runs[0][step]:+.4f}" if all(step in run for run in runs) else ""


def _print(console: Console, title: str, lines: Sequence[tuple[str, ...]], nothing: str) -> None:
    if not lines:
        _say(console, f"\n{title}: {nothing}")
        return
    table = Rows(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate((title, "A", "B", "B − A" if any(line[3] for line in lines) else "")):
        table.add_column(name, justify="left" if i == 0 else "right", overflow="fold")
    for line in lines:
        table.add_row(*(Text(part) for part in line))
    console.print()
    console.print(table)


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)

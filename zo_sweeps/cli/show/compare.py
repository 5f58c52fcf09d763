"""The output of `compare`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console

from zo_sweeps.cli.show.text import listing, say
from zo_sweeps.core.units import metric_text
from zo_sweeps.results.compare import Comparison, flat, spark
from zo_sweeps.tables.text_cells import plain


def show_comparison(both: Comparison, to: Console, *, config: bool) -> None:
    """Print two trials side by side: in which settings they differ, measurements, curves, predictions.

    Args:
        config: whether to print all settings at the end.
    """
    sides = (("A", both.a), ("B", both.b))
    for letter, trial in sides:
        say(to, f"{letter}  {trial.trial_id}  {trial.label}  ({trial.grid}; {trial.state})")
    _print(to, "differs", [(one.setting, plain(one.a), plain(one.b)) for one in both.differences], "nothing")
    own = [flat(trial.configuration) for _, trial in sides]
    names = list(dict.fromkeys((*own[0], *own[1])))
    if not config:
        same = len(names) - len(both.differences)
        say(to, f"{same} other settings are the same in both; --config prints all")
    _print(
        to,
        "measured",
        [
            (one.metric, _value(one.metric, one.a), _value(one.metric, one.b), _change(one.metric, one.difference))
            for one in both.measured
        ],
        "nothing yet",
    )
    for line in both.places:
        say(to, line)
    for name in dict.fromkeys(one.name for one in both.evaluated):
        steps = [one for one in both.evaluated if one.name == name]
        rows = [(f"step {one.step}", _plain(one.a), _plain(one.b), _plain_change(one.a, one.b)) for one in steps]
        _print(to, name, rows, "not evaluated yet")
    say(to, "\ntraining loss, both on the same scale")
    finite = [value for _, trial in sides for value in trial.train_loss if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    for letter, trial in sides:
        say(to, f"{letter}  {spark(trial.train_loss, low, high) or 'no steps'}  {len(trial.train_loss)} steps")
    say(to, f"\n{_predicted(both)}")
    for letter, trial in sides:
        if trial.error:
            say(to, f"{letter}  {trial.error}")
    if config:
        values = ((name, *(plain(one.get(name, "–")) for one in own)) for name in names)
        _print(to, "setting", [(name, a, "the same" if a == b else b) for name, a, b in values], "none")


def _predicted(both: Comparison) -> str:
    one = both.predicted
    if one is None:
        return f"test predictions: {both.not_predicted}"
    return (
        f"test predictions, {one.examples} examples: both right {one.both_right}, only A {one.only_a}, "
        f"only B {one.only_b}, neither {one.neither}; McNemar's exact p = {one.p:.2g}"
    )


def _value(name: str, value: float | None) -> str:
    return "–" if value is None else metric_text(name, value)


def _change(name: str, value: float | None) -> str:
    return "" if value is None else f"{'+' if value >= 0 else ''}{metric_text(name, value)}"


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _plain_change(a: float | None, b: float | None) -> str:
    return "" if a is None or b is None else f"{b - a:+.4f}"


def _print(to: Console, title: str, rows: Sequence[Sequence[str]], nothing: str) -> None:
    say(to, "")
    if rows:
        listing(to, (title, "A", "B", "B − A")[: len(rows[0])], rows)
    else:
        say(to, f"{title}: {nothing}")

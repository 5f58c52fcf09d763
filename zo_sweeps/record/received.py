"""The check of events from elsewhere, of a board or an archive: the shapes that drivers, tables and MLflow rely on.

A board may send wrong numbers of its own trial, which nobody else can know; but no event may end a sweep, name another
trial, or move a terminal's cursor.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

from zo_sweeps.core import events
from zo_sweeps.core.document import CONTROL, Shape, item
from zo_sweeps.core.light_client import LOG_EVENT
from zo_sweeps.core.trial import Outcome, TrialState

METRIC = re.compile(r"[A-Za-z0-9_./ -]{1,200}")
# No agent pauses a trial.
ENDS = {*TrialState} - {TrialState.PENDING, TrialState.RUNNING, TrialState.PAUSED, TrialState.STOPPED}
# No agent shares steps, is compared at rungs, has a phone, makes circuits or writes books.
KINDS = events.EVENTS.keys() - {"peers", "peer_lost", "rung", "sensors", "file", "sweep", "trial", "finish", "sent"}
# Control characters except tab, newline and carriage return, as JSON writes them.
_CONTROL_IN_JSON = re.compile(r"\\u00[01]|\\[bf]|[\x7f-\x9f]")


@dataclass(frozen=True)
class _Began(Shape):
    """A line of the light client's log; so are the others."""

    settings: str
    replayed: int
    seconds: float
    trial_id: str = ""


@dataclass(frozen=True)
class _Step(Shape):
    step: int
    losses: tuple[float, ...] = item(entries=events.LIST)
    coefs: tuple[float, ...] = item(entries=events.LIST)
    seconds: float = item()
    tokens: int = item()


@dataclass(frozen=True)
class _Scores(Shape):
    split: str
    step: int
    scores: tuple[tuple[float, ...], ...] = item(entries=events.LIST)
    theta: str = item()
    seconds: float = item()
    peak_bytes: int = item()


@dataclass(frozen=True)
class _Diverged(Shape):
    step: int
    losses: tuple[float, ...] = item((), entries=events.LIST)
    split: str = ""


_LINES: Mapping[str, type[Shape]] = {"start": _Began, "step": _Step, "scores": _Scores, "diverged": _Diverged}


def checked(event: Mapping[str, Any], trial_id: str, ends: Container[TrialState] = ENDS) -> Mapping[str, Any]:
    """Return an event of a trial, without fields that no definition names; `ends` are the states that it may end in.

    Raises ValueError, in one line, unless it has the shape of its type.
    """
    kind = event.get("type")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError("an event of no known type")
    if "time" not in event:
        raise ValueError(f"event {kind}: 'time' is missing")
    if kind == LOG_EVENT:
        events.of_kind(kind, events.Event, {"time": event["time"]})
        return {"type": LOG_EVENT, "time": event["time"], "line": _line(event.get("line"))}
    shape = events.EVENTS[kind]
    known = {name: value for name, value in event.items() if name in {"type", *events.names(shape)}}
    events.of_kind(kind, shape, known)
    for name in ("metrics", "covered"):
        _named(known.get(name, {}), kind)
    return {**known, "outcome": checked_outcome(event["outcome"], trial_id, ends)} if kind == "end" else known


def checked_outcome(outcome: Any, trial_id: str, ends: Container[TrialState] = ENDS) -> Mapping[str, Any]:
    """Return an outcome of a trial. Raises ValueError unless it has an outcome's fields, and is of this trial."""
    ended = events.of_kind("end", Outcome, outcome)
    if strange := outcome.keys() - events.names(Outcome):
        raise ValueError(f"an outcome with an unknown field {min(strange)[:40]!r}")
    if ended.trial_id != trial_id:
        raise ValueError("an outcome of another trial")
    if ended.state not in ends:
        raise ValueError(f"an outcome with a wrong 'state': {ended.state.value!r} is no end of an attempt")
    _named(ended.metrics, "end")
    return dict(outcome)


def _line(value: Any) -> dict[str, Any]:
    """Return a line of the light client's log. Raises ValueError for anything else."""
    kind = value.get("type") if isinstance(value, dict) else None
    shape = _LINES.get(kind) if isinstance(kind, str) else None
    if shape is None:
        raise ValueError("no line of the light client's log")
    events.of_kind(LOG_EVENT, shape, value)
    return {name: one for name, one in value.items() if name == "type" or name in events.names(shape)}


def _named(metrics: Mapping[str, Any], kind: str) -> None:
    if bad := next((name for name in metrics if not METRIC.fullmatch(name)), None):
        raise ValueError(f"event {kind}: a metric named {bad[:40]!r}")


def printable(text: str, value: Any) -> Any:
    """Return `value`, whose JSON is `text`, with control characters in its texts replaced by "?"."""
    if "\\" not in text and text.isprintable():  # most are numbers; this is ten times as fast as the expression
        return value
    return clean(value) if _CONTROL_IN_JSON.search(text) else value


def clean(value: Any) -> Any:
    """Return JSON with control characters in its texts replaced by "?"."""
    if isinstance(value, str):
        return CONTROL.sub("?", value)
    if isinstance(value, list):
        return [clean(one) for one in value]
    return {clean(name): clean(one) for name, one in value.items()} if isinstance(value, dict) else value

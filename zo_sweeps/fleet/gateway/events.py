"""The check of what a board sends: events and outcomes have the shapes that drivers, tables and MLflow rely on.

A board may send wrong numbers of its own trial, which nobody else can know; but no event may end a sweep, name another
trial, or move a terminal's cursor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from zo_sweeps.core.shape import CONTROL
from zo_sweeps.core.trial import TrialState
from zo_sweeps.edge.light_client import LOG_EVENT

Check = Callable[[Any], bool]
TEXT = 100_000  # characters
METRIC = re.compile(r"[A-Za-z0-9_./ -]{1,200}")
LARGEST = 2**53
ENDS = {state.value for state in TrialState} - {"PENDING", "RUNNING", "PAUSED", "STOPPED"}  # no agent pauses a trial
# Control characters except tab, newline and carriage return, as JSON writes them.
_CONTROL_IN_JSON = re.compile(r"\\u00[01]|\\[bf]|[\x7f-\x9f]")


def _number(value: Any) -> bool:
    return isinstance(value, float) or (_count(value) or (type(value) is int and -LARGEST <= value < 0))


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= LARGEST


def _text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= TEXT


def _mapping(value: Any) -> bool:
    return isinstance(value, dict)


def _of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(METRIC.fullmatch(name) and _number(one) for name, one in value.items())


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _line(value: Any) -> bool:
    """Return whether a value is a line of the light client's log."""
    kind = value.get("type") if isinstance(value, dict) else None
    shape = _LINES.get(kind, {}) if isinstance(kind, str) else {}
    return bool(shape) and all(name in value and check(value[name]) for name, check in shape.items())


_NUMBERS = _of(_number)
_LINES: Mapping[str, Mapping[str, Check]] = {
    "start": {"settings": _text, "replayed": _count, "seconds": _number},
    "step": {"step": _count, "losses": _NUMBERS, "coefs": _NUMBERS, "seconds": _number, "tokens": _count},
    "scores": {
        **{"split": _text, "step": _count, "scores": _of(_NUMBERS), "theta": _text},
        **{"seconds": _number, "peak_bytes": _count},
    },
    "diverged": {"step": _count},
}
_SCORED = {"step": _count, "loss": _or_none(_number), "metric": _or_none(_number), "metrics": _numbers}
REQUIRED: Mapping[str, Mapping[str, Check]] = {
    "start": {"attempt": _count, "device": _mapping, "versions": _mapping, "resumed_from": _count},
    "steps": {"first": _count, "losses": _of(_number), "seconds": _number, "tokens": _count},
    "eval": {**_SCORED, "split": _text},
    "test": _SCORED,
    "mask": {"fingerprint": _text, "entries": _count},
    "quantized": {"fingerprint": _text},
    "gradients": {"step": _count},
    "updates": {"step": _count, "lost": _number},
    "warning": {"metric": _text, "text": _text},
    "generate": {"tokens": _count, "seconds": _of(_number)},
    "end": {"outcome": _mapping},
    LOG_EVENT: {"line": _line},
}
OPTIONAL: Mapping[str, Check] = {
    "time": _number,
    "coefs": _of(_of(_number)),
    "rounding": _of(_of(_number)),
    "seconds": lambda value: _number(value) or _of(_number)(value),
    "tokens": _count,
    "examples": _count,
    **dict.fromkeys(("code", "right", "rows", "weights"), _text),
    **dict.fromkeys(("untrained", "joules", "celsius", "mhz", "own_share"), _number),
    "throttled": _of(_text),
}
_OUTCOME: Mapping[str, Check] = {
    "trial_id": _text,
    "state": lambda value: isinstance(value, str) and value in ENDS,
    "metrics": _numbers,
    "selected_step": _count,
    "steps_done": _count,
    "device": _mapping,
    "error": _text,
    "traceback": _text,
    "code": _text,
    "unmeasured": _mapping,
}


def checked(event: Mapping[str, Any], trial_id: str) -> Mapping[str, Any]:
    """Return an event of a trial. Raises ValueError unless it has the shape of its type."""
    kind = event.get("type")
    if not isinstance(kind, str) or kind not in REQUIRED:
        raise ValueError("an event of no known type")
    required = {"time": _number, **REQUIRED[kind]}
    for name, check in {**OPTIONAL, **required}.items():
        if (name in event and not check(event[name])) or (name in required and name not in event):
            raise ValueError(f"a {kind} event with a wrong {name!r}")
    if kind == "steps" and event["first"] < 1:
        raise ValueError("a steps event with a wrong 'first'")
    if kind == "end":
        checked_outcome(event["outcome"], trial_id)
    return event


def checked_outcome(outcome: Any, trial_id: str) -> Mapping[str, Any]:
    """Return an outcome of a trial. Raises ValueError unless it has an outcome's fields, and is of this trial."""
    if not isinstance(outcome, dict) or set(outcome) - set(_OUTCOME):
        raise ValueError("no outcome")
    for name, check in _OUTCOME.items():
        if name in outcome and not check(outcome[name]):
            raise ValueError(f"an outcome with a wrong {name!r}")
    if outcome.get("trial_id") != trial_id or "state" not in outcome:
        raise ValueError("an outcome of another trial")
    return outcome


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

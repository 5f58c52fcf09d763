"""The light client as its callers know it: its name, its exit statuses, and the lines of its log.

Needs the standard library alone: a board that runs the client has no NumPy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

NAME, LOG = "zo_client", "log.jsonl"
DONE, FAILED, WRONG_USAGE, DIVERGED, BUSY = range(5)  # exit statuses
LOG_EVENT = "log"  # type of an event that holds a line: {"type", "time", "line"}
Line = dict[str, Any]  # of the log, see packages/edge/ANDROID.md
Bundle = Any  # `zo_sweeps_edge.bundle.Bundle`
_DECIDES = {"step": ("step", "coefs"), "scores": ("split", "step"), "diverged": ("step",)}


class Away(Protocol):
    """The light client on another machine, which runs a trial's bundle there."""

    profile: str  # the machine's device profile
    measured: Mapping[str, float]  # metrics of the runs so far, for the outcome

    def steps(self, bundle: Bundle, known: Sequence[Line]) -> Iterator[Line]:
        """Run the steps and scores that the log `known` lacks; yield the new lines of the log."""

    def test(self, bundle: Bundle, known: Sequence[Line], step: int) -> Line | None:
        """Score the test split after a step of the log `known`; return the line that says so, None without one."""


def scoring(split: str, step: int) -> list[str]:
    """Return the client's arguments, after the bundle, that score a split with the weights after a step."""
    return ["--score", split, "--at", str(step)]


def decisive(line: Line) -> Line | None:
    """Return what of a line decides how the client goes on, without what it measured; None for a start."""
    kept = _DECIDES.get(line["type"])
    return None if kept is None else {"type": line["type"], **{key: line[key] for key in kept if key in line}}


def log_of(coefs: Sequence[Sequence[float]], evaluated: Iterable[int]) -> list[Line]:
    """Return the decisive lines of a run: the coefficients of each step, and the steps after which dev was scored."""
    scored = set(evaluated)
    lines: list[Line] = []
    for step in range(len(coefs) + 1):
        if step:
            lines.append({"type": "step", "step": step, "coefs": without_dropped(coefs[step - 1])})
        if step in scored:
            lines.append({"type": "scores", "split": "dev", "step": step})
    return lines


def without_dropped(coefs: Sequence[float]) -> list[float]:
    """Return coefficients whose mean, as a program takes it, is that of those that are not NaN (dropped)."""
    q, k = len(coefs), sum(not math.isnan(g) for g in coefs)
    return [*coefs] if k == q else [0.0 if math.isnan(g) else g / k * q for g in coefs]


def text_of(lines: Iterable[Line]) -> str:
    """Return lines as the client reads them: floats to the bit, keys in their order, no spaces."""
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)

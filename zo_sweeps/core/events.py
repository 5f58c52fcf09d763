"""The events of a trial, one definition each: they are its journal, and the gateway takes no others from a board.

`read_event` makes an event of a JSON object where that comes in (a line of a journal, a lease), and `write_event` makes
the object again where it goes out. In between, readers select by class:

    seconds = sum(event.seconds for event in only(Steps, journal))

A resumed attempt continues after the last step in the journal, so that this holds each step once. A field whose default
is None is left out of the JSON where it is None.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from zo_sweeps.core.document import MalformedError, S, Shape, item
from zo_sweeps.core.trial import DEPTH, FACTS, LONG, NAME, NUMBERS, DeviceRecord, Outcome, Sharing, Trial

LIST = 10**6  # entries
FINITE = 2.0**40  # of times and readings, which are neither infinite nor NaN
E = TypeVar("E", bound="Event")
EVENTS: dict[str, type[Event]] = {}  # by their `type` in JSON


@dataclass(frozen=True, kw_only=True)
class Event(Shape):
    """What every event has."""

    kind = ""  # its `type` in JSON; no field
    time: float = item(time.time, most=FINITE)  # Unix seconds; now, unless it is given
    more: Mapping[str, Any] = item(dict)  # fields that only newer versions know; they stay where an event is copied

    def __init_subclass__(cls, kind: str = "") -> None:
        cls.kind = kind
        if kind:
            EVENTS[kind] = cls


@dataclass(frozen=True, kw_only=True)
class Unknown(Event):
    """An event of a newer version."""

    type: str = item(most=NAME)


@dataclass(frozen=True, kw_only=True)
class Start(Event, kind="start"):
    """The begin of an attempt."""

    attempt: int = item()
    device: Mapping[str, Any] = item(entries=FACTS, depth=DEPTH)  # facts of the machine
    versions: Mapping[str, Any] = item(entries=FACTS, depth=DEPTH)  # and of what is installed there
    resumed_from: int = item()  # the last step of the attempts before
    code: str | None = item(None, most=LONG)  # digest of what runs the trial; see `methods.trial_config`
    fused: int | None = item(None)  # of 2026: among how many trials it shared forwards, itself included
    node: str | None = item(None, most=NAME)  # the machine's name, where it is one of a sweep's nodes
    profile: str | None = item(None, most=NAME)  # and its device profile

    def __post_init__(self) -> None:
        DeviceRecord.read(self.device)
        if not isinstance(self.versions.get("packages", {}), dict):
            raise MalformedError("wrong 'versions'")

    def at(self, node: str, profile: str) -> Start:
        """Return it with the name and the device profile of the machine."""
        return replace(self, node=node, profile=profile)


@dataclass(frozen=True, kw_only=True)
class Steps(Event, kind="steps"):
    """Consecutive steps, with the readings that the device has: celsius and mhz at the end."""

    first: int = item()  # number of the first, from 1
    losses: tuple[float, ...] = item(entries=LIST)  # [steps], mean of the points' losses
    # [steps][q], the projected gradients, NaN where a direction was dropped: together with the seed they *are* the run.
    # A first-order run has none per step.
    coefs: tuple[tuple[float, ...], ...] | None = item(None, entries=LIST)
    seconds: float = item(most=FINITE)  # of all these steps, as tokens and joules
    tokens: int = item()
    joules: float | None = item(None, most=FINITE)
    # (step, rounding noise of its losses, their spread) of the steps where it was measured.
    rounding: tuple[tuple[float, ...], ...] | None = item(None, entries=LIST)
    untrained: float | None = item(None)  # the dev loss before the first step
    celsius: float | None = item(None, most=FINITE)
    mhz: float | None = item(None, most=FINITE)
    # "heat", "power", if the device was slowed down since the last event; of a GPU, at the end.
    throttled: tuple[str, ...] | None = item(None)
    # The trial's part of the CPU time that the machine spent since the last event.
    own_share: float | None = item(None, most=FINITE)

    def __post_init__(self) -> None:
        if self.first < 1:
            raise MalformedError("wrong 'first': steps are counted from 1")
        if self.seconds < 0 or (self.joules or 0) < 0:
            raise MalformedError("negative 'seconds' or 'joules'")
        if any(len(one) != 3 for one in self.rounding or ()):
            raise MalformedError("wrong 'rounding': three numbers each are needed")

    @property
    def last(self) -> int:
        """Number of the last of these steps."""
        return self.first + len(self.losses) - 1


@dataclass(frozen=True, kw_only=True)
class ScoredDev(Event, kind="eval"):
    """The scores of the dev split after a step."""

    step: int = item()
    split: str = item("dev", most=NAME)
    loss: float = item()
    metric: float = item()  # the task's first
    metrics: Mapping[str, float] = item(dict, entries=NUMBERS)  # all of them, by name
    seconds: float = item(0.0, most=FINITE)


@dataclass(frozen=True, kw_only=True)
class ScoredTest(Event, kind="test"):
    """The scores of the test split after the selected step."""

    step: int = item()
    loss: float = item()
    metric: float = item()  # as of dev
    metrics: Mapping[str, float] = item(dict, entries=NUMBERS)
    examples: int | None = item(None)  # how many
    # A bit per example, whether its prediction is right (see `core.files`); "" where numbers are predicted.
    right: str | None = item(None, most=LONG)
    rows: str | None = item(None, most=NAME)  # their digest
    weights: str | None = item(None, most=NAME)  # digest of the trained values; "" if nothing was trained


@dataclass(frozen=True, kw_only=True)
class Computed(Event):
    """The digest of what was computed before training."""

    fingerprint: str = item(most=NAME)


@dataclass(frozen=True, kw_only=True)
class ComputedMask(Computed, kind="mask"):
    """That of the sparse mask, and the number of its entries."""

    entries: int = item()


@dataclass(frozen=True, kw_only=True)
class ComputedCodes(Computed, kind="quantized"):
    """That of the codes."""


@dataclass(frozen=True, kw_only=True)
class ComputedInitial(Computed, kind="initial"):
    """That of the initial values, in spaces that begin at sums over the weights."""


@dataclass(frozen=True, kw_only=True)
class SquaredGradients(Event, kind="gradients"):
    """The cumulative normalized squared gradient; see `engine.masks`."""

    step: int = item()
    shares: tuple[float, ...] = item(entries=LIST)
    mean: tuple[float, ...] = item(entries=LIST)
    std: tuple[float, ...] = item(entries=LIST)
    layers: int = item()
    covered: Mapping[str, float] = item(entries=NUMBERS)  # "task_dynamic/0.001": its share in this mask at this density

    def __post_init__(self) -> None:
        if not len(self.shares) == len(self.mean) == len(self.std):
            raise MalformedError("'shares', 'mean' and 'std' of different lengths")


@dataclass(frozen=True, kw_only=True)
class Updates(Event, kind="updates"):
    """The share of a step's update that rounding to half precision lost."""

    step: int = item()
    lost: float = item()


@dataclass(frozen=True, kw_only=True)
class Sensors(Event, kind="sensors"):
    """A reading of a phone's sensors, at `time`."""

    step: int = item()  # the last one that had ended
    # battery_percent, battery_celsius, and zones/NAME as the phone's kernel gives them.
    values: Mapping[str, float] = item(entries=NUMBERS)


@dataclass(frozen=True, kw_only=True)
class Warned(Event, kind="warning"):
    """A remark on the run so far; see `core.caveats`."""

    metric: str = item(most=NAME)
    text: str = item(most=LONG)


@dataclass(frozen=True, kw_only=True)
class Generated(Event, kind="generate"):
    """Rounds of generation: tokens of each, and seconds per round."""

    tokens: int = item()
    seconds: tuple[float, ...] = item(entries=LIST)


@dataclass(frozen=True, kw_only=True)
class MadeFile(Event, kind="file"):
    """A report or source that the trial made: an artifact of its run."""

    name: str = item(most=NAME)
    text: str = item(most=2**28)


@dataclass(frozen=True, kw_only=True)
class PeersReady(Event, kind="peers"):
    """Where the followers run that share the steps, those that are ready."""

    names: tuple[str, ...] = item(entries=LIST, most=NAME)


@dataclass(frozen=True, kw_only=True)
class PeerLost(Event, kind="peer_lost"):
    """The loss of a follower."""

    reason: str = item(most=LONG)


@dataclass(frozen=True, kw_only=True)
class Rung(Event, kind="rung"):
    """The decision at a rung: `kept` are the trials of the group that go on; see `schedule.halving`."""

    step: int = item()
    kept: tuple[str, ...] = item(entries=LIST, most=NAME)


@dataclass(frozen=True, kw_only=True)
class ClientLine(Event, kind="log"):
    """A line of the light client's log; see `core.light_client`."""

    line: dict[str, Any] = item()


@dataclass(frozen=True, kw_only=True)
class End(Event, kind="end"):
    """The end of an attempt."""

    outcome: Outcome = item()


@dataclass(frozen=True, kw_only=True)
class OpenedSweep(Event, kind="sweep"):
    """A run of a sweep's command; this and the next two are in its book (see `record.sweep_book`)."""

    experiment: str = item(most=LONG)
    sweep: Mapping[str, Any] = item()


@dataclass(frozen=True, kw_only=True)
class AddedTrial(Event, kind="trial"):
    """A trial of the sweep, as JSON."""

    trial: Mapping[str, Any] = item()


@dataclass(frozen=True, kw_only=True)
class FinishedSweep(Event, kind="finish"):
    """The end of the run: its tables as texts by the names of their files, metrics, and status in MLflow."""

    files: Mapping[str, str] = item(entries=LIST, most=2**28)
    metrics: Mapping[str, float] = item(entries=LIST)
    status: str = item()


@dataclass(frozen=True, kw_only=True)
class Uploaded(Event, kind="sent"):
    """A whole journal that an MLflow server has; `born` is its first time."""

    server: str = item(most=NAME)
    trial_id: str = item(most=NAME)
    born: float = item()
    bytes: int = item()


# What a journal of an earlier version may lack, and readers do without.
_EARLIER = {"time": 0.0, "tokens": 0, "attempt": 1, "device": {}, "versions": {}, "resumed_from": 0}


def read_event(value: Mapping[str, Any]) -> Event:
    """Return the event that a JSON object is. Raises MalformedError, in one line, unless it has its type's shape."""
    kind = value.get("type")
    shape = EVENTS.get(kind, Unknown) if isinstance(kind, str) else Unknown
    known = names(shape)
    more = {name: one for name, one in value.items() if name not in known and name != "type"}
    earlier = {name: one for name, one in _EARLIER.items() if name in known}
    return of_kind(str(kind), shape, {**earlier, **value, "more": more})


def write_event(event: Event) -> dict[str, Any]:
    """Return an event as the JSON object that `read_event` takes."""
    known: dict[str, Any] = {"type": event.kind}
    for name, declared in event.__dataclass_fields__.items():
        value = getattr(event, name)
        if name != "more" and (value is not None or declared.default is not None):
            known[name] = value.to_json() if isinstance(value, Shape) else value
    return {**known, **event.more}


def only(shape: type[E], events: Iterable[Event]) -> list[E]:
    """Return the events of a class, in order."""
    return [event for event in events if isinstance(event, shape)]


def of_kind(kind: str, shape: type[S], value: Any) -> S:
    """Return a value as its definition. Raises MalformedError that names the event's type."""
    try:
        return shape.read(value)
    except MalformedError as error:
        raise MalformedError(f"event {kind}: {str(error).removeprefix(f'{shape.__name__}: ')}") from None


def names(shape: type[Shape]) -> Collection[str]:
    """Return the names of a shape's fields in JSON."""
    known: Mapping[str, Any] = vars(shape)["__dataclass_fields__"]
    return known.keys() - {"more"}


class Sink(Protocol):
    """The receiver of a running trial's events."""

    def emit(self, event: Event) -> None: ...


class RunTrial(Protocol):
    """The signature of `run.run_trial.run_trial`, the one function that every executor calls.

    Args:
        trial: the trial to run.
        sink: receives the events, `Start` first, `End` last.
        journal: the events of earlier attempts; the run resumes at their end.
        attempt: 1 for the first.
        should_stop: called between steps; if it returns true, the trial ends as CANCELLED and can be resumed.
        sharing: the processes sharing its steps; omitted when there are none.
    """

    def __call__(
        self,
        trial: Trial,
        sink: Sink,
        journal: list[Event],
        attempt: int,
        should_stop: Any,
        *,
        sharing: Sharing | None = None,
    ) -> Outcome: ...

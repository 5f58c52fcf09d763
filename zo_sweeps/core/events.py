"""The events of a trial, one definition each: what a journal holds, and what the gateway takes from a board.

An event is a JSON object with `type` and `time` (Unix seconds); `core.trial` says what each is for. Readers rely on
these shapes, so that a journal is checked where it is read, and an event of another machine before it is stored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from zo_sweeps.core.shape import MalformedError, S, Shape, item
from zo_sweeps.core.trial import TrialState

LONG = 2**22  # characters of a text that is somebody's own: an error, a file
NAME = 1000
LIST = 10**6  # entries
METRICS = 10_000
DEPTH, FACTS = 6, 5000  # of what is said of a device: how deep it is nested, and entries in all
FINITE = 2.0**40  # of times and readings, which are neither infinite nor NaN


@dataclass(frozen=True)
class Measured(Shape):
    """What an `Outcome.device` says that is read; it may say more."""

    kind: str = item("", most=NAME)
    name: str = item("", most=NAME)
    profile: str = item("", most=NAME)
    runtime: str = item("", most=NAME)
    form: str | None = item(None, most=NAME)
    delegate: str | None = item(None, most=NAME)
    cores: int | None = item(None)
    threads: int = item(0)
    processes: int | None = item(None)
    divided: int | None = item(None)
    memory_bytes: int | None = item(None)
    gpus: tuple[Mapping[str, Any], ...] = item(())
    versions: Mapping[str, Any] = item(dict, entries=FACTS)
    load: Mapping[str, float] = item(dict)
    earlier: tuple[Measured, ...] = item((), entries=FACTS)


@dataclass(frozen=True)
class Ended(Shape):
    """An `Outcome` as JSON."""

    trial_id: str = item(most=NAME)
    state: str = item(most=NAME)
    metrics: Mapping[str, float] = item(dict, entries=METRICS)
    selected_step: int = item(0)
    steps_done: int = item(0)
    device: Mapping[str, Any] = item(dict, entries=FACTS, depth=DEPTH)
    error: str = item("", most=LONG)
    traceback: str = item("", most=LONG)
    code: str = item("", most=LONG)
    unmeasured: Mapping[str, str] = item(dict, entries=METRICS, most=LONG)

    def __post_init__(self) -> None:
        Measured.read(self.device)
        if self.state not in TrialState.__members__:
            raise MalformedError(f"wrong 'state': {self.state[:40]!r}")


@dataclass(frozen=True)
class Event(Shape):
    """What every event has."""

    time: float = item(most=FINITE)


@dataclass(frozen=True)
class Start(Event):
    """The begin of an attempt."""

    attempt: int = item()
    device: Mapping[str, Any] = item(entries=FACTS, depth=DEPTH)
    versions: Mapping[str, Any] = item(entries=FACTS, depth=DEPTH)
    resumed_from: int = item()
    code: str = item("", most=LONG)
    fused: int = item(0)
    node: str = item("", most=NAME)
    profile: str = item("", most=NAME)

    def __post_init__(self) -> None:
        Measured.read(self.device)
        if not isinstance(self.versions.get("packages", {}), dict):
            raise MalformedError("wrong 'versions'")


@dataclass(frozen=True)
class Steps(Event):
    """Consecutive steps, from `first` on."""

    first: int = item()
    losses: tuple[float, ...] = item(entries=LIST)
    seconds: float = item(most=FINITE)
    tokens: int = item()
    coefs: tuple[tuple[float, ...], ...] | None = item((), entries=LIST)
    joules: float | None = item(None, most=FINITE)
    rounding: tuple[tuple[float, ...], ...] = item((), entries=LIST)
    untrained: float | None = item(None)
    celsius: float | None = item(None, most=FINITE)
    mhz: float | None = item(None, most=FINITE)
    throttled: tuple[str, ...] = item(())
    own_share: float | None = item(None, most=FINITE)

    def __post_init__(self) -> None:
        if self.first < 1:
            raise MalformedError("wrong 'first': steps are counted from 1")
        if self.seconds < 0 or (self.joules or 0) < 0:
            raise MalformedError("negative 'seconds' or 'joules'")
        if any(len(one) != 3 for one in self.rounding):
            raise MalformedError("wrong 'rounding': three numbers each are needed")


@dataclass(frozen=True)
class Scored(Event):
    """The scores of a split."""

    step: int = item()
    loss: float | None = item()
    metric: float | None = item()
    metrics: Mapping[str, float] = item(dict, entries=METRICS)
    split: str = item("dev", most=NAME)
    seconds: float = item(0.0, most=FINITE)
    examples: int = item(0)
    right: str = item("", most=LONG)
    rows: str = item("", most=NAME)
    weights: str = item("", most=NAME)


@dataclass(frozen=True)
class Mask(Event):
    """The sparse mask that was computed."""

    fingerprint: str = item(most=NAME)
    entries: int = item()


@dataclass(frozen=True)
class Quantized(Event):
    """The codes that were computed."""

    fingerprint: str = item(most=NAME)


@dataclass(frozen=True)
class Initial(Event):
    """The initial values that were computed."""

    fingerprint: str = item(most=NAME)


@dataclass(frozen=True)
class SquaredGradients(Event):
    """The cumulative normalized squared gradient."""

    step: int = item()
    shares: tuple[float, ...] = item(entries=LIST)
    mean: tuple[float, ...] = item(entries=LIST)
    std: tuple[float, ...] = item(entries=LIST)
    layers: int = item()
    covered: Mapping[str, float] = item(entries=METRICS)

    def __post_init__(self) -> None:
        if not len(self.shares) == len(self.mean) == len(self.std):
            raise MalformedError("'shares', 'mean' and 'std' of different lengths")


@dataclass(frozen=True)
class Updates(Event):
    """The share of an update that rounding lost."""

    step: int = item()
    lost: float = item()


@dataclass(frozen=True)
class Sensors(Event):
    """A reading of a phone's sensors."""

    step: int = item()
    values: Mapping[str, float] = item(entries=METRICS)


@dataclass(frozen=True)
class Warned(Event):
    """A remark on the run."""

    metric: str = item(most=NAME)
    text: str = item(most=LONG)


@dataclass(frozen=True)
class Generated(Event):
    """Rounds of generation."""

    tokens: int = item()
    seconds: tuple[float, ...] = item(entries=LIST)


@dataclass(frozen=True)
class Made(Event):
    """A file that the trial made."""

    name: str = item(most=NAME)
    text: str = item(most=2**28)


@dataclass(frozen=True)
class Peers(Event):
    """The followers that share its steps."""

    names: tuple[str, ...] = item(entries=LIST, most=NAME)


@dataclass(frozen=True)
class PeerLost(Event):
    """The loss of a follower."""

    reason: str = item(most=LONG)


@dataclass(frozen=True)
class Rung(Event):
    """The decision at a rung."""

    step: int = item()
    kept: tuple[str, ...] = item(entries=LIST, most=NAME)


@dataclass(frozen=True)
class End(Event):
    """The end of an attempt."""

    outcome: Ended = item()  # noqa: RUF009 (it declares the field)


EVENTS: Mapping[str, type[Event]] = {
    "start": Start,
    "steps": Steps,
    "eval": Scored,
    "test": Scored,
    "mask": Mask,
    "quantized": Quantized,
    "initial": Initial,
    "gradients": SquaredGradients,
    "updates": Updates,
    "sensors": Sensors,
    "warning": Warned,
    "generate": Generated,
    "file": Made,
    "peers": Peers,
    "peer_lost": PeerLost,
    "rung": Rung,
    "end": End,
}


def read(event: Mapping[str, Any]) -> Event | None:
    """Return an event as its definition; None for a type that this version does not know.

    Raises MalformedError, in one line, for one that is not of its shape.
    """
    kind = event.get("type")
    shape = EVENTS.get(kind) if isinstance(kind, str) else None
    return None if shape is None else of_kind(str(kind), shape, event)


# What a journal of an earlier version may lack, and readers do without.
_EARLIER = {"time": 0.0, "tokens": 0, "attempt": 1, "device": {}, "versions": {}, "resumed_from": 0}


def read_back(event: Mapping[str, Any]) -> Event | None:
    """Return an event of a journal as its definition; see `read`."""
    return read({**_EARLIER, **event})


def of_kind(kind: str, shape: type[S], value: Any) -> S:
    """Return a value as its definition. Raises MalformedError that names the event's type."""
    try:
        return shape.read(value)
    except MalformedError as error:
        raise MalformedError(f"event {kind}: {str(error).removeprefix(f'{shape.__name__}: ')}") from None


def names(shape: type[Shape]) -> Collection[str]:
    """Return the names of a shape's fields."""
    known: Mapping[str, Any] = vars(shape)["__dataclass_fields__"]
    return known.keys()

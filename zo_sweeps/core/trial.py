"""The vocabulary of a sweep: Trial, TrialState and Outcome; `core.events` has what is between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, Protocol

from zo_sweeps.core.document import Shape, item

LONG = 2**22  # characters of a text that is somebody's own: an error, a file
NAME = 1000
NUMBERS = 10_000  # entries of a mapping to numbers
DEPTH, FACTS = 6, 5000  # of what is said of a device: how deep it is nested, and entries in all


class TrialState(str, Enum):
    """The state of a trial in its sweep."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    DIVERGED = "DIVERGED"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    FAILED = "FAILED"
    LOST = "LOST"
    CANCELLED = "CANCELLED"
    PAUSED = "PAUSED"  # at a rung of successive halving, until its rivals are there
    STOPPED = "STOPPED"  # at a rung, because rivals were better on dev

    @property
    def is_result(self) -> bool:
        """Whether the state is a result: recorded, shown in the table as such, and rerun on request only."""
        return self in (TrialState.SUCCEEDED, TrialState.DIVERGED, TrialState.OUT_OF_MEMORY, TrialState.STOPPED)

    @property
    def is_retryable(self) -> bool:
        """Whether to retry from the last scalars, a bounded number of times: an error or a lost process."""
        return self in (TrialState.FAILED, TrialState.LOST)


@dataclass(frozen=True)
class Needs:
    """A trial's requirements on the place where it runs."""

    device: str = "auto"  # a device profile (cpu, cuda, jetson-orin-nano, ...) or "auto": any that fits
    memory_bytes: int = 0  # estimated peak
    programs: bool = False  # whether it runs as exported programs, on a CPU
    precision: str = field(default="", compare=False)  # how it stores and multiplies weights
    # These bytes by `core.memory_parts.Part`, as first estimated, without those of the process.
    parts: Mapping[str, int] = field(default_factory=dict, compare=False)
    tools: tuple[str, ...] = ()  # distributions that it runs, with their versions: "pyosys 0.70"
    client_bytes: int = field(default=0, compare=False)  # of a program: peak of the light client, where that runs it
    layers: int = 0  # that may be on several GPUs of a node; 0: the model is not divided
    gpus: int = 1  # over which its model is divided, where it runs on a GPU


class Config(Protocol):
    """A trial's resolved configuration; see `zo_sweeps.methods.trial_config.TrialConfig`."""

    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class StoredConfig:
    """A configuration from a file or another process: JSON, not parsed yet."""

    data: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return dict(self.data)


def parts_of(config: Config) -> Mapping[str, Any]:
    """Return a configuration's parts by name; most trials of a plan have the same objects."""
    return config.data if isinstance(config, StoredConfig) else vars(config)


@dataclass(frozen=True)
class SharedSteps:
    """How the processes that share a trial's steps can divide its points; see `zo_sweeps.engine.peers`."""

    directions: int  # queries per step; a process evaluates whole queries; 0: as many as there are parameters
    forwards: int | None = None  # per step, if independent of the number of queries (the modes outer and both)
    mode: str = ""  # how points share forwards, for messages
    one_process: str = ""  # the reason why one process must evaluate all points, if there is one
    parts: int = 1  # of the minibatch's rows, which processes can evaluate apart
    clients: int = 0  # that have a process each, besides the first; 0: processes share points
    rows: Sequence[str] = ()  # fingerprints of the clients' own rows, in their order


@dataclass(frozen=True)
class Trial:
    """One training run. Two trials with the same `trial_id` have the same result, so only one of them is ever run."""

    trial_id: str  # fingerprint of everything in `config` that changes the result
    config: Config  # resolved, including fields outside the identity (paths, display names)
    needs: Needs = Needs()
    warm_key: str = ""  # trials with the same key can share a loaded base model
    cost: float = 1.0  # estimated work, in forwarded tokens
    steps: int = 0  # of optimization; 0 for zero-shot
    memory_key: str = ""  # trials with the same key need the same memory
    shared_steps: SharedSteps | None = None  # how processes can share its steps; None: they cannot
    label: str = ""  # human-readable: "ZO-LoRA-FA (q=1) · SST-2 · lr 0.0001 · seed 0"
    grid: str = ""  # of the first cell that requested it, as block and task, for display and tags
    block: str = ""
    task: str = ""
    # In floating point, of large forwards that would take its time, to predict it; not written to files. 0: not known.
    operations: float = field(default=0.0, compare=False)

    def to_json(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "operations"}
        shared = None if self.shared_steps is None else asdict(self.shared_steps)
        return {**fields, "config": self.config.to_json(), "needs": asdict(self.needs), "shared_steps": shared}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Trial:
        """Read a trial; keys of other versions are ignored, so that old journals stay readable."""
        known = {name: value for name, value in data.items() if name in cls.__dataclass_fields__}
        entry = data.get("shared_steps")
        shared = None if entry is None else SharedSteps(**{**entry, "rows": tuple(entry.get("rows", ()))})
        needed = {name: value for name, value in data["needs"].items() if name in Needs.__dataclass_fields__}
        needs = Needs(**{**needed, "tools": tuple(needed.get("tools", ()))})
        read = {"config": StoredConfig(data["config"]), "needs": needs, "shared_steps": shared}
        return cls(**{**known, **read})


ENERGY = "energy/"  # how metrics begin that a trial has only where joules could be read
# What a table with a target computes from a trial's journal; infinite if the target was not reached.
TO_TARGET = SECONDS_TO_TARGET, JOULES_TO_TARGET = "seconds_to_target", f"{ENERGY}joules_to_target"
# How the metrics begin that depend on the place of a trial; of these, times and energies on the machine's load as well.
SPEEDS = (
    "seconds_per_step",
    "mean_seconds_per_step",
    "train_seconds",
    "wall_seconds",
    "load_seconds",
    "seconds_per_token",
    "tokens_per_second",
    SECONDS_TO_TARGET,
    ENERGY,
)
COSTS = (*SPEEDS, "peak_memory_bytes", "memory/", "device/")


@dataclass(frozen=True)
class DeviceRecord(Shape):
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
    gpus: tuple[str, ...] = item((), most=NAME)
    versions: Mapping[str, Any] = item(dict, entries=FACTS)
    load: Mapping[str, float] = item(dict)
    earlier: tuple[DeviceRecord, ...] = item((), entries=FACTS)


@dataclass(frozen=True)
class Outcome(Shape):
    """The end of an attempt at a trial, and its measurements.

    Args:
        metrics: plain floats, absent when not measured; `dev/<name>` and `test/<name>` of
            each metric of the task; `gradients/...` (the last `covered`, by name).
        device: kind, name, runtime, threads, versions, definitions of memory, energy and condition, ...; load: the
            share of the machine's cores that other processes took just `before` the attempt and `during` it; earlier:
            the same facts of the earlier attempts that ran steps (see `core.place`).
    """

    trial_id: str = item(most=NAME)
    state: TrialState = item(most=NAME)
    metrics: Mapping[str, float] = item(dict, entries=NUMBERS)
    selected_step: int = item(0)
    steps_done: int = item(0)
    device: Mapping[str, Any] = item(dict, entries=FACTS, depth=DEPTH)
    error: str = item("", most=LONG)  # one line; for DIVERGED: step, seed and both losses
    traceback: str = item("", most=LONG)
    code: str = item(
        "", most=LONG
    )  # digest of what measured it (see `methods.trial_config`), joined by "+" if attempts differ
    # How the names of metrics begin that could not be measured -> the reason.
    unmeasured: Mapping[str, str] = item(dict, entries=NUMBERS, most=LONG)

    def __post_init__(self) -> None:
        DeviceRecord.read(self.device)

    @property
    def never_ran(self) -> bool:
        """Whether its trial was stopped before its first step: another setting was selected."""
        return self.state is TrialState.STOPPED and not self.steps_done


@dataclass(frozen=True)
class Sharing:
    """The processes that evaluate a part of a trial's points; see `zo_sweeps.engine.peers`."""

    peers: Sequence[Any]  # the followers, as `engine.peers.Peer`s
    names: Sequence[str]  # where each runs, for display
    drop: bool  # whether a lost follower's directions are dropped from the step; if not, the others evaluate them
    patience: float  # seconds that a follower may take longer than the leader

"""Predicted seconds and joules of trials: their operations at the speed of the machine, corrected by finished trials.

A finished trial has a ratio, its measured over its predicted seconds, both without loading. The ratio for a trial is
the median of those of its memory key and the ratio of its row, which counts once; that of a row the median of its
trials and the ratio of the device; and that of the device the median of its trials and 1, where the machine was probed.
Of each the latest count. So one odd trial moves nothing far, and trials of one sort soon speak for themselves.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.trial import ENERGY, Outcome, Trial, TrialState
from zo_sweeps.devices.estimate import RUNTIME_BYTES
from zo_sweeps.devices.probe import probe
from zo_sweeps.devices.speed import Speed, known
from zo_sweeps.schedule.ledger import Standing

if TYPE_CHECKING:
    from zo_sweeps.plan.build import Plan

RECENT = 64  # finished trials of a group that count: the machine may be busier than it was
NOTICED = 0.5  # seconds of loading; less: the process had the model and the rows
# Per second, of one core of an AMD EPYC (Zen 5); only ratios to it are shown where nothing was probed.
OPERATIONS = 5e10
TRIAL = 0.3  # seconds that a trial takes beside its forwards, there


@dataclass(frozen=True, order=True)
class DeviceClass:
    """A class of devices, on each of which a trial takes the same time: a processor or GPU, and torch's threads."""

    name: str
    threads: int

    @classmethod
    def of(cls, outcome: Outcome) -> DeviceClass:
        """Return the device that a trial ran on."""
        return cls(str(outcome.device.get("name", "")), int(outcome.device.get("threads", 0)))

    def __str__(self) -> str:
        return f"{self.name}, {self.threads} thread{'s' * (self.threads != 1)}"


class TimePredictions:
    """Predictions, from the speed of this host and the finished trials of every device.

    Args:
        here: this host; None if trials run on a cluster's nodes.
        speed: of this host; None: it was not probed, and finished trials alone tell.
        trouble: why its speed cannot be read.
    """

    def __init__(self, here: DeviceClass | None, speed: Speed | None = None, trouble: str = "") -> None:
        self.here, self.speed, self.trouble = here, speed, trouble
        self.finished: Counter[DeviceClass] = Counter()
        self._ratios: dict[tuple[DeviceClass, str], deque[float]] = {}
        self._watts: dict[DeviceClass, list[float]] = {}
        self._loads: list[float] = []

    def learn(self, trial: Trial, outcome: Outcome) -> None:
        """Take a trial into account that has succeeded, and that one attempt ran from its first step to its last."""
        metrics = outcome.metrics
        spent = metrics.get("wall_seconds", 0.0) - metrics.get("load_seconds", 0.0)
        if outcome.state is not TrialState.SUCCEEDED or not trial.operations or not 0 < spent < math.inf:
            return
        device = DeviceClass.of(outcome)
        self.finished[device] += 1
        ratio = spent / self._uncorrected(trial, device)
        for group in _groups(trial):
            self._ratios.setdefault((device, group), deque(maxlen=RECENT)).append(ratio)
        if math.inf > (loaded := metrics.get("load_seconds", 0.0)) > NOTICED:
            self._loads.append(loaded)
        if 0 < (joules := metrics.get(f"{ENERGY}joules", 0.0)) < math.inf:
            self._watts.setdefault(device, []).append(joules / spent)

    @property
    def device(self) -> DeviceClass | None:
        """The device that is meant where none is named: this host, or the one with the most finished trials."""
        return self.here or max(sorted(self.finished), key=lambda one: self.finished[one], default=None)

    @property
    def devices(self) -> list[DeviceClass]:
        """The devices that trials can be predicted for, `device` first."""
        probed = {self.here} if self.here and self.speed else set()
        return sorted({*self.finished, *probed}, key=lambda one: (one != self.device, one))

    @property
    def start(self) -> float:
        """The seconds that a process takes to begin: imports, its first model and rows."""
        loads = self._loads or ([self.speed.start] if self.speed else [])
        return median(loads) if loads else 0.0

    def seconds(self, trial: Trial, device: DeviceClass | None = None) -> float | None:
        """Return the seconds of a trial in a process that has its model; None if nothing is known of the device."""
        device = device or self.device
        if not trial.operations or device is None or device not in self.devices:
            return None
        prior = [1.0] if self.speed and device == self.here else []
        for group in _groups(trial):
            if ratios := self._ratios.get((device, group)):
                prior = [median([*prior, *ratios])]
        return self._uncorrected(trial, device) * prior[0]

    def joules(self, trial: Trial) -> float | None:
        """Return the joules of a trial's steps at the mean power of finished trials; None if none was measured."""
        taken, watts = self.seconds(trial), self._watts.get(self.device) if self.device else None
        if taken is None or not watts:
            return None
        return taken * median(watts) if trial.steps else 0.0

    def _uncorrected(self, trial: Trial, device: DeviceClass) -> float:
        return TRIAL + trial.operations / (self.speed.operations if self.speed and device == self.here else OPERATIONS)


def predictions(plan: Plan, standing: Standing) -> TimePredictions:
    """Return the predictions for a plan's trials, with what the trials that finished in its state folder teach.

    Trials that were resumed do not count. A damaged file of a speed counts as none; `trouble` says why.
    """
    here, speed, trouble = this_device(plan), None, ""
    try:
        speed = known(here.name, here.threads) if here else None
    except UserError as error:
        trouble = str(error)
    made = TimePredictions(here, speed, trouble)
    for trial_id, trial in plan.every.items():
        if standing.attempts.get(trial_id, 1) == 1 and (outcome := standing.outcomes.get(trial_id)):
            made.learn(trial, outcome)
    return made


def this_device(plan: Plan) -> DeviceClass | None:
    """Return the device that a plan's trials run on here; None where the nodes of a cluster run them."""
    return None if plan.config.cluster.address else DeviceClass(probe()["name"], plan.config.executor.cpus_per_trial)


def _groups(trial: Trial) -> tuple[str, ...]:
    """Return the groups of a trial whose ratios count for it, the widest first."""
    return "", f"row {trial.block}", f"memory {trial.memory_key}"


def median(values: Sequence[float]) -> float:
    """Return the median of positive numbers; of two middle ones their geometric mean."""
    ordered = sorted(values)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return math.sqrt(low * high)


def slots_here(plan: Plan) -> int:
    """Return how many of a plan's trials run at a time on this host."""
    options, host = plan.config.executor, probe()
    lent = len(host["gpus"]) or host["cores"] // options.cpus_per_trial
    return max(1, min(lent, options.slots or lent) // options.workers) if options.concurrent else 1


MARGIN = 1.1  # the next trial may have slightly longer batches and a more fragmented allocator
QUANTUM = 64 * 2**20  # corrections are rounded up to it


class MemoryPeaks:
    """The largest peak of each `Trial.memory_key`, from the outcomes of a ledger and those passed to `learn`."""

    def __init__(self, trials: Iterable[Trial], outcomes: Mapping[str, Outcome]) -> None:
        self._bytes: dict[str, int] = {}
        for trial in trials:
            if outcome := outcomes.get(trial.trial_id):
                self.learn(trial, outcome)

    def learn(self, trial: Trial, outcome: Outcome) -> None:
        """Take the peak of an ended trial into account; only a successful trial has reached its full peak."""
        peak = outcome.metrics.get("peak_memory_bytes")
        if outcome.state is not TrialState.SUCCEEDED or not peak or not math.isfinite(peak):
            return
        outside = RUNTIME_BYTES if outcome.device.get("kind") == "cuda" else 0  # memory outside torch's allocator
        needed = -(-int(peak * MARGIN + outside) // QUANTUM) * QUANTUM
        key = trial.memory_key
        self._bytes[key] = max(needed, self._bytes.get(key, 0))

    def corrected(self, trial: Trial) -> Trial:
        """Return the trial with the measured need of its kind; unchanged if its kind has no measurement.

        Never less than estimated for an exported program: exporting it takes more than the steps that were measured.
        """
        measured = self._bytes.get(trial.memory_key)
        if measured is not None and trial.needs.programs:
            measured = max(measured, trial.needs.memory_bytes)
        return trial if measured is None else replace(trial, needs=replace(trial.needs, memory_bytes=measured))

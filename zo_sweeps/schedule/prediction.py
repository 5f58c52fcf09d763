"""Predicted seconds and joules of trials: their work at the rates of the machine, corrected by finished trials.

A finished trial has a ratio, its measured over its predicted seconds, both without loading. The ratio for a trial is
the median of those of its memory key and the ratio of its kind, which counts once; that of a kind the median of its
trials and the ratio of the device; and that of the device the median of its trials and 1, where the machine was probed.
Of each the latest count. So one odd trial moves nothing far, and trials of one sort soon speak for themselves.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.trial import ENERGY, Outcome, Trial, TrialState
from zo_sweeps.core.work import Rates, median, seconds, terms
from zo_sweeps.devices import rates as kept
from zo_sweeps.devices.probe import probe
from zo_sweeps.plan.build import Plan
from zo_sweeps.schedule.ledger import Standing

RECENT = 64  # finished trials of a group that count: the machine may be busier than it was
NOTICED = 0.5  # seconds of loading; less: the process had the model and the rows


@dataclass(frozen=True, order=True)
class Device:
    """A class of devices: trials take the same time on each.

    Args:
        name: of the processor or the GPU.
        threads: of torch.
    """

    name: str
    threads: int

    @classmethod
    def of(cls, outcome: Outcome) -> Device:
        """Return the device that a trial ran on."""
        return cls(str(outcome.device.get("name", "")), int(outcome.device.get("threads", 0)))

    def __str__(self) -> str:
        return f"{self.name}, {self.threads} thread{'s' * (self.threads != 1)}"


class Predictions:
    """Predictions, from the rates of this host and the finished trials of every device.

    Args:
        here: this host; None if trials run on a cluster's nodes.
        rates: of this host; None: it was not probed, and finished trials alone tell.
    """

    def __init__(self, here: Device | None, rates: Rates | None = None) -> None:
        self.here, self.rates = here, rates
        self.finished: Counter[Device] = Counter()
        self._ratios: dict[tuple[Device, str], deque[float]] = {}
        self._watts: dict[Device, list[float]] = {}
        self._loads: list[float] = []

    def learn(self, trial: Trial, outcome: Outcome) -> None:
        """Take a trial into account that has succeeded, and that one attempt ran from its first step to its last."""
        metrics = outcome.metrics
        spent = metrics.get("wall_seconds", 0.0) - metrics.get("load_seconds", 0.0)
        if outcome.state is not TrialState.SUCCEEDED or trial.work is None or not 0 < spent < math.inf:
            return
        device = Device.of(outcome)
        self.finished[device] += 1
        ratio = spent / seconds(trial.work, self._rates(device))
        for group in _groups(trial):
            self._ratios.setdefault((device, group), deque(maxlen=RECENT)).append(ratio)
        if math.inf > (loaded := metrics.get("load_seconds", 0.0)) > NOTICED:
            self._loads.append(loaded)
        joules, trained = metrics.get(f"{ENERGY}joules", 0.0), metrics.get("train_seconds", 0.0)
        if 0 < joules < math.inf and 0 < trained < math.inf:
            self._watts.setdefault(device, []).append(joules / trained)

    @property
    def device(self) -> Device | None:
        """The device that is meant where none is named: this host, or the one with the most finished trials."""
        return self.here or max(sorted(self.finished), key=lambda one: self.finished[one], default=None)

    @property
    def devices(self) -> list[Device]:
        """The devices that trials can be predicted for, `device` first."""
        probed = {self.here} if self.here and self.rates else set()
        return sorted({*self.finished, *probed}, key=lambda one: (one != self.device, one))

    @property
    def start(self) -> float:
        """The seconds that a process takes to begin: imports, its first model and rows."""
        loads = self._loads or ([self.rates.start] if self.rates else [])
        return median(loads) if loads else 0.0

    def seconds(self, trial: Trial, device: Device | None = None) -> float | None:
        """Return the seconds of a trial in a process that has its model; None if nothing is known of the device."""
        device = device or self.device
        if trial.work is None or device not in self.devices:
            return None
        return seconds(trial.work, self._rates(device)) * self._ratio(trial, device)

    def joules(self, trial: Trial, device: Device | None = None) -> float | None:
        """Return the joules of a trial's steps at the mean power of finished trials; None if none was measured."""
        device = device or self.device
        taken, watts = self.seconds(trial, device), self._watts.get(device) if device else None
        if taken is None or not watts or trial.work is None or device is None:
            return None
        spent = terms(trial.work, self._rates(device))
        share = sum(spent.get(part, 0.0) for part in ("steps", "noise", "values")) / sum(spent.values())
        return taken * share * median(watts) if trial.steps else 0.0

    def _rates(self, device: Device) -> Rates:
        return self.rates if self.rates and device == self.here else kept.REFERENCE

    def _ratio(self, trial: Trial, device: Device) -> float:
        prior = [1.0] if self.rates and device == self.here else []
        for group in _groups(trial):
            if ratios := self._ratios.get((device, group)):
                prior = [median([*prior, *ratios])]
        return prior[0]


def predictions(plan: Plan, standing: Standing) -> Predictions:
    """Return the predictions for a plan's trials, with what the trials that finished in its state folder teach.

    Trials that were resumed do not count. A damaged file of rates counts as none; `rates_here` says why.
    """
    made = Predictions(None)
    if (here := this_device(plan)) is not None:
        made = Predictions(here, rates_here(here)[0])
    for trial_id, trial in plan.every.items():
        if standing.attempts.get(trial_id, 1) == 1 and (outcome := standing.outcomes.get(trial_id)):
            made.learn(trial, outcome)
    return made


def this_device(plan: Plan) -> Device | None:
    """Return the device that a plan's trials run on here; None where the nodes of a cluster run them."""
    return None if plan.config.cluster.address else Device(probe()["name"], plan.config.executor.cpus_per_trial)


def _groups(trial: Trial) -> tuple[str, ...]:
    """Return the groups of a trial whose ratios count for it, the widest first."""
    assert trial.work is not None
    return "", f"kind {trial.work.kind}", f"memory {trial.memory_key}"


def rates_here(device: Device) -> tuple[Rates | None, str]:
    """Return (the rates of a device of this host, why they cannot be read); None and "" if it was never probed."""
    try:
        return kept.known(device.name, device.threads), ""
    except UserError as error:
        return None, str(error)


def slots_here(plan: Plan) -> int:
    """Return how many of a plan's trials run at a time on this host."""
    options, host = plan.config.executor, probe()
    lent = len(host["gpus"]) or host["cores"] // options.cpus_per_trial
    return max(1, min(lent, options.slots or lent) // options.workers) if options.concurrent else 1

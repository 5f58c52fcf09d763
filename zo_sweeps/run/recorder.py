"""The record of a trial: reads the journal of earlier attempts, sends events, and makes the outcome from both."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from zo_sweeps.core import events
from zo_sweeps.core.caveats import remark
from zo_sweeps.core.events import E, End, Event, ScoredDev, ScoredTest, Sink, Start, Steps, only
from zo_sweeps.core.files import packed
from zo_sweeps.core.trial import COSTS, ENERGY, Outcome, Trial, TrialState
from zo_sweeps.devices.energy import EnergyMeter, Load
from zo_sweeps.engine.loss_noise import noise_to_signal
from zo_sweeps.engine.train import Evaluated, Scores, StepDone
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.record.journal import scalars
from zo_sweeps.record.spent import spent

FLUSH_SECONDS = 0.5  # steps are reported in groups; a killed process loses its last group, which is recomputed
NOT_ITS_OWN = "it shared forwards with other trials in one process"
# The facts of a device that `core.place` reads.
PLACE = ("kind", "name", "cores", "runtime", "form", "delegate", "threads", "processes", "versions", "load")
NOISE_STEPS = 8  # measured steps from which rounding noise is judged: the ratio of fewer is mostly chance
FINAL_STEPS = 100  # whose mean loss is `final_train_loss`: the loss of one batch is noisy


class Nowhere:
    """A sink for readers of a trial: drops every event."""

    def emit(self, event: Event) -> None:
        """Drop the event."""


class Recorder:
    """The log and the measurements so far, so that success, divergence and failure can all report them."""

    def __init__(self, trial: Trial, sink: Sink, journal: Sequence[Event]) -> None:
        self.trial, self._sink = trial, sink
        self.coefs, self.losses = scalars(journal)  # steps already in the journal first
        self.reported = len(self.losses)  # steps already in the journal
        self.evaluations = {event.step: event for event in only(ScoredDev, journal)}
        self.test = next(iter(only(ScoredTest, journal)), None)
        self.seen = {event.step for event in only(events.SquaredGradients, journal)}  # steps whose gradients are there
        self.rungs = {event.step for event in only(events.Rung, journal)}  # where rivals were compared
        # Class of event -> fingerprint of the sparse mask, computed codes or initial values, once there is one.
        self.began = {type(event): event.fingerprint for event in only(events.Computed, journal)}
        # Step -> share of its update that rounding lost; step -> rounding noise of its losses and their spread.
        self.lost = {event.step: event.lost for event in only(events.Updates, journal)}
        starts, reports = only(Start, journal), only(Steps, journal)
        # Steps in the journal when each attempt but the first began, this one included.
        self.resumed = [*(start.resumed_from for start in starts[1:]), *([self.reported] if starts else [])]
        self.noise = {int(step): (noise, signal) for one in reports for step, noise, signal in one.rounding or ()}
        self._readings = only(events.Sensors, journal)
        self.warned = {event.metric for event in only(events.Warned, journal)}  # the names of remarks so far
        self.largest = (1, 0)  # the step of this attempt with the most tokens, the first of equals, and their number
        self.measured: dict[str, float] = {}  # metrics of the outcome, by name
        self.unmeasured: dict[str, str] = {}  # how names of metrics begin that cannot be measured here -> the reason
        # What the attempts before took, by metric; None: one was killed, and nobody knows.
        ends = only(End, journal)
        self.before = None if len(ends) < len(starts) else ends[-1].outcome.metrics if ends else {}
        # The most trials with which an earlier version's attempt shared forwards, itself included; 0: with none.
        self.fused = max((start.fused or 0 for start in starts), default=0)
        self.device: Mapping[str, Any] = {}
        self.energy = EnergyMeter(None, reason="the steps did not run")
        self.load: Load | None = None  # the meter of other work on this machine; None: the steps run elsewhere too
        self._earlier = _earlier(journal)
        # The dev loss before the first step; NaN: not scored yet.
        self.untrained = next((one.untrained for one in reports if one.untrained is not None), math.nan)
        self.selected = 0
        self.selection = ("loss", 1)  # the dev value that selects the step, and -1 if higher is better, otherwise 1
        self.codes = [start.code for start in starts if start.code]  # digests of the attempts whose steps count
        self._reports = [_without_log(event) for event in reports]
        self._defined = [start.device.get("energy_definition") for start in starts]
        self._step_seconds: list[float] = []
        self._pending: list[StepDone] = []
        self._flushed_at = time.perf_counter()

    @property
    def steps_run(self) -> int:
        """Number of steps run in this attempt."""
        return len(self._step_seconds)

    def emit(self, event: E) -> E:
        """Send an event; return it."""
        self._sink.emit(event)
        return event

    def began_with(self, computed: events.Computed) -> str:
        """Return the fingerprint that the trial began with; the first is kept and reported."""
        if type(computed) not in self.began:
            self.began[type(computed)] = self.emit(computed).fingerprint
        return self.began[type(computed)]

    def take(self, event: StepDone | Evaluated) -> None:
        """Keep and report an event, unless an earlier attempt did (a first-order run restarts from step 1)."""
        if isinstance(event, StepDone):
            if event.tokens > self.largest[1]:
                self.largest = event.step, event.tokens
            if event.step > self.reported:
                self.coefs.append(list(event.coefs))
                self.losses.append(event.loss)
                self._step_seconds.append(event.seconds)
                self._pending.append(event)
                if event.step not in self.lost and not math.isnan(event.lost):
                    self.lost[event.step] = event.lost
                    self.emit(events.Updates(step=event.step, lost=event.lost))
                    self.warn("updates_lost", event.lost)
                if event.noise is not None:  # `flush` reports it
                    self.noise[event.step] = event.noise
                    if not math.isnan(ratio := self._noise_to_signal()):
                        self.warn("noise_to_signal", ratio)
                if time.perf_counter() - self._flushed_at > FLUSH_SECONDS:
                    self.flush()
        elif event.step not in self.evaluations:
            self.flush()
            scores = ScoredDev(**vars(event))
            self.evaluations[event.step] = self.emit(scores)

    def _noise_to_signal(self) -> float:
        """Return the ratio so far; NaN of too few steps, whose ratio is mostly chance, or without any signal."""
        return noise_to_signal(self.noise.values()) if len(self.noise) >= NOISE_STEPS else math.nan

    def take_noise_to_signal(self, ratio: float) -> None:
        """Record and report a ratio that was measured apart from the steps; NaN: it was not."""
        if not math.isnan(ratio):
            self.measured["noise_to_signal"] = ratio
            self.warn("noise_to_signal", ratio)

    def warn(self, metric: str, value: float) -> None:
        """Report the remark on a metric of the run so far, if there is one, once per trial."""
        self.say(metric, remark(metric, value))

    def say(self, metric: str, text: str) -> None:
        """Report a remark, unless it is "" or was reported before."""
        if text and metric not in self.warned:
            self.warned.add(metric)
            self.emit(events.Warned(metric=metric, text=text))

    def take_test(self, step: int, scores: Scores, rows: str, weights: str) -> None:
        """Keep and report the test scores, with digests of the rows that were scored and of the trained values."""
        event = ScoredTest(
            step=step,
            loss=scores.loss,
            metric=scores.metric,
            metrics=dict(scores.metrics),
            examples=len(scores.right),
            right=packed(scores.right),
            rows=rows,
            weights=weights,
        )
        self.test = self.emit(event)

    def take_reading(self, time: float, step: int, values: Mapping[str, float]) -> None:
        """Keep and report a reading of a phone's sensors after a step, unless an earlier attempt did."""
        if all(time > event.time for event in self._readings[-1:]):
            self._readings.append(self.emit(events.Sensors(time=time, step=step, values=dict(values))))

    def flush(self) -> None:
        """Report the steps done since the last report, as one event."""
        if self._pending:
            joules = sum(step.joules for step in self._pending)
            report = Steps(
                first=self._pending[0].step,
                losses=tuple(step.loss for step in self._pending),
                coefs=tuple(tuple(step.coefs) for step in self._pending),
                seconds=sum(step.seconds for step in self._pending),
                tokens=sum(step.tokens for step in self._pending),
                joules=None if math.isnan(joules) else joules,
                rounding=tuple((step.step, *step.noise) for step in self._pending if step.noise is not None) or None,
                untrained=self.untrained if self.reported == 0 and math.isfinite(self.untrained) else None,
                **self.energy.report(),
            )
            self.emit(report)
            self._reports.append(_without_log(report))
            self.reported = self._pending[-1].step
            self._pending = []
        self._flushed_at = time.perf_counter()

    def best(self) -> int:
        """Return the selected step: lowest dev loss, or best dev metric (`train.select`); ties go to the first."""
        by, sign = self.selection
        return min(self.evaluations, key=lambda step: (sign * getattr(self.evaluations[step], by), step))

    def outcome(self, state: TrialState, *, error: str = "", trace: str = "") -> Outcome:
        """Report the steps that are not reported yet, and return the outcome of the attempt, with its metrics."""
        self.flush()
        metrics = dict(self.measured)
        done = len(self.losses)
        if done:
            seconds = sum(report.seconds for report in self._reports)
            metrics["train_seconds"] = seconds
            if all(map(math.isfinite, self.losses[-FINAL_STEPS:])):
                metrics["final_train_loss"] = statistics.fmean(self.losses[-FINAL_STEPS:])
            metrics["seconds_per_step"] = (
                statistics.median(self._step_seconds) if self._step_seconds else seconds / done
            )
            metrics["mean_seconds_per_step"] = seconds / done
            tokens = sum(report.tokens for report in self._reports)
            if tokens and seconds:  # other processes' tokens are not counted
                metrics["tokens_per_second"] = tokens / seconds
            metrics |= spent(self._reports, done)
        for name, worst in (("battery_percent", min), ("battery_celsius", max)):
            if values := [event.values[name] for event in self._readings if name in event.values]:
                metrics[name] = worst(values)
        if lines := [line for line in self.coefs if any(map(math.isnan, line))]:
            parts = 2 if TrialConfig.of(self.trial.config).estimator.gives else 1  # the first is of the directions
            dropped = sum(math.isnan(g) for line in lines for g in line[: len(line) // parts])
            metrics |= {"directions_dropped": float(dropped)} if dropped else {}
        if self.lost:
            metrics["updates_lost"] = statistics.fmean(self.lost.values())
        if not math.isnan(ratio := self._noise_to_signal()):
            metrics["noise_to_signal"] = ratio
        chosen = self.evaluations.get(self.selected)
        if state is TrialState.SUCCEEDED and chosen is not None and self.test is not None:
            splits: Mapping[str, ScoredDev | ScoredTest] = {"dev": chosen, "test": self.test}
            for split, scores in splits.items():
                metrics[f"{split}/loss"], metrics[f"{split}/metric"] = scores.loss, scores.metric
                metrics |= {f"{split}/{name}": value for name, value in scores.metrics.items()}
            if math.isfinite(self.untrained) and self.selection == ("loss", 1):  # else the loss is not what it learns
                metrics["dev_loss_change"] = chosen.loss - self.untrained
        unmeasured = dict(self.unmeasured)
        if self.fused:
            metrics["fused_trials"] = float(self.fused)
            unmeasured |= dict.fromkeys(COSTS, NOT_ITS_OWN)
            metrics = {name: value for name, value in metrics.items() if not name.startswith(COSTS)}
        if done and f"{ENERGY}joules" not in metrics:
            unmeasured = {ENERGY: self.energy.reason or "an earlier attempt did not measure it", **unmeasured}
        return Outcome(
            trial_id=self.trial.trial_id,
            state=state,
            metrics=metrics,
            selected_step=self.selected,
            steps_done=done,
            device=self.described(),
            error=error,
            traceback=trace,
            code="+".join(dict.fromkeys(self.codes)),
            unmeasured=unmeasured,
        )

    def described(self) -> Mapping[str, Any]:
        """Return the description of this machine and its load, with what earlier attempts ran on.

        Definitions of energy that differ between attempts are joined.
        """
        defined = dict.fromkeys([*self._defined, self.device.get("energy_definition")])
        both = "; then ".join(filter(None, defined))
        further = {"energy_definition": both, "load": self.load and self.load.read(), "earlier": self._earlier}
        return {**self.device, **{name: value for name, value in further.items() if value}}


def _earlier(journal: Sequence[Event]) -> list[dict[str, Any]]:
    """Return the places of the attempts in a journal that ran steps, in order."""
    places: list[dict[str, Any]] = []
    place: dict[str, Any] | None = None
    for event in journal:
        if isinstance(event, Start):
            place = _place(event.device)
        elif isinstance(event, Steps) and place is not None and not any(place is one for one in places):
            places.append(place)
        elif isinstance(event, End) and place is not None:
            place |= _place(event.outcome.device)  # with its load
    return places


def _place(device: Mapping[str, Any]) -> dict[str, Any]:
    return {name: device[name] for name in PLACE if name in device}


def _without_log(report: Steps) -> Steps:
    """Return a report without what the log already holds."""
    return replace(report, losses=(), coefs=None)

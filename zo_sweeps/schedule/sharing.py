"""Trials whose steps several processes share (`executor.workers`): the options, and the checks against a plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import ComputedCodes, ComputedMask, Event
from zo_sweeps.core.trial import SharedSteps, Trial
from zo_sweeps.methods.executor import Executor
from zo_sweeps.schedule.placement import Node, gpus_needed, refusal


@dataclass(frozen=True)
class Workers:
    """The options `executor.workers`, `on_lost_worker` and `worker_patience`."""

    count: int = 1
    on_lost: Literal["redo", "drop"] = "redo"
    patience: float = 60.0

    @classmethod
    def of(cls, executor: Executor) -> Workers:
        return cls(executor.workers, executor.on_lost_worker, executor.worker_patience)

    def of_trial(self, trial: Trial) -> int:
        """Return the number of a trial's processes: only zeroth-order steps are shared."""
        return self.count if trial.shared_steps else 1

    def check(self, trials: Iterable[Trial]) -> None:
        """Raise UserError when a trial's steps cannot be shared among that many processes, or with these options."""
        for trial in trials if self.count > 1 else ():
            if trial.shared_steps:
                self._check(trial, trial.shared_steps)

    def _check(self, trial: Trial, shared: SharedSteps) -> None:
        where = f"executor.workers={self.count}"
        if shared.one_process:
            raise UserError(
                f"{shared.one_process}: {trial.label or trial.trial_id} has to be at all of them in one process",
                where=where,
                fix="executor.workers=1",
            )
        if shared.forwards:
            most = shared.forwards
            what = f"{most} forward{'s' * (most > 1)} that a step has with evaluation.mode={shared.mode}"
            fix = f"evaluation.mode=inner, or executor.workers={most}"
        else:
            most = shared.directions or self.count  # coordinate-wise: as many as there are parameters
            what = f"{most} direction{'s' * (most > 1)} of a step"
            fix = f"executor.workers={most} or less, or estimator.q={self.count} or more"
        if self.count > most:
            raise UserError(f"more processes than the {what}: {trial.label or trial.trial_id}", where=where, fix=fix)
        if shared.forwards and self.on_lost == "drop":
            raise UserError(
                f"with evaluation.mode={shared.mode} a process holds one sign of every direction, so that none can be "
                "dropped",
                where="executor.on_lost_worker",
                fix="evaluation.mode=inner, or executor.on_lost_worker=redo",
            )


ALONE = Workers()


def no_room(trial: Trial, count: int, nodes: Sequence[Node], cpus: int, limit: int | None) -> str:
    """Return why `count` processes of a trial never fit on nodes of one device profile; "" when they do."""
    kinds = {node.device for node in nodes}
    room = [room_for(trial, [node for node in nodes if node.device == kind], cpus) for kind in kinds]
    most = min(max(room, default=0), limit or count)
    return "" if most >= count else f"executor.workers={count} of one kind of node: there is room for {most}"


def room_for(trial: Trial, nodes: Sequence[Node], cpus: int) -> int:
    """Return how many processes of trials like this one the CPUs and GPUs of nodes allow."""
    able = [node for node in nodes if not refusal(trial.needs, node, cpus)]
    places = [(int(node.cpus // cpus), int(node.gpus) if gpus_needed(trial.needs, node) else None) for node in able]
    return sum(cores if gpus is None else min(cores, gpus) for cores, gpus in places)


def of_weights(journal: Sequence[Event]) -> list[Event]:
    """Return the events of a journal that a follower needs: the rest reaches it with the leader's first question."""
    return [event for event in journal if isinstance(event, (ComputedMask, ComputedCodes))]

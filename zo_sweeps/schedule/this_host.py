"""The trials of a plan that can run here, by this host's devices and memory, if the sweep runs on this host alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.host import gib
from zo_sweeps.plan.build import Plan
from zo_sweeps.schedule.ledger import read_standing
from zo_sweeps.schedule.memory import Measured
from zo_sweeps.schedule.placement import Node, refusal
from zo_sweeps.schedule.sharing import Workers


def for_this_host(plan: Plan) -> Plan:
    """Return the plan without the trials that this host can never run, each with the reason.

    With a cluster to join, all trials stay: its nodes are known only after joining. The measured memory of finished
    trials replaces the estimates. Raises UserError where the executor's workers cannot share the steps of a trial.
    """
    options = plan.config.executor
    Workers.of(options).check(plan.trials)
    plan = _corrected(plan)
    if plan.config.cluster.address:
        return plan
    from zo_sweeps.devices.probe import probe

    host = probe()
    node = Node("", "this host", host["profile"], host["cores"], len(host["gpus"]), host["memory_bytes"])
    reasons = dict(plan.reasons)
    for trial in plan.every.values():
        known = reasons.get(trial.trial_id, ())
        if why := refusal(trial.needs, node, options.cpus_per_trial):
            needs = f"device {trial.needs.device}"
            if "memory" in why:
                needs += f" and about {gib(trial.needs.memory_bytes)}"
            reasons[trial.trial_id] = (*known, f"needs {needs}, and this host {why}")
        elif node.gpus and trial.needs.device != "cpu" and trial.needs.memory_bytes > node.memory_bytes:
            reasons[trial.trial_id] = (*known, f"needs about {gib(trial.needs.memory_bytes)} of GPU memory")
    return replace(plan, trials=tuple(t for t in plan.trials if t.trial_id not in reasons), reasons=reasons)


def must_have_work(plan: Plan) -> None:
    """Raise UserError when nothing of the plan can run here, with the reasons."""
    if plan.trials:
        return
    reasons = Counter(plan.missing.values())
    listed = "".join(f"\n  - {why} ({count} trials)" for why, count in reasons.most_common())
    if len(reasons) == 1:
        listed = f" {next(iter(reasons))}"
    raise UserError(f"none of the {len(plan.every)} trials of grid {plan.name!r} can run here:{listed}")


def _corrected(plan: Plan) -> Plan:
    standing = read_standing(plan.config.folder)
    measured = Measured(plan.every.values(), standing.outcomes)
    every = {trial_id: measured.corrected(trial) for trial_id, trial in plan.every.items()}
    return replace(plan, trials=tuple(every[trial.trial_id] for trial in plan.trials), every=every)

"""The trials of a plan that can run here, by this host's devices and memory, if the sweep runs on this host alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from zo_sweeps.config.composer import DEFAULT
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.place import BUSY
from zo_sweeps.core.trial import Needs
from zo_sweeps.core.units import bytes_text, counted
from zo_sweeps.devices import probe
from zo_sweeps.methods import registry
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan.build import Plan
from zo_sweeps.schedule.ledger import read_standing
from zo_sweeps.schedule.placement import Node, gpus_holding, must_share, other_device, refusal, takes_main_memory
from zo_sweeps.schedule.prediction import MemoryPeaks


def for_this_host(plan: Plan) -> Plan:
    """Return the plan without the trials that this host can never run, each with the reason.

    A log of the light client (`device.log`) leaves the other trials of the plan out. With a cluster to join, the rest
    stay: its nodes are known only after joining. The measured memory of finished trials replaces the estimates. Raises
    UserError where the executor joins no cluster, or its workers cannot share the steps of a trial.
    """
    options = plan.config.executor
    if plan.config.cluster.address and not options.joins:
        where, fix = "cluster.address", "omit one of the two"
        refused = UserError(f"executor={options.name} joins no cluster", where=where, fix=fix)
        raise registry.absent("executor", DEFAULT, where) or refused
    must_share(options, plan.trials)
    measured = MemoryPeaks(plan.every.values(), read_standing(plan.config.folder).outcomes)
    every = {trial_id: measured.corrected(trial) for trial_id, trial in plan.every.items()}
    reasons, remarks = dict(plan.reasons), dict(plan.remarks)
    for trial_id, why in _of_logs(plan):
        reasons[trial_id] = (*reasons.get(trial_id, ()), why)
    if not plan.config.cluster.address:
        host = probe.probe()
        lent, tools = (host["cores"], len(host["gpus"]), host["memory_bytes"]), frozenset(host["tools"])
        node = Node("", "this host", host["profile"], *lent, programs=host["executorch"], tools=tools)
        for trial_id, trial in every.items():
            needs = _divided(trial.needs, node)
            every[trial_id] = replace(trial, needs=needs)
            if found := tuple(_reasons(needs, node, options.cpus_per_trial)):
                reasons[trial_id] = (*reasons.get(trial_id, ()), *found)
            elif needs.gpus > 1:
                remarks[trial_id] = (*remarks.get(trial_id, ()), f"needs {_gpus(needs, node)}")
    trials = tuple(every[trial.trial_id] for trial in plan.trials if trial.trial_id not in reasons)
    return replace(plan, trials=trials, every=every, reasons=reasons, remarks=remarks)


def _divided(needs: Needs, node: Node) -> Needs:
    """Return the needs with the number of GPUs of `node`, whose memory is one GPU's, that hold the trial."""
    on_gpu = not other_device(needs, node) and not takes_main_memory(needs, node)
    return replace(needs, gpus=gpus_holding(needs, node.memory_bytes)) if on_gpu else needs


def _gpus(needs: Needs, node: Node) -> str:
    each = bytes_text(node.memory_bytes)
    return f"{needs.gpus} GPUs of one node (about {bytes_text(needs.memory_bytes)}, {each} each)"


def _reasons(needs: Needs, node: Node, cpus: int) -> Iterator[str]:
    """Yield every reason why this host can never run a trial."""
    if why := refusal(needs, node, cpus):
        memory = f" and about {bytes_text(needs.memory_bytes)}" if "memory" in why else ""
        what = f"device {needs.device}{memory}" if needs.gpus == 1 else _gpus(needs, node)
        yield f"needs {what}, and this host {why}"
    if needs.gpus > 1 or other_device(needs, node) or takes_main_memory(needs, node):
        return
    if needs.memory_bytes > node.memory_bytes:
        yield (
            f"needs about {bytes_text(needs.memory_bytes)} of GPU memory, and a GPU here has "
            f"{bytes_text(node.memory_bytes)}: a model is divided over GPUs only where backpropagation trains all of it"
        )


def crowded(plan: Plan) -> list[str]:
    """Return the lines on cores that a sweep on this host would have to share: with other work, or its own threads.

    None for a sweep on a cluster. Cost: two small files of the kernel.
    """
    if plan.config.cluster.address:
        return []
    here, busy, threads, lines = probe.cores(), probe.busy_cores(), plan.config.executor.threads, []
    if threads > here:
        lines.append(
            f"the executor's options ask for {threads} threads at a time on {here} cores, and trials that wait for a "
            f"core can be many times slower: lower executor.slots or executor.cpus_per_trial"
        )
    if busy >= BUSY * here:
        lines.append(
            f"this machine is busy (about {busy:.1f} of {here} cores): trials are slower, and their times and energy "
            f"are not those of an idle one"
        )
    return lines


def must_have_work(plan: Plan) -> None:
    """Raise UserError when nothing of the plan can run here, with the reasons."""
    if plan.trials:
        return
    listed = "".join(f"\n  - {why} ({counted(len(ids), 'trial')})" for why, ids in plan.obstacles.items())
    if len(plan.obstacles) == 1:
        listed = f" {next(iter(plan.obstacles))}"
    raise UserError(f"0 of {counted(len(plan.every), 'trial')} of grid {plan.name!r} can run here:{listed}")


def _of_logs(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield (trial_id, why it cannot run) of each trial whose `device.log` is of another trial of the plan."""
    devices = {trial_id: TrialConfig.of(trial.config).device for trial_id, trial in plan.every.items()}
    owners = {
        device.log: runtime.trial_of_log(Path(device.log).expanduser())
        for device in devices.values()
        if device.log and (runtime := device.installed_runtime)
    }
    for trial_id, device in devices.items():
        if (owner := owners.get(device.log or "", "")) in plan.every and owner != trial_id:
            yield trial_id, f"device.log is of {plan.every[owner].label}"

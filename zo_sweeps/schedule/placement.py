"""What a machine must have to run a trial, why one cannot, and the processes that share its steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import ComputedCodes, ComputedMask, Event
from zo_sweeps.core.host import VERSION
from zo_sweeps.core.trial import Needs, Trial
from zo_sweeps.core.units import bytes_text
from zo_sweeps.devices.probe import EDGE
from zo_sweeps.methods.executor import Executor

# General-purpose nodes, and what may run on them; a trial requests any other device profile by name.
HOSTS = ("cpu", "cuda", "executorch", "rtl")
NOISE = "noise"  # what a node must compute to the bit, besides a trial's precision


@dataclass(frozen=True)
class Node:
    """One machine that runs trials.

    Args:
        node_id: Ray's id.
        name: the name to display.
        device: its device profile: "cpu", "cuda" (has a GPU), or an edge profile ("jetson-orin-nano").
        cpus, gpus: CPUs and GPUs that it lends.
        memory_bytes: main memory that it lends (unified memory on an edge device).
        gpu_bytes: memory of each GPU of its own; 0: none, or not known.
        version: of this package there; "": not known, as of a node that Ray alone started.
        programs: whether ExecuTorch is installed, for trials that run as exported programs.
        light: whether it has the light client alone, and no torch: it runs such trials, and no others.
        tools: that are installed, as in `Needs`; None: not known, as of a node that Ray alone started.
        slots: of an agent, trials that it takes at a time; None: a node of Ray's, as many as CPUs allow.
        leased: of an agent, slots that other drivers have, by its store; up to two seconds old.
        rows: of an agent, fingerprints of the rows that it keeps, of which it is a client.
        refused: what it does not lend ("noise", a precision) -> why.
    """

    node_id: str
    name: str
    device: str
    cpus: float
    gpus: float
    memory_bytes: int
    programs: bool = False
    tools: frozenset[str] | None = None
    light: bool = False
    slots: int | None = None
    leased: int = 0
    rows: frozenset[str] = frozenset()
    refused: Mapping[str, str] = field(default_factory=dict, compare=False)
    gpu_bytes: int = 0
    version: str = ""

    @property
    def is_agent(self) -> bool:
        """Whether it only dials out, and runs trials by leases."""
        return self.slots is not None


def gpus_needed(needs: Needs, node: Node) -> int:
    """Return the GPUs that a trial takes on `node`; "auto" takes them if there are any, which it would use anyway."""
    if needs.device in ("cpu", "rtl") or needs.programs:
        return 0
    return needs.gpus if needs.device == "cuda" or node.gpus >= 1 else 0


def gpus_holding(needs: Needs, memory_bytes: int) -> int:
    """Return the fewest GPUs of so much memory that hold a trial divided over them; 1 where that is not possible.

    With M bytes and L layers, a GPU of n has at most M / n + M / L: a layer is not divided; see `models.load`.
    """
    counts = range(2, needs.layers + 1) if needs.memory_bytes > memory_bytes else ()
    return next((n for n in counts if _per_gpu(needs, n) <= memory_bytes), 1)


def _per_gpu(needs: Needs, gpus: int) -> float:
    return needs.memory_bytes * (1 / gpus + 1 / needs.layers) if gpus > 1 else needs.memory_bytes


def takes_main_memory(needs: Needs, node: Node) -> bool:
    """Return whether `Needs.memory_bytes` counts against `Node.memory_bytes`, which an edge device's GPU shares."""
    return not gpus_needed(needs, node) or node.device not in HOSTS


def main_memory(needs: Needs, node: Node) -> int:
    """Return the bytes of main memory that a trial takes on `node`: with a GPU of its own, next to none."""
    if node.light:
        return needs.client_bytes
    return needs.memory_bytes if takes_main_memory(needs, node) else 0


def other_device(needs: Needs, node: Node) -> str:
    """Return why `node` is not the device that a trial needs; "" when it is."""
    if needs.device == "cuda" and node.gpus < 1:
        return "has no CUDA GPU"
    if needs.device in HOSTS and needs.device != "cuda" and node.device not in HOSTS:
        return f"is a {node.device}"
    if needs.device not in ("auto", *HOSTS) and node.device != needs.device:
        return f"is a {node.device}"
    return ""


def other_version(there: str, here: str = "this sweep has") -> str:
    """Return that a machine has another version of this package, and how to update it; "" where it has ours.

    All machines of a cluster have one version: another may compute other numbers, and write other journals.
    """
    if there in ("", VERSION):
        return ""
    update = f"pip install zo-sweeps=={VERSION} there (or zo-sweeps-board, whichever it has), and restart it"
    return f"has zo-sweeps {there}, and {here} {VERSION}: {update}"


def refusal(needs: Needs, node: Node, cpus: int = 1) -> str:
    """Return why `node` can never run a trial with these needs on `cpus` CPUs; "" when it can.

    What another device lacks besides does not matter.
    """
    if other := other_device(needs, node):
        return other
    if other := other_version(node.version):
        return other
    if node.light and not needs.programs:
        return "runs exported programs alone: use device.runtime=executorch (packages/edge)"
    for part in (NOISE, needs.precision):
        if why := node.refused.get(part):
            return f"does not lend {part}: {why}"
    if needs.programs and not node.programs:
        return f"has no executorch: {EDGE}"
    if absent := [tool for tool in needs.tools if node.tools is not None and tool not in node.tools]:
        return f"has no {' and no '.join(absent)}: pip install {' '.join(tool.replace(' ', '==') for tool in absent)}"
    lacks = [f"lends {node.cpus:g} CPUs where executor.cpus_per_trial is {cpus}"] if node.cpus < cpus else []
    lent = min(1, node.gpus) if node.is_agent else node.gpus  # a lease has one GPU
    if gpus_needed(needs, node) > lent:
        lacks.append(f"gives a trial {lent:g} GPU{'s' * (lent != 1)}")
    if node.gpu_bytes and not takes_main_memory(needs, node) and _per_gpu(needs, needs.gpus) > node.gpu_bytes:
        lacks.append(f"has GPUs of {bytes_text(node.gpu_bytes)}")
    if main_memory(needs, node) > node.memory_bytes:
        lacks.append(f"lends {bytes_text(node.memory_bytes)} of memory")
    return " and ".join(lacks)


def processes(options: Executor, trial: Trial) -> int:
    """Return the number of a trial's processes: only zeroth-order steps are shared, by points or by clients."""
    return 1 if trial.shared_steps is None else options.workers


def must_share(options: Executor, trials: Iterable[Trial]) -> None:
    """Raise UserError when a trial's steps cannot be shared among `executor.workers`, or with the other options."""
    where = f"executor.workers={options.workers}"
    for trial in trials if options.workers > 1 else ():
        shared = trial.shared_steps
        if shared is None:
            continue
        if shared.clients:
            if options.workers != 1 + shared.clients:
                what = f"{shared.clients} clients have a process each, or are simulated in one"
                fix = f"executor.workers={1 + shared.clients}, or 1; grid.only=[...] leaves other rows out"
                raise UserError(f"{what}: {trial.label or trial.trial_id}", where=where, fix=fix)
            continue
        if shared.one_process:
            raise UserError(
                f"{shared.one_process}: {trial.label or trial.trial_id} has to be at all of them in one process",
                where=where,
                fix="executor.workers=1",
            )
        rows = f"{shared.parts} parts of the rows in each of the " if shared.parts > 1 else ""
        if shared.forwards:
            count, most = shared.forwards, shared.forwards * shared.parts
            what = f"{count} forward{'s' * (count > 1)} that a step has with evaluation.mode={shared.mode}"
            fix = f"evaluation.mode=inner, or executor.workers={most}"
        else:
            count = shared.directions or options.workers  # coordinate-wise: as many as there are parameters
            most = count * shared.parts
            what = f"{count} direction{'s' * (count > 1)} of a step"
            fix = f"executor.workers={most} or less, or estimator.q={-(-options.workers // shared.parts)} or more"
        if options.workers > most:
            what = f"more processes than the {rows}{what}: {trial.label or trial.trial_id}"
            raise UserError(what, where=where, fix=fix)
        if rows and options.on_lost_worker == "drop":
            raise UserError(
                f"with evaluation.parts={shared.parts} a process holds a part of a direction's rows, so that none can "
                "be dropped",
                where="executor.on_lost_worker",
                fix="executor.on_lost_worker=redo",
            )
        if shared.forwards and options.on_lost_worker == "drop":
            raise UserError(
                f"with evaluation.mode={shared.mode} a process holds one sign of every direction, so that none can be "
                "dropped",
                where="executor.on_lost_worker",
                fix="evaluation.mode=inner, or executor.on_lost_worker=redo",
            )


def of_weights(journal: Sequence[Event]) -> list[Event]:
    """Return the events of a journal that a follower needs: the rest reaches it with the leader's first question."""
    return [event for event in journal if isinstance(event, (ComputedMask, ComputedCodes))]

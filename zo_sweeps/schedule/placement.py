"""The choice of nodes that can run a trial, and the reason in words when none can.

Nodes are Ray's, or agents, which the package `[agents]` brings as the entry point `agents` of the group
`zo_sweeps.part`. A node that loses one trial after another, and finishes none between, is sick: it gets one trial at a
time, and its losses are not the trials', as long as another node could run them. A trial that was lost on a node goes
to another. The steps of one trial may be shared by several processes (`executor.workers`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import ComputedCodes, ComputedMask, Event
from zo_sweeps.core.host import VERSION
from zo_sweeps.core.trial import Needs, Trial
from zo_sweeps.core.units import bytes_text
from zo_sweeps.devices.probe import EDGE
from zo_sweeps.methods import registry
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


def reason(needs: Needs, nodes: Sequence[Node], cpus: int = 1) -> str:
    """Return why none of `nodes` can run a trial with these needs; "" when one can."""
    reasons = [(node.name, refusal(needs, node, cpus)) for node in nodes]  # several nodes of a host share its name
    if any(not text for _, text in reasons):
        return ""
    memory = f" and {bytes_text(needs.memory_bytes)} of memory" if needs.memory_bytes else ""
    device = "any device" if needs.device == "auto" else f"device {needs.device}"
    device = device if needs.gpus == 1 else f"{needs.gpus} GPUs of one node"
    each = "; ".join(f"{name} {text}" for name, text in list(dict.fromkeys(reasons))[:3])
    return f"needs {device}{memory}: 0 of {len(nodes)} nodes offer it" + (f" ({each})" if each else "")


def preference(needs: Needs, node: Node) -> tuple[int, int]:
    """Return a node's rank for a trial that it can run, ascending: nodes that trials request by name rank last.

    Of equal nodes the one with the smallest GPUs comes first: larger ones are for trials that fit nowhere else.
    """
    rank = 0 if needs.device != "auto" else 2 if node.device not in HOSTS else 0 if node.gpus else 1
    return rank, node.gpu_bytes


# A node is left alone after a loss: at first for the one, then for twice as long each time, up to the other.
SHORTEST_SECONDS, LONGEST_SECONDS = 1.0, 600.0
SICK = 3  # losses in a row, of more than one trial


@dataclass
class _Row:
    """The losses of a node since a trial finished there; those of processes that died together are one."""

    losses: int = 0
    until: float = 0.0  # the end of the pause after the last one (monotonic)
    trials: set[str] = field(default_factory=set)
    why: str = ""


class Losses:
    """The losses of one sweep, by node id. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}
        self._nodes_of: defaultdict[str, set[str]] = defaultdict(set)

    def lost(self, node_id: str, trial_id: str, why: str, now: float) -> float:
        """Count a loss; return for how many seconds the node is left alone."""
        row = self._rows.setdefault(node_id, _Row())
        row.trials.add(trial_id)
        row.why = why
        self._nodes_of[trial_id].add(node_id)
        if now >= row.until:
            row.losses += 1
            row.until = now + min(SHORTEST_SECONDS * 2 ** (row.losses - 1), LONGEST_SECONDS)
        return row.until - now

    def finished(self, node_id: str) -> None:
        """Note that a trial came to an end of its own on the node."""
        self._rows.pop(node_id, None)

    def is_sick(self, node_id: str) -> bool:
        """Return whether the node loses everything."""
        row = self._rows.get(node_id)
        return row is not None and row.losses >= SICK and len(row.trials) > 1

    def text(self, node_id: str) -> str:
        """Return the last cause of a node's losses, and how many there are in a row; "" if there are none."""
        row = self._rows.get(node_id)
        return f"lost {row.losses} trials in a row ({row.why})" if row else ""

    def nodes_of(self, trial_id: str) -> set[str]:
        """Return the ids of the nodes on which a trial was lost."""
        return self._nodes_of.get(trial_id, set())


class LeaseLostError(Exception):
    """The lease of a trial is over: its agent is silent, or its key was revoked. The message says which."""


class Agents:
    """The agents of the cluster that this driver has joined: none, without the package that has them."""

    def nodes(self) -> Sequence[Node]:
        """Return the agents that can take this driver's trials. Cost: about 1 ms."""
        return ()

    def takes(self, trial: Trial) -> bool:
        """Return whether there may be agents that take a trial; some take none, whatever they are."""
        return False

    def slot(self, node: Node, threads: int, target: str) -> Any:
        """Return what has the methods of a Ray actor of `TrialActor`, for one trial at a time, in so many threads.

        Unless the node is `light`, it is no actor, and `give_up(trial_id, attempt)` ends its trial.

        Args:
            target: the RunTrial, as "module:function".
        """
        raise NotImplementedError

    def close(self) -> None:
        """End this driver's leases."""


def agents() -> Agents:
    """Return the agents of the cluster that this process joins. Raises UserError if their package is broken."""
    offered = registry.offered("part")
    made: Agents = registry.load(offered["agents"])() if "agents" in offered else Agents()
    return made


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


def no_room(options: Executor, trial: Trial, nodes: Sequence[Node]) -> str:
    """Return why the processes that share a trial never fit on nodes of one device profile; "" when they do."""
    count, cpus, room = processes(options, trial), options.cpus_per_trial, Counter[str]()
    if count == 1:
        return ""
    for node in nodes:
        if not refusal(trial.needs, node, cpus):
            cores = int(node.cpus // cpus)
            room[node.device] += min(cores, int(node.gpus)) if gpus_needed(trial.needs, node) else cores
    most = min(max(room.values(), default=0), options.slots or count)
    return "" if most >= count else f"executor.workers={count} of one kind of node: there is room for {most}"


def of_weights(journal: Sequence[Event]) -> list[Event]:
    """Return the events of a journal that a follower needs: the rest reaches it with the leader's first question."""
    return [event for event in journal if isinstance(event, (ComputedMask, ComputedCodes))]

"""Which nodes can run a trial, and in words why none can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zo_sweeps.core.host import gib
from zo_sweeps.core.trial import Needs

HOSTS = ("cpu", "cuda")  # general-purpose nodes; any other device profile is asked for by its name


@dataclass(frozen=True)
class Node:
    """One machine that runs trials.

    Args:
        node_id: Ray's id of it.
        name: for people.
        device: its device profile: "cpu", "cuda" (has a GPU), or an edge profile ("jetson-orin-nano").
        cpus, gpus: what it lends.
        memory_bytes: main memory that it lends (unified memory on an edge device).
    """

    node_id: str
    name: str
    device: str
    cpus: float
    gpus: float
    memory_bytes: int


def gpus_needed(needs: Needs, node: Node) -> int:
    """GPUs a trial takes on `node`: "auto" takes one where there is one, as the trial would use it anyway."""
    if needs.device == "cpu":
        return 0
    return 1 if needs.device == "cuda" or node.gpus >= 1 else 0


def takes_main_memory(needs: Needs, node: Node) -> bool:
    """Whether `Needs.memory_bytes` comes out of `Node.memory_bytes`; an edge device's GPU shares it."""
    return not gpus_needed(needs, node) or node.device not in HOSTS


def refusal(needs: Needs, node: Node, cpus: int = 1) -> str:
    """Why `node` can never run a trial with these needs on `cpus` CPUs; "" when it can.

    A GPU's own memory is the plan's business.
    """
    if needs.device == "cuda" and node.gpus < 1:
        return "has no CUDA GPU"
    if needs.device == "cpu" and node.device not in HOSTS:
        return f"is a {node.device}"
    if needs.device not in ("auto", *HOSTS) and node.device != needs.device:
        return f"is a {node.device}"
    if node.cpus < cpus:
        return f"lends {node.cpus:g} CPUs where executor.cpus_per_trial is {cpus}"
    if takes_main_memory(needs, node) and needs.memory_bytes > node.memory_bytes:
        return f"lends {gib(node.memory_bytes)} of memory"
    return ""


def reason(needs: Needs, nodes: Sequence[Node], cpus: int = 1) -> str:
    """Why none of `nodes` can run a trial with these needs; "" when one can."""
    reasons = [(node.name, refusal(needs, node, cpus)) for node in nodes]  # several nodes of a host share its name
    if any(not text for _, text in reasons):
        return ""
    memory = f" and {gib(needs.memory_bytes)} of memory" if needs.memory_bytes else ""
    device = "any device" if needs.device == "auto" else f"device {needs.device}"
    each = "; ".join(f"{name} {text}" for name, text in list(dict.fromkeys(reasons))[:3])
    return f"needs {device}{memory}: 0 of {len(nodes)} nodes offer it" + (f" ({each})" if each else "")


def preference(needs: Needs, node: Node) -> int:
    """The lower, the better a node that can run a trial suits it: one that others wait for by its name comes last."""
    if needs.device != "auto":
        return 0
    return 2 if node.device not in HOSTS else 0 if node.gpus else 1

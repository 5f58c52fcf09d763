"""`devices`: every machine of a cluster, its hardware, its condition, and the trials that run there now."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zo_sweeps.core.document import key
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.units import bytes_text
from zo_sweeps.schedule.placement import other_version
from zo_sweeps_ray import gateway
from zo_sweeps_ray.cluster import HEAD, ID_LABEL, checked, token_environment, token_for_joining
from zo_sweeps_ray.connection import node_of
from zo_sweeps_ray.node import running
from zo_sweeps_ray.private import AGENTS, NODE, RUNS, Head

HEADERS = ("name", "device", "memory", "lends", "can", "versions", "power", "temp.", "seen", "runs now")
STALE = 30.0  # seconds after which a driver's note on its trials is ignored


@dataclass
class Machine:
    """One machine."""

    name: str = key("its name")
    device: str = key("device profile")
    state: str = key("up, leaving, gone; of an agent: up, offline, enrolled, left, revoked")
    node_id: str = key("Ray's id of the node; of an agent, its name after a prefix", "")
    address: str = key("address of the node", "")
    cpus: float = key("CPUs that it lends", 0.0)
    gpus: float = key("GPUs that it lends", 0.0)
    memory_bytes: int = key("memory that it lends", 0)
    is_head: bool = key("whether it is the head", False)
    facts: Mapping[str, Any] = key("its last note: hardware, condition, versions, time (Unix seconds)", dict)
    runs: Sequence[str] = key("labels of the trials that run there", ())
    refused: Sequence[str] = key("what an agent does not lend, because its known answers differ", ())
    turned_away: str = key("why it gets no trial, or should not: its version, a full disk, a copied key; the fix", "")


@dataclass
class ListedDevice(Machine):
    """One machine, and what it can run."""

    can: Sequence[str] = key("capabilities: cuda, precisions and updates tried there, executorch, tools", ())


def read(head: Head) -> list[Machine]:
    """Return every machine that the head knows, once each: the head first, then live machines, then dead ones.

    Agents that the head's gateway knows are among them. Raises UserError where these need a package that is missing.
    """
    notes = head.notes(NODE)
    devices: dict[str, Machine] = {}
    runs: dict[str, list[str]] = {}
    for note in head.notes(RUNS).values():
        if time.time() - note["time"] < STALE:
            for node_id, trials in note["runs"].items():
                runs.setdefault(node_id, []).extend(trials)
    for node in sorted(head.nodes(), key=lambda node: bool(node["Alive"])):
        lent, identity = node_of(node), node["Labels"].get(ID_LABEL, node["NodeID"])
        facts = notes.pop(identity, None) or (devices[identity].facts if identity in devices else {})
        devices[identity] = Machine(
            name=lent.name,
            device=lent.device,
            state="leaving" if node["Leaving"] and node["Alive"] else "up" if node["Alive"] else "gone",
            node_id=node["NodeID"],
            address=node["NodeManagerAddress"],
            cpus=lent.cpus,
            gpus=lent.gpus,
            memory_bytes=lent.memory_bytes,
            is_head=HEAD in node["Resources"],
            facts=facts,
            runs=tuple(runs.get(node["NodeID"], ())),
        )
    agents = [one for note in head.notes(AGENTS).values() for one in gateway.gateway().devices(note)]
    every = [*devices.values(), *agents]
    return sorted(every, key=lambda one: (not one.is_head, one.state in ("gone", "left", "revoked"), one.name))


def connect(address: str | None, token_file: str | None, state_dir: Path, worker_dir: Path) -> Head:
    """Connect to the head at `address`; None: the head started from `state_dir`, or else the one this machine joined.

    Raises UserError when there is none.
    """
    known = running(state_dir / "head" / "head.json") or running(worker_dir / "worker" / "worker.json")
    if address is None:
        if known is None:
            raise UserError("no cluster is known here", fix="name its head: cluster.address=HOST:PORT")
        address = str(known["address"])
    if token_file is None and known is not None and known["address"] == address:
        return Head(address, token_environment(checked(Path(known["token_file"]))))
    return Head(address, token_environment(token_for_joining(token_file, worker_dir / "worker")))


def row_of(device: Machine, now: float) -> list[str]:
    """Return the cells of a machine below HEADERS, `now` in Unix seconds, also if its facts cannot be read."""
    try:
        return row(device, now)
    except (TypeError, ValueError, KeyError, AttributeError):  # a node of another version may say something else
        return row(replace(device, facts={}), now)


def row(one: Machine, now: float) -> list[str]:
    """Return a machine's row of the table; an unknown value is a dash."""
    facts = one.facts
    versions = facts.get("versions", {})
    words = [f"zo {facts['zo_sweeps']}"] if "zo_sweeps" in facts else []
    words += [f"{name} {text}" for name, text in versions.items() if text and name in ("python", "ray", "torch")]
    if facts.get("l4t"):
        words.append(f"L4T {facts['l4t']}")
    kind = one.device + ("\n" + facts["name"] if facts.get("name") else "")
    heat = facts.get("temperature")
    lends = f"{one.cpus:g} CPU" + (f", {one.gpus:g} GPU" if one.gpus else "")
    if one.memory_bytes:
        lends += f"\n{bytes_text(one.memory_bytes)}"
    away = one.turned_away or other_version(facts.get("zo_sweeps", ""), "this machine has")
    if one.refused:
        lends += f"\nnot {', '.join(one.refused)}"
    return [
        one.name + (" (head)" if one.is_head else ""),
        kind,
        _memory(facts),
        lends if one.state != "gone" else "–",
        ", ".join(capabilities(facts)) or "–",
        "\n".join(words) or "–",
        _power(facts),
        f"{heat:.0f} °C" if heat is not None else "–",
        "\n".join(filter(None, [f"{one.state},\n{_ago(now - facts['time'])}" if "time" in facts else one.state, away])),
        "\n".join(one.runs) or "–",
    ]


def capabilities(facts: Mapping[str, Any]) -> list[str]:
    """Return the capabilities that a trial may need: cuda, precisions and updates tried there, executorch, tools."""
    names = ["cuda"] if facts.get("gpus") else []
    names += [name for name, trouble in facts.get("codes", {}).items() if not trouble]
    names += ["executorch"] if facts.get("executorch") else []
    return names + [tool.partition(" ")[0] for tool in facts.get("tools", ())]


def _memory(facts: Mapping[str, Any]) -> str:
    if "memory_bytes" not in facts:
        return "–"
    own = facts["memory_bytes"] != facts["ram_bytes"]
    text = f"{bytes_text(facts['ram_free_bytes'], facts['ram_bytes'])}\nfree"
    if facts["unified"]:
        return text + ", unified"
    return text + (f"; GPU {bytes_text(facts['memory_bytes'])}" if own else "")


def _power(facts: Mapping[str, Any]) -> str:
    """Return the power mode, the watts now, and why the device is throttled, as far as they are known."""
    watts, causes = facts.get("watts"), facts.get("throttled", ())
    lines = [facts.get("power_mode") or "", "" if watts is None else f"{watts:.1f} W"]
    return "\n".join(filter(None, [*lines, *(f"throttled: {cause}" for cause in causes)])) or "–"


def _ago(seconds: float) -> str:
    if seconds < 90:
        return f"{max(seconds, 0):.0f} s ago"
    return f"{seconds / 60:.0f} min ago" if seconds < 5400 else f"{seconds / 3600:.0f} h ago"

"""The place of a cost: what measured a time, a memory or an energy, and how busy the machine was meanwhile.

Costs of places that differ are not compared. A fact that was not recorded is unknown: neither equal nor different.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

BUSY = 0.5  # share of the cores that other work takes, from which measured times are no longer the trials' own
SLIGHT = 0.1  # the same where a trial has a thread per core, and so waits for every core that is taken
PRINTED = {"torch": "PyTorch", "executorch": "ExecuTorch"}  # runtimes
LIBRARIES = ("torch", "executorch")
ALWAYS = ("device", "runtime", "threads")  # facts that a place's text always names
EXPECTED = (*ALWAYS, "name", "torch")  # facts that are unknown if they are not recorded
CODE = "code"
FACTS = ("device", "name", "runtime", "form", "delegate", "threads", "processes", "divided", *LIBRARIES, CODE)


@dataclass(frozen=True)
class Place:
    """Where an attempt at a trial ran."""

    facts: tuple[tuple[str, str], ...] = ()  # (name in FACTS, its text), those that are known
    load: float | None = field(default=None, compare=False)  # share of the cores that other processes took, if known
    limit: float = field(default=BUSY, compare=False)  # the load up to which times are the trial's own

    @classmethod
    def of(cls, device: Mapping[str, Any], code: str = "") -> Place:
        """Return the place that an `Outcome.device` describes, with the code that measured there."""
        versions, load, threads, cores = (device.get(name) for name in ("versions", "load", "threads", "cores"))
        versions, load = (one if isinstance(one, Mapping) else {} for one in (versions, load))
        shares = [share for name in ("during", "before") if isinstance(share := load.get(name), (int, float))]
        runtime, processes, divided = str(device.get("runtime") or ""), device.get("processes"), device.get("divided")
        facts = {
            "device": device.get("kind"),
            "name": device.get("name"),
            "runtime": PRINTED.get(runtime, runtime),
            "form": device.get("form") and f"{device['form']} form",
            "delegate": device.get("delegate") and f"delegate {device['delegate']}",
            "threads": threads and f"{threads} thread{'s' * (threads != 1)}",
            "processes": processes and f"{processes} process{'es' * (processes != 1)}",
            "divided": divided and f"divided over {divided} GPUs",
            **{name: versions.get(name) and f"{name} {versions[name]}" for name in LIBRARIES},
            CODE: code,
        }
        known = tuple((name, str(facts[name])) for name in FACTS if facts[name])
        limit = BUSY
        if device.get("kind") == "cpu" and isinstance(threads, int) and isinstance(cores, int) and cores > 0:
            limit = min(BUSY, max(SLIGHT, 1 - threads / cores))
        return cls(known, float(shares[0]) if shares else None, limit)

    @property
    def described(self) -> str:
        """All that is known of it, with its load."""
        return self.text() if self.load is None else f"{self.text()}, load {self.load:.2f}"

    def text(self, further: Collection[str] = FACTS) -> str:
        """Return the place in words: "cpu, PyTorch, 1 thread", and further facts where they are known."""
        known, parts = dict(self.facts), []
        for name in FACTS:
            if name == "name":
                continue
            text = known.get(name, f"{name} not recorded" if name in ALWAYS else "")
            if name == "device" and "name" in further and "name" in known:
                text += f" ({known['name']})"
            if text and (name in ALWAYS or name in further):
                parts.append(text)
        return ", ".join(parts)


def places(device: Mapping[str, Any], code: str = "") -> tuple[Place, ...]:
    """Return the places of a trial's attempts, as its `Outcome.device` describes them, the last attempt first."""
    earlier = device.get("earlier", ())
    return distinct(Place.of(one, code) for one in (device, *earlier) if isinstance(one, Mapping))


def distinct(measured: Iterable[Place]) -> tuple[Place, ...]:
    """Return the places, each once, with the highest of its loads."""
    found: dict[Place, Place] = {}
    for place in measured:
        if place not in found or (place.load or 0.0) > (found[place].load or 0.0):
            found[place] = place
    return tuple(found.values())


def differing(measured: Iterable[Place], may: Collection[str] = ()) -> tuple[str, ...]:
    """Return the facts that have several values in these places, but those that `may`."""
    known = [dict(place.facts) for place in measured]
    return tuple(name for name in FACTS if name not in may and len({one[name] for one in known if name in one}) > 1)


def apart(measured: Iterable[Place], may: Collection[str] = ()) -> str:
    """Return a line that names the places, if they differ in a fact that may not; "" if none does."""
    listed = list(measured)
    names = differing(listed, may)
    texts = dict.fromkeys(place.text(names) for place in listed)
    return f"measured in different places: {' against '.join(texts)}" if names else ""


def unknown(measured: Iterable[Place]) -> str:
    """Return a line on the facts that were not recorded of one of the places; "" if all were."""
    known = [dict(place.facts) for place in measured]
    lacking = [name for name in FACTS if name in EXPECTED and any(name not in one for one in known)]
    return f"where it was measured is not fully recorded: no {', '.join(lacking)}" if lacking else ""


def under_load(measured: Iterable[Place]) -> str:
    """Return a line on the places whose load is beyond their limit; "" if there are none."""
    beyond = [place.load for place in measured if place.load is not None and place.load > place.limit]
    if not beyond:
        return ""
    shares = " to ".join(dict.fromkeys(f"{share:.0%}" for share in (min(beyond), max(beyond))))
    return f"measured under load: other processes took {shares} of the machine's cores meanwhile"

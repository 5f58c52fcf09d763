"""The gateway as `zo_sweeps_ray.gateway` defines it.

The libraries that serve are imported when they are used: the reporter, which publishes only, stays small.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps_agent import agent_records
from zo_sweeps_agent.agent_facts import JOINED, REMARKS, EnrolledAgent, Note
from zo_sweeps_agent.agents import PREFIX
from zo_sweeps_agent.gateway.process import LOG, GatewayProcess
from zo_sweeps_agent.leases import FILE, Store
from zo_sweeps_ray import gateway
from zo_sweeps_ray.gateway import Own, Say
from zo_sweeps_ray.inventory import Machine
from zo_sweeps_ray.private import AGENTS, Head


class HeadGateway(gateway.Gateway):
    """The gateway of a head's folder: see the base class."""

    log = LOG

    def prepare(self, folder: Path, host: str, own: Own, say: Say) -> None:
        from zo_sweeps_agent.gateway.identity import Authority, host_of
        from zo_sweeps_agent.gateway.serve import PKI

        if own:
            host_of(own[0], host)
            Authority(folder / PKI).server_context(host, own)
        agent_records.set_aside(folder / FILE, say)

    def process(self, folder: Path, host: str, port: int, minutes: float, own: Own, say: Say) -> GatewayProcess:
        arguments = [f"--host={host}", f"--port={port}", f"--lease-minutes={minutes}"]
        if own:
            arguments += [f"--certificate={own[0]}", f"--key={own[1]}"]
        return GatewayProcess(folder, arguments, say)

    def joining(self, folder: Path, host: str, port: int, minutes: float, own: Own) -> Sequence[str]:
        from zo_sweeps_agent.gateway.identity import host_of
        from zo_sweeps_agent.gateway.serve import new_code

        code, name = new_code(folder, minutes, public=bool(own)), host_of(own[0], host) if own else host
        lines = [
            f"on a board that only dials out (one use, {minutes:g} minutes; another: zo-sweeps head code):",
            f"  zo-sweeps agent join https://{name}:{port} --code {code} --device NAME",
        ]
        if own:
            lines.append(
                "  with --ca FILE (PEM), if the board's system does not trust the head's certificate authority"
            )
        return lines

    def must_be_well(self, folder: Path) -> None:
        agent_records.must_be_well(folder / FILE)

    def publish(self, head: Head, folder: Path) -> None:
        path = folder / FILE
        if path.exists():  # made by the gateway
            with contextlib.suppress(UserError, sqlite3.Error):  # damaged: the gateway makes it again
                store = Store(path)
                note = Note(time.time(), str(path), tuple(store.agents()))
                store.close()
                head.put(AGENTS, note.to_json())

    def devices(self, note: Any) -> Sequence[Machine]:
        parsed = Note.of(note)
        return [device(one, parsed.time) for one in parsed.agents]

    def revoke(self, folder: Path, name: str) -> None:
        path = folder / FILE
        if not path.exists():
            fix = "run this on the head's machine, with state_dir=FOLDER as `head start --state-dir` had it"
            raise UserError(f"no gateway's store in {folder}", fix=fix)
        agent_records.must_be_well(path)
        store = Store(path)
        try:
            if not store.revoke(name):
                raise unknown("agent", name, [agent.name for agent in store.agents()])
        finally:
            store.close()


def device(agent: EnrolledAgent, now: float) -> Machine:
    """Return an agent as a row of `devices`.

    Args:
        now: when the note on it was written (Unix seconds).
    """
    facts = agent.facts
    host = {**facts.probe.to_json(), "zo_sweeps": facts.zo_sweeps} if facts else {}
    live = agent.live.to_json() if agent.live else {}
    return Machine(
        name=agent.name,
        device=facts.profile if facts else agent.device,
        state=agent.state if agent.state != JOINED else "up" if agent.is_online(now) else "offline",
        node_id=PREFIX + agent.name,
        cpus=facts.cpus if facts else 0,
        gpus=facts.gpus if facts else 0,
        memory_bytes=facts.memory_bytes if facts else 0,
        facts={**host, **live, "time": agent.heard},
        runs=tuple(label for _, label in agent.running),
        refused=tuple(name for name in agent.refused if name not in REMARKS),
        turned_away="; ".join(agent.refused[name] for name in REMARKS if name in agent.refused),
    )

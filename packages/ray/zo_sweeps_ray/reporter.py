"""The small process that runs with each raylet and reports its node's hardware and condition to the head every 2 s.

It is a process of its own because Ray's client ends its process when the head has been unreachable for a minute.
On the head it also answers joining machines that ask whether the head can reach them.

    python -m zo_sweeps_ray.reporter ADDRESS TOKEN_FILE ID AGENTS|"" [SECONDS]
"""

from __future__ import annotations

import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.host import VERSION
from zo_sweeps.devices.energy import EnergyMeter
from zo_sweeps.devices.probe import changing, unchanging
from zo_sweeps_ray import cluster, gateway
from zo_sweeps_ray.private import NODE, REACH, REACHED, Head

PERIOD = 2.0  # seconds between reports
UNKNOWN_SECONDS = 20.0  # if the head has not listed this node for this long, it is a new head: rejoin
GONE = 3  # exit status of a reporter whose node the head does not list
SLOW = 5  # changing facts are read in every fifth report: the power mode takes a process


def main(address: str, token: str, identity: str, agents: str = "", leave_within: str = "") -> int:
    """Report until killed, or until the head is unreachable or no longer lists the node (exit status GONE).

    With `leave_within` (seconds), first ask the head to release the node when its trials have stopped.
    """
    try:
        head = Head(address, cluster.token_environment(Path(token)))
        facts: dict[str, Any] = {"zo_sweeps": VERSION}
        hardware = ThreadPoolExecutor(1).submit(unchanging)  # trying kernels takes long
        meter = None
        known, count = time.monotonic(), 0
        while True:
            node = head.own_node(identity)
            if node:
                known = time.monotonic()
            elif time.monotonic() - known > UNKNOWN_SECONDS:
                return GONE
            if node and leave_within:
                head.drain(node["NodeID"], float(leave_within))
                leave_within = ""
            if meter is None and hardware.done():
                facts.update(hardware.result().to_json())
                meter = EnergyMeter.of("cuda" if facts["gpus"] else "cpu")
                facts.update(meter.definitions, energy_reason=meter.reason)
                count = 0
            if meter and count % SLOW == 0:
                facts.update(changing(meter).to_json())
            head.put(NODE + identity, {**facts, "time": time.time()})
            if node and cluster.HEAD in node["Resources"]:
                answer(head)
            if agents:
                gateway.gateway().publish(head, Path(agents))
            count += 1
            time.sleep(PERIOD)
    except (UserError, OSError) as error:
        print(error, file=sys.stderr)
    except Exception as error:  # Ray's client raises classes of its own, some private: the head is unreachable
        print(f"{type(error).__name__}: {str(error).splitlines()[:1]}", file=sys.stderr)
    return 1


def answer(head: Head) -> None:
    """Connect to the addresses that joining machines listen on, and tell each machine whether that worked."""
    asked: dict[str, Any] = head.notes(REACH)
    for nonce, where in asked.items():
        head.remove(REACH + nonce)
        try:
            socket.create_connection((where["host"], where["port"]), timeout=3).close()
            result = ""
        except OSError as error:
            result = error.strerror or str(error)
        head.put(REACHED + nonce, {"error": result})


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

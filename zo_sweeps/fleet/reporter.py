"""The small process beside a raylet that tells the head, every two seconds, what its node is and how it does.

A process of its own, because Ray's client ends the process that holds it when the head has been away for a minute.
On the head it also answers joining machines that ask whether they can be reached from there.

    python -m zo_sweeps.fleet.reporter ADDRESS TOKEN_FILE ID [SECONDS]
"""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path
from typing import Any

from zo_sweeps import __version__
from zo_sweeps.core.errors import UserError
from zo_sweeps.devices.live import changing, unchanging
from zo_sweeps.schedule import cluster
from zo_sweeps.schedule.gcs import NODE, REACH, REACHED, Head

PERIOD = 2.0  # seconds between reports
UNKNOWN_SECONDS = 20.0  # so long may the head not know the node: then it is another head, and one has to join again
GONE = 3  # exit status that says so
SLOW = 5  # what changes is looked at in every so many reports: the power mode takes a process


def main(address: str, token: str, identity: str, leave_within: str = "") -> int:
    """Reports until it is ended, the head cannot be reached, or it no longer knows the node (exit status GONE).

    With `leave_within` (seconds), it first asks the head to let the node go when its trials have stopped.
    """
    try:
        head = Head(address, cluster.token_environment(Path(token)))
        facts = {**unchanging(), "zo_sweeps": __version__, "host": socket.gethostname()}
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
            if count % SLOW == 0:
                facts.update(changing())
            head.put(NODE + identity, {**facts, "time": time.time()})
            if node and "node:__internal_head__" in node["Resources"]:
                answer(head)
            count += 1
            time.sleep(PERIOD)
    except (UserError, OSError) as error:
        print(error, file=sys.stderr)
    except Exception as error:  # Ray's own: the head is away
        print(f"{type(error).__name__}: {str(error).splitlines()[:1]}", file=sys.stderr)
    return 1


def answer(head: Head) -> None:
    """Tries the addresses that joining machines listen on, and tells them whether it got through."""
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

"""Run a server while any process holds the lock file, then end its whole process group.

Started by path, as the leader of a new process group; standard library only. The kernel releases the lock when its
holder dies, in whatever way, so no server outlives the sweep that needed it.

    python _watch.py LOCKFILE COMMAND...
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time


def main() -> None:
    lock_path, *command = sys.argv[1:]
    lock = os.open(lock_path, os.O_RDWR | os.O_CREAT, 0o644)
    server = subprocess.Popen(command)
    while server.poll() is None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.5)
            continue
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # killpg signals this process too
        os.killpg(0, signal.SIGTERM)
        try:
            server.wait(5)
        finally:
            os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()

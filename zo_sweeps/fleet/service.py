"""`worker install-service`: a systemd unit that joins at boot, rejoins after any failure, and leaves in order."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from zo_sweeps.core.errors import UserError

NAME = "zo-sweeps-worker.service"
FILES = ("--token-file", "--state-dir", "--config-dir")
UNIT = """\
[Unit]
Description=zo_sweeps worker of the Ray head at {address}
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=simple
ExecStart={command}
# The worker exits with success only when it was asked to leave; any failure, an unreachable head included, is retried.
Restart=on-failure
RestartSec=10
# Signal the worker alone: it asks the trials to stop at their next step before it ends Ray.
KillMode=mixed
TimeoutStopSec={patience:.0f}
Nice=5

[Install]
WantedBy={target}
"""


def absolute(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with absolute paths: systemd starts in /."""
    words = []
    for i, word in enumerate(arguments):
        flag, equals, value = word.partition("=")
        if equals and flag in FILES:
            word = f"{flag}={Path(value).expanduser().absolute()}"
        elif i and arguments[i - 1] in FILES:
            word = str(Path(word).expanduser().absolute())
        words.append(word)
    return words


def unit(arguments: Sequence[str], address: str, grace: float, *, system: bool) -> str:
    """Return the unit's text. The token is in a file that `arguments` name, never in the unit."""
    command = [sys.executable, "-m", "zo_sweeps", "worker", "join", *arguments]
    return UNIT.format(
        address=address,
        command=" ".join(shlex.quote(word).replace("%", "%%") for word in command),
        patience=grace + 60,
        target="multi-user.target" if system else "default.target",
    )


def install(text: str, *, system: bool, say: Callable[[str], None]) -> Path:
    """Write the unit where systemd looks for it, and print how to start it. Raises UserError when it cannot."""
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    path = (Path("/etc/systemd/system") if system else home / "systemd" / "user") / NAME
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}", fix="use --print and put it there yourself") from None
    say(str(path))
    user = "" if system else " --user"
    say(f"next: systemctl{user} daemon-reload && systemctl{user} enable --now {NAME}")
    if not system:
        say("and, to run without anyone logged in: loginctl enable-linger")
    return path

"""Units of systemd: what the services of a worker and of an agent share, and how they are installed and stopped."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from zo_sweeps.core.errors import UserError

SYSTEM = Path("/etc/systemd/system")
HOMES = ("/home", "/root", "/run/user")  # what ProtectHome is about: systemd.exec(5)
UNIT = """\
[Unit]
Description={description}
Wants=network-online.target time-sync.target
After=network-online.target time-sync.target
StartLimitIntervalSec=0

[Service]
Type=simple
ExecStart={command}
# Only a request to leave ends with success; any failure, an unreachable head included, is retried.
Restart=on-failure
RestartSec=10
# Signal the main process alone: it stops its trials or hands them back before its other processes end.
KillMode=mixed
TimeoutStopSec={stop_seconds:.0f}
Nice=5
NoNewPrivileges=true
UMask=0077
{settings}
[Install]
WantedBy={target}
"""


@dataclass(frozen=True)
class Unit:
    """A service that runs from boot on.

    Args:
        name: of its file.
        description: for `systemctl status`.
        words: its command line, after "zo-sweeps".
        stop_seconds: from the request to stop until systemd kills it.
        settings: further lines of its section [Service].
        system: whether it is the system's; False: this user's.
    """

    name: str
    description: str
    words: Sequence[str]
    stop_seconds: float
    settings: Sequence[str] = ()
    system: bool = True

    @property
    def text(self) -> str:
        """Its file's contents."""
        command = [sys.executable, "-m", "zo_sweeps", *self.words]
        return UNIT.format(
            description=self.description,
            command=" ".join(shlex.quote(word).replace("%", "%%") for word in command),
            stop_seconds=self.stop_seconds,
            settings="".join(f"{line}\n" for line in self.settings),
            target="multi-user.target" if self.system else "default.target",
        )

    @property
    def path(self) -> Path:
        """Where systemd looks for it."""
        return path_of(self.name, system=self.system)

    def install(self) -> None:
        """Write it where systemd looks for it. Raises UserError when it cannot."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(self.text)
        except OSError as error:
            fix = "use sudo, or --print it and put it there yourself"
            raise UserError(f"cannot write {self.path}: {error.strerror}", fix=fix) from None

    def tell(self, say: Callable[[str], None]) -> None:
        """Print where it is, and how to start it."""
        say(str(self.path))
        user = "" if self.system else " --user"
        say(f"next: systemctl{user} daemon-reload && systemctl{user} enable --now {self.name}")
        if not self.system:
            say("and, to run without anyone logged in: loginctl enable-linger")


def confined(reads: Iterable[str | Path]) -> list[str]:
    """Return the settings of a service that writes in its own folders alone.

    Args:
        reads: paths that it reads; homes are hidden from it unless one of the paths is in a home.
    """
    in_home = any(Path(path).is_relative_to(home) for path in reads for home in HOMES)
    return ["PrivateTmp=true", "ProtectSystem=strict", f"ProtectHome={'read-only' if in_home else 'true'}"]


def path_of(name: str, *, system: bool) -> Path:
    """Return where systemd looks for a unit of the system, or of this user."""
    if system:
        return SYSTEM / name
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd" / "user" / name


def disable(name: str, *, system: bool) -> None:
    """Stop a service in order, now and for later boots; nothing without systemd. Raises UserError when it cannot."""
    tool = shutil.which("systemctl")
    if not tool:
        return
    words = [*([] if system else ["--user"]), "disable", "--now", name]
    stopped = subprocess.run([tool, *words], capture_output=True, text=True, check=False)
    if stopped.returncode:
        what = (stopped.stderr.strip().splitlines() or [""])[0]
        raise UserError(f"the service cannot be stopped: {what}", fix=shlex.join(["systemctl", *words]))

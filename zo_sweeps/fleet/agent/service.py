"""`agent install-service`: a systemd unit that runs the agent of a registered machine from boot on, confined."""

from __future__ import annotations

import os
import pwd
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from zo_sweeps.core.errors import UserError

NAME = "zo-sweeps-agent.service"
UNITS = Path("/etc/systemd/system")
UNIT = """\
[Unit]
Description=zo_sweeps agent of the head at {url}
Wants=network-online.target time-sync.target
After=network-online.target time-sync.target
StartLimitIntervalSec=0

[Service]
Type=simple
User={user}
ExecStart={command}
# Status 2: a person is needed, as when the head has revoked the key. Anything else is tried again.
Restart=on-failure
RestartPreventExitStatus=2
RestartSec=10
# Signal the agent alone: it hands its trials back before its processes end.
KillMode=mixed
TimeoutStopSec=90
Nice=5
NoNewPrivileges=true
UMask=0077
PrivateTmp=true
ProtectSystem=strict
ProtectHome=read-only
ReadWritePaths={state} -{home}/.cache

[Install]
WantedBy=multi-user.target
"""


def unit(state_dir: Path, url: str, arguments: Sequence[str]) -> str:
    """Return the unit's text: it runs as the owner of the registration, whose key it needs, and never as root.

    Args:
        arguments: further options of `agent join`, without the code: the machine is registered.

    Raises UserError if root registered the machine.
    """
    owner = pwd.getpwuid(state_dir.stat().st_uid)
    if owner.pw_uid == 0:
        fix = "register as an ordinary user, and name that user's folder: --state-dir /home/NAME/.zo_sweeps"
        raise UserError("an agent runs trials and needs no root, and root registered this machine", fix=fix)
    command = [sys.executable, "-m", "zo_sweeps", "agent", "join", url, *arguments, "--state-dir", str(state_dir)]
    return UNIT.format(
        url=url,
        user=owner.pw_name,
        home=owner.pw_dir,
        state=state_dir,
        command=" ".join(shlex.quote(word).replace("%", "%%") for word in command),
    )


def install(text: str, say: Callable[[str], None]) -> None:
    """Write the unit, and print how to start it. Raises UserError when it cannot."""
    path = UNITS / NAME
    try:
        path.write_text(text)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}", fix="use sudo, or --print it") from None
    say(str(path))
    say(f"next: systemctl daemon-reload && systemctl enable --now {NAME}")


def own_home(default: Path) -> Path:
    """Return the state folder of the user who called sudo; without sudo, the default."""
    user = os.environ.get("SUDO_USER")
    try:
        return Path(pwd.getpwnam(user).pw_dir) / default.name if user else default.expanduser()
    except KeyError:
        return default.expanduser()

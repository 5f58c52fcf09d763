"""`agent install-service`: a systemd unit that runs the agent of a registered machine from boot on, confined."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Sequence
from pathlib import Path

from zo_sweeps.core.errors import UserError
from zo_sweeps_ray.systemd import Unit, confined

NAME = "zo-sweeps-agent.service"
STOP_SECONDS = 90.0  # for the last events to reach the head


def unit(state_dir: Path, url: str, arguments: Sequence[str], data: Path | None = None) -> Unit:
    """Return the agent's unit: it runs as the owner of the registration, whose key it needs, and never as root.

    Args:
        arguments: further options of `agent join`, without the code: the machine is registered.
        data: the folder of rows that stay here, beside which its answers are kept; None: there is none.

    Raises UserError if root registered the machine.
    """
    owner = pwd.getpwuid(state_dir.stat().st_uid)
    if owner.pw_uid == 0:
        fix = "register as an ordinary user, and name that user's folder: --state-dir /home/NAME/.zo_sweeps"
        raise UserError("an agent runs trials and needs no root, and root registered this machine", fix=fix)
    words = ["agent", "join", url, *arguments, "--state-dir", str(state_dir)]
    own = [str(state_dir), *([str(data)] if data else [])]
    settings = [
        f"User={owner.pw_name}",
        "# Status 2: a person is needed, as when the head has revoked the key.",
        "RestartPreventExitStatus=2",
        *confined((sys.prefix, sys.base_prefix, *own, owner.pw_dir)),
        f"ReadWritePaths={' '.join(own)} -{owner.pw_dir}/.cache",
    ]
    return Unit(NAME, f"zo_sweeps agent of the head at {url}", words, STOP_SECONDS, settings)


def own_home(default: Path) -> Path:
    """Return the state folder of the user who called sudo; without sudo, the default."""
    user = os.environ.get("SUDO_USER")
    try:
        return Path(pwd.getpwnam(user).pw_dir) / default.name if user else default.expanduser()
    except KeyError:
        return default.expanduser()

"""`worker install-service`: a systemd unit that joins at boot, rejoins after any failure, and leaves in order.

For the system, the worker runs as an account of its own, with a copy of the token that only this account can read.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import zo_sweeps
from zo_sweeps.core.errors import UserError

NAME = "zo-sweeps-worker.service"
ACCOUNT = "zo"
UNITS, SETTINGS, STATE = Path("/etc/systemd/system"), Path("/etc/zo-sweeps"), Path("/var/lib/zo-sweeps")
GROUPS = ("video", "render", "plugdev")  # who may use a Jetson's GPU, another GPU, a phone
FILES = ("--token-file", "--state-dir", "--config-dir")
UNIT = """\
[Unit]
Description=zo_sweeps worker of the Ray head at {address}
Wants=network-online.target time-sync.target
After=network-online.target time-sync.target
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
NoNewPrivileges=true
UMask=0077
{confined}
[Install]
WantedBy={target}
"""
CONFINED = """\
User={account}
{groups}StateDirectory={state}
WorkingDirectory=/var/lib/{state}
PrivateTmp=true
ProtectSystem=strict
ProtectHome={home}
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


def of_system(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of `worker join` for the service's account: its copy of the token, its state folder."""
    words, skip = [], False
    for word in arguments:
        flag, equals, _ = word.partition("=")
        if not skip and flag not in ("--token-file", "--state-dir"):
            words.append(word)
        skip = flag in ("--token-file", "--state-dir") and not equals
    return [*words, "--token-file", str(SETTINGS / "ray_token"), "--state-dir", str(STATE)]


def unit(arguments: Sequence[str], address: str, grace: float, *, system: bool) -> str:
    """Return the unit's text. The token is in a file that `arguments` name, never in the unit."""
    command = [sys.executable, "-m", "zo_sweeps", "worker", "join", *arguments]
    groups = [name for name in GROUPS if _exists(name)]
    homes = ("/home/", "/root/", "/run/user/")
    in_home = any(str(path).startswith(homes) for path in _used(arguments))
    confined = CONFINED.format(
        account=ACCOUNT,
        groups=f"SupplementaryGroups={' '.join(groups)}\n" if groups else "",
        state=STATE.name,
        home="read-only" if in_home else "true",
    )
    return UNIT.format(
        address=address,
        command=" ".join(shlex.quote(word).replace("%", "%%") for word in command),
        patience=grace + 60,
        confined=confined if system else "",
        target="multi-user.target" if system else "default.target",
    )


def install(text: str, arguments: Sequence[str], token: Path | None, *, say: Callable[[str], None]) -> Path:
    """Write the unit where systemd looks for it, and print how to start it.

    Args:
        token: the cluster's token, for a unit of the system: its account gets a copy; None: a unit of this user.

    Raises UserError when it cannot, and when the account could not read what the worker runs from.
    """
    path = (UNITS if token else _users()) / NAME
    try:
        if token:
            _must_be_readable(_used(arguments))
            account = _account()
            SETTINGS.mkdir(mode=0o755, parents=True, exist_ok=True)
            _copy(token, SETTINGS / "ray_token", account)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}", fix="use --print and put it there yourself") from None
    say(str(path))
    if token:
        say(f"runs as {ACCOUNT}, with its copy of the token in {SETTINGS / 'ray_token'}")
    user = "" if token else " --user"
    say(f"next: systemctl{user} daemon-reload && systemctl{user} enable --now {NAME}")
    if not token:
        say("and, to run without anyone logged in: loginctl enable-linger")
    return path


def uninstall(*, system: bool, say: Callable[[str], None]) -> int:
    """Stop the service, which leaves in order, and remove its unit and its token; return 1 if there is none.

    The account and its results stay. Raises UserError when it cannot.
    """
    path = (UNITS if system else _users()) / NAME
    if not path.exists():
        say(f"no service here: {path} does not exist")
        return 1
    if tool := shutil.which("systemctl"):
        command = [tool, *([] if system else ["--user"]), "disable", "--now", NAME]
        stopped = subprocess.run(command, capture_output=True, text=True, check=False)
        if stopped.returncode:
            fix = shlex.join(["systemctl", *command[1:]])
            raise UserError(
                f"the service cannot be stopped: {(stopped.stderr.strip().splitlines() or [''])[0]}", fix=fix
            )
    try:
        for file in (path, *([SETTINGS / "ray_token"] if system else [])):
            file.unlink(missing_ok=True)
            say(f"removed {file}")
    except OSError as error:
        raise UserError(f"cannot remove {error.filename}: {error.strerror}", fix="use sudo") from None
    if system:
        say(f"kept: the account {ACCOUNT} and {STATE}")
    return 0


def _users() -> Path:
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return home / "systemd" / "user"


def _exists(group: str) -> bool:
    with contextlib.suppress(KeyError):
        return bool(grp.getgrnam(group))
    return False


def _used(arguments: Sequence[str]) -> Iterator[Path]:
    """Yield the folders that the worker reads: Python, packages, this code, profiles."""
    yield from (Path(sys.prefix), Path(sys.base_prefix), Path(zo_sweeps.__file__).parent)
    for before, word in zip(["", *arguments], arguments, strict=False):
        flag, equals, value = word.partition("=")
        if before == "--config-dir":
            yield Path(word)
        elif flag == "--config-dir" and equals:
            yield Path(value)


def _must_be_readable(paths: Iterator[Path]) -> None:
    """Raise UserError unless every account can read these folders."""
    for path in paths:
        for folder in (path.resolve(), *path.resolve().parents):
            if not folder.stat().st_mode & 0o001:
                raise UserError(
                    f"the account {ACCOUNT} cannot read {path} (mode of {folder}: {folder.stat().st_mode & 0o777:o})",
                    fix="install zo-sweeps where everybody can read it (python -m venv /opt/zo-sweeps), or use --user",
                )


def _account() -> tuple[int, int]:
    """Return the ids of the service's account, made if there is none. Raises UserError when it cannot be made."""
    with contextlib.suppress(KeyError):
        entry = pwd.getpwnam(ACCOUNT)
        return entry.pw_uid, entry.pw_gid
    command = ["useradd", "--system", "--user-group", "--home-dir", str(STATE), "--shell", "/usr/sbin/nologin", ACCOUNT]
    try:
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        problem = made.stderr.strip() if made.returncode else ""
    except OSError as error:
        problem = f"useradd: {error.strerror}"
    if problem:
        raise UserError(f"cannot make the account {ACCOUNT}: {problem.splitlines()[0]}", fix=shlex.join(command))
    return _account()


def _copy(token: Path, copy: Path, account: tuple[int, int]) -> None:
    """Write a token that only `account` can read."""
    copy.unlink(missing_ok=True)
    with os.fdopen(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        os.fchown(file.fileno(), *account)
        file.write(token.read_text())

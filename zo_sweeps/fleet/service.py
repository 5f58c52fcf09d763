"""`worker install-service`: a systemd unit that joins at boot, rejoins after any failure, and leaves in order.

For the system, the worker runs as an account of its own, with a copy of the token that only this account can read.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import zo_sweeps
from zo_sweeps.core.errors import UserError
from zo_sweeps.fleet import systemd
from zo_sweeps.fleet.systemd import Unit

NAME = "zo-sweeps-worker.service"
ACCOUNT = "zo"
SETTINGS, STATE = Path("/etc/zo-sweeps"), Path("/var/lib/zo-sweeps")
GROUPS = ("video", "render", "plugdev")  # who may use a Jetson's GPU, another GPU, a phone
FILES = ("--token-file", "--state-dir", "--config-dir")


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


def unit(arguments: Sequence[str], address: str, grace: float, *, system: bool) -> Unit:
    """Return the worker's unit. The token is in a file that `arguments` name, never in the unit."""
    description = f"zo_sweeps worker of the Ray head at {address}"
    settings = _settings(arguments) if system else []
    return Unit(NAME, description, ["worker", "join", *arguments], grace + 60, settings, system)


def _settings(arguments: Sequence[str]) -> list[str]:
    """Return the settings of a worker that runs as an account of its own, confined."""
    groups = [name for name in GROUPS if _exists(name)]
    return [
        f"User={ACCOUNT}",
        *([f"SupplementaryGroups={' '.join(groups)}"] if groups else []),
        f"StateDirectory={STATE.name}",
        f"WorkingDirectory={STATE}",
        *systemd.confined(_used(arguments)),
    ]


def install(unit: Unit, arguments: Sequence[str], token: Path | None, *, say: Callable[[str], None]) -> None:
    """Install the unit, and print how to start it.

    Args:
        token: the cluster's token, for a unit of the system: its account gets a copy; None: a unit of this user.

    Raises UserError when it cannot, and when the account could not read what the worker runs from.
    """
    if token:
        _must_be_readable(_used(arguments))
        account = _account()
        try:
            SETTINGS.mkdir(mode=0o755, parents=True, exist_ok=True)
            _copy(token, SETTINGS / "ray_token", account)
        except OSError as error:
            raise UserError(f"cannot write {error.filename}: {error.strerror}", fix="use sudo, or --user") from None
    unit.install()
    if token:
        say(f"runs as {ACCOUNT}, with its copy of the token in {SETTINGS / 'ray_token'}")
    unit.tell(say)


def uninstall(*, system: bool, say: Callable[[str], None]) -> int:
    """Stop the service, which leaves in order, and remove its unit and its token; return 1 if there is none.

    The account and its results stay. Raises UserError when it cannot.
    """
    path = systemd.path_of(NAME, system=system)
    if not path.exists():
        say(f"no service here: {path} does not exist")
        return 1
    systemd.disable(NAME, system=system)
    try:
        for file in (path, *([SETTINGS / "ray_token"] if system else [])):
            file.unlink(missing_ok=True)
            say(f"removed {file}")
    except OSError as error:
        raise UserError(f"cannot remove {error.filename}: {error.strerror}", fix="use sudo") from None
    if system:
        say(f"kept: the account {ACCOUNT} and {STATE}")
    return 0


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

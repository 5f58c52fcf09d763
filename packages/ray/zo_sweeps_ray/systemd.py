"""Units of systemd: what the services of a worker and of an agent share, and `worker install-service`.

That unit joins at boot, rejoins after any failure, and leaves in order. For the system, the worker runs as an account
of its own, with a copy of the token that only this account can read.
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
from collections.abc import Callable, Iterable, Iterator, Sequence
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

    Homes are hidden from it unless one of the paths that it reads is in a home.
    """
    in_home = any(Path(path).is_relative_to(home) for path in reads for home in HOMES)
    return ["PrivateTmp=true", "ProtectSystem=strict", f"ProtectHome={'read-only' if in_home else 'true'}"]


def path_of(name: str, *, system: bool) -> Path:
    """Return where systemd looks for a unit of the system, or of this user."""
    if system:
        return SYSTEM / name
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd" / "user" / name


NAME = "zo-sweeps-worker.service"
ACCOUNT = "zo"
SETTINGS, STATE = Path("/etc/zo-sweeps"), Path("/var/lib/zo-sweeps")
GROUPS = ("video", "render", "plugdev")  # who may use a Jetson's GPU, another GPU, a phone
FILES = ("--token-file", "--state-dir", "--config-dir")


def unit_arguments(given: Sequence[str], *, system: bool) -> list[str]:
    """Return the arguments of `worker join` with absolute paths, because systemd starts in /.

    `system`: with the account's copy of the token and its state folder instead of the user's.
    """
    arguments, words = [], iter(given)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag not in FILES:
            arguments.append(word)
            continue
        path = str(Path(value if equals else next(words)).expanduser().absolute())
        if not (system and flag in ("--token-file", "--state-dir")):
            arguments += [f"{flag}={path}"] if equals else [flag, path]
    own = ["--token-file", str(SETTINGS / "ray_token"), "--state-dir", str(STATE)]
    return [*arguments, *own] if system else arguments


def unit(arguments: Sequence[str], address: str, grace: float, config_dirs: Sequence[str], *, system: bool) -> Unit:
    """Return the worker's unit; of the system, it runs as an account of its own, confined.

    The token is in a file that `arguments` name, never in the unit.
    """
    description = f"zo_sweeps worker of the Ray head at {address}"
    settings = []
    if system:
        known = {group.gr_name for group in grp.getgrall()}
        groups = [name for name in GROUPS if name in known]
        settings = [
            f"User={ACCOUNT}",
            *([f"SupplementaryGroups={' '.join(groups)}"] if groups else []),
            f"StateDirectory={STATE.name}",
            f"WorkingDirectory={STATE}",
            *confined(_used(config_dirs)),
        ]
    return Unit(NAME, description, ["worker", "join", *arguments], grace + 60, settings, system)


def install(unit: Unit, config_dirs: Sequence[str], token: Path | None, *, say: Callable[[str], None]) -> None:
    """Install the unit, and print how to start it.

    Args:
        token: the cluster's token, for a unit of the system: its account gets a copy; None: a unit of this user.

    Raises UserError when it cannot, and when the account could not read what the worker runs from.
    """
    if token:
        _must_be_readable(_used(config_dirs))
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
    path = path_of(NAME, system=system)
    if not path.exists():
        say(f"no service here: {path} does not exist")
        return 1
    if tool := shutil.which("systemctl"):
        words = [*([] if system else ["--user"]), "disable", "--now", NAME]
        stopped = subprocess.run([tool, *words], capture_output=True, text=True, check=False)
        if stopped.returncode:
            what = (stopped.stderr.strip().splitlines() or [""])[0]
            raise UserError(f"the service cannot be stopped: {what}", fix=shlex.join(["systemctl", *words]))
    try:
        for file in (path, *([SETTINGS / "ray_token"] if system else [])):
            file.unlink(missing_ok=True)
            say(f"removed {file}")
    except OSError as error:
        raise UserError(f"cannot remove {error.filename}: {error.strerror}", fix="use sudo") from None
    if system:
        say(f"kept: the account {ACCOUNT} and {STATE}")
    return 0


def _used(config_dirs: Sequence[str]) -> Iterator[Path]:
    """Yield the folders that the worker reads: Python, packages, this code, profiles."""
    yield from (Path(sys.prefix), Path(sys.base_prefix), Path(__file__).parents[1])
    yield from (Path(name).expanduser().absolute() for name in config_dirs)


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

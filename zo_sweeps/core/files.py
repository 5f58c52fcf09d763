"""Folders that a user names, and write-then-rename: a reader sees the old file or the new one, never half of one."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from zo_sweeps.core.errors import UserError

CACHE = "ZO_SWEEPS_CACHE"  # names this machine's folder of what can be computed again


def folder_at(name: str | os.PathLike[str], key: str) -> Path:
    """Return the folder that the user named for `key`, `~` expanded. It may be absent.

    Raises UserError if something else has that name, or if it cannot be read.
    """
    path = Path(name)
    try:
        path = path.expanduser()
        with os.scandir(path):
            return path
    except FileNotFoundError:
        return path
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: ~ of nobody; ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{key}={name} is no folder that can be read ({reason})", fix=f"write {key}=FOLDER") from None


@contextmanager
def reading() -> Iterator[None]:
    """Raise UserError, with the file's name, for an OSError of the block."""
    try:
        yield
    except OSError as error:
        if error.filename is None:  # Hydra's, for an option that does not exist
            raise
        what = f"cannot read {error.filename}: {error.strerror}"
        raise UserError(what, fix="it must be a file or folder that you may read") from None


def cache_folder() -> Path:
    """Return this machine's folder of what can be computed again: ZO_SWEEPS_CACHE, or in the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get(CACHE) or f"{cache}/zo_sweeps").expanduser()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, and rename it to `path` when the block ends without an error.

    The temporary name contains the process id, so that concurrent writers of one file do not collide; its suffix
    never equals that of `path`. After an error it is removed and `path` is unchanged.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def replace_text(path: Path, text: str) -> None:
    """Replace the contents of `path` with `text` (UTF-8). Raises OSError if it cannot be written."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `folder`, and rename it to `folder`, absent or empty, when the block ends.

    After an error it is removed. Raises OSError if `folder` has files by then.
    """
    part = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    try:
        part.mkdir(parents=True)
        yield part
        os.replace(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path`, which other processes wait for; it is released even when this process is killed."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield  # closing the file releases the lock


@cache
def conf_dir() -> Path:
    """Return the folder of the packaged configuration: next to the package in a checkout, inside it in a wheel."""
    package = Path(__file__).parents[1]
    for candidate in (package / "conf", package.parent / "conf"):
        if (candidate / "device").is_dir():
            return candidate
    raise UserError("the configuration files are missing", where=str(package), fix="reinstall zo-sweeps")

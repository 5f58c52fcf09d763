"""Folders that a user names, and write-then-rename: a reader sees the old file or the new one, never half of one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zo_sweeps.core.errors import UserError


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
    except (OSError, RuntimeError) as error:  # RuntimeError: ~ of nobody
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{key}={name} is no folder that can be read ({reason})", fix=f"write {key}=FOLDER") from None


def cache_folder() -> Path:
    """Return this machine's folder of what can be computed again: ZO_SWEEPS_CACHE, or in the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("ZO_SWEEPS_CACHE") or f"{cache}/zo_sweeps").expanduser()


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

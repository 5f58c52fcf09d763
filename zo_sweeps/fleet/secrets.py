"""The cluster's token and how processes are told of it: by a file that its owner alone can read, never in an argument.

Whoever has the token can run code on every node: see SECURITY.md.
"""

from __future__ import annotations

import os
from pathlib import Path

from zo_sweeps.core.errors import UserError
from zo_sweeps.schedule.cluster import TOKEN_FIX, private_token


def find_token(given: str | None, state_dir: Path) -> Path | None:
    """The file with the token: `given`, else as the environment says, else Ray's own; None when there is none.

    A token in RAY_AUTH_TOKEN is written to `state_dir`, so that it need not stand in the environment of children.
    """
    if given:
        return checked(Path(given))
    if text := os.environ.get("RAY_AUTH_TOKEN", "").strip():
        return written(state_dir, text)
    if path := os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return checked(Path(path))
    default = Path.home() / ".ray" / "auth_token"
    return checked(default) if default.exists() else None


def token_for_joining(given: str | None, state_dir: Path) -> Path:
    """As `find_token`. Raises UserError when there is none."""
    found = find_token(given, state_dir)
    if found is None:
        raise UserError("no token for the cluster", fix=TOKEN_FIX)
    return found


def token_for_head(given: str | None, state_dir: Path) -> Path:
    """The token of a head that is to be started: as for joining, but Ray's own file is left to Ray; made if absent."""
    named = given or os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    state_dir.mkdir(parents=True, exist_ok=True)
    return (find_token(given, state_dir) if named else None) or private_token(state_dir).resolve()


def checked(path: Path) -> Path:
    """The path, absolute. Raises UserError unless the file holds a token that its owner alone can read."""
    path = path.expanduser().absolute()
    try:
        text, mode = path.read_text().strip(), path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the token: {getattr(error, 'strerror', error)}", where=str(path)) from None
    if not text:
        raise UserError("the token file is empty", where=str(path), fix=TOKEN_FIX)
    if mode & 0o077:
        raise UserError(f"others can read the token (mode {mode & 0o777:o})", where=str(path), fix=f"chmod 600 {path}")
    return path


def written(state_dir: Path, text: str) -> Path:
    """A file of mode 0600 in `state_dir` with this token."""
    state_dir.mkdir(parents=True, exist_ok=True)
    path = state_dir / "ray_token"
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    return path.absolute()

"""The cluster's token. Processes get it as a file that only its owner can read, never as an argument.

Anyone with the token can run code on every node: see SECURITY.md.
"""

from __future__ import annotations

import os
from pathlib import Path

from zo_sweeps.core.errors import UserError
from zo_sweeps.schedule.cluster import TOKEN_FIX, private_token


def find_token(token_file: str | None, state_dir: Path) -> Path | None:
    """Return the file with the token, or None when there is none.

    The first of: `token_file`, RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH, Ray's own file. A token in RAY_AUTH_TOKEN is
    written to `state_dir`, so that child processes do not need it in their environment.
    """
    if token_file:
        return checked(Path(token_file))
    if text := os.environ.get("RAY_AUTH_TOKEN", "").strip():
        return written(state_dir, text)
    if path := os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return checked(Path(path))
    default = Path.home() / ".ray" / "auth_token"
    return checked(default) if default.exists() else None


def token_for_joining(token_file: str | None, state_dir: Path) -> Path:
    """Return the file with the token, as `find_token`. Raises UserError when there is none."""
    path = find_token(token_file, state_dir)
    if path is None:
        raise UserError("no token for the cluster", fix=TOKEN_FIX)
    return path


def token_for_head(token_file: str | None, state_dir: Path) -> Path:
    """Return the token file for a new head: as for joining, but never Ray's own file; make one if there is none."""
    named = token_file or os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    state_dir.mkdir(parents=True, exist_ok=True)
    return (find_token(token_file, state_dir) if named else None) or private_token(state_dir).resolve()


def checked(path: Path) -> Path:
    """Return the path, absolute. Raises UserError unless the file holds a token that only its owner can read."""
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
    """Write the token to a file of mode 0600 in `state_dir`; return its path."""
    state_dir.mkdir(parents=True, exist_ok=True)
    path = state_dir / "ray_token"
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    return path.absolute()

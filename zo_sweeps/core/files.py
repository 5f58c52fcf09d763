"""Write-then-rename: a reader sees the old file or the new one, never half of one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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

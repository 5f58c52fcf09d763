"""Write-then-rename: a reader sees the old file or the new one, never half of one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, and rename it to `path` when the block ends without an error.

    The temporary name contains the process id, so that two processes that write the same file do not mix; it never
    ends as `path` does. After an error it is removed and `path` is as it was.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def replace_text(path: Path, text: str) -> None:
    """Replace the contents of `path` by `text` (UTF-8). Raises OSError if the disk does not take it."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")

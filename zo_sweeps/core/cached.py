"""Entries of the cache folder: what the first trial that needs it computes, and all later ones read."""

from __future__ import annotations

import contextlib
import filecmp
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from zo_sweeps.core.files import CACHE, cache_folder, locked


@dataclass(frozen=True)
class Cached:
    """An entry of the cache folder.

    Args:
        kind: what it is, for people.
        mark: its fingerprint, as the journals of its trials give it.
        files: all of its files, relative to the cache folder.
        lock: held by a process that computes it, relative to the cache folder.
        folder: whether the files have a folder of their own, which appears as a whole.
    """

    kind: str
    mark: str
    files: tuple[Path, ...]
    lock: Path
    folder: bool = False

    @property
    def bytes(self) -> int:
        """The size of its files. Raises OSError if one is gone."""
        return sum((cache_folder() / file).stat().st_size for file in self.files)

    def is_same(self, other: Path) -> bool:
        """Return whether another cache folder holds every file of it with the same bytes. Cost: reads all of them."""
        here = cache_folder()
        there = [(here / file, other / file) for file in self.files]
        return all(a.is_file() and b.is_file() and filecmp.cmp(a, b, shallow=False) for a, b in there)

    def drop(self) -> None:
        """Remove its files, and a folder of their own if nothing else is in it; call with `held`."""
        here = cache_folder()
        where = (here / self.files[0]).parent
        if self.folder:  # first its name, so that no trial finds a part of it
            where = where.rename(where.with_name(f"{where.name}.{os.getpid()}.part"))
        for file in self.files:
            (where / file.name).unlink()
        if self.folder:
            with contextlib.suppress(OSError):
                where.rmdir()

    def held(self) -> contextlib.AbstractContextManager[None]:
        """Hold its lock, which trials that look for it wait for."""
        return locked(cache_folder() / self.lock)


@contextlib.contextmanager
def cache_at(folder: Path) -> Iterator[None]:
    """Have this process use another cache folder while the block runs."""
    before = os.environ.get(CACHE)
    os.environ[CACHE] = str(folder)
    try:
        yield
    finally:
        del os.environ[CACHE]
        if before is not None:
            os.environ[CACHE] = before

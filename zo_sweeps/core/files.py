"""Folders that a user names, whole files, entries of the cache folder, and JSON lines that may be growing."""

from __future__ import annotations

import contextlib
import fcntl
import filecmp
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

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


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, hexadecimal. Raises OSError if it cannot be read."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**22):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def new_folder(folder: Path, *, alone: bool = False) -> Iterator[Path]:
    """Yield a temporary folder beside `folder`, and rename it to `folder`, absent or empty, when the block ends.

    After an error it is removed. Raises OSError if `folder` has files by then.

    Args:
        alone: whether a lock keeps other processes from making it: what killed ones have left of it is then removed.
    """
    for left in folder.parent.glob(f"{folder.name}.*.part") if alone else ():
        shutil.rmtree(left, ignore_errors=True)
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


@dataclass(frozen=True)
class Cached:
    """An entry of the cache folder; its paths are relative to that."""

    kind: str  # what it is, for people
    mark: str  # its fingerprint, as the journals of its trials give it
    files: tuple[Path, ...]  # all of its files
    lock: Path  # held by a process that computes it
    folder: bool = False  # whether the files have a folder of their own, which appears as a whole

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


def read_lines(path: str | os.PathLike[str], offset: int = 0) -> list[tuple[bytes, int]]:
    """Return (line without its newline, byte offset of its end) for every complete line from byte `offset` on.

    A last line without a newline is torn and left out. Without a file: []. Raises UserError if it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            data = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", fix="it must be a file that you may read") from error
    lines = []
    for line in data.split(b"\n")[:-1]:
        offset += len(line) + 1
        lines.append((line, offset))
    return lines


def parse_object(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object that a line holds; None if it holds none."""
    try:
        value = json.loads(line.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):  # bad JSON, bad UTF-8, brackets without end
        return None
    return value if isinstance(value, dict) else None


def read_objects(path: str | os.PathLike[str], offset: int = 0) -> list[tuple[dict[str, Any] | None, int]]:
    """Return (object, byte offset of its end) for every complete line from byte `offset` on; see `read_lines`.

    A complete line that is not a JSON object gives None: the caller decides whether that is an error (see
    `line_number`).
    """
    return [(parse_object(line), end) for line, end in read_lines(path, offset)]


def line_number(path: str | os.PathLike[str], end: int) -> int:
    """Return the number, from 1, of the line that ends at byte `end`."""
    with open(path, "rb") as file:
        return file.read(end).count(b"\n")


def packed(values: Sequence[bool]) -> str:
    """Return the values as hexadecimal digits, the first in the highest bit; the last byte is filled up with 0."""
    bits = "".join("1" if value else "0" for value in values)
    return bytes(int(bits[i : i + 8].ljust(8, "0"), 2) for i in range(0, len(bits), 8)).hex()


def unpacked(text: str, count: int) -> tuple[bool, ...]:
    """Return the first `count` values of a packed text. Raises ValueError if it holds fewer, or is not hexadecimal."""
    bits = "".join(f"{byte:08b}" for byte in bytes.fromhex(text))
    if len(bits) < count:
        raise ValueError(f"{len(bits)} bits for {count} values")
    return tuple(bit == "1" for bit in bits[:count])

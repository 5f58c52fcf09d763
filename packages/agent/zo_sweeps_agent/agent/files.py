"""The files of models and tasks that came from the head, each kept once by the SHA-256 of its contents.

files/blobs/SHA256        a file; SHA256.part while it is fetched, which goes on where it stopped
files/folders/ID/...      a model or data folder: hard links to blobs, under the names that it has at the head
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path, PurePosixPath

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import new_folder, sha256_of
from zo_sweeps.core.fingerprint import fingerprint
from zo_sweeps.core.units import bytes_text
from zo_sweeps_agent.agent.link import Link
from zo_sweeps_agent.lease_contents import LeaseFile

SPARE = 2**30  # bytes of the disk that are left free


class Cache:
    """The files below `root`, for one thread at a time: two would append to one .part."""

    def __init__(self, root: Path) -> None:
        self._blobs, self._folders = root / "files" / "blobs", root / "files" / "folders"

    def folder(self, link: Link, lease: str, files: Sequence[LeaseFile], keep: Collection[Path]) -> Path:
        """Return a folder with these files of a lease, fetching those that are not here.

        Args:
            keep: folders that running trials use; others make way for new files on a full disk.

        Raises UnreachableError, which a later call resumes from, and UserError for a file that is not what was
        announced, a name outside the folder, or a full disk.
        """
        listed = sorted((file.path, file.sha256) for file in files)
        folder = self._folders / fingerprint(listed)
        if folder.is_dir():
            return folder
        for file in files:
            self._fetch(link, lease, file, {digest for _, digest in listed}, keep)
        self._folders.mkdir(parents=True, exist_ok=True)
        with new_folder(folder) as part:
            for name, digest in listed:
                path = part / inside(name)
                path.parent.mkdir(parents=True, exist_ok=True)
                os.link(self._blobs / digest, path)
        return folder

    def _fetch(self, link: Link, lease: str, file: LeaseFile, needed: set[str], keep: Collection[Path]) -> None:
        digest, size = file.sha256, file.bytes
        blob = self._blobs / digest
        if blob.exists():
            blob.touch()
            return
        self._blobs.mkdir(parents=True, exist_ok=True)
        part = blob.with_suffix(".part")
        for begun in (True, False):  # once more from its first byte if what was there is damaged
            have = part.stat().st_size if begun and part.exists() else 0
            self._make_room(size - have, needed, keep)
            if not begun or have < size or not part.exists():  # the last: of an empty file
                self._append(link, f"/v1/leases/{lease}/files/{digest}", part, have, size)
            if sha256_of(part) == digest:
                part.rename(blob)
                return
            part.unlink()
            if not have:
                break
        raise UserError(f"{file.path} from the head is not the file that it announced")

    def _append(self, link: Link, path: str, part: Path, have: int, size: int) -> None:
        """Fetch a file from byte `have` on, up to `size` bytes."""
        with link.bytes_from(path, have) as (start, parts), part.open("ab") as out:
            out.truncate(start)
            for data in parts:
                if out.tell() + len(data) > size:
                    break  # more than was announced: the digest will not match
                out.write(data)
            out.flush()
            os.fsync(out.fileno())

    def _make_room(self, size: int, needed: set[str], keep: Collection[Path]) -> None:
        """Delete folders and files that no trial needs now, the least recently used first, until `size` bytes fit.

        Raises UserError if they do not.
        """

        def free() -> int:
            return shutil.disk_usage(self._blobs).free - SPARE

        if free() < size and self._folders.is_dir():
            for folder in {*self._folders.iterdir()} - {*keep}:
                shutil.rmtree(folder)
        for blob in sorted(self._blobs.iterdir(), key=lambda path: path.stat().st_mtime):
            if free() >= size:
                return
            if blob.stem not in needed and blob.stat().st_nlink == 1:
                blob.unlink()
        if free() < size:
            raise UserError(
                f"no room for {bytes_text(size)} of files", where=str(self._blobs), fix="free space on this disk"
            )


def inside(name: str) -> PurePosixPath:
    """Return a relative path. Raises UserError for one that leads outside its folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise UserError(f"the head sent a file with the name {name!r}")
    return path

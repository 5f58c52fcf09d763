"""The archive of a sweep: its results in one file, for others to check and to set beside their own.

A tar compressed by xz, of JSON alone:

    manifest.json     format, whose it is, grid, title, and size and SHA-256 of every other file
    signature.json    of manifest.json, by an Ed25519 key; absent if it was not signed
    plan.json         the plan as launched: grid, every trial's configuration, digests of models and data
    tables.json       the tables, cell by cell
    journal/ID.jsonl  the events of a finished trial, the scalar log among them

Reading trusts nothing: names, sizes and digests are checked in memory, and no path of the archive is ever opened.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import lzma
import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import replacing

FORMAT = 1
MANIFEST, SIGNATURE, PLAN, TABLES = "manifest.json", "signature.json", "plan.json", "tables.json"
_NAME = re.compile(r"(?:signature|plan|tables)\.json|journal/[0-9a-f]{16}\.jsonl")
_UNPRINTABLE = re.compile(r"[^\x20-\x7e\xa1-\ud7ff\ue000-\U0010ffff]")
LARGEST = 2**28  # bytes, packed and unpacked
VALUES = 2**22  # of a file's JSON: some 60,000 trials; a small archive unpacks to 10**8 brackets, which take gigabytes
WHOSE = 60  # characters


@dataclass(frozen=True)
class Archive:
    """An archive that was read: whole, and signed by `key` if that is not ""."""

    by: str  # whose results they are, as the archive says; "" if it does not
    grid: str
    title: str
    key: str  # the public key that signed it, a line of OpenSSH's format
    digest: str  # of its contents, 16 hex digits
    files: Mapping[str, bytes]  # name -> content

    @property
    def whose(self) -> str:
        """Whose results they are: the name, which anybody can write, and the key, which nobody else has."""
        signed = key_fingerprint(self.key) if self.key else f"not signed, archive {self.digest}"
        return f"{self.by or 'unnamed'} ({signed})"

    def json(self, name: str) -> Any:
        """Return a file as JSON. Raises UserError if it is absent or is none."""
        try:
            return json.loads(self.files[name])
        except (KeyError, ValueError, RecursionError):
            raise UserError(f"no {name} that can be read", where="the archive") from None


def write(path: Path, files: Mapping[str, bytes], *, by: str, grid: str, title: str, key: Path | None) -> Archive:
    """Write an archive, signed by the private key in the file `key` if there is one; return it.

    Equal contents give equal bytes. Raises UserError for a key that cannot be used, a name that is too long, or a file
    that cannot be written.
    """
    if len(by) > WHOSE or _UNPRINTABLE.search(by):
        raise UserError(f"a name has up to {WHOSE} printable characters", where="--by")
    described = {name: {"bytes": len(data), "sha256": _sha256(data)} for name, data in sorted(files.items())}
    about = {"format": FORMAT, "by": by, "grid": grid, "title": title, "files": described}
    manifest = json.dumps(about, indent=1, ensure_ascii=False).encode()
    whole = {MANIFEST: manifest, **files}
    signed = sign(manifest, key) if key else None
    if signed:
        whole[SIGNATURE] = json.dumps(signed, indent=1).encode()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in whole.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            tar.addfile(entry, io.BytesIO(data))
    try:
        with replacing(path) as part:
            part.write_bytes(lzma.compress(packed.getvalue(), preset=6))
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}", where="--out") from None
    return Archive(by, grid, title, signed["key"] if signed else "", _sha256(manifest)[:16], dict(files))


def read(path: Path, key: Path | None = None) -> Archive:
    """Read an archive, and check every file's digest and the signature; `key`: file of the public key it must be by.

    Raises UserError if it is no archive, larger than LARGEST, damaged, wrongly signed, or not signed by `key`.
    Memory: LARGEST, at most twice, and what VALUES of JSON take.
    """
    wanted = public_key(key) if key else ""
    files = _unpacked(path)
    manifest, signed = files.pop(MANIFEST, b""), files.pop(SIGNATURE, None)
    try:
        about = json.loads(manifest)
        if about["format"] != FORMAT:
            raise UserError(f"format {about['format']!r}, and this version reads {FORMAT}", where=str(path))
        texts = [_UNPRINTABLE.sub("?", str(about[name])) for name in ("by", "grid", "title")]
        expected = {str(name): (int(one["bytes"]), str(one["sha256"])) for name, one in about["files"].items()}
        signer = "" if signed is None else signer_of(manifest, json.loads(signed))
    except (KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise _not_one(path, f"its {MANIFEST} cannot be read: {error}") from None
    except ValueError as error:
        if manifest:
            raise UserError(f"wrong signature or manifest: {error}", where=str(path), fix=_AGAIN) from None
        raise _not_one(path, f"it has no {MANIFEST}") from None
    for name in sorted({*expected, *files}):
        found = (len(files[name]), _sha256(files[name])) if name in files else None
        if found != expected.get(name):
            what = "is missing" if found is None else "is not the file that was written (SHA-256)"
            raise UserError(f"{name} {what}", where=str(path), fix=_AGAIN)
    if wanted and signer != wanted:
        what = f"signed by {key_fingerprint(signer)}" if signer else "not signed"
        fix = "ask its author for another, or verify without --key what it holds"
        raise UserError(f"{what}, and not by {key_fingerprint(wanted)} ({key})", where=str(path), fix=fix)
    return Archive(texts[0][:WHOSE], texts[1], texts[2], signer, _sha256(manifest)[:16], files)


_AGAIN = "it was changed or damaged since: ask for it again"


def _unpacked(path: Path) -> dict[str, bytes]:
    """Return the regular files of an archive, by name."""
    try:
        with path.open("rb") as file:
            packed = file.read(LARGEST + 1)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    try:
        # The whole at once, and no more than LARGEST: a tar's own headers can claim any size.
        unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=LARGEST)
        data = unpacker.decompress(packed, LARGEST + 1)
        if max(len(packed), len(data)) > LARGEST:
            raise UserError(f"larger than {LARGEST >> 20} MiB", where=str(path))
        if not unpacker.eof:
            raise _not_one(path, "it ends too early")
        files: dict[str, bytes] = {}
        at, block = 0, tarfile.BLOCKSIZE
        while any(data[at : at + block]):
            # Headers of plain files alone, one at a time: tarfile takes time quadratic in the length of a pax header.
            entry = tarfile.TarInfo.frombuf(data[at : at + block], "utf-8", "surrogateescape")
            at += block
            if entry.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or entry.name in files:
                raise _not_one(path, f"{entry.name[:100]!r} is no file, or stands twice")
            if not 0 <= entry.size <= len(data) - at:
                raise _not_one(path, f"{entry.name[:100]!r} claims {entry.size} bytes, without them")
            if entry.name != MANIFEST and not _NAME.fullmatch(entry.name):
                raise _not_one(path, f"no archive has a file {entry.name[:100]!r}")
            content = files[entry.name] = data[at : at + entry.size]
            if sum(map(content.count, (b",", b"[", b"{"))) > VALUES:
                raise _not_one(path, f"{entry.name!r} has more than {VALUES:,} values")
            at += -(-entry.size // block) * block
    except (lzma.LZMAError, tarfile.TarError, EOFError, ValueError, ArithmeticError, RecursionError) as error:
        raise _not_one(path, str(error)) from None
    return files


def _not_one(path: Path, why: str) -> UserError:
    return UserError(f"not an archive of zo_sweeps ({_UNPRINTABLE.sub('?', why)})", where=str(path))


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


PURPOSE = b"zo_sweeps archive\n"  # before what is signed: a key also signs other things
ALGORITHM = "ed25519"
LARGEST_KEY = 2**16  # bytes
MAKE = "make one with `ssh-keygen -t ed25519 -N '' -f KEY` or `openssl genpkey -algorithm ed25519 -out KEY`"


def sign(message: bytes, key_file: Path) -> dict[str, str]:
    """Return the signature of a message, with the public key, by an unencrypted private Ed25519 key (OpenSSH, PKCS8).

    Raises UserError for a file that is none.
    """
    key = _private(key_file)
    signature = base64.b64encode(key.sign(PURPOSE + message)).decode()
    return {"algorithm": ALGORITHM, "key": _line_of(key.public_key()), "signature": signature}


def public_of(key_file: Path) -> str:
    """Return the public key of a private one, as `public_key`. Raises UserError for a file that is none."""
    return _line_of(_private(key_file).public_key())


def _private(key_file: Path) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    data = _key_bytes(key_file)
    load = serialization.load_ssh_private_key if b"OPENSSH" in data[:40] else serialization.load_pem_private_key
    try:
        key: Any = load(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        why = "it has a passphrase" if "ncrypted" in str(error) or "assword" in str(error) else str(error)
        raise UserError(f"not a private key that can be used ({why})", where=str(key_file), fix=MAKE) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise UserError("not an Ed25519 key", where=str(key_file), fix=MAKE)
    return key


def signer_of(message: bytes, signed: Mapping[str, Any]) -> str:
    """Return the public key that signed a message, as `public_key`. Raises ValueError for a malformed or wrong one."""
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    if signed.get("algorithm") != ALGORITHM:
        raise ValueError(f"the signature is of {signed.get('algorithm')!r}, not of {ALGORITHM}")
    try:
        line = " ".join(str(signed["key"]).split()[:2])
        key: Any = serialization.load_ssh_public_key(line.encode())
        key.verify(base64.b64decode(str(signed["signature"]), validate=True), PURPOSE + message)
    except InvalidSignature:
        raise ValueError("the signature is not of this content") from None
    except (KeyError, ValueError, TypeError, AttributeError, UnsupportedAlgorithm) as error:
        raise ValueError(f"the signature cannot be read ({error})") from None
    return line


def public_key(file: Path) -> str:
    """Return the public Ed25519 key in a file, id_ed25519.pub or PEM, as OpenSSH's line without a comment.

    Raises UserError for a file that is none.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    data = _key_bytes(file)
    load = serialization.load_pem_public_key if data.startswith(b"-----") else serialization.load_ssh_public_key
    try:
        key: Any = load(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        what = "a private key" if b"PRIVATE KEY" in data[:40] else f"not a public key ({error})"
        raise UserError(what, where=str(file), fix="name the file with the author's public key, KEY.pub") from None
    if not isinstance(key, Ed25519PublicKey):
        raise UserError("not an Ed25519 key", where=str(file), fix="name the key that the archive was signed with")
    return _line_of(key)


def key_fingerprint(line: str) -> str:
    """Return the fingerprint of a public key, SHA256:... as `ssh-keygen -l` prints it."""
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def _line_of(key: Any) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return str(key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode())


def _key_bytes(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(LARGEST_KEY)
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}", where="--key") from None

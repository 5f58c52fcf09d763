"""Signatures of archives: Ed25519, with the keys that ssh-keygen and openssl make."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zo_sweeps.core.errors import UserError

PURPOSE = b"zo_sweeps archive\n"  # before what is signed: a key also signs other things
ALGORITHM = "ed25519"
LARGEST_KEY = 2**16  # bytes
MAKE = "make one with `ssh-keygen -t ed25519 -N '' -f KEY` or `openssl genpkey -algorithm ed25519 -out KEY`"


def sign(message: bytes, key_file: Path) -> dict[str, str]:
    """Return the signature of a message, with the public key.

    Args:
        key_file: an unencrypted private Ed25519 key, in OpenSSH's format or as PKCS8 PEM.

    Raises UserError for a file that is none.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    data = _read(key_file)
    load = serialization.load_ssh_private_key if b"OPENSSH" in data[:40] else serialization.load_pem_private_key
    try:
        key: Any = load(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        why = "it has a passphrase" if "ncrypted" in str(error) or "assword" in str(error) else str(error)
        raise UserError(f"not a private key that can be used ({why})", where=str(key_file), fix=MAKE) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise UserError("not an Ed25519 key", where=str(key_file), fix=MAKE)
    form = (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    signature = base64.b64encode(key.sign(PURPOSE + message)).decode()
    return {"algorithm": ALGORITHM, "key": key.public_key().public_bytes(*form).decode(), "signature": signature}


def check(message: bytes, signed: Mapping[str, Any]) -> str:
    """Return the public key that signed a message, as one line of OpenSSH's format, without a comment.

    Raises ValueError if the signature is malformed or wrong.
    """
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    if signed.get("algorithm") != ALGORITHM:
        raise ValueError(f"the signature is of {signed.get('algorithm')!r}, not of {ALGORITHM}")
    try:
        line = _bare(str(signed["key"]))
        key: Any = serialization.load_ssh_public_key(line.encode())
        key.verify(base64.b64decode(str(signed["signature"]), validate=True), PURPOSE + message)
    except InvalidSignature:
        raise ValueError("the signature is not of this content") from None
    except (KeyError, ValueError, TypeError, AttributeError, UnsupportedAlgorithm) as error:
        raise ValueError(f"the signature cannot be read ({error})") from None
    return line


def public_key(file: Path) -> str:
    """Return the public Ed25519 key in a file, as one line of OpenSSH's format, without a comment.

    Args:
        file: the line itself (id_ed25519.pub), or PEM.

    Raises UserError for a file that is none.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    data = _read(file)
    load = serialization.load_pem_public_key if data.startswith(b"-----") else serialization.load_ssh_public_key
    try:
        key: Any = load(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        what = "a private key" if b"PRIVATE KEY" in data[:40] else f"not a public key ({error})"
        raise UserError(what, where=str(file), fix="name the file with the author's public key, KEY.pub") from None
    if not isinstance(key, Ed25519PublicKey):
        raise UserError("not an Ed25519 key", where=str(file), fix="name the key that the archive was signed with")
    form = (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return key.public_bytes(*form).decode()


def fingerprint(line: str) -> str:
    """Return the fingerprint of a public key, SHA256:... as `ssh-keygen -l` prints it."""
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def _bare(line: str) -> str:
    kind, key = line.split()[:2]
    return f"{kind} {key}"


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(LARGEST_KEY)
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}", where="--key") from None

"""The one-time code that registers an agent: it names the head's certificate authority and holds a secret.

A person copies it from the head's terminal to the board's, so that the board knows the head before it sends anything.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from dataclasses import dataclass

from zo_sweeps.core.errors import UserError

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32: no I, L, O, U
STANDARD = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"  # of the library
ALIKE = str.maketrans("OIL", "011")
PIN_BYTES = SECRET_BYTES = 10
GROUP = 4
PUBLIC = bytes(PIN_BYTES)  # the pin of a head whose certificate the board checks against authorities of its own


@dataclass(frozen=True)
class Code:
    """A one-time code.

    Args:
        pin: the first 80 bits of the SHA-256 of the authority's certificate (DER), or `PUBLIC`.
        secret: 80 random bits.
    """

    pin: bytes
    secret: bytes

    @property
    def text(self) -> str:
        """The code as it is printed: eight groups of four characters."""
        text = base64.b32encode(self.pin + self.secret).decode().translate(str.maketrans(STANDARD, ALPHABET))
        return "-".join(text[i : i + GROUP] for i in range(0, len(text), GROUP))


def new(authority: bytes | None) -> Code:
    """Return a new code for the head with this authority's certificate (DER); None: one that boards trust already."""
    return Code(PUBLIC if authority is None else pin_of(authority), secrets.token_bytes(SECRET_BYTES))


def pin_of(authority: bytes) -> bytes:
    """Return the pin of an authority's certificate (DER)."""
    return hashlib.sha256(authority).digest()[:PIN_BYTES]


def parse(text: str) -> Code:
    """Read a code as typed: case, spaces and hyphens do not matter, nor O for 0, I and L for 1. Raises UserError."""
    plain = "".join(text.upper().replace("-", " ").split()).translate(ALIKE)
    count = 8 * (PIN_BYTES + SECRET_BYTES) // 5
    if len(plain) != count or set(plain) - set(ALPHABET):
        fix = "copy the line that the head printed, or have it print another: zo-sweeps head code"
        raise UserError(f"{text!r} is not a code of {count} characters", where="--code", fix=fix)
    both = base64.b32decode(plain.translate(str.maketrans(ALPHABET, STANDARD)))
    return Code(both[:PIN_BYTES], both[PIN_BYTES:])

"""The agent's registration with one head: a key pair made here, the head's certificate for it, and what it trusts.

HEAD/  key.pem (mode 0600)   certificate.pem   authority.pem (pinned, or of --ca)   registration.json
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import ssl
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import replace_text
from zo_sweeps_agent import codes, protocol
from zo_sweeps_agent.agent.link import HeadRefusedError, Link, UnreachableError, pinned, trusted, understood, unverified


@dataclass(frozen=True)
class Registration:
    """A registration with a head.

    Args:
        url: of the head.
        name: of this agent at the head.
        device: its device profile.
        pinned: whether the head's own authority is trusted, whatever name the head has. Else its certificate must be
            for the name in `url`, from an authority in authority.pem, or where there is none, one of the system's.
        also: further addresses of that head, which are tried in turn.
    """

    url: str
    name: str
    device: str
    pinned: bool
    also: Sequence[str] = ()

    def link(self, folder: Path) -> Link:
        """Return the connection to the head with the key in `folder`. Raises UserError if a file is damaged."""
        key, certificate, authority = (folder / name for name in (KEY, "certificate.pem", AUTHORITY))
        try:
            if self.pinned:
                return Link(self.url, pinned(authority.read_text(), key, certificate), self.also)
            known = authority.read_text() if authority.exists() else None
            return Link(self.url, trusted(known, key, certificate), self.also)
        except (OSError, ssl.SSLError) as error:
            raise UserError(f"cannot use the key ({error.strerror or error})", where=str(folder), fix=AGAIN) from None


KEY, AUTHORITY = "key.pem", "authority.pem"
AGAIN = "register again: zo-sweeps agent join URL --code CODE, with a code of `zo-sweeps head code`"


def folder_of(root: Path, url: str) -> Path:
    """Return the folder of the registration with the head that is, or first was, at "https://HOST:PORT".

    Raises UserError for another form of address.
    """
    place = checked(url)
    for path in root.glob("heads/*/registration.json"):
        with contextlib.suppress(UserError):  # another head's, damaged
            if (known := read(path.parent)) and known.url == url.rstrip("/"):
                return path.parent
    return root / "heads" / re.sub(r"[^\w.-]+", "_", place)


def checked(url: str) -> str:
    """Return "HOST:PORT" of the address of a head. Raises UserError for another form."""
    match = re.fullmatch(r"https://([^/\s]+:\d+)/?", url)
    if not match:
        raise UserError(
            f"{url!r} is not the address of a head", fix="as `zo-sweeps head start` prints it: https://HOST:PORT"
        )
    return match[1]


def read(folder: Path) -> Registration | None:
    """Return the registration in a folder; None if there is none. Raises UserError if it is damaged."""
    try:
        return Registration(**json.loads((folder / "registration.json").read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"damaged registration ({error})", where=str(folder), fix=AGAIN) from None


def move(folder: Path, registration: Registration, url: str) -> None:
    """Change the address of the head that this machine is registered with, if that head answers there.

    Raises UserError if another one does, or none.
    """
    moved = replace(registration, url=url.rstrip("/"))
    link = moved.link(folder)
    try:
        link.get("/v1/ca")  # anybody may ask: what counts is that TLS finds the authority that this machine trusts
    except (UnreachableError, HeadRefusedError) as error:
        raise UserError(f"not moved: cannot reach the head at {url}: {error}") from None
    finally:
        link.close()
    _write(folder, moved)


def also(folder: Path, registration: Registration, urls: Sequence[str]) -> Registration:
    """Keep further addresses of the head, in place of those before."""
    known = replace(registration, also=[url.rstrip("/") for url in urls])
    _write(folder, known)
    return known


def _write(folder: Path, registration: Registration) -> None:
    replace_text(folder / "registration.json", json.dumps(asdict(registration), indent=2) + "\n")


def enrol(folder: Path, url: str, code: codes.Code, name: str, device: str, authorities: Path | None) -> Registration:
    """Register with the head at `url`: make a key pair, and have the head sign it. The key does not leave this machine.

    With a code that names the head's authority, nothing but a request for that authority's certificate is sent before
    the certificate is found to be the named one.

    Args:
        authorities: file of the authorities (PEM) that may have signed the certificate of a head whose code names none;
            None: the system's.

    Raises UserError if the head is another one, cannot be reached, or refuses.
    """
    by_pin = code.pin != codes.PUBLIC
    if by_pin and authorities is not None:
        what = "the code names the head's own authority, and no other is trusted"
        raise UserError(what, where="--ca", fix="leave it out; it is for a head that was started with --certificate")
    authority = None if authorities is None else _certificates(authorities)
    try:
        authority = _authority(url, code) if by_pin else authority
        key = _key_of_attempt(folder)
        with_head = Link(url, pinned(authority) if by_pin and authority else trusted(authority))
        request = protocol.Enrolment(code.secret.hex(), _request(key, name), name, device)
        enrolled = understood(protocol.Enrolled, with_head.post("/v1/enrol", request.to_json()))
    except UnreachableError as error:
        own = "use the name that it is for, and name the authority (PEM) that signed it: --ca FILE"
        fix = own if error.untrusted else "is `zo-sweeps head start` running there?"
        raise UserError(f"cannot reach {url}: {error}", fix=fix) from None
    except HeadRefusedError as error:
        if error.status == 409:  # of the name, or of the key, which is another agent's
            (folder / KEY).unlink(missing_ok=True)
        raise UserError(f"the head refuses: {error.what}") from None
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"cannot register: {error}", where=str(folder)) from None
    made = Registration(url, enrolled.agent, device, by_pin)
    (folder / AUTHORITY).unlink(missing_ok=True)
    if authority is not None:
        replace_text(folder / AUTHORITY, authority)
    replace_text(folder / "certificate.pem", enrolled.certificate)
    _write(folder, made)
    return made


def _certificates(path: Path) -> str:
    """Return the certificates in a file. Raises UserError if there is none."""
    try:
        text = path.read_text()
        x509.load_pem_x509_certificates(text.encode())
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it holds no certificate in PEM"
        raise UserError(f"cannot read {path}: {why}", where="--ca") from None
    return text


def _authority(url: str, code: codes.Code) -> str:
    """Return the authority's certificate (PEM), which the head sends to anybody, if the code names it."""
    asked = Link(url, unverified())
    try:
        ca = understood(protocol.AuthorityReply, asked.get("/v1/ca")).ca
        certificate = x509.load_pem_x509_certificate(ca.encode())
    except ValueError:
        raise UserError(f"{url} is no head of zo_sweeps") from None
    finally:
        asked.close()
    if codes.pin_of(certificate.public_bytes(serialization.Encoding.DER)) != code.pin:
        what = f"{url} is not the head that printed this code: its authority is another one; nothing was sent to it"
        raise UserError(what, where="--code", fix="check the address, and who answers there")
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_of_attempt(folder: Path) -> ec.EllipticCurvePrivateKey:
    """Return the key to register: the last attempt's if it did not end, which the head may have signed; else a new."""
    if not (folder / "registration.json").exists():
        with contextlib.suppress(OSError, ValueError, TypeError):
            kept = serialization.load_pem_private_key((folder / KEY).read_bytes(), password=None)
            if isinstance(kept, ec.EllipticCurvePrivateKey):
                return kept
    return _new_key(folder)


def _new_key(folder: Path) -> ec.EllipticCurvePrivateKey:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = folder / KEY
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(pem)
    return key


def _request(key: ec.EllipticCurvePrivateKey, name: str) -> str:
    """Return a request for a certificate of this name (PEM)."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM).decode()

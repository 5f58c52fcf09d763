"""TLS for Ray's own connections, from the cluster's token alone: it keeps the token from anybody who listens.

Every machine that has the token derives the same authority from it, and issues itself a certificate for its addresses.
So nothing but the token is copied, and a machine without it is neither believed nor served. Whoever has the token may
pose as any node; the token lets them run code there anyway.

/tmp/zo-UID-tls-DIGEST/  node.key, node.pem, ca.pem: mode 0700; the digest is of the token and this machine's addresses
"""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import os
import socket
import ssl
from pathlib import Path

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import locked, replacing

USE = "RAY_USE_TLS"
# The order of P-256's group: private keys are below it.
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_BEGIN, _END = (datetime.datetime(year, 1, 1, tzinfo=datetime.timezone.utc) for year in (2000, 2070))
_TIMEOUT = 10.0


class OtherTokenError(Exception):
    """The head's authority is another token's."""


def variables(token: str) -> dict[str, str | None]:
    """Return the environment variables of Ray's processes on this machine. Raises UserError if the files are not ours.

    Cost: a millisecond.
    """
    names = _addresses()
    digest = hashlib.sha256("\n".join([token, *names]).encode()).hexdigest()[:16]
    folder = Path("/tmp") / f"zo-{os.getuid()}-tls-{digest}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise UserError(f"{folder} belongs to someone else", fix="remove it")
    with locked(folder / "lock"):  # else the key of one process and the certificate of another may be left
        if not (folder / "ca.pem").exists():
            _write(folder, token, names)
    files = {"SERVER_CERT": "node.pem", "SERVER_KEY": "node.key", "CA_CERT": "ca.pem"}
    return {USE: "1", **{f"RAY_TLS_{name}": str(folder / file) for name, file in files.items()}}


def joining(token: str, address: str) -> dict[str, str | None]:
    """Return the environment variables with which to connect to a head: those of TLS, unless it goes without.

    The user's own RAY_USE_TLS counts first. A head on this machine may go without; one elsewhere may not, because the
    token would cross the network for anyone to read. Raises UserError for such a head; OtherTokenError.
    """
    if USE in os.environ and not os.environ.get("RAY_TLS_CA_CERT", "").startswith("/tmp/zo-"):
        return {}
    made = variables(token)
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(str(made["RAY_TLS_CA_CERT"]))
    context.load_cert_chain(str(made["RAY_TLS_SERVER_CERT"]), str(made["RAY_TLS_SERVER_KEY"]))
    context.set_alpn_protocols(["h2"])
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _TIMEOUT) as plain, context.wrap_socket(plain):
            return made
    except ssl.SSLCertVerificationError:
        raise OtherTokenError from None
    except TimeoutError:  # a busy head: one without TLS would have answered at once
        return made
    except (ssl.SSLError, ConnectionResetError):
        if host.strip("[]") in _addresses():
            return dict.fromkeys(made)
        raise UserError(
            f"the head at {address} does not speak TLS, so the token would cross the network for anyone to read",
            fix="start it with `head start --host ADDRESS`, or set RAY_USE_TLS=0 here, in a network of your own",
        ) from None
    except OSError:  # nobody answers; whoever does later has to know the token
        return made


def _addresses() -> list[str]:
    """Return the names and addresses of this machine."""
    import psutil

    families = (socket.AF_INET, socket.AF_INET6)
    every = [one for addresses in psutil.net_if_addrs().values() for one in addresses if one.family in families]
    return sorted({socket.gethostname(), "localhost", *(one.address.partition("%")[0] for one in every)})


def _write(folder: Path, token: str, names: list[str]) -> None:
    """Write the authority's certificate, and a certificate of this machine with its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    digest = hashlib.sha512(b"zo-sweeps: the authority of Ray's nodes\n" + token.encode()).digest()
    authority = ec.derive_private_key(int.from_bytes(digest, "big") % (_ORDER - 1) + 1, ec.SECP256R1())
    own = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "zo-sweeps cluster")])

    def signed(key: ec.EllipticCurvePublicKey, name: x509.Name, *extensions: tuple[x509.ExtensionType, bool]) -> bytes:
        made = x509.CertificateBuilder().subject_name(name).issuer_name(issuer).public_key(key)
        made = made.serial_number(x509.random_serial_number()).not_valid_before(_BEGIN).not_valid_after(_END)
        for extension, critical in extensions:
            made = made.add_extension(extension, critical)
        return made.sign(authority, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def general(name: str) -> x509.GeneralName:
        try:
            return x509.IPAddress(ipaddress.ip_address(name))
        except ValueError:
            return x509.DNSName(name)

    purposes = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    alternative = x509.SubjectAlternativeName([general(name) for name in names])
    node = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, socket.gethostname()[:64])])
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    files = {
        "node.key": own.private_bytes(*form),
        "node.pem": signed(own.public_key(), node, (alternative, False), (purposes, False)),
        "ca.pem": signed(authority.public_key(), issuer, (x509.BasicConstraints(ca=True, path_length=0), True)),
    }
    for name, data in files.items():
        with (
            replacing(folder / name) as part,
            os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file,
        ):
            file.write(data)

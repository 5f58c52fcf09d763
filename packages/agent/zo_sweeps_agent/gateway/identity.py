"""The gateway's keys: an authority of its own, the server's certificate, and certificates for agents' keys.

    head/pki/   ca.pem, ca.key, server.pem, server.key; mode 0700, keys 0600

Each agent makes its own key pair and sends a signing request; we take its public key and nothing else. Certificates
name what they are for, so that an agent's is no server's. They hold from 2000 on, because a board without a clock
battery wakes up years ago. What ends a certificate is its revocation in the store, which every request looks at.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import ipaddress
import os
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import replacing

BEGIN = datetime.datetime(2000, 1, 1, tzinfo=datetime.timezone.utc)
YEARS = datetime.timedelta(days=20 * 365)
RSA_BITS = 2048  # at least


@dataclass(frozen=True)
class Request:
    """An agent's request for a certificate: its public key, and that key's digest."""

    key: ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | rsa.RSAPublicKey
    digest: str


class Authority:
    """The authority in `folder`, made at first use.

    Attributes:
        certificate: its certificate, PEM.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        if not (folder / "ca.pem").exists():
            key = ec.generate_private_key(ec.SECP256R1())
            _write_key(folder / "ca.key", key)
            name = _name(f"zo-sweeps gateway {socket.gethostname()}")
            made = _builder(name, key.public_key()).issuer_name(name)
            made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            made = made.add_extension(_usage(signs=True), critical=True)
            _write(folder / "ca.pem", _pem(made.sign(key, hashes.SHA256())))
        self.certificate = (folder / "ca.pem").read_bytes()
        self._own = x509.load_pem_x509_certificate(self.certificate)
        loaded = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        self._key = loaded

    @property
    def der(self) -> bytes:
        """Its certificate, DER."""
        return self._own.public_bytes(serialization.Encoding.DER)

    def sign(self, request: Request, agent: str, serial: str) -> bytes:
        """Return a certificate (PEM) for an agent's key, of its name and serial number (hexadecimal)."""
        made = self._issue(_builder(_name(agent), request.key, int(serial, 16)), ExtendedKeyUsageOID.CLIENT_AUTH)
        return _pem(made)

    def server_context(self, host: str, own: tuple[str, str] | None = None) -> ssl.SSLContext:
        """Return the server's TLS settings: 1.2 or later, with an agent's certificate if it shows one.

        Args:
            host: the name or address that the gateway listens on.
            own: files of a certificate chain and its key, in place of a certificate from this authority.

        Raises UserError for files that are no certificate and key.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_OPTIONAL  # a board that has none yet may enrol
        context.num_tickets = 0  # agents keep their connections, and resume no session
        context.load_verify_locations(cadata=self.certificate.decode())
        chain, key = own or self._server(host)
        try:
            context.load_cert_chain(chain, key)
        except (OSError, ssl.SSLError) as error:
            raise UserError(f"not a certificate and its key ({error})", where=f"{chain}, {key}") from None
        return context

    def _server(self, host: str) -> tuple[str, str]:
        """Make the server's certificate again, for the current host; return the files of its chain and key."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = {host, socket.gethostname(), "localhost", "127.0.0.1"}
        built = _builder(_name("zo-sweeps gateway"), key.public_key())
        built = built.add_extension(x509.SubjectAlternativeName([_general(name) for name in sorted(names)]), False)
        chain, secret = self._folder / "server.pem", self._folder / "server.key"
        _write_key(secret, key)
        _write(chain, _pem(self._issue(built, ExtendedKeyUsageOID.SERVER_AUTH)) + self.certificate)
        return str(chain), str(secret)

    def _issue(self, builder: x509.CertificateBuilder, purpose: x509.ObjectIdentifier) -> x509.Certificate:
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.issuer_name(self._own.subject).add_extension(identifier, critical=False)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(signs=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=True)
        return builder.sign(self._key, hashes.SHA256())


def host_of(chain: str, host: str) -> str:
    """Return the name by which boards are to call a server with this certificate (a file): `host` if it is for that.

    Else the first name that it is for. Raises UserError for a file that is no certificate.
    """
    try:
        leaf = x509.load_pem_x509_certificates(Path(chain).read_bytes())[0]
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except OSError as error:
        raise UserError(f"cannot read the certificate: {error.strerror}", where=chain) from None
    except (ValueError, x509.ExtensionNotFound):
        what = "not a certificate (PEM) with a name, subjectAltName, of the server that it is for"
        raise UserError(what, where=chain) from None
    known = [str(name.value) for name in names if isinstance(name, (x509.DNSName, x509.IPAddress))]
    known = [name for name in known if not name.startswith("*")]
    return host if host in known or not known else known[0]


def read_request(pem: str) -> Request:
    """Read a signing request. Raises ValueError unless it is signed by its own key, of a kind that we accept."""
    try:
        request = x509.load_pem_x509_csr(pem.encode())
        valid, key = request.is_signature_valid, request.public_key()
    except (UnsupportedAlgorithm, InvalidSignature) as error:
        raise ValueError(str(error)) from None
    if not valid:
        raise ValueError("the request is not signed by its own key")
    weak = isinstance(key, rsa.RSAPublicKey) and key.key_size < RSA_BITS
    if weak or not isinstance(key, (ec.EllipticCurvePublicKey, ed25519.Ed25519PublicKey, rsa.RSAPublicKey)):
        raise ValueError(f"the key must be of an elliptic curve, Ed25519, or RSA with {RSA_BITS} bits")
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return Request(key, hashlib.sha256(key.public_bytes(*form)).hexdigest())


def new_serial() -> str:
    """Return a random serial number, hexadecimal as `ssl` prints it."""
    return format(x509.random_serial_number(), "X")


def _builder(subject: x509.Name, key: CertificatePublicKeyTypes, serial: int | None = None) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).public_key(key)
    builder = builder.serial_number(serial or x509.random_serial_number()).not_valid_before(BEGIN)
    builder = builder.not_valid_after(datetime.datetime.now(datetime.timezone.utc) + YEARS)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key)
    return builder.add_extension(identifier, critical=False)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _general(name: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(name))
    return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    _write(path, key.private_bytes(*form), 0o600)


def _write(path: Path, data: bytes, mode: int = 0o644) -> None:
    with replacing(path) as part, os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)

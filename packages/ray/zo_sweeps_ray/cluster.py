"""The preconditions of starting Ray: a token, a short folder, its environment, TLS, a head that answers.

Processes get the cluster's token as a file that only its owner can read, never as an argument. Anyone with the token
can run code on every node: see SECURITY.md.

TLS keeps the token from anybody who listens to Ray's own connections. Every machine that has the token derives the same
authority from it, and issues itself a certificate for its addresses. So nothing but the token is copied, and a machine
without it is neither believed nor served. Whoever has the token may pose as any node; it lets them run code there
anyway.

/tmp/zo-UID-tls-DIGEST/  node.key, node.pem, ca.pem: mode 0700; the digest is of the token and this machine's addresses
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import ipaddress
import json
import os
import secrets
import shutil
import socket
import ssl
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import locked, replacing

TOKEN_FIX = (
    "copy the token file that `zo-sweeps head start` printed to this machine (mode 0600) and name it with --token-file "
    "or RAY_AUTH_TOKEN_PATH"
)
ANSWER_SECONDS = 5.0  # time allowed for a head to answer
TLS_SECONDS = 10.0  # ... and to shake hands
TLS = "RAY_USE_TLS"
# The order of P-256's group: private keys are below it.
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_BEGIN, _END = (datetime.datetime(year, 1, 1, tzinfo=datetime.timezone.utc) for year in (2000, 2070))
HEAD = "node:__internal_head__"  # a resource of the head's node
ID_LABEL, BEGAN_LABEL = "zo.id", "zo.began"  # a machine's id, the same after a restart; its start time (Unix seconds)
DEVICE_LABEL = "zo.device"  # a node's device profile
VERSION_LABEL = "zo.version"  # of this package on the node
GPU_LABEL = "zo.gpu_bytes"  # memory of each GPU of the node, unless it is the main memory
TOOL_LABEL = "zo.tool."  # + a tool that is installed on the node: its version

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # silences a FutureWarning; the devices we see are the ones we ask for
    # Ray's exporters of metrics answer anyone, on all interfaces: each node's, the dashboard's and the autoscaler's.
    "RAY_enable_metrics_collection": "0",
    "DASHBOARD_METRIC_PORT": "-1",
    "AUTOSCALER_METRIC_PORT": "-1",
}

# What a driver and a head may have in their environments, and no process of a trial: the tracking server's password.
NOT_FOR_TRIALS = dict.fromkeys(("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"))


def private_token(state_dir: Path) -> Path:
    """Return the file with the token of local clusters, readable by its owner only; made at first use."""
    path = state_dir / "ray_token"
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        os.chmod(path, 0o600)
        if path.stat().st_size:
            return path
        handle = os.open(path, os.O_WRONLY)  # its writer was killed before the first byte
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_hex(32))
    return path


def private_folder(state_dir: Path) -> Path:
    """Return the path of the folder, mode 0700, that `short_folder` makes its own in.

    A state folder always gets the same one, so the next driver removes the files that a killed driver left there.
    """
    digest = hashlib.sha256(str(state_dir.resolve()).encode()).hexdigest()[:10]
    return Path("/tmp") / f"zo-{os.getuid()}-{digest}"


def short_folder(state_dir: Path) -> Path:
    """Return an empty folder for Ray's sockets and logs: their paths are limited to 107 bytes, too few in most homes.

    Ray sets its folder to mode 0777, and anyone who replaces a socket in there is taken for Ray. So its parent is a
    folder that admits its owner only. Raises UserError when the parent belongs to someone else.
    """
    remove_short_folder(state_dir)
    parent = private_folder(state_dir)
    try:
        parent.mkdir(mode=0o700)
    except FileExistsError:
        raise UserError(f"{parent} belongs to someone else", fix="remove it, or use another state folder") from None
    folder = parent / "ray"
    folder.mkdir()
    return folder


def remove_short_folder(state_dir: Path) -> None:
    """Remove the folder of `short_folder` with its parent, unless the parent belongs to someone else."""
    parent = private_folder(state_dir)
    with contextlib.suppress(OSError):
        found = parent.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
            parent.chmod(0o700)  # nobody puts anything in while it is emptied
            shutil.rmtree(parent, ignore_errors=True)


def token_environment(token: Path) -> dict[str, str | None]:
    """Return the environment variables of a process that uses the cluster with this token file; None: unset."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_AUTH_TOKEN": None}


def joining_environment(state_dir: Path, address: str) -> dict[str, str | None]:
    """Return the environment variables that authenticate to a running cluster.

    The first of: the environment's own; the token of the head that was started from `state_dir`, if its address is
    `address`; the user's own token, if there is one.
    """
    if mode := os.environ.get("RAY_AUTH_MODE"):
        return {"RAY_AUTH_MODE": mode}
    if "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ:
        return {"RAY_AUTH_MODE": "token"}
    with contextlib.suppress(OSError, ValueError):
        head = json.loads((state_dir / "head" / "head.json").read_text())
        if head["address"] == address:
            return token_environment(Path(head["token_file"]))
    return {"RAY_AUTH_MODE": "token" if (Path.home() / ".ray" / "auth_token").exists() else "disabled"}


def tls_environment(auth: Mapping[str, str | None], address: str) -> dict[str, str | None]:
    """Return the variables with which to connect to the head at an address: those of TLS, unless it goes without.

    The token is that of `auth` or the environment; the user's own RAY_USE_TLS counts first. A head on this machine may
    go without TLS; one elsewhere may not, because the token would cross the network for anyone to read. Raises
    UserError for such a head, and for one with another token.
    """
    source, file = token_source(auth)
    by_user = TLS in os.environ and not os.environ.get("RAY_TLS_CA_CERT", "").startswith("/tmp/zo-")
    if by_user or not source or (file and not file.exists()):  # the head says that the token is missing
        return {}
    made = tls_variables((file.read_text() if file else os.environ["RAY_AUTH_TOKEN"]).strip())
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(str(made["RAY_TLS_CA_CERT"]))
    context.load_cert_chain(str(made["RAY_TLS_SERVER_CERT"]), str(made["RAY_TLS_SERVER_KEY"]))
    context.set_alpn_protocols(["h2"])
    try:
        with socket.create_connection((host.strip("[]"), int(port)), TLS_SECONDS) as plain, context.wrap_socket(plain):
            return made
    except ssl.SSLCertVerificationError:
        raise UserError(f"the head at {address} refuses the token", where=source, fix=TOKEN_FIX) from None
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


def token_source(auth: Mapping[str, str | None]) -> tuple[str, Path | None]:
    """Return where Ray reads the token from with these variables, set beside the environment's, and its file if any.

    "" without a token.
    """
    if path := auth.get("RAY_AUTH_TOKEN_PATH"):
        return path, Path(path).expanduser()
    if auth.get("RAY_AUTH_MODE") != "token":
        return "", None
    if os.environ.get("RAY_AUTH_TOKEN", "").strip():
        return "the variable RAY_AUTH_TOKEN", None
    if path := os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return f"{path} (the variable RAY_AUTH_TOKEN_PATH)", Path(path).expanduser()
    own = Path.home() / ".ray" / "auth_token"
    return (str(own), own) if own.exists() else ("", None)


def tls_variables(token: str) -> dict[str, str | None]:
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
            _write_certificates(folder, token, names)
    files = {"SERVER_CERT": "node.pem", "SERVER_KEY": "node.key", "CA_CERT": "ca.pem"}
    return {TLS: "1", **{f"RAY_TLS_{name}": str(folder / file) for name, file in files.items()}}


def _addresses() -> list[str]:
    """Return the names and addresses of this machine; of "node-1.example.org" Slurm says "node-1"."""
    import psutil

    families = (socket.AF_INET, socket.AF_INET6)
    every = [one for addresses in psutil.net_if_addrs().values() for one in addresses if one.family in families]
    name = socket.gethostname()
    return sorted({name, name.partition(".")[0], "localhost", *(one.address.partition("%")[0] for one in every)})


def _write_certificates(folder: Path, token: str, names: list[str]) -> None:
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


@contextlib.contextmanager
def environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set environment variables (None: unset) inside the `with` block, and restore them after it."""
    before = {name: os.environ.get(name) for name in variables}
    set_environment(variables)
    try:
        yield
    finally:
        set_environment(before)


def set_environment(variables: Mapping[str, str | None]) -> None:
    """Set environment variables; None unsets one."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def must_answer(address: str) -> None:
    """Raise UserError unless something listens at `address` ("host:port")."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise UserError(f"{address!r} is not HOST:PORT", where="cluster.address", fix="as in 10.0.0.5:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()
    except OSError as error:
        raise UserError(
            f"no Ray head answers at {address} ({error.strerror or error})",
            where="cluster.address",
            fix="check the address and the firewall, or omit cluster.address to use a cluster on this machine",
        ) from None


def await_answer(address: str) -> None:
    """Wait until the head has answered five times in a row: it listens some seconds before it can be joined."""
    answered = 0
    while answered < 5:
        time.sleep(1)
        try:
            must_answer(address)
            answered += 1
        except UserError:
            answered = 0


def living(nodes: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the live nodes of `ray.nodes()`, keeping only the latest node of each machine.

    A machine whose raylet was killed rejoins within seconds, but Ray takes 14 s to notice that its previous node is
    dead, and 64 s for a frozen one. A trial placed on the previous node is lost, even if the machine has left since.
    """
    last: dict[tuple[str, str], Mapping[str, Any]] = {}
    for node in nodes:
        key = (node["Labels"].get(ID_LABEL, node["NodeID"]), node["NodeManagerAddress"])
        if key not in last or _began(last[key]) < _began(node):
            last[key] = node
    return [dict(node) for node in last.values() if node["Alive"]]


def _began(node: Mapping[str, Any]) -> float:
    return float(node["Labels"].get(BEGAN_LABEL, 0.0))


def find_token(token_file: str | None, state_dir: Path) -> Path | None:
    """Return the file with the token, or None when there is none.

    The first of: `token_file`, RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH, Ray's own file. A token in RAY_AUTH_TOKEN is
    written to `state_dir`, so that child processes do not need it in their environment.
    """
    source, file = token_source({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": token_file})
    if file:
        return checked(file)
    return written(state_dir, os.environ["RAY_AUTH_TOKEN"].strip()) if source else None


def token_for_joining(token_file: str | None, state_dir: Path) -> Path:
    """Return the file with the token, as `find_token`. Raises UserError when there is none."""
    path = find_token(token_file, state_dir)
    if path is None:
        raise UserError("no token for the cluster", fix=TOKEN_FIX)
    return path


def token_for_head(token_file: str | None, state_dir: Path) -> Path:
    """Return the token file for a new head: as for joining, but never Ray's own file; make one if there is none."""
    named = token_file or os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    state_dir.mkdir(parents=True, exist_ok=True)
    return (find_token(token_file, state_dir) if named else None) or private_token(state_dir).resolve()


def checked(path: Path) -> Path:
    """Return the path, absolute. Raises UserError unless the file holds a token that only its owner can read."""
    path = path.expanduser().absolute()
    try:
        text, mode = path.read_text().strip(), path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the token: {getattr(error, 'strerror', error)}", where=str(path)) from None
    if not text:
        raise UserError("the token file is empty", where=str(path), fix=TOKEN_FIX)
    if mode & 0o077:
        raise UserError(f"others can read the token (mode {mode & 0o777:o})", where=str(path), fix=f"chmod 600 {path}")
    return path


def written(state_dir: Path, text: str) -> Path:
    """Write the token to a file of mode 0600 in `state_dir`; return its path."""
    state_dir.mkdir(parents=True, exist_ok=True)
    path = state_dir / "ray_token"
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    return path.absolute()

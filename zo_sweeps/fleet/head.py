"""`head start | stop | status`: a Ray head and its MLflow server, both kept up by one background process of ours.

state_dir/ray_token   the cluster's token, mode 0600, unless another file is named
state_dir/head/       head.json (what was started; no secrets), keeper.log, ray.log
"""

from __future__ import annotations

import contextlib
import json
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import replace_text
from zo_sweeps.fleet.keeper import Keeper, NodeSpec, last_line
from zo_sweeps.fleet.node import labels, new_identity, node_arguments, running, wait_until_gone
from zo_sweeps.fleet.secrets import checked, token_for_head
from zo_sweeps.record import server
from zo_sweeps.schedule.cluster import short_folder, token_environment

START_SECONDS = 300.0  # see BOOT_SECONDS of the keeper
CHECK_SECONDS = 10.0  # between looks at the MLflow server


@dataclass(frozen=True)
class HeadOptions:
    """What `head start` was asked for.

    Args:
        host: the address that workers and browsers use. Loopback: MLflow asks for no password.
        port, mlflow_port, dashboard_port: of the Ray head, the MLflow server and Ray's dashboard (0: no dashboard).
        cpus, gpus: that the head lends to trials; None: all.
        ports: "first-last" for everything else Ray listens on; "": any.
        token_file: instead of one made in the state folder.
    """

    host: str = "127.0.0.1"
    port: int = 6379
    mlflow_port: int = 5000
    dashboard_port: int = 8265
    cpus: int | None = None
    gpus: int | None = None
    ports: str = ""
    token_file: str | None = None


def start(state_dir: Path, options: HeadOptions, say: Callable[[str], None], *, block: bool = False) -> int:
    """Starts both and says how to join; with `block`, stays in the foreground until SIGTERM or Ctrl-C.

    Raises UserError when one runs already from this folder, a port is taken, or one of the two does not come up.
    """
    folder = _folder(state_dir)
    if found := running(folder / "head.json"):
        raise UserError(f"a head runs already (pid {found['pid']}, {found['address']})", fix="zo-sweeps head stop")
    token = token_for_head(options.token_file, state_dir)
    for port in filter(None, (options.port, options.dashboard_port)):
        _must_be_free(port)
    server.start(state_dir, options.mlflow_port, stay=True, host=options.host).close()  # says what is wrong, at once
    state = {**asdict(options), "token_file": str(token), "identity": new_identity(folder)}
    state |= {"pid": 0, "started": 0.0, "address": f"{_address(options)}:{options.port}"}
    replace_text(folder / "head.json", json.dumps(state))
    if block:
        return keep(state_dir, say)
    with open(folder / "keeper.log", "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "zo_sweeps.fleet.head", str(state_dir.resolve())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _wait(state_dir, process)
    except BaseException:
        stop(state_dir)
        raise
    announce(state_dir, say)
    return 0


def keep(state_dir: Path, say: Callable[[str], None]) -> int:
    """What the background process does: keeps the head and its MLflow server up until it is told to end."""
    folder = _folder(state_dir)
    state = json.loads((folder / "head.json").read_text())
    process = psutil.Process()
    state |= {"pid": process.pid, "started": process.create_time()}
    replace_text(folder / "head.json", json.dumps(state))
    options = HeadOptions(**{name: state[name] for name in HeadOptions.__dataclass_fields__})
    short = short_folder(folder)
    spec = NodeSpec(
        address=state["address"],
        token=Path(state["token_file"]),
        identity=state["identity"],
        arguments=ray_arguments(options, short),
        labels=labels(None, state["identity"]),
        temp_dir=short,
        log=folder / "ray.log",
        grace=0,
        is_head=True,
    )
    looked = time.monotonic()

    def tick() -> None:
        nonlocal looked
        if time.monotonic() - looked > CHECK_SECONDS:
            looked = time.monotonic()
            with contextlib.suppress(UserError):  # its port is taken by another for now
                server.start(state_dir, options.mlflow_port, stay=True, host=options.host).close()

    try:
        return Keeper(spec, say, tick).run()
    finally:
        server.stop(state_dir)
        (folder / "head.json").unlink(missing_ok=True)


def ray_arguments(options: HeadOptions, temp_dir: Path) -> tuple[str, ...]:
    """Of `ray start`. The dashboard is on loopback: whoever reaches it with the token can submit jobs."""
    found = ["--head", f"--port={options.port}", f"--node-ip-address={_address(options)}"]
    found += [f"--include-dashboard={str(bool(options.dashboard_port)).lower()}", "--dashboard-host=127.0.0.1"]
    if options.dashboard_port:
        found.append(f"--dashboard-port={options.dashboard_port}")
    return (*found, *node_arguments(temp_dir, options.cpus, options.gpus, None, options.ports))


def stop(state_dir: Path) -> bool:
    """Ends what `start` started from this folder, and nothing else; False when nothing runs."""
    folder = _folder(state_dir)
    found = running(folder / "head.json")
    if found:
        process = psutil.Process(found["pid"])
        process.send_signal(signal.SIGTERM)
        if not wait_until_gone([process], 40):
            for one in [*process.children(recursive=True), process]:
                with contextlib.suppress(psutil.Error):
                    one.kill()
    ended = server.stop(state_dir)
    (folder / "head.json").unlink(missing_ok=True)
    return found is not None or ended


def status(state_dir: Path, say: Callable[[str], None]) -> int:
    """What runs from this folder; 1 when no head does or it does not answer."""
    found = running(_folder(state_dir) / "head.json")
    if not found:
        say(f"no head runs from {state_dir}")
        return 1
    from zo_sweeps.schedule.gcs import Head

    head = Head(found["address"], token_environment(checked(Path(found["token_file"]))))
    alive = [node for node in head.nodes() if node["Alive"]]
    versions = head.versions()
    say(f"head: pid {found['pid']}, {found['address']}, Ray {versions['ray']}, Python {versions['python']}")
    say(f"nodes: {len(alive)} (zo-sweeps devices)")
    healthy = server.is_healthy(mlflow_uri(found))
    say(f"MLflow: {mlflow_uri(found)}{'' if healthy else ' does not answer'}")
    return 0 if healthy else 1


def announce(state_dir: Path, say: Callable[[str], None]) -> None:
    """The join command, and where the secrets are."""
    found = json.loads((_folder(state_dir) / "head.json").read_text())
    say(f"Ray head: {found['address']}   token: {found['token_file']} (mode 0600)")
    guarded = not server.is_loopback(found["host"])
    how = f"user and password: {server.credentials(state_dir)} (mode 0600)" if guarded else "this machine only"
    say(f"MLflow: {mlflow_uri(found)}   {how}")
    if found["dashboard_port"]:
        say(f"Ray dashboard: http://127.0.0.1:{found['dashboard_port']}   this machine only, asks for the token")
    say("\non a worker, with a copy of the token file (mode 0600):")
    say(f"  zo-sweeps worker join {found['address']} --device NAME --token-file ray_token")
    say("here, to run a grid on the cluster:")
    state = "" if str(state_dir) == "zo_runs" else f" state_dir={shlex.quote(str(state_dir))}"
    say(f"  zo-sweeps +grid=NAME cluster.address={found['address']}{state}")
    say(f"to end it: zo-sweeps head stop{f' --state-dir {shlex.quote(str(state_dir))}' if state else ''}")


def mlflow_uri(found: Mapping[str, Any]) -> str:
    """The page of a head's MLflow server."""
    return f"http://{found['host']}:{found['mlflow_port']}"


def _wait(state_dir: Path, process: subprocess.Popen[bytes]) -> None:
    """Until the head knows its own node and MLflow answers."""
    from zo_sweeps.schedule.gcs import Head

    folder = _folder(state_dir)
    end = time.monotonic() + START_SECONDS
    why = "is not ready"
    while time.monotonic() < end:
        if process.poll() is not None:
            raise UserError(f"the head ended: {last_line(folder / 'keeper.log')}", where=str(folder / "ray.log"))
        found = running(folder / "head.json")
        if found:
            try:
                head = Head(found["address"], token_environment(Path(found["token_file"])))
                if head.own_node(found["identity"]):
                    if server.is_healthy(mlflow_uri(found)):
                        return
                    why = f"has no MLflow: {last_line(state_dir / 'mlflow' / 'server.log')}"
            except UserError as error:
                why = str(error)
        time.sleep(0.5)
    raise UserError(f"the head {why} after {START_SECONDS:.0f} s: {last_line(folder / 'ray.log')}", where=str(folder))


def _folder(state_dir: Path) -> Path:
    folder = state_dir / "head"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write: {error.strerror}", where=str(folder), fix="use --state-dir FOLDER") from None
    return folder.resolve()


def _address(options: HeadOptions) -> str:
    """Where Ray's nodes reach the head. Ray replaces loopback by the machine's own address, and so do we."""
    if not server.is_loopback(options.host):
        return options.host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # sends nothing
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:  # no network at all
            return "127.0.0.1"


def _must_be_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except (OSError, OverflowError) as error:
            raise UserError(
                f"port {port} cannot be used: {getattr(error, 'strerror', error)}",
                fix="choose others with --port, --mlflow-port, --dashboard-port",
            ) from None


if __name__ == "__main__":
    sys.exit(keep(Path(sys.argv[1]), lambda text: print(time.strftime("%Y-%m-%d %H:%M:%S"), text, flush=True)))

"""`head start | stop | status | code`: a Ray head, its MLflow server and gateway, kept up by one background process.

state_dir/ray_token   the cluster's token, mode 0600, unless another file is named
state_dir/head/       head.json (what was started; no secrets), keeper.log, ray.log; and see `gateway.serve`
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import shlex
import socket
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import replace_text
from zo_sweeps.methods import registry
from zo_sweeps_ray import gateway
from zo_sweeps_ray.cluster import (
    checked,
    private_folder,
    remove_short_folder,
    token_environment,
    token_for_head,
)
from zo_sweeps_ray.keeper import Keeper, last_line
from zo_sweeps_ray.node import (
    labels,
    listens,
    new_identity,
    node_arguments,
    noted,
    own_folder,
    running,
    terminate,
    wait_until_gone,
)
from zo_sweeps_tracking import server

START_SECONDS = 300.0  # see BOOT_SECONDS of the keeper
CHECK_SECONDS = 10.0  # between checks of the MLflow server
END_SECONDS = 60.0  # time allowed for the processes of a head that was killed to end
ENDING = "the last head from this folder is still ending; waiting for it"
QUIET_SECONDS = 15.0  # after which `start` reports what it waits for


class HeadOptions(Namespace):
    """The options of `head start`, as its parser describes them."""

    host: str
    port: int
    mlflow_port: int
    dashboard_port: int
    gateway_port: int
    lease: float
    tls: bool
    certificate: str | None
    key: str | None
    token_file: str | None
    cpus: int | None
    gpus: int | None
    ports: str

    @property
    def own(self) -> gateway.Own:
        """The gateway's own certificate chain and key, if there is one."""
        return (self.certificate, self.key) if self.certificate and self.key else None


def start(state_dir: Path, options: HeadOptions, say: Callable[[str], None], *, block: bool = False) -> int:
    """Start the head and MLflow, and print how to join; with `block`, stay in the foreground until SIGTERM or Ctrl-C.

    Raises UserError when a head already runs from this folder, a port is taken, or one of the two does not come up.
    """
    served = gateway.gateway() if options.gateway_port else None
    folder = _folder(state_dir)
    with _alone(folder, say):
        if head := running(folder / "head.json"):
            what = f"a head is already running (pid {head['pid']}, {head['address']})"
            raise UserError(what, fix="zo-sweeps head stop")
        _await_the_end_of_the_last(folder, say)
        token = token_for_head(options.token_file, state_dir)
        if bool(options.certificate) != bool(options.key):
            raise UserError("a certificate needs its key, and a key its certificate", where="--certificate, --key")
        if own := options.own:
            options.certificate, options.key = (str(Path(name).resolve()) for name in own)
        _must_differ(options)
        for port in filter(None, (options.port, options.dashboard_port, options.gateway_port)):
            _must_be_free(port)
        if served:  # fails here, not in its log
            served.prepare(folder, options.host, options.own, say)
        server.prepare(state_dir, options.mlflow_port, options.host)  # the same
        state = {name: getattr(options, name) for name in HeadOptions.__annotations__} | {"token_file": str(token)}
        state |= {"identity": new_identity(folder), "pid": 0, "address": f"{_address(options)}:{options.port}"}
        replace_text(folder / "head.json", json.dumps(state))
    if block:
        return keep(state_dir, say)
    with open(folder / "keeper.log", "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "zo_sweeps_ray.head", str(state_dir.resolve())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _wait(state_dir, process, say)
    except BaseException:  # Ctrl-C too
        stop(state_dir)
        raise
    announce(state_dir, say)
    return 0


def keep(state_dir: Path, say: Callable[[str], None]) -> int:
    """Keep the head and its MLflow server up until SIGTERM or SIGINT: the background process's main function."""
    folder = _folder(state_dir)
    state = json.loads((folder / "head.json").read_text())
    options = HeadOptions(**state)
    with noted(folder / "head.json", state) as short, contextlib.ExitStack() as ended:
        served = None
        if options.gateway_port:
            where = folder, options.host, options.gateway_port, options.lease, options.own
            served = gateway.gateway().process(*where, say)
            served.keep_up()
        mlflow, checked_at = server.start(state_dir, options.mlflow_port, options.host), time.monotonic()
        ended.callback(lambda: mlflow.close())
        if served:
            ended.callback(served.stop)

        def tick() -> None:
            nonlocal mlflow, checked_at
            if served:
                served.keep_up()
            if mlflow.has_ended and time.monotonic() - checked_at > CHECK_SECONDS:
                checked_at = time.monotonic()
                with contextlib.suppress(UserError):  # another program holds its port for now
                    mlflow = server.start(state_dir, options.mlflow_port, options.host)

        return Keeper(
            say,
            address=state["address"],
            token=Path(state["token_file"]),
            identity=state["identity"],
            arguments=ray_arguments(options),
            labels=labels(None, state["identity"]),
            temp_dir=short,
            log=folder / "ray.log",
            grace=0,
            is_head=True,
            tls=options.tls and not server.is_loopback(options.host),
            agents=folder if options.gateway_port else None,
            tick=tick,
        ).run()


def ray_arguments(options: HeadOptions) -> list[str]:
    """Return the arguments of `ray start`.

    The dashboard listens on loopback only: anyone who reaches it with the token can submit jobs.
    """
    arguments = ["--head", f"--port={options.port}", f"--node-ip-address={_address(options)}"]
    arguments += [f"--include-dashboard={str(bool(options.dashboard_port)).lower()}", "--dashboard-host=127.0.0.1"]
    if options.dashboard_port:
        arguments.append(f"--dashboard-port={options.dashboard_port}")
    return [*arguments, *node_arguments(options.cpus, options.gpus, None, options.ports)]


def code(state_dir: Path, minutes: float, say: Callable[[str], None]) -> int:
    """Print another one-time code, and the command in which a board uses it.

    Raises UserError when no head with a gateway runs from this folder.
    """
    folder = _folder(state_dir)
    state = running(folder / "head.json")
    if not state or not state["gateway_port"]:
        missing = UserError(f"no head with a gateway runs from {state_dir}", fix="zo-sweeps head start")
        raise registry.absent("part", "gateway") or missing
    for line in gateway.gateway().joining(
        folder, state["host"], state["gateway_port"], minutes, HeadOptions(**state).own
    ):
        say(line)
    return 0


def stop(state_dir: Path) -> bool:
    """Stop the processes that `start` started from this folder, and no others; False when none runs."""
    folder = _folder(state_dir)
    with _alone(folder, lambda text: None):
        if head := running(folder / "head.json"):
            process = psutil.Process(head["pid"])
            terminate(process)
            if not wait_until_gone([process], 40):
                for one in [*process.children(recursive=True), process]:
                    with contextlib.suppress(psutil.Error):
                        one.kill()
        (folder / "head.json").unlink(missing_ok=True)
        remove_short_folder(folder)
    return head is not None


def status(state_dir: Path, say: Callable[[str], None]) -> int:
    """Print the head, nodes and MLflow server of this folder; 1 when no head runs or MLflow does not answer."""
    state = running(_folder(state_dir) / "head.json")
    if not state:
        say(f"no head runs from {state_dir}")
        return 1
    from zo_sweeps_ray.private import Head

    head = Head(state["address"], token_environment(checked(Path(state["token_file"]))))
    alive = [node for node in head.nodes() if node["Alive"]]
    versions = head.versions()
    say(f"head: pid {state['pid']}, {state['address']}, Ray {versions['ray']}, Python {versions['python']}")
    say(f"nodes: {len(alive)} (zo-sweeps devices)")
    healthy = server.is_healthy(mlflow_uri(state))
    say(f"MLflow: {mlflow_uri(state)}{'' if healthy else ' does not answer'}")
    if state["gateway_port"]:
        listening = listens(state["host"], state["gateway_port"])
        say(f"gateway: https://{state['host']}:{state['gateway_port']}{'' if listening else ' does not answer'}")
        healthy = healthy and listening
        try:
            gateway.gateway().must_be_well(_folder(state_dir))
        except UserError as error:
            say(str(error))
            healthy = False
    return 0 if healthy else 1


def announce(state_dir: Path, say: Callable[[str], None]) -> None:
    """Print the join command, and the places of the secrets."""
    state = json.loads((_folder(state_dir) / "head.json").read_text())
    say(f"Ray head: {state['address']}   token: {state['token_file']} (mode 0600)")
    guarded = not server.is_loopback(state["host"])
    access = f"user and password: {server.credentials(state_dir)} (mode 0600)" if guarded else "this machine only"
    say(f"MLflow: {mlflow_uri(state)}   {access}")
    if guarded and not state["tls"]:
        say("Ray's connections are not encrypted (--no-tls): whoever listens on the network reads the token")
    if state["dashboard_port"]:
        say(f"Ray dashboard: http://127.0.0.1:{state['dashboard_port']}   this machine only, asks for the token")
    say("\non each node, with a copy of the token file (mode 0600):")
    say(f"  zo-sweeps worker join {state['address']} --device NAME --token-file ray_token")
    if state["gateway_port"]:
        code(state_dir, gateway.CODE_MINUTES, say)
    say("here, to run a grid on the cluster:")
    is_default = str(state_dir) == "zo_runs"
    folder = shlex.quote(str(state_dir))
    say(f"  zo-sweeps +grid=NAME cluster.address={state['address']}{'' if is_default else f' state_dir={folder}'}")
    say(f"to end it: zo-sweeps head stop{'' if is_default else f' --state-dir {folder}'}")


def mlflow_uri(state: Mapping[str, Any]) -> str:
    """Return the address of a head's MLflow server."""
    return f"http://{state['host']}:{state['mlflow_port']}"


@contextlib.contextmanager
def _alone(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Let one `start` or `stop` of this folder at a time into the `with` block; a `start` waits for a `stop`."""
    with open(folder / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(ENDING)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _await_the_end_of_the_last(folder: Path, say: Callable[[str], None]) -> None:
    """Wait for the processes of a head of this folder that was killed, which hold its ports. Raises UserError."""
    end, reported = time.monotonic() + END_SECONDS, False
    while _processes(folder):
        if not reported:
            reported = True
            say(ENDING)
        if time.monotonic() > end:
            pids = " ".join(str(one.pid) for one in _processes(folder))
            raise UserError("the last head from this folder does not end", where=str(folder), fix=f"kill -9 {pids}")
        time.sleep(0.2)


def _processes(folder: Path) -> list[psutil.Process]:
    """Return Ray's processes of this folder's head, by Ray's folder on their command lines."""
    name = str(private_folder(folder))
    return [one for one in psutil.process_iter(["cmdline"]) if any(name in word for word in one.info["cmdline"] or ())]


def _wait(state_dir: Path, process: subprocess.Popen[bytes], say: Callable[[str], None]) -> None:
    """Wait until the head lists its own node and MLflow answers; after a while, report what it waits for."""
    from zo_sweeps_ray.private import Head

    folder = _folder(state_dir)
    report = time.monotonic() + QUIET_SECONDS
    end = time.monotonic() + START_SECONDS
    why = "is not ready"
    while time.monotonic() < end:
        if time.monotonic() > report:
            report = end
            say(f"still starting: the head {why}; {last_line(folder / 'keeper.log')}")
        if process.poll() is not None:
            raise UserError(f"the head exited: {last_line(folder / 'keeper.log')}", where=str(folder / "ray.log"))
        state = running(folder / "head.json")
        if state:
            try:
                head = Head(state["address"], token_environment(Path(state["token_file"])))
                if head.own_node(state["identity"]):
                    if not server.is_healthy(mlflow_uri(state)):
                        why = f"has no MLflow: {last_line(state_dir / 'mlflow' / 'server.log')}"
                    elif state["gateway_port"] and not listens(state["host"], state["gateway_port"]):
                        why = f"has no gateway: {last_line(folder / gateway.gateway().log)}"
                    else:
                        return
            except UserError as error:
                why = str(error)
        time.sleep(0.5)
    raise UserError(f"the head {why} after {START_SECONDS:.0f} s: {last_line(folder / 'ray.log')}", where=str(folder))


def _folder(state_dir: Path) -> Path:
    return own_folder(state_dir / "head")


def _address(options: HeadOptions) -> str:
    """Return the address at which Ray's nodes reach the head: like Ray, use the machine's own address for loopback."""
    if not server.is_loopback(options.host):
        return options.host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # sends nothing
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:  # no network at all
            return "127.0.0.1"


def _must_differ(options: HeadOptions) -> None:
    """Raise UserError when two services are to listen on one port."""
    ports = {name: getattr(options, name) for name in ("port", "mlflow_port", "dashboard_port", "gateway_port")}
    known: dict[int, str] = {}
    for name, port in ports.items():
        option = f"--{name.replace('_', '-')}"
        if port and (other := known.setdefault(port, option)) != option:
            raise UserError(f"{other} and {option} are both {port}", fix="give each a port of its own")


def _must_be_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except (OSError, OverflowError) as error:
            what = f"port {port} cannot be used: {getattr(error, 'strerror', error)}"
            fix = "choose another with --port, --mlflow-port, --dashboard-port or --gateway-port"
            raise UserError(what, fix=fix) from None


if __name__ == "__main__":
    sys.exit(keep(Path(sys.argv[1]), lambda text: print(time.strftime("%Y-%m-%d %H:%M:%S"), text, flush=True)))

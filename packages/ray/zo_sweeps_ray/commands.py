"""The commands about machines: head, worker, devices. Each parses its arguments and calls one function."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from os.path import expanduser
from pathlib import Path

from rich.console import Console

from zo_sweeps.cli.parser import Parser, number
from zo_sweeps.cli.text import console, listing
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.document import to_text
from zo_sweeps.core.errors import UserError
from zo_sweeps.methods import registry
from zo_sweeps_ray import gateway, inventory, systemd
from zo_sweeps_ray import head as heads
from zo_sweeps_ray import worker as workers
from zo_sweeps_ray.cluster import token_for_joining
from zo_sweeps_ray.inventory import HEADERS, ListedDevice, Machine, capabilities, row_of

_say = partial(print, flush=True)


def _parser(command: str, description: str | None) -> Parser:
    return Parser(prog=f"python -m zo_sweeps {command}", description=description)


def head(given: Sequence[str]) -> int:
    """Start, stop or inspect a Ray head with its MLflow server and gateway, or print a code for a board to register."""
    parser = _parser("head", head.__doc__)
    add = parser.add_argument
    add("action", choices=("start", "stop", "status", "code"))
    add("--state-dir", type=Path, default=Path("zo_runs"), metavar="FOLDER", help="state folder; default: zo_runs")
    text = "address that nodes and browsers use; beyond loopback, MLflow asks for a password; default: 127.0.0.1"
    add("--host", default="127.0.0.1", help=text)
    add("--port", type=int, default=6379, help="port of the Ray head; default: 6379")
    add("--mlflow-port", type=int, default=5000, help="port of MLflow; default: 5000")
    add("--dashboard-port", type=int, default=8265, help="of Ray's dashboard; default: 8265; 0: none")
    text = "port of the gateway, which agents dial; 0: none; default: 7443 with zo-sweeps[agents]"
    with_agents = gateway.PORT if "gateway" in registry.offered("part") else 0
    add("--gateway-port", type=int, default=with_agents, help=text)
    text = "time that an agent may be silent before its trial runs elsewhere; default: 60"
    add("--lease", type=number(float), default=gateway.LEASE_MINUTES, metavar="MINUTES", help=text)
    text = "leave Ray's connections unencrypted beyond loopback, where whoever listens then reads the token"
    add("--no-tls", action="store_false", dest="tls", help=text)
    text = "the gateway's certificate chain and its key; default: one of its own, which the code names"
    add("--certificate", type=expanduser, metavar="FILE", help=text)
    add("--key", type=expanduser, metavar="FILE", help="see --certificate")
    text = "code: how long it can be used; default: 15"
    add("--minutes", type=number(float), default=gateway.CODE_MINUTES, help=text)
    _lending(parser)
    add("--block", action="store_true", help="stay in the foreground (systemd, containers)")
    options = parser.parse_args(given, heads.HeadOptions())
    if options.action == "stop":
        _say("stopped" if heads.stop(options.state_dir) else f"nothing runs from {options.state_dir}")
        return 0
    if options.action == "status":
        return heads.status(options.state_dir, _say)
    if options.action == "code":
        return heads.code(options.state_dir, options.minutes, _say)
    return heads.start(options.state_dir, options, _say, block=options.block)


def _lending(parser: Parser) -> None:
    """Add the options that `head start` and `worker join` share."""
    text = "the cluster's token, mode 0600; default: RAY_AUTH_TOKEN, then RAY_AUTH_TOKEN_PATH"
    parser.add_argument("--token-file", metavar="FILE", help=text)
    parser.add_argument("--cpus", type=int, metavar="N", help="CPUs to lend to trials; default: all")
    text = "GPUs to lend to trials; default: all (head), one if the device has one (node)"
    parser.add_argument("--gpus", type=int, metavar="N", help=text)
    text = "ports for Ray to listen on here; default: any"
    parser.add_argument("--ports", default="", metavar="FIRST-LAST", help=text)


def worker(given: Sequence[str]) -> int:
    """Join this machine to a cluster as a node and stay joined, or leave: worker join|leave|(un)install-service."""
    parser = _parser("worker", worker.__doc__)
    add = parser.add_argument
    add("action", choices=("join", "leave", "install-service", "uninstall-service"))
    add("address", nargs="?", metavar="HOST:PORT", help="address of the head (join, install-service)")
    add("--device", default="auto", metavar="NAME", help="device profile; default: detected")
    _lending(parser)
    add("--memory", type=float, metavar="GB", dest="memory_gb", help="memory to lend to trials; default: the profile's")
    add("--name", default="", help="name of the node; default: the host's")
    text = "grace period for trials to stop when the node leaves; default: 120"
    add("--grace", type=float, default=120.0, metavar="SECONDS", help=text)
    add("--state-dir", type=Path, default=workers.HOME, metavar="FOLDER", help="state folder; default: ~/.zo_sweeps")
    add("--config-dir", action="append", default=[], metavar="FOLDER", help="folder with device profiles of your own")
    add("--print", action="store_true", dest="only_print", help="install-service: print the unit, install nothing")
    text = "(un)install-service: for this user instead of the system, where it has an account of its own"
    add("--user", action="store_true", help=text)
    options = parser.parse_intermixed_args(given, workers.WorkerOptions())
    system = not options.user
    if options.action == "leave":
        return workers.leave(options.state_dir, _say)
    if options.action == "uninstall-service":
        return systemd.uninstall(system=system, say=_say)
    if not options.address:
        raise UserError("no head named", fix=f"zo-sweeps worker {options.action} HOST:PORT")
    device = workers.profile(options.device, options.config_dir)
    if options.action == "join":
        return workers.join(options.state_dir, options, device, _say)
    words = [word for word in given if word not in ("install-service", "--print", "--user")]
    arguments = systemd.unit_arguments(words, system=system)
    unit = systemd.unit(arguments, options.address, options.grace, options.config_dir, system=system)
    if options.only_print:
        print(unit.text, end="")
        return 0
    token = token_for_joining(options.token_file, options.state_dir.expanduser() / "worker") if system else None
    systemd.install(unit, options.config_dir, token, say=_say)
    return 0


def devices(given: Sequence[str]) -> int:
    """List the nodes and agents of a cluster: device, memory, capabilities, versions, temperature, running trials.

    devices revoke NAME, on the head's machine, takes an agent's key from it at once.
    """
    parser = _parser("devices", devices.__doc__)
    text = "cluster.address=HOST:PORT; default: the head started from state_dir=FOLDER, else the one joined here"
    parser.add_argument("overrides", nargs="*", metavar="revoke NAME|key=value", help=text)
    text = "folder with configuration of your own"
    parser.add_argument("--config-dir", action="append", default=[], metavar="FOLDER", help=text)
    text = "default: the token of the cluster found here, then the environment's"
    parser.add_argument("--token-file", metavar="FILE", help=text)
    parser.add_json({"": ListedDevice}, "a JSON list")
    options = parser.parse_intermixed_args(list(given))
    names: list[str] = []
    if options.overrides[:1] == ["revoke"]:
        names = [word for word in options.overrides[1:] if "=" not in word]
        options.overrides = [word for word in options.overrides[1:] if "=" in word]
        if len(names) != 1:
            raise UserError("which agent's key?", fix="zo-sweeps devices revoke NAME")
    config = Composer(options.overrides, options.config_dir).run
    if names:
        gateway.gateway().revoke(config.folder / "head", names[0])
        _say(f"{names[0]} was revoked: it gets nothing more, and its trials go to other nodes")
        return 0
    head = inventory.connect(config.cluster.address, options.token_file, config.folder, workers.HOME.expanduser())
    nodes = inventory.read(head)
    if options.json:
        print(to_text([ListedDevice(**vars(one), can=capabilities(one.facts)) for one in nodes]))
    else:
        show_devices(nodes, console(), time.time())
    return 0


def show_devices(devices: Sequence[Machine], to: Console, now: float) -> None:
    """Print a row per machine at `now` (Unix seconds); on a narrow terminal a block each, without what is unknown."""
    listing(to, HEADERS, [row_of(one, now) for one in devices])

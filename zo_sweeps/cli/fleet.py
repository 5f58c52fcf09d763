"""The command line of machines: head, worker, devices. Reads it and calls one function."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zo_sweeps.cli.parser import Parser
from zo_sweeps.core.errors import UserError


def _parser(command: str, description: str | None) -> Parser:
    return Parser(prog=f"python -m zo_sweeps {command}", description=description)


def _say(text: str) -> None:
    print(text, flush=True)


def head(given: Sequence[str]) -> int:
    """Start, stop or look at a Ray head with its MLflow server: head start|stop|status."""
    from zo_sweeps.fleet import head as heads

    parser = _parser("head", head.__doc__)
    parser.add_argument("action", choices=("start", "stop", "status"))
    parser.add_argument("--state-dir", type=Path, default=Path("zo_runs"), metavar="FOLDER", help="default: zo_runs")
    default = heads.HeadOptions()
    text = "the address that others use; beyond loopback MLflow asks for a password (default: 127.0.0.1)"
    parser.add_argument("--host", default=default.host, help=text)
    parser.add_argument("--port", type=int, default=default.port, help="of the Ray head; default 6379")
    parser.add_argument("--mlflow-port", type=int, default=default.mlflow_port, help="default 5000")
    parser.add_argument("--dashboard-port", type=int, default=default.dashboard_port, help="default 8265; 0: none")
    _lending(parser)
    parser.add_argument("--block", action="store_true", help="stay in the foreground (systemd, containers)")
    options = parser.parse_args(list(given))
    if options.action == "stop":
        _say("stopped" if heads.stop(options.state_dir) else f"nothing runs from {options.state_dir}")
        return 0
    if options.action == "status":
        return heads.status(options.state_dir, _say)
    names = heads.HeadOptions.__dataclass_fields__
    wanted = heads.HeadOptions(**{name: getattr(options, name) for name in names})
    return heads.start(options.state_dir, wanted, _say, block=options.block)


def _lending(parser: Parser) -> None:
    """What `head start` and `worker join` have in common."""
    parser.add_argument("--token-file", metavar="FILE", help="mode 0600; else RAY_AUTH_TOKEN_PATH or RAY_AUTH_TOKEN")
    parser.add_argument("--cpus", type=int, metavar="N", help="to lend to trials; default all")
    parser.add_argument("--gpus", type=int, metavar="N", help="to lend; on a worker the default is the device's")
    parser.add_argument("--ports", default="", metavar="FIRST-LAST", help="all that Ray listens on here; default any")


def worker(given: Sequence[str]) -> int:
    """Join this machine to a cluster and stay joined, or leave: worker join|leave|install-service."""
    from zo_sweeps.fleet import service
    from zo_sweeps.fleet import worker as workers

    parser = _parser("worker", worker.__doc__)
    parser.add_argument("action", choices=("join", "leave", "install-service"))
    parser.add_argument("address", nargs="?", metavar="HOST:PORT", help="of the head (join, install-service)")
    parser.add_argument(
        "--device", default="auto", metavar="NAME", help="device profile; default: what this machine is"
    )
    _lending(parser)
    parser.add_argument("--memory", type=float, metavar="GB", dest="memory_gb", help="to lend; default the profile's")
    parser.add_argument("--name", default="", help="default: the host's name")
    text = "that trials have to stop when the node leaves; default 120"
    parser.add_argument("--grace", type=float, default=workers.GRACE, metavar="SECONDS", help=text)
    parser.add_argument("--state-dir", type=Path, default=workers.HOME, metavar="FOLDER", help="default: ~/.zo_sweeps")
    parser.add_argument("--config-dir", action="append", default=[], metavar="FOLDER", help="with profiles of your own")
    parser.add_argument("--print", action="store_true", dest="only_print", help="install-service: print the unit only")
    parser.add_argument("--user", action="store_true", help="install-service: for this user instead of the system")
    options = parser.parse_args(list(given))
    if options.action == "leave":
        return workers.leave(options.state_dir, _say)
    if not options.address:
        raise UserError("no head named", fix=f"zo-sweeps worker {options.action} HOST:PORT")
    device = workers.profile(options.device, options.config_dir)
    if options.action == "join":
        names = workers.WorkerOptions.__dataclass_fields__
        wanted = workers.WorkerOptions(**{name: getattr(options, name) for name in names})
        return workers.join(options.state_dir, wanted, device, _say)
    arguments = [word for word in given if word not in ("install-service", "--print", "--user")]
    system = not options.user
    text = service.unit(service.absolute(arguments), options.address, options.grace, system=system)
    if options.only_print:
        print(text, end="")
    else:
        service.install(text, system=system, say=_say)
    return 0


def devices(given: Sequence[str]) -> int:
    """List the machines of a cluster: kind, memory, capabilities, versions, temperature, what runs there now."""
    parser = _parser("devices", devices.__doc__)
    text = "cluster.address=HOST:PORT; default: the head started from state_dir=FOLDER, else the one joined here"
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=text)
    parser.add_argument("--config-dir", action="append", default=[], metavar="FOLDER", help="with groups of your own")
    parser.add_argument("--token-file", metavar="FILE", help="default: of the head found here, else the environment's")
    options = parser.parse_intermixed_args(list(given))
    import time

    from rich.console import Console

    from zo_sweeps.config.composer import Composer
    from zo_sweeps.fleet import inventory
    from zo_sweeps.fleet.worker import HOME

    config = Composer(options.overrides, options.config_dir).run
    head = inventory.connect(config.cluster.address, options.token_file, config.folder, HOME.expanduser())
    inventory.show(inventory.read(head), Console(highlight=False), time.time())
    return 0

"""The command `agent`: this machine runs trials for a head that it reaches by HTTPS."""

from __future__ import annotations

from collections.abc import Sequence
from os.path import expanduser
from pathlib import Path

from zo_sweeps.cli.parser import Parser, number
from zo_sweeps.core.errors import UserError
from zo_sweeps_agent.agent_facts import CPUS, SLOTS


def _path(text: str) -> Path:
    return Path(expanduser(text))


def agent(given: Sequence[str]) -> int:
    """Run trials for a head that this machine dials, behind NAT too: agent join|move|leave|status|install-service."""
    from zo_sweeps_agent.agent import commands

    parser = Parser(prog="python -m zo_sweeps agent", description=agent.__doc__)
    parser.add_argument("action", choices=("join", "move", "leave", "status", "install-service"))
    parser.add_argument(
        "url", nargs="?", metavar="https://HOST:PORT", help="address of the head (join, move, install-service)"
    )
    default = commands.AgentOptions("")
    parser.add_argument(
        "--code", default="", metavar="CODE", help="one-time code that the head printed; once per machine"
    )
    parser.add_argument("--device", default=default.device, metavar="NAME", help="device profile; default: detected")
    parser.add_argument("--name", default="", help="name of this machine at the head; default: the host's")
    parser.add_argument("--cpus", type=number(int, CPUS), metavar="N", help="CPUs to lend to trials; default: all")
    text = "memory to lend to trials; default: the profile's"
    parser.add_argument("--memory", type=number(float, 1e6), metavar="GB", dest="memory_gb", help=text)
    text = "trials at a time; default: 1"
    parser.add_argument("--slots", type=number(int, SLOTS), default=default.slots, metavar="N", help=text)
    text = "a folder per task with rows that stay here: this machine is a client of federated trials with method.files"
    parser.add_argument("--data", type=Path, metavar="FOLDER", help=text)
    text = "the light client, built for this machine: it runs exported programs, without torch (packages/edge)"
    parser.add_argument("--client", type=Path, metavar="FILE", help=text)
    text = "authorities (PEM) of a head that has a certificate of its own; default: as the code says"
    parser.add_argument("--ca", type=_path, metavar="FILE", dest="authorities", help=text)
    text = "join: a further address of the head, kept and tried when the first does not answer; may be repeated"
    parser.add_argument("--also", action="append", default=[], metavar="URL", help=text)
    text = "move: address of the head before; default: the only one that this machine is registered with"
    parser.add_argument("--from", default="", metavar="URL", dest="old", help=text)
    parser.add_argument(
        "--state-dir", type=Path, default=commands.HOME, metavar="FOLDER", help="state folder; default: ~/.zo_sweeps"
    )
    parser.add_argument(
        "--config-dir",
        action="append",
        default=[],
        dest="config_dirs",
        metavar="FOLDER",
        help="folder with device profiles of your own",
    )
    parser.add_argument(
        "--print", action="store_true", dest="only_print", help="install-service: print the unit, install nothing"
    )
    options = parser.parse_intermixed_args(list(given))
    say = lambda text: print(text, flush=True)
    if options.action == "leave":
        return commands.leave(options.state_dir, say)
    if options.action == "status":
        return commands.status(options.state_dir, say)
    if not options.url:
        raise UserError("no head named", fix=f"zo-sweeps agent {options.action} https://HOST:PORT")
    if options.action == "move":
        return commands.move(options.state_dir, options.url, options.old, say)
    wanted = commands.AgentOptions(
        **{name: getattr(options, name) for name in commands.AgentOptions.__dataclass_fields__}
    )
    if options.action == "join":
        return commands.join(options.state_dir, wanted, say)
    return commands.install_service(options.state_dir, wanted, say, only_print=options.only_print)

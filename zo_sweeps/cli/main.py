"""The command line: parses it, calls one function, prints an error as one line. No logic."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from os.path import expanduser
from pathlib import Path
from typing import TYPE_CHECKING

from zo_sweeps import __version__
from zo_sweeps.cli.agent import agent
from zo_sweeps.cli.fleet import devices, head, worker
from zo_sweeps.cli.parser import Parser
from zo_sweeps.core.errors import UserError, unknown

if TYPE_CHECKING:
    from zo_sweeps.config.composer import Composer
    from zo_sweeps.record.commands import Command
    from zo_sweeps.results.recalled import Reading

DEFAULT_GRID = "quickstart"
EXAMPLES = """\
overrides (Hydra's grammar, before or after the flags):
  +grid=NAME            the grid; default: quickstart
  task=sst2,rte         restricts or replaces an axis, or overrides a value that the grid fixes
  model=local model.path=FOLDER data.dir=FOLDER scale=smoke|short|paper update.lr=1e-3 grid.seeds=[0,1,2]
  executor=inline       runs in this process; cluster.address=HOST:PORT joins a Ray cluster; state_dir=FOLDER

examples:
  python -m zo_sweeps
  python -m zo_sweeps plan +grid=llama2_superglue
  python -m zo_sweeps +grid=llama2_superglue model=local model.path=MODEL data.dir=DATA scale=smoke
  python -m zo_sweeps table +grid=llama2_superglue --format latex
"""


def _parser(command: str) -> argparse.ArgumentParser:
    commands = "\n".join(
        f"  {name:14} {''.join((function.__doc__ or '').splitlines()[:1])}" for name, function in COMMANDS.items()
    )
    parser = Parser(
        prog=f"python -m zo_sweeps {command}",
        description=(COMMANDS[command].__doc__ or "") + f"\n\ncommands:\n{commands}",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="Hydra overrides, see below")
    parser.add_argument(
        "--config-dir",
        action="append",
        type=expanduser,
        default=[],
        metavar="FOLDER",
        help="folder with grids, tasks and members of your own",
    )
    parser.add_argument("--version", action="version", version=f"zo_sweeps {__version__}")
    parser.add_argument("-m", "--multirun", action="store_true", help=argparse.SUPPRESS)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status: 0, 1 (trials failed, results wrong), 2 (bad input), 130 (interrupted)."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # an encoding without "±" is no reason to stop a sweep
            stream.reconfigure(errors="replace")
    command = given.pop(0) if given and given[0] in COMMANDS else "run"
    try:
        if command == "run":
            _check_word(given)
        return COMMANDS[command](given)
    except UserError as error:
        print(f"zo_sweeps: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `zo-sweeps table | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _check_word(given: Sequence[str]) -> None:
    if given and not given[0].startswith("-") and "=" not in given[0] and not given[0].startswith("~"):
        raise unknown("command", given[0], COMMANDS)


def _parse(parser: argparse.ArgumentParser, given: Sequence[str]) -> argparse.Namespace:
    options = parser.parse_intermixed_args(list(given))
    if options.multirun or any(text.startswith("hydra.mode=") for text in options.overrides):
        raise UserError(
            "--multirun is not supported: a grid already is the whole sweep, and Hydra's multirun cannot resume one",
            fix="give an axis several values instead, e.g. task=sst2,rte or grid.seeds=[0,1,2]",
        )
    return options


def _trial_ids(options: argparse.Namespace) -> list[str]:
    """Remove positional trial ids from the overrides; return them."""
    trial_ids = [text for text in options.overrides if "=" not in text and not text.startswith("~")]
    options.overrides = [text for text in options.overrides if text not in trial_ids]
    return trial_ids


def _with_grid(overrides: Sequence[str]) -> list[str]:
    named = any(text.startswith(("+grid=", "grid=")) for text in overrides)
    return [*([] if named else [f"+grid={DEFAULT_GRID}"]), *overrides]


def _compose(options: argparse.Namespace) -> tuple[Composer, Command]:
    """Compose the configuration. Raises UserError for bad input."""
    from zo_sweeps.config.composer import Composer
    from zo_sweeps.record.commands import Command

    command = Command(tuple(_with_grid(options.overrides)), tuple(options.config_dir))
    return Composer(command.overrides, command.config_dirs), command


def _read(options: argparse.Namespace) -> Reading:
    """Return the plan to read results by: of the last sweep of the grid, if at most a grid is named.

    Raises UserError for bad input, or if nothing has been run in the state folder.
    """
    from zo_sweeps.record.commands import recall
    from zo_sweeps.results import recalled

    asked = _with_grid(options.overrides)
    is_recalled = recall(options.overrides, options.config_dir) is not None
    reading = recalled.read(options.overrides if is_recalled else asked, options.config_dir, has_run=True)
    if is_recalled and {*reading.command.overrides[:-1]} != {text for text in asked if "state_dir=" not in text}:
        print(f"# the last sweep: {reading.command}", file=sys.stderr)
    for note in reading.notes:
        print(f"# note: {note}", file=sys.stderr)
    return reading


def run(given: Sequence[str]) -> int:
    """Run a grid: plan it, run the trials that have no result yet, print its tables. The default command."""
    parser = _parser("run")
    parser.add_argument(
        "--rerun",
        action="append",
        default=[],
        metavar="failed|lost|diverged|out_of_memory|succeeded|TRIAL_ID",
        help="rerun trials that ended in this state, or one trial by its id; earlier results of theirs are set aside",
    )
    options = _parse(parser, given)
    if late := next((word for word in options.overrides if word in COMMANDS), None):
        fix = f"write it first: python -m zo_sweeps {late} {shlex.join(word for word in given if word != late)}"
        raise UserError(f"the command {late!r} comes after the overrides", fix=fix)
    composer, command = _compose(options)
    address = composer.run.cluster.address
    if not address:
        return _sweep(composer, command, options.rerun)
    from zo_sweeps.cli.supervisor import supervise

    # --rerun takes effect when the sweep begins, and not once more after the head was away.
    return supervise(address, lambda first: _sweep(composer, command, options.rerun if first else []))


def _sweep(composer: Composer, command: Command, rerun: Sequence[str]) -> int:
    from rich.console import Console

    from zo_sweeps.cli import launch, show
    from zo_sweeps.results import session
    from zo_sweeps.schedule.this_host import must_have_work

    console = Console(highlight=False)
    planned = session.plan_here(composer)
    must_have_work(planned)
    session.check_rerun(rerun, planned)
    show.summary(planned, console)
    result = session.run(planned, composer, command, launch.Terminal(console), rerun=rerun)
    return launch.EXIT[result.status]


def plan(given: Sequence[str]) -> int:
    """Show a grid's trials, their work and memory, and what cannot run here, and why. Launches nothing."""
    parser = _parser("plan")
    parser.add_argument("--trials", action="store_true", help="list every trial")
    options = _parse(parser, given)
    from rich.console import Console

    from zo_sweeps.cli import show
    from zo_sweeps.results import session

    composer, _ = _compose(options)
    planned = session.plan_here(composer)
    show.plan(planned, Console(highlight=False), trials=options.trials)
    return 0


def status(given: Sequence[str]) -> int:
    """Show the progress of a sweep; with a trial's id, everything about that trial."""
    parser = _parser("status")
    parser.add_argument("--failed", action="store_true", help="list the trials that failed, with their errors")
    parser.add_argument("--watch", action="store_true", help="follow a running sweep to its end")
    options = _parse(parser, given)
    trial_ids = _trial_ids(options)
    from rich.console import Console

    from zo_sweeps.cli import show
    from zo_sweeps.cli.watch import watch

    planned = _read(options).plan
    console = Console(highlight=False)
    if trial_ids:
        show.trial(planned, trial_ids[0], console)
    else:
        follow = watch if options.watch else show.status
        follow(planned, console, failed=options.failed)
    return 0


def table(given: Sequence[str]) -> int:
    """Print a grid's tables, from the results so far."""
    parser = _parser("table")
    parser.add_argument("--format", default="text", metavar="text|md|latex|csv|html", help="default: text")
    parser.add_argument(
        "--table", action="append", default=[], metavar="NAME", help="one of the grid's tables; default: all"
    )
    parser.add_argument("--output", type=expanduser, metavar="FILE", help="write to FILE instead of standard output")
    options = _parse(parser, given)
    from zo_sweeps.cli import show

    reading = _read(options)
    text = show.tables(reading.plan, reading.composer, options.format, options.table)
    if options.output:
        show.write(Path(options.output), text.encode())
    else:
        print(text, end="")
    return 0


def figure(given: Sequence[str]) -> int:
    """Draw a grid's figures (PNG, SVG), from the results so far; convergence curves if it defines none."""
    parser = _parser("figure")
    parser.add_argument(
        "--figure", action="append", default=[], metavar="NAME", help="one of the grid's figures; default: all"
    )
    parser.add_argument(
        "--output",
        type=expanduser,
        default="",
        metavar="FILE.png|.svg",
        help="the name of the figure is added if there are several; default: both kinds, in the state folder",
    )
    options = _parse(parser, given)
    from rich.console import Console

    from zo_sweeps.cli import show

    reading = _read(options)
    show.figures(reading.plan, reading.composer, options.figure, options.output, Console(highlight=False))
    return 0


def report(given: Sequence[str]) -> int:
    """Write one self-contained HTML page on a grid: what it found, curves, tables; with --all, a site on all sweeps."""
    parser = _parser("report")
    parser.add_argument(
        "--output", type=expanduser, default="", metavar="FILE.html", help="default: GRID.html in the state folder"
    )
    parser.add_argument("--all", action="store_true", help="a site of static pages on every sweep of the state folder")
    parser.add_argument("--out", type=expanduser, metavar="DIR", help="of --all: a new or empty folder, or such a site")
    options = _parse(parser, given)
    from rich.console import Console

    from zo_sweeps.cli import show

    if options.all != (options.out is not None) or (options.all and options.output):
        raise UserError("a site is written by --all --out DIR, a page by --output FILE.html", where="report")
    if options.all:
        from zo_sweeps.config.composer import Composer

        folder = Composer(options.overrides, options.config_dir).run.folder
        show.site(folder, Path(options.out), Console(highlight=False))
        return 0
    reading = _read(options)
    show.report(reading.plan, reading.composer, str(reading.command), options.output, Console(highlight=False))
    return 0


def compare(given: Sequence[str]) -> int:
    """Show two trials side by side, by their ids: configurations, measurements, curves."""
    options = _parse(_parser("compare"), given)
    trial_ids = _trial_ids(options)
    if len(trial_ids) != 2:
        raise UserError(f"{len(trial_ids)} trials to compare", fix="give two ids, as `plan --trials` lists them")
    from rich.console import Console

    from zo_sweeps.config.composer import Composer
    from zo_sweeps.results.compare import compare

    folder = Composer(options.overrides, options.config_dir).run.folder
    compare(folder, trial_ids, Console(highlight=False))
    return 0


def papers(given: Sequence[str]) -> int:
    """List the tables and figures of the papers (of PAPER or PAPER/ITEM alone): grid, state, why it cannot run here."""
    options = _parse(_parser("papers"), given)
    names = _trial_ids(options)
    from rich.console import Console

    from zo_sweeps.cli import show
    from zo_sweeps.config.composer import Composer

    composer = Composer(options.overrides, options.config_dir)
    show.papers(composer, options, names, Console(highlight=False))
    return 0


def ui(given: Sequence[str]) -> int:
    """Serve the MLflow page of a state folder on loopback until Ctrl-C."""
    parser = _parser("ui")
    parser.add_argument("--port", type=int, default=None, help="default: a free port")
    options = _parse(parser, given)
    from zo_sweeps.cli import show
    from zo_sweeps.config.composer import Composer

    show.ui(Composer(options.overrides, options.config_dir).run.folder, options.port)
    return 0


def sync(given: Sequence[str]) -> int:
    """Send the results of a state folder that a tracking server lacks; tracking.uri=URI names another server."""
    options = _parse(_parser("sync"), given)
    from zo_sweeps.config.composer import Composer
    from zo_sweeps.record.sync import sync

    config = Composer(options.overrides, options.config_dir).run
    sync(config.folder, config.tracking.uri)
    return 0


def export(given: Sequence[str]) -> int:
    """Write a sweep's results as one file that others can verify; with a trial's id, the weights of that trial."""
    parser = _parser("export")
    parser.add_argument(
        "--out", type=expanduser, required=True, metavar="FILE|DIR", help="the file; of weights, a new or empty folder"
    )
    parser.add_argument("--by", default="", metavar="NAME", help="of results: whose they are")
    parser.add_argument(
        "--key",
        type=expanduser,
        metavar="FILE",
        help="of results: private Ed25519 key that signs them, as ssh-keygen's",
    )
    parser.add_argument(
        "--merge", action="store_true", help="of weights: the whole model with them, instead of an adapter (PEFT)"
    )
    options = _parse(parser, given)
    trial_ids = _trial_ids(options)
    if not trial_ids:
        return _export_results(options)
    if len(trial_ids) > 1:
        raise UserError(f"{len(trial_ids)} trials to export", fix="give one id, as `plan --trials` lists them")
    if options.by or options.key:
        raise UserError("weights are not signed", where="--by, --key", fix="leave the id out to export results")
    from zo_sweeps.config.composer import Composer
    from zo_sweeps.results.export import save_adapter

    state_dir = Composer(options.overrides, options.config_dir).run.state_dir
    print(save_adapter(trial_ids[0], options.out, state_dir, merge=options.merge))
    return 0


def _export_results(options: argparse.Namespace) -> int:
    if options.merge:
        raise UserError("no trial to merge the weights of", where="--merge", fix="give a trial's id")
    from rich.console import Console

    from zo_sweeps.cli import show
    from zo_sweeps.results.share import share

    reading, path = _read(options), Path(options.out)
    key = Path(options.key) if options.key else None
    written = share(reading.plan, reading.composer, path, by=options.by, key=key)
    show.archive(written, path, sum(name.startswith("journal/") for name in written.files), Console(highlight=False))
    return 0


def verify(given: Sequence[str]) -> int:
    """Compute the results in a file of `export` again, on your copies of model and data; exit 1 if any differ."""
    parser = Parser(prog="python -m zo_sweeps verify", description=verify.__doc__)
    parser.add_argument("file", type=expanduser, metavar="FILE")
    parser.add_argument("trials", nargs="*", metavar="TRIAL_ID", help="these alone; default: all")
    parser.add_argument("--key", type=expanduser, metavar="FILE", help="public key that must have signed it")
    parser.add_argument("--model", type=expanduser, metavar="DIR", help="your copy of its model, if that does not ship")
    parser.add_argument("--data", type=expanduser, metavar="DIR", help="your copy of its data, as data.dir")
    parser.add_argument(
        "--config-dir", action="append", type=expanduser, default=[], metavar="FOLDER", help="your copy of its members"
    )
    options = parser.parse_intermixed_args(list(given))
    from rich.console import Console

    from zo_sweeps.cli import show
    from zo_sweeps.record.archive import read
    from zo_sweeps.results.verify import Copies
    from zo_sweeps.results.verify import verify as compute

    key, model, data = (Path(name) if name else None for name in (options.key, options.model, options.data))
    source = read(Path(options.file), key)
    copies = Copies(model, data, options.config_dir)
    findings = compute(source, copies, options.trials)
    return show.verification(source, Path(options.file), findings, Console(highlight=False))


def import_(given: Sequence[str]) -> int:
    """Show the results in a file of `export` below your own, in the tables of the same grid, labelled."""
    parser = _parser("import")
    parser.add_argument("--key", type=expanduser, metavar="FILE", help="public key that must have signed it")
    options = _parse(parser, given)
    files = _trial_ids(options)
    if len(files) != 1:
        raise UserError(f"{len(files)} files to import", fix="give one file, as `export` writes it")
    from rich.console import Console

    from zo_sweeps.cli import show
    from zo_sweeps.config.composer import Composer
    from zo_sweeps.record.archive import read
    from zo_sweeps.results.imports import take_in

    composer = Composer(options.overrides, options.config_dir)
    source = read(Path(expanduser(files[0])), Path(options.key) if options.key else None)
    show.imported(source, take_in(source, composer.run.folder, composer), Console(highlight=False))
    return 0


def check(given: Sequence[str]) -> int:
    """Exit 1 if a cell of a grid's tables has fewer finished seeds behind it than --n, for the CI of a paper."""
    parser = _parser("check")
    parser.add_argument("--n", type=int, required=True, metavar="SEEDS", help="finished seeds that every cell needs")
    options = _parse(parser, given)
    if options.n < 1:
        raise UserError(f"--n {options.n} is no number of seeds", fix="give 1 or more")
    from rich.console import Console

    from zo_sweeps.cli import show

    reading = _read(options)
    return show.unbacked(reading.plan, reading.composer, options.n, Console(highlight=False))


def package(given: Sequence[str]) -> int:
    """Quantize a model into a folder for boards: codes, tokenizer, and with space=sensitive the mask of a text."""
    parser = _parser("package")
    parser.add_argument("--out", type=expanduser, required=True, metavar="DIR", help="a new or empty folder")
    options = _parse(parser, given)
    from rich.console import Console

    from zo_sweeps.cli import show
    from zo_sweeps.results.packaging import package

    with show.Stages(Console(highlight=False)) as stages:
        made = package(options.overrides, options.config_dir, options.out, stages.update)
    print(f"{made.folder}   package:{made.contents.fingerprint}")
    print(f"copy it to the board, and use it there as model=local model.path={made.folder}")
    return 0


def export_program(given: Sequence[str]) -> int:
    """Export a trial as a program and its data, for a board or phone that has only an inference engine."""
    parser = _parser("export-program")
    parser.add_argument("--out", type=expanduser, required=True, metavar="DIR", help="a new or empty folder")
    options = _parse(parser, given)
    from zo_sweeps.results.programs import export_program

    folder, manifest, back = export_program(options.overrides, options.config_dir, options.out)
    settings = manifest.settings
    print(f"{folder}   trial {settings.trial_id}   {settings.steps} steps")
    print("its README.md says how to run it; then read its log back here:")
    print(f"  {back}")
    return 0


def rtl(given: Sequence[str]) -> int:
    """Write a perturbation's generator as a circuit: Verilog, a test bench, constraints, and what open tools count."""
    parser = _parser("rtl")
    parser.add_argument("--rngs", type=int, metavar="N", help="registers of an array, 2^k - 1; default: 31")
    parser.add_argument("--bits", type=int, metavar="B", help="bits of a register; default: 8")
    parser.add_argument("--clocks", type=int, default=10_000, help="clocks of the test bench; default: 10000")
    parser.add_argument("--out", type=expanduser, required=True, metavar="DIR", help="a new or empty folder")
    options = _parse(parser, given)
    from zo_sweeps.results.circuits import write_circuit

    size = {"rngs": options.rngs, "bits": options.bits}
    made = write_circuit(options.overrides, options.config_dir, options.out, size, options.clocks)
    print(made.text, end="")
    print(f"\n{made.folder}")
    return 0


def doctor(given: Sequence[str]) -> int:
    """Check this machine: versions, devices, memory, disk, ports, hub."""
    options = _parse(_parser("doctor"), given)
    from rich.console import Console

    from zo_sweeps.cli import show
    from zo_sweeps.config.composer import Composer

    return show.doctor(Composer(options.overrides, options.config_dir).run.state_dir, Console(highlight=False))


def bench(given: Sequence[str]) -> int:
    """Benchmark the engine (noise, step, memory, replay, all), codes, sparse, programs, gpu, cluster, agents."""
    parser = Parser(prog="python -m zo_sweeps bench", description=bench.__doc__)
    parser.add_argument(
        "part",
        nargs="?",
        default="all",
        metavar="noise|step|memory|replay|all|codes|sparse|programs|gpu|cluster|agents",
    )
    parser.add_argument("--rounds", type=int, default=5, help="repetitions per measurement; the minimum is reported")
    parser.add_argument(
        "--json", type=expanduser, metavar="FILE", help="also write the numbers, with this machine's name, to FILE"
    )
    options = parser.parse_args(list(given))
    from zo_sweeps.bench import report

    rows = report.run(options.part, options.rounds)
    print(report.text(rows))
    if options.json:
        report.write(rows, Path(options.json))
    return 0


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "run": run,
    "plan": plan,
    "status": status,
    "table": table,
    "figure": figure,
    "report": report,
    "compare": compare,
    "papers": papers,
    "ui": ui,
    "sync": sync,
    "export": export,
    "verify": verify,
    "import": import_,
    "check": check,
    "package": package,
    "export-program": export_program,
    "rtl": rtl,
    "doctor": doctor,
    "head": head,
    "worker": worker,
    "agent": agent,
    "devices": devices,
    "bench": bench,
}

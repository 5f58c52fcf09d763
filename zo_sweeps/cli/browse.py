"""The commands that show results: status, table, figure, report, compare, papers, ui, sync."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from os.path import expanduser
from pathlib import Path

from zo_sweeps.cli.parser import grid_parser, parse, read, trial_ids
from zo_sweeps.core.errors import UserError


def status(given: Sequence[str]) -> int:
    """Show the progress of a sweep; with a trial's id, everything about that trial."""
    parser = grid_parser("status", status.__doc__)
    parser.add_argument("--failed", action="store_true", help="list the trials that failed, with their errors")
    parser.add_argument("--watch", action="store_true", help="follow a running sweep to its end")
    options = parse(parser, given)
    ids = trial_ids(options)
    from rich.console import Console

    from zo_sweeps.cli import show
    from zo_sweeps.cli.watch import watch

    planned = read(options).plan
    console = Console(highlight=False)
    if ids:
        show.trial(planned, ids[0], console)
    else:
        follow = watch if options.watch else show.status
        follow(planned, console, failed=options.failed)
    return 0


def table(given: Sequence[str]) -> int:
    """Print a grid's tables, from the results so far."""
    parser = grid_parser("table", table.__doc__)
    parser.add_argument("--format", default="text", metavar="text|md|latex|csv|html", help="default: text")
    parser.add_argument(
        "--table", action="append", default=[], metavar="NAME", help="one of the grid's tables; default: all"
    )
    parser.add_argument("--output", type=expanduser, metavar="FILE", help="write to FILE instead of standard output")
    options = parse(parser, given)
    from zo_sweeps.cli import show

    reading = read(options)
    text = show.tables(reading.plan, reading.composer, options.format, options.table)
    if options.output:
        show.write(Path(options.output), text.encode())
    else:
        print(text, end="")
    return 0


def figure(given: Sequence[str]) -> int:
    """Draw a grid's figures (PNG, SVG), from the results so far; convergence curves if it defines none."""
    parser = grid_parser("figure", figure.__doc__)
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
    options = parse(parser, given)
    from rich.console import Console

    from zo_sweeps.cli import show

    reading = read(options)
    show.figures(reading.plan, reading.composer, options.figure, options.output, Console(highlight=False))
    return 0


def report(given: Sequence[str]) -> int:
    """Write one self-contained HTML page on a grid: what it found, curves, tables; with --all, a site on all sweeps."""
    parser = grid_parser("report", report.__doc__)
    parser.add_argument(
        "--output", type=expanduser, default="", metavar="FILE.html", help="default: GRID.html in the state folder"
    )
    parser.add_argument("--all", action="store_true", help="a site of static pages on every sweep of the state folder")
    parser.add_argument("--out", type=expanduser, metavar="DIR", help="of --all: a new or empty folder, or such a site")
    options = parse(parser, given)
    if options.all != (options.out is not None) or (options.all and options.output):
        raise UserError("a site is written by --all --out DIR, a page by --output FILE.html", where="report")
    if options.all:
        return _site(options)
    from rich.console import Console

    from zo_sweeps.cli import show

    reading = read(options)
    show.report(reading.plan, reading.composer, str(reading.command), options.output, Console(highlight=False))
    return 0


def _site(options: Namespace) -> int:
    from zo_sweeps.config.composer import Composer
    from zo_sweeps.results.site import write_site

    made = write_site(Composer(options.overrides, options.config_dir).run.folder, Path(options.out))
    for line in made.left_out:
        print(f"# left out: {line}", file=sys.stderr)
    print(f"{made.index}   {made.sweeps} sweep{'s' * (made.sweeps != 1)}")
    return 0


def compare(given: Sequence[str]) -> int:
    """Show two trials side by side, by their ids: configurations, measurements, curves."""
    options = parse(grid_parser("compare", compare.__doc__), given)
    ids = trial_ids(options)
    if len(ids) != 2:
        raise UserError(f"{len(ids)} trials to compare", fix="give two ids, as `plan --trials` lists them")
    from rich.console import Console

    from zo_sweeps.config.composer import Composer
    from zo_sweeps.results.compare import compare as show_both

    folder = Composer(options.overrides, options.config_dir).run.folder
    show_both(folder, ids, Console(highlight=False))
    return 0


def papers(given: Sequence[str]) -> int:
    """List the tables and figures of the papers (of PAPER or PAPER/ITEM alone): grid, state, why it cannot run here."""
    options = parse(grid_parser("papers", papers.__doc__), given)
    names = trial_ids(options)
    from rich.console import Console

    from zo_sweeps.cli import show
    from zo_sweeps.config.composer import Composer

    composer = Composer(options.overrides, options.config_dir)
    show.papers(composer, options, names, Console(highlight=False))
    return 0


def ui(given: Sequence[str]) -> int:
    """Serve the MLflow page of a state folder on loopback until Ctrl-C."""
    parser = grid_parser("ui", ui.__doc__)
    parser.add_argument("--port", type=int, default=None, help="default: a free port")
    options = parse(parser, given)
    from zo_sweeps.cli import show
    from zo_sweeps.config.composer import Composer

    show.ui(Composer(options.overrides, options.config_dir).run.folder, options.port)
    return 0


def sync(given: Sequence[str]) -> int:
    """Send the results of a state folder that a tracking server lacks; tracking.uri=URI names another server."""
    options = parse(grid_parser("sync", sync.__doc__), given)
    from zo_sweeps.config.composer import Composer
    from zo_sweeps.record.sync import sync as send

    config = Composer(options.overrides, options.config_dir).run
    send(config.folder, config.tracking.uri)
    return 0

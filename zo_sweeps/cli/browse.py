"""The commands that show results: status, table, figure, report, compare, papers, ui, sync."""

from __future__ import annotations

import io
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from os.path import expanduser
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from zo_sweeps.cli.parser import grid_parser, parse, read, trial_ids
from zo_sweeps.cli.show.status import show_failures, show_progress, show_status
from zo_sweeps.core.document import to_text
from zo_sweeps.core.errors import UserError
from zo_sweeps.plan.build import Plan
from zo_sweeps.results.facts.status import SweepStatus, status_facts
from zo_sweeps.schedule.ledger import driver_of


def status(given: Sequence[str]) -> int:
    """Show the progress of a sweep and list its trials; with a trial's id, everything about that trial."""
    from zo_sweeps.results.facts.status import SweepStatus, status_facts
    from zo_sweeps.results.facts.trial import TrialFacts, trial_facts

    parser = grid_parser("status", status.__doc__)
    parser.add_argument("--failed", action="store_true", help="list the trials that failed, with their errors")
    parser.add_argument("--trials", action="store_true", help="list the trials of a large sweep too")
    parser.add_argument("--watch", action="store_true", help="follow a running sweep to its end")
    parser.add_argument("--config", action="store_true", help="with an id: the trial's whole configuration")
    parser.add_json({"": SweepStatus, "with an id": TrialFacts})
    options = parse(parser, given)
    ids = trial_ids(options)
    if options.watch and (ids or options.json):
        raise UserError("--watch follows a whole sweep, as text", fix="leave out the id and --json")
    from zo_sweeps.cli.show.status import show_status, show_trial
    from zo_sweeps.cli.show.text import console

    planned, to = read(options).plan, console()
    if options.watch:
        watch(planned, to, failed=options.failed, trials=options.trials)
    elif options.json:
        print(to_text(trial_facts(planned, ids[0]) if ids else status_facts(planned)))
    elif ids:
        show_trial(trial_facts(planned, ids[0]), to, config=options.config)
    else:
        show_status(status_facts(planned), to, failed=options.failed, trials=options.trials)
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
    from zo_sweeps.cli.show import result_files
    from zo_sweeps.cli.show.text import console

    reading = read(options)
    width = result_files.PIPE if options.output else result_files.table_width(console())
    text = result_files.tables(reading.plan, reading.composer, options.format, options.table, width)
    if options.output:
        result_files.write(Path(options.output), text.encode())
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
    from zo_sweeps.cli.show import result_files
    from zo_sweeps.cli.show.text import console

    reading = read(options)
    result_files.figures(reading.plan, reading.composer, options.figure, options.output, console())
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
    from zo_sweeps.cli.show import result_files
    from zo_sweeps.cli.show.text import console

    reading = read(options)
    result_files.report(reading.plan, reading.composer, str(reading.command), options.output, console())
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
    """Show two trials side by side, by their ids: in which settings they differ, measurements, curves."""
    from zo_sweeps.results.compare import Comparison
    from zo_sweeps.results.compare import compare as both

    parser = grid_parser("compare", compare.__doc__)
    parser.add_argument("--config", action="store_true", help="all settings, not only those that differ")
    parser.add_json({"": Comparison})
    options = parse(parser, given)
    ids = trial_ids(options)
    if len(ids) != 2:
        raise UserError(f"{len(ids)} trials to compare", fix="give two ids, as `status` lists them")
    from zo_sweeps.cli.show.compare import show_comparison
    from zo_sweeps.cli.show.text import console
    from zo_sweeps.config.composer import Composer

    facts = both(Composer(options.overrides, options.config_dir).run.folder, ids)
    if options.json:
        print(to_text(facts))
    else:
        show_comparison(facts, console(), config=options.config)
    return 0


def papers(given: Sequence[str]) -> int:
    """List the tables and figures of the papers (of PAPER or PAPER/ITEM alone): grid, state, why it cannot run here."""
    from zo_sweeps.results.papers import ItemFacts, paper_facts

    parser = grid_parser("papers", papers.__doc__)
    parser.add_json({"": ItemFacts}, "a JSON list")
    options = parse(parser, given)
    names = trial_ids(options)
    from rich.console import Console

    from zo_sweeps.cli.show.papers import show_numbers, show_papers
    from zo_sweeps.cli.show.text import console
    from zo_sweeps.config.composer import Composer

    composer = Composer(options.overrides, options.config_dir)
    with Console(stderr=True).status("planning the grids, to see what can run here"):
        facts = paper_facts(composer, names, options.overrides, options.config_dir)
    if options.json:
        print(to_text(facts))
    else:
        to = console()
        show_papers(facts, to, composer.run.folder, captions=bool(names))
        show_numbers(facts, to, composer.folders)
    return 0


def ui(given: Sequence[str]) -> int:
    """Serve the MLflow page of a state folder on loopback until Ctrl-C."""
    parser = grid_parser("ui", ui.__doc__)
    parser.add_argument("--port", type=int, default=None, help="default: a free port")
    options = parse(parser, given)
    from zo_sweeps.cli.show import host_checks
    from zo_sweeps.config.composer import Composer

    host_checks.ui(Composer(options.overrides, options.config_dir).run.folder, options.port)
    return 0


def sync(given: Sequence[str]) -> int:
    """Send the results of a state folder that a tracking server lacks; tracking.uri=URI names another server."""
    options = parse(grid_parser("sync", sync.__doc__), given)
    from zo_sweeps.config.composer import Composer
    from zo_sweeps.record.mlflow_store import sync as send

    config = Composer(options.overrides, options.config_dir).run
    send(config.folder, config.tracking.uri)
    return 0


WATCH_SECONDS = 2.0


def watch(planned: Plan, console: Console, *, failed: bool, trials: bool) -> None:
    """Show the progress of a sweep on a page of its own until the sweep or Ctrl-C ends it; then print the status.

    The terminal is as before afterwards. Without one, the status is printed at the beginning and at the end.

    Args:
        failed, trials: as for `show_status`, at the end.
    """
    folder = planned.config.folder
    if not console.is_terminal and driver_of(folder):
        show_progress(status_facts(planned), console)
    with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
        while driver_of(folder):
            if console.is_terminal:
                live.update(_page(status_facts(planned), console), refresh=True)
            time.sleep(WATCH_SECONDS)
    show_status(status_facts(planned), console, failed=failed, trials=trials)


def _page(sweep: SweepStatus, console: Console) -> Text:
    """Return the page: at most as high as the terminal."""
    page = io.StringIO()
    shown = Console(file=page, width=console.width, force_terminal=True, color_system="standard", highlight=False)
    show_progress(sweep, shown)
    show_failures(sweep, shown)
    lines = [*page.getvalue().splitlines()[: console.height - 1], "Ctrl-C leaves this page; the sweep goes on"]
    return Text.from_ansi("\n".join(lines))

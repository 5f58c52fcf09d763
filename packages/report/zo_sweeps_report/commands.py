"""The commands `figure` and `report`."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from os.path import expanduser
from pathlib import Path
from urllib.parse import quote

from zo_sweeps.cli.browse import write
from zo_sweeps.cli.parser import grid_parser, parse, read
from zo_sweeps.cli.text import console, say
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError, require_known, unknown
from zo_sweeps.core.files import replace_text
from zo_sweeps.core.units import counted
from zo_sweeps.results.facts import status_facts
from zo_sweeps.results.past_sweeps import ReadablePlan
from zo_sweeps.schedule.ledger import driver_of, read_standing
from zo_sweeps_report import report as pages
from zo_sweeps_report import sweep_figures
from zo_sweeps_report.draw import FORMATS, renderings
from zo_sweeps_report.site import write_site
from zo_sweeps_report.trial_pages import TrialPages

PAUSE = 10  # times the time that a report took, at least, before --watch writes the next


def figure(given: Sequence[str]) -> int:
    """Draw a grid's figures, from the results so far; convergence curves if it defines none."""
    parser = grid_parser("figure", figure.__doc__)
    text = "one of the grid's figures, or of a searched axis: search_update_lr; default: all of the grid's"
    parser.add_argument("--figure", action="append", default=[], metavar="NAME", help=text)
    text = "may be repeated; default: png and svg"
    parser.add_argument("--format", action="append", default=[], metavar="png|svg|pdf", help=text)
    text = "for a column of a paper: in, cm or mm, exactly, without a title; default: as it fits"
    parser.add_argument("--width", default="", metavar="3.3in", help=text)
    text = "the name of the figure is added if there are several; default: in the state folder"
    parser.add_argument("--output", type=expanduser, default="", metavar="FILE.png|.svg|.pdf", help=text)
    options = parse(parser, given)

    reading, to, output = read(options), console(), Path(options.output)
    folder, suffix = reading.plan.config.folder, output.suffix.lstrip(".")
    if options.output and suffix not in FORMATS:
        raise unknown("kind of file", suffix, FORMATS, where=f"--output {output}")
    require_known("kind of file", options.format, FORMATS, where="--format")
    if options.output and {*options.format} - {suffix}:
        raise UserError("the name of a file has its format", where="--output", fix="omit --format")
    forms = [suffix] if options.output else options.format or ["png", "svg"]
    standing, width = read_standing(folder), _inches(options.width)
    drawn = sweep_figures.figures(reading.plan, reading.composer, standing, options.figure)
    for one in drawn:
        for note in one.notes:
            say(to, f"{one.name}: {note}")
        for form, content in renderings(one, forms, width).items():
            path = output if options.output else _created(folder / "figures") / f"{one.name}.{form}"
            if options.output and len(drawn) > 1:
                name = one.name.removeprefix(f"{reading.plan.name}_")
                path = output.with_name(f"{output.stem}_{name}.{form}")
            write(path, content)
            say(to, str(path))
    return 0


def _inches(text: str) -> float:
    """Return a width in inches; 0 for "". Raises UserError for one that is none, or out of range."""
    found = re.fullmatch(r"(\d+\.?\d*|\.\d+) *(in|cm|mm)", text)
    width = float(found[1]) / {"in": 1, "cm": 2.54, "mm": 25.4}[found[2]] if found else 0.0
    if text and not 1.5 <= width <= 20:
        raise UserError(f"{text!r} is no width from 1.5in to 20in", where="--width", fix="e.g. 3.3in, 84mm")
    return width


def report(given: Sequence[str]) -> int:
    """Write a page (HTML) on a grid: findings, curves, tables, a page per trial; with --all, a site on all sweeps."""
    parser = grid_parser("report", report.__doc__)
    text = "default: GRID.html in the state folder"
    parser.add_argument("--output", type=expanduser, default="", metavar="FILE.html", help=text)
    text = "write it again and again while the sweep runs; a browser that shows it follows"
    parser.add_argument("--watch", action="store_true", help=text)
    parser.add_argument("--all", action="store_true", help="a site of static pages on every sweep of the state folder")
    parser.add_argument("--out", type=expanduser, metavar="DIR", help="of --all: a new or empty folder, or such a site")
    options = parse(parser, given)
    if options.all != (options.out is not None) or (options.all and (options.output or options.watch)):
        raise UserError("a site is written by --all --out DIR, a page by --output FILE.html", where="report")
    if options.all:
        made = write_site(Composer(options.overrides, options.config_dir).run.folder, Path(options.out))
        for line in made.left_out:
            print(f"# left out: {line}", file=sys.stderr)
        print(f"{made.index}   {counted(made.sweeps, 'sweep')}")
        return 0
    reading = read(options)
    folder = reading.plan.config.folder
    path = Path(options.output) if options.output else _created(folder) / f"{reading.plan.name}.html"
    if path.is_dir():
        raise UserError(f"{path} is a folder", where="--output", fix="name a file")
    say(console(), str(path))
    while True:
        began, live = time.monotonic(), bool(options.watch and driver_of(folder))
        _report(reading, path, live=live)
        if not live:
            return 0
        time.sleep(max(pages.REFRESH, PAUSE * (time.monotonic() - began)))


def _report(reading: ReadablePlan, path: Path, *, live: bool) -> None:
    """Write a report, and the pages of its trials into a folder beside it; live: a browser loads it again and again."""
    plan, composer, command = reading.plan, reading.composer, str(reading.command)
    standing, trials = read_standing(plan.config.folder), path.with_name(f"{path.stem}_trials")
    now = status_facts(plan) if live else None
    text = pages.html(plan, composer, standing, command, trials=f"{quote(trials.name)}/", live=now)
    try:
        TrialPages(plan, standing, command, f"../{quote(path.name)}", ".").write(trials)
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")  # a device
        else:
            replace_text(path.resolve(), text)  # at once: a browser that finds it empty does not load it again
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}", where="--output") from None


def _created(folder: Path) -> Path:
    """Return a folder below the state folder, created if absent."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot create {folder}: {error.strerror}", fix="name a file with --output") from None
    return folder

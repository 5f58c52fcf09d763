"""The commands that show results: table, answers, papers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os.path import expanduser
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from zo_sweeps.cli.parser import grid_parser, parse, read, trial_ids
from zo_sweeps.cli.text import UNLIMITED, console, grouped, listing, say, say_group
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.document import to_text as to_json
from zo_sweeps.core.errors import UserError, nothing_run, unknown
from zo_sweeps.results import tables as readout
from zo_sweeps.results.exchange import with_imported
from zo_sweeps.results.papers import ItemFacts, paper_facts
from zo_sweeps.results.past_sweeps import with_earlier
from zo_sweeps.schedule.ledger import has_run, read_standing
from zo_sweeps.tables import Table, to_csv, to_html, to_latex, to_markdown, to_text
from zo_sweeps.tables.html import page
from zo_sweeps.tables.published import load
from zo_sweeps.tables.renderings import published_to_text

if TYPE_CHECKING:
    from zo_sweeps.session.answers import Answer

PIPE = 120  # columns of a table in a file or a pipe
FORMATS: dict[str, Callable[[Sequence[Table], str, int], str]] = {  # of a grid's tables, its title, and a width
    "text": lambda tables, _, width: to_text(*tables, width=width),
    "md": lambda tables, *_: to_markdown(*tables),
    "latex": lambda tables, *_: to_latex(*tables),
    "csv": lambda tables, *_: to_csv(*tables),
    "html": lambda tables, title, _: page(title, list(map(to_html, tables))),
}
HEADERS = ("item", "grid", "can run here", "state here", "largest deviation")


def table_width(to: Console) -> int:
    """Return the width of a table as text."""
    return PIPE if to.width == UNLIMITED else to.width


def table(given: Sequence[str]) -> int:
    """Print a grid's tables, from the results so far."""
    parser = grid_parser("table", table.__doc__)
    parser.add_argument("--format", default="text", metavar="text|md|latex|csv|html", help="default: text")
    text = "one of the grid's tables; default: all"
    parser.add_argument("--table", action="append", default=[], metavar="NAME", help=text)
    parser.add_argument("--output", type=expanduser, metavar="FILE", help="write to FILE instead of standard output")
    options = parse(parser, given)
    reading = read(options)
    plan, composer = reading.plan, reading.composer
    if options.format not in FORMATS:
        raise unknown("format", options.format, FORMATS, where="--format")
    if not plan.grid.tables:
        raise UserError(f"grid {plan.name} has no tables", fix="draw its figures, or give it tables")
    standing = read_standing(plan.config.folder)
    own = readout.tables(plan, composer, standing, options.table)
    whole = with_imported(with_earlier(own, plan, composer, standing), plan, composer)
    text = FORMATS[options.format](whole, plan.title, PIPE if options.output else table_width(console()))
    text += "" if text.endswith("\n") else "\n"
    if options.output:
        write(Path(options.output), text.encode())
    else:
        print(text, end="")
    return 0


def write(path: Path, data: bytes) -> None:
    """Write the file that --output names. Raises UserError if it cannot be written."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}", where="--output") from None


def answers(given: Sequence[str]) -> int:
    """Show what a trial's model answers to the first rows of test, before training and with its trained weights."""
    parser = grid_parser("answers", answers.__doc__)
    parser.add_argument("--rows", type=int, default=5, metavar="N", help="how many; default: 5")
    options = parse(parser, given)
    ids = trial_ids(options)
    if len(ids) != 1:
        raise UserError(f"{len(ids)} trials to show answers of", fix="give one id, as `plan --trials` lists them")
    if options.rows < 1:
        raise UserError(f"{options.rows} rows to show", where="--rows", fix="give 1 or more")
    state_dir = Composer(options.overrides, options.config_dir).run.state_dir
    from zo_sweeps.session.answers import before_and_after  # loads torch

    step, before, after = before_and_after(ids[0], state_dir, options.rows)
    rows = [(one.prompt, marked(one), marked(other)) for one, other in zip(before, after, strict=True)]
    listing(console(), ("test", "before training", f"after step {step}"), rows)
    return 0


def marked(answer: Answer) -> str:
    """Return the text of an answer after its reward, or a mark that says whether it is right."""
    mark = {True: "✓ ", False: "✗ ", None: ""}[answer.right] if answer.reward is None else f"{answer.reward:.2f} "
    return mark + (answer.text or "–")


def papers(given: Sequence[str]) -> int:
    """List the tables and figures of the papers: grid, state; of PAPER or PAPER/ITEM: why it cannot run here."""
    parser = grid_parser("papers", papers.__doc__)
    parser.add_json({"": ItemFacts}, "a JSON list")
    options = parse(parser, given)
    names = trial_ids(options)
    composer = Composer(options.overrides, options.config_dir)
    planned = bool(names or options.json)
    with Console(stderr=True).status("planning the grids, to see what can run here" if planned else "reading"):
        facts = paper_facts(composer, names, options.overrides, options.config_dir, planned=planned)
    if options.json:
        print(to_json(facts))
        return 0
    to = console()
    show_papers(facts, to, composer.run.folder, captions=bool(names))
    if len(facts) == 1 and facts[0].item.has_numbers:
        numbers = load(facts[0].item.reference, composer.folders)
        say(to, "")
        to.print(published_to_text(numbers, table_width(to)), markup=False, soft_wrap=True)
    return 0


def show_papers(every: Sequence[ItemFacts], to: Console, state_dir: Path, *, captions: bool) -> None:
    """Print the papers' items: grid, trials that can run here, state, deviation; `captions`: and what each is."""
    reasons = {why: () for one in every if one.obstacles for why in one.obstacles.reasons}
    groups = grouped(reasons, apart=captions)
    numbers = {why: number for number, group in enumerate(groups, 1) for why in group.texts}
    notes = list(dict.fromkeys(note for one in every for note in one.progress.notes))
    for display in dict.fromkeys(one.item.display for one in every):
        its = [one for one in every if one.item.display == display]
        say(to, display)
        rows = [_row(one, numbers, notes, len(groups)) for one in its if one.item.grids]
        kept = [i for i in range(len(HEADERS)) if any(row[i] for row in rows)]
        listing(to, [HEADERS[i] for i in kept], [[row[i] for i in kept] for row in rows])
        without: dict[str, list[str]] = {}
        for one in its:
            if not one.item.grids:
                without.setdefault(one.item.why, []).append(one.item.name)
        for why, names in without.items():
            say(to, f"no grid: {why}: {', '.join(names)}")
        if captions:
            for one in its:
                say(to, f"{one.item.name}: {one.item.caption}")
                for line in one.item.differs:
                    say(to, f"  {line}")
        say(to, "")
    for number, group in enumerate(groups, 1):
        say_group(to, f"[{number}] cannot run here: {group.text}", group)
    for number, note in enumerate(notes, len(groups) + 1):
        say(to, f"[{number}] {note}")
    with_grid = sum(bool(one.item.grids) for one in every)
    say(to, f"{len(every)} tables, figures and others, {with_grid} with a grid; run one with +grid=NAME")
    if not captions:
        more = "`papers PAPER` adds what can run here, and what differs; PAPER/ITEM: its numbers; `--json`: everything"
        say(to, more)
    if not has_run(state_dir):
        say(to, str(nothing_run(state_dir)))


def _row(one: ItemFacts, numbers: Mapping[str, int], notes: Sequence[str], before: int) -> list[str]:
    held, progress, off = one.obstacles, one.progress, one.progress.deviation
    here = f"{held.trials - held.missing} of {held.trials}" if held else ""
    marks = sorted({numbers[why] for why in held.reasons}) if held else []
    state = [f"{before + 1 + notes.index(note)}" for note in progress.notes]
    return [
        one.item.name,
        ", ".join(one.item.grids),
        here + (f" [{','.join(map(str, marks))}]" if marks else ""),
        progress.state + (f" [{','.join(state)}]" if state else ""),
        f"{off.difference:+.{off.digits}f} {off.unit} ({off.row}, {off.column})" if off else "",
    ]

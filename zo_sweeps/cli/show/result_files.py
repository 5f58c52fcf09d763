"""The output of `table`, `figure` and `report`: text, or files of which the paths are printed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from zo_sweeps.cli.show.text import UNLIMITED, say
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.plan.build import Plan
from zo_sweeps.results import tables as readout
from zo_sweeps.results.imported import with_imported
from zo_sweeps.results.past_trials import with_earlier
from zo_sweeps.schedule.ledger import read_standing
from zo_sweeps.tables import Table, to_csv, to_html, to_latex, to_markdown, to_text
from zo_sweeps.tables.html import page

PIPE = 120  # columns of a table in a file or a pipe
FORMATS: dict[str, Callable[[Sequence[Table], str, int], str]] = {  # of a grid's tables, its title, and a width
    "text": lambda tables, _, width: to_text(*tables, width=width),
    "md": lambda tables, *_: to_markdown(*tables),
    "latex": lambda tables, *_: to_latex(*tables),
    "csv": lambda tables, *_: to_csv(*tables),
    "html": lambda tables, title, _: page(title, list(map(to_html, tables))),
}


def table_width(to: Console) -> int:
    """Return the width of a table as text."""
    return PIPE if to.width == UNLIMITED else to.width


def tables(planned: Plan, composer: Composer, form: str, only: Sequence[str], width: int = PIPE) -> str:
    """Return the grid's tables in one of FORMATS."""
    if form not in FORMATS:
        raise unknown("format", form, FORMATS, where="--format")
    if not planned.grid.tables:
        raise UserError(f"grid {planned.name} has no tables", fix="draw its figures, or give it tables")
    standing = read_standing(planned.config.folder)
    own = readout.tables(planned, composer, standing, only)
    whole = with_imported(with_earlier(own, planned, composer, standing), planned, composer)
    text = FORMATS[form](whole, planned.title, width)
    return text + ("" if text.endswith("\n") else "\n")


def figures(planned: Plan, composer: Composer, only: Sequence[str], output: str, console: Console) -> None:
    """Draw the grid's figures as PNG and SVG into the state folder, or to `output`; print the paths.

    Several figures get a file each: the name of the figure is added to that of `output`.
    """
    from zo_sweeps.results import sweep_figures as charts
    from zo_sweeps.tables.draw import FORMATS as DRAWN
    from zo_sweeps.tables.draw import render

    folder = planned.config.folder
    suffix = Path(output).suffix.lstrip(".") if output else ""
    if output and suffix not in DRAWN:
        raise unknown("kind of file", suffix, DRAWN, where=f"--output {output}")
    drawn = charts.figures(planned, composer, read_standing(folder), folder, only)
    for figure in drawn:
        for note in figure.notes:
            say(console, f"{figure.name}: {note}")
        for form in [suffix] if output else DRAWN:
            if not output:
                path = _created(folder / "figures") / f"{figure.name}.{form}"
            elif len(drawn) == 1:
                path = Path(output)
            else:
                name = figure.name.removeprefix(f"{planned.name}_")
                path = Path(output).with_name(f"{Path(output).stem}_{name}.{form}")
            write(path, render(figure, form))
            say(console, str(path))


def report(planned: Plan, composer: Composer, command: str, output: str, console: Console) -> None:
    """Write the report of the grid into the state folder, or to `output`; print the path."""
    from zo_sweeps.results import report as pages

    folder = planned.config.folder
    path = Path(output) if output else _created(folder) / f"{planned.name}.html"
    write(path, pages.html(planned, composer, read_standing(folder), folder, command).encode())
    say(console, str(path))


def _created(folder: Path) -> Path:
    """Return a folder below the state folder, created if absent."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot create {folder}: {error.strerror}", fix="name a file with --output") from None
    return folder


def write(path: Path, data: bytes) -> None:
    """Write a file that `--output` names or implies. Raises UserError if it cannot be written."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}", where="--output") from None

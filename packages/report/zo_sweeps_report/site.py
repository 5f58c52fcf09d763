"""A static site on a state folder: its sweeps and what each found, their reports, and a comparison of any two rows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import new_folder, replace_text
from zo_sweeps.core.host import VERSION
from zo_sweeps.plan.build import Plan
from zo_sweeps.record.journal import JournalStore
from zo_sweeps.record.sweep_book import Launched, in_folder, launched
from zo_sweeps.results import tables as readout
from zo_sweeps.results.past_sweeps import ReadablePlan, of_grids, of_sweep
from zo_sweeps.schedule.ledger import Standing, must_have_run, read_standing
from zo_sweeps.tables import Table
from zo_sweeps.tables.html import STYLE, document
from zo_sweeps.tables.page import readable
from zo_sweeps.tables.stats import CONFIDENCE
from zo_sweeps.tables.text_cells import value_text
from zo_sweeps_report import report
from zo_sweeps_report.findings import findings
from zo_sweeps_report.fragments import WEB, as_script
from zo_sweeps_report.paired import of_cell
from zo_sweeps_report.trial_pages import TrialPages

MARK = ".zo-sweeps-site.json"  # lists the site's files: a folder with it may be written again
INDEX, COMPARE, ASSETS, REPORTS = "index.html", "compare.html", "assets", "reports"
DEGREES = 60  # of freedom, up to which Student's quantile is listed; the last one stands for more
UNSAFE = r"[^A-Za-z0-9_-]"  # in the name of a file and in an address


@dataclass(frozen=True)
class Site:
    """A site that was written: its first page, and the sweeps that could not be read, with the reason."""

    index: Path
    sweeps: int
    left_out: tuple[str, ...]


def write_site(state_dir: Path, folder: Path) -> Site:
    """Write the site of a state folder; the same results give the same files.

    Args:
        folder: absent, empty, or a site of an earlier call, whose pages are replaced one by one, the index last.

    Raises UserError if nothing has finished in the state folder, or `folder` has other content or cannot be written.
    Cost: that of the reports of all its sweeps.
    """
    must_have_run(state_dir)
    before = _files_of(folder)
    standing = read_standing(state_dir)
    if not any(standing.has_result(trial_id) for trial_id in standing.states):
        raise UserError(f"no trial has finished in {state_dir}", fix="wait for one, then repeat this command")
    files, trials, sweeps, left_out = _pages(state_dir, standing)
    names = {*files, *trials}
    files[MARK] = json.dumps(sorted(names), indent=1) + "\n"
    try:
        if before is None:
            with new_folder(folder) as part:
                _write(part, files, trials)
        else:
            _write(folder, files, trials)
            for name in before - names:
                (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror or error}", where="--out") from None
    return Site(folder / INDEX, sweeps, left_out)


def _files_of(folder: Path) -> set[str] | None:
    """Return the names of a site's files; None for an absent or empty folder. Raises UserError for any other."""
    try:
        if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
            return None
        names: Any = json.loads((folder / MARK).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        names = None
    parts = [str(name).split("/") for name in names] if isinstance(names, list) else [[]]
    top = {INDEX, COMPARE, ASSETS, REPORTS, MARK}  # nothing outside its folder is ever one of a site's files
    if not all(len(one) in (1, 2, 3) and one[0] in top and ".." not in one for one in parts):
        raise UserError(f"{folder} has other content than a site", where="--out", fix="name a new or empty folder")
    return {*names}


def _write(folder: Path, files: Mapping[str, str], trials: Mapping[str, Callable[[], str]]) -> None:
    for name, made in trials.items():  # one at a time in memory
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        replace_text(folder / name, made())
    for name in sorted(files, key=lambda name: (name in (INDEX, MARK), name)):
        (folder / name).parent.mkdir(exist_ok=True)
        replace_text(folder / name, files[name])


def _pages(
    state_dir: Path, standing: Standing
) -> tuple[dict[str, str], dict[str, Callable[[], str]], int, tuple[str, ...]]:
    """Return the files by their names, the pages of trials, each made when it is called for, how many sweeps they are
    of, and a line per sweep that could not be read.

    Finished trials of no readable sweep have a line too.
    """
    script, style = report.chart_library()
    files = {
        f"{ASSETS}/style.css": f"{STYLE.read_text(encoding='utf-8').strip()}\n{style}\n",
        f"{ASSETS}/uplot.js": script + "\n",
        f"{ASSETS}/page.js": report.page_script() + "\n",
        f"{ASSETS}/compare.js": (WEB / "compare.js").read_text(encoding="utf-8"),
    }
    cards: list[dict[str, Any]] = []
    compared: list[dict[str, Any]] = []
    left_out: list[str] = []
    shown: set[str] = set()
    trials: dict[str, Callable[[], str]] = {}
    for sweep in reversed(launched(state_dir)):
        try:
            reading = of_sweep(in_folder(sweep.command, str(state_dir)))
            card, page, data, own = _sweep(sweep, reading, standing)
        except UserError as error:
            left_out.append(f"{sweep.grid} ({sweep.command.sweep_id}): {error}")
            continue
        shown.update(reading.plan.every)
        files[card["href"]] = page
        cards.append(card)
        compared.append(data)
        trials |= own
    left_out += [line for lines in of_grids(state_dir, shown, standing).values() for line in lines]
    shared: dict[str, Any] = {
        "assets": ASSETS,
        "provenance": [f"zo_sweeps {VERSION}"],
        "chart_style": "",
        "files": True,
    }
    files[INDEX] = document(
        "index.html.j2",
        WEB,
        title="Sweeps",
        cards=cards,
        left_out=left_out,
        links=[(COMPARE, "Compare rows")],
        scripts={"page.js": ""},
        **shared,
    )
    data = {"sweeps": compared, "t": quantiles()}
    files[COMPARE] = document(
        "compare.html.j2",
        WEB,
        title="Compare rows",
        data=as_script(data),
        sweeps=compared,
        links=[(INDEX, "All sweeps")],
        scripts={"page.js": "", "compare.js": ""},
        **shared,
    )
    return files, trials, len(cards), tuple(left_out)


def _sweep(
    sweep: Launched, reading: ReadablePlan, standing: Standing
) -> tuple[dict[str, Any], str, dict[str, Any], dict[str, Callable[[], str]]]:
    """Return a sweep's entry in the index, its report, its rows for the comparison, and the pages of its trials."""
    plan, composer = reading.plan, reading.composer
    own = readout.tables(plan, composer, standing)
    name = sweep.command.sweep_id[:8]
    stem = f"{re.sub(UNSAFE, '-', plan.name)}-{name}"
    href, folder = f"{REPORTS}/{stem}.html", f"{stem}_trials"
    of_trials = TrialPages(plan, standing, str(reading.command), f"../{stem}.html", f"../../{ASSETS}")
    trials = {f"{REPORTS}/{folder}/{i}.html": partial(of_trials.page, i) for i in of_trials.ran}
    page = report.html(
        plan,
        composer,
        standing,
        str(reading.command),
        assets=f"../{ASSETS}",
        index=f"../{INDEX}",
        trials=f"{folder}/",
    )
    when = report.dates(plan, standing)
    card = {
        "href": href,
        "title": plan.title,
        "grid": plan.name,
        "found": findings(plan, standing, [readable(table) for table in own]).sentences,
        "date": report.day(when[1] if when else sweep.started),
        "counts": report.counts(plan, standing),
        "trials": len(plan.every),
        "caveats": plan.caveats,
    }
    rows = [{"id": f"{name}-{row['block']}", **row} for row in rows_data(plan, own)]
    data = {key: card[key] for key in ("href", "title", "grid", "date", "caveats")}
    return card, page, {**data, "rows": rows}, {**trials, f"{REPORTS}/{folder}/{report.LIST}": of_trials.index}


def quantiles() -> list[float]:
    """Return Student's two-sided quantile at CONFIDENCE for 1, 2, …, DEGREES degrees of freedom."""
    from scipy.special import stdtrit

    return [round(float(stdtrit(k, (1 + CONFIDENCE) / 2)), 4) for k in range(1, DEGREES + 1)]


def rows_data(plan: Plan, tables: Sequence[Table]) -> list[dict[str, Any]]:
    """Return the rows of a sweep, each with its cells that have a value: by measure, column and seed.

    Cells of test scores have their runs' predictions, a bit per example, by the digest of the test rows. Rows without
    any value are left out. Cost: reads the journals of the runs behind the tables of scores.
    """
    journals = JournalStore(plan.config.folder)
    rows = []
    for block in plan.grid.blocks:
        cells: dict[tuple[str, str], dict[str, Any]] = {}
        for table in tables:
            for key, label in table.spec.columns if block in dict(table.rows) else ():
                cell, measure = table.cells[block, key], table.spec.of(key)
                place = "".join(one.text() for one in cell.places)  # costs of different places are not compared
                until = table.spec.caption  # a target, a time
                where = (
                    f"{measure.metric}-{measure.minus}-{measure.ratio} {measure.unit} {until} {place}".rstrip(),
                    label,
                )
                if cell.mean is None or not cell.values or where in cells:
                    continue
                cells[where] = {
                    "key": " ".join(where),
                    "measure": measure.name or table.spec.layout.replace("_", " "),
                    "column": label,
                    "unit": measure.unit,
                    "digits": measure.digits,
                    "text": value_text(cell, table, key),
                    "seeds": {str(seed): value for seed, value in cell.values.items()},
                    "trials": list(cell.trial_ids),
                    "right": [
                        {"rows": made.rows, "right": "".join("01"[right] for right in made.right)}
                        for made in (of_cell(cell, journals) if measure.metric.startswith("test/") else ())
                    ],
                }
        if cells:
            rows.append({"block": block, "label": plan.grid.label(block), "cells": list(cells.values())})
    return rows

"""The page on a sweep: what it found, curves, tables, differences, failures, provenance; its trials have their own."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from statistics import fmean
from typing import Any

from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.trial import Outcome, TrialState
from zo_sweeps.core.units import bytes_text, counted, duration
from zo_sweeps.plan.build import Plan
from zo_sweeps.record.journal import JournalStore, trail
from zo_sweeps.results import tables as readout
from zo_sweeps.results.exchange import with_imported
from zo_sweeps.results.facts import SweepStatus
from zo_sweeps.results.past_sweeps import with_earlier
from zo_sweeps.schedule.ledger import Standing
from zo_sweeps.tables import Rule, Table
from zo_sweeps.tables.html import document
from zo_sweeps.tables.page import readable, together
from zo_sweeps.tables.records import described
from zo_sweeps.tables.select import select, settings
from zo_sweeps.tables.text_cells import capital, plain
from zo_sweeps_report import sweep_figures as charts
from zo_sweeps_report.draw import FORMATS, inline_svg, renderings
from zo_sweeps_report.figure_kinds.curve import CURVE_X, CURVES, windowed
from zo_sweeps_report.figures import TOLD_APART, Figure
from zo_sweeps_report.findings import BestRow, findings, forwarded_per_step
from zo_sweeps_report.fragments import WEB, as_script, cells_html, differences_html
from zo_sweeps_report.paired import compared, differences

LIST = "index.html"  # the page of a sweep's trials, among theirs
UPLOT = WEB / "uplot"
FORWARDS = "Forwarded examples (a backward pass counts as two forwards)"
TYPES = {"png": "image/png", "svg": "image/svg+xml", "pdf": "application/pdf"}
REFRESH = 30  # seconds
DIGITS = 5  # significant, of a drawn value
BAD = (TrialState.FAILED, TrialState.LOST, TrialState.DIVERGED, TrialState.OUT_OF_MEMORY)
DAY = "%Y-%m-%d"
FIGURES = ("result", "curve_figures", "search", "figures")  # parts of the page
BEST_COLUMNS = ("Table", "Column", "Best row", "Value", "Behind it", "State")
SECTIONS = {
    "#result": "Result",
    "#curves": "Curves",
    "#search": "Search",
    "#figures": "Figures",
    "#tables": "Tables",
    "#differences": "Differences",
    "#failures": "Failures",
    "#provenance": "Provenance",
}


def html(
    plan: Plan,
    composer: Composer,
    standing: Standing,
    command: str,
    *,
    assets: str = "",
    index: str = "",
    trials: str = "",
    live: SweepStatus | None = None,
) -> str:
    """Return the report of a plan with the results so far in its state folder; web/report.html.j2 has its text.

    The same results give the same page.

    Args:
        command: the command that runs or resumes the grid.
        assets: address of the folder with the page's scripts and styles; "": they are in the page.
        index: address of the page that lists this one; "" if there is none.
        trials: address of the folder with the pages of `trial_pages`, with a slash at its end; "" if there is none.
        live: of a sweep that runs: the page says what runs now, and is loaded again every REFRESH seconds.

    Raises UserError as the tables and figures do. Cost: reads the journals of the selected trials; draws the figures.
    """
    from zo_sweeps.core.host import provenance

    here = provenance()
    measured = readout.tables(plan, composer, standing)
    own = [readable(table) for table in measured]
    page = together(with_imported(with_earlier(measured, plan, composer, standing), plan, composer))
    curves = curve_data(plan, standing)
    rows = curves.get("rows", [])
    linked = {i: f"{trials}{i}.html" for i in plan.every if has_page(standing, i)} if trials else {}
    drawn = sum(row["shown"] for row in rows)
    parts = {
        "found": (found := findings(plan, standing, own)),
        "best": _best(found.best),
        **_figures(plan, composer, standing),
        "tables": [cells_html(table, title, linked) for title, table in page.tables],
        "selected": page.selected,
        "footnotes": page.footnotes,
        "notes": [note for note in page.notes if note not in plan.caveats],
        "differences": _differences(own, plan),
        "curves": as_script(curves) if curves else "",
        "curves_note": f"Drawn at first: {drawn} of {len(rows)} rows, the best by {curves['best_by']}."
        if drawn < len(rows)
        else "",
        "failures": _failures(plan, standing),
        **_machines(plan, standing),
        **_reproduce(plan, command, here),
    }
    present = {**parts, "result": parts["best"], "provenance": True, "failures": True, "curves": True}
    links = [(href, label) for href, label in SECTIONS.items() if present.get(href[1:])]
    script, style = chart_library()
    return document(
        "report.html.j2",
        WEB,
        files=bool(assets),
        title=plan.title,
        meta=_meta(plan, standing),
        caveats=plan.caveats,
        obstacles=[f"Cannot run here ({counted(len(ids), 'trial')}): {why}" for why, ids in plan.obstacles.items()],
        links=[
            *([(index, "All sweeps")] if index else []),
            *links,
            *([(f"{trials}{LIST}", "Trials")] if trials else []),
        ],
        live=live,
        running=[(f"{it.step}/{it.steps}", duration(it.seconds), it.node, it.label) for it in live.running]
        if live
        else [],
        left=duration(live.seconds_left) if live else "",
        again=REFRESH if live else 0,
        linked=linked,
        trials=f"{trials}{LIST}" if trials else "",
        trial_count=len(plan.every),
        assets=assets,
        chart_style=style,
        scripts={"uplot.js": script, "page.js": page_script()},
        **{**parts, "provenance": made_by(plan, standing)},
    )


def has_page(standing: Standing, trial_id: str) -> bool:
    """Return whether a trial has a page of its own: it has run."""
    return standing.state(trial_id) is not TrialState.PENDING


def page_script() -> str:
    """Return the script of every page."""
    return (WEB / "page.js").read_text(encoding="utf-8").strip()


def _title(table: Table, plan: Plan) -> str:
    """Return the table's title without that of the grid, which heads the page, and with its unit."""
    title = table.spec.title.removeprefix(f"{plan.title}: ")
    unit = described(table.spec.measure, table.spec.measures, table.spec.columns, title)
    return f"{capital(title)} ({unit})" if unit else capital(title)


def _best(lines: Sequence[BestRow]) -> list[tuple[str, ...]]:
    """Return the head and the lines of the table of best rows, without columns that are empty in every line."""
    texts = [(capital(it.table), it.column, it.row, it.value, it.seeds, it.so_far or "complete") for it in lines]
    kept = [i for i, _ in enumerate(BEST_COLUMNS) if any(line[i] for line in texts)]
    return [tuple(line[i] for i in kept) for line in (BEST_COLUMNS, *texts)] if texts else []


def _differences(tables: Sequence[Table], plan: Plan) -> list[str]:
    """Return the paired differences of each table; what their numbers mean is below the last of those with examples.

    A table that is of differences itself has none.
    """
    scored = [table for table in tables if not table.spec.measure.paired and differences(table)]
    made = [(table, compared(table, plan.config.folder)) for table in scored]
    last = max((i for i, (_, examples) in enumerate(made) if examples), default=len(made) - 1)
    reference = reference_row(plan)
    return [
        differences_html(table, examples, _title(table, plan), reference, notes=i == last)
        for i, (table, examples) in enumerate(made)
    ]


def reference_row(plan: Plan) -> str:
    """Return the row that the grid's tables compare most rows with, else that of MeZO; "" if there is none."""
    compared_with = Counter(other for table in plan.grid.tables.values() for other in table.over.values())
    mezo = [name for name, block in plan.grid.blocks.items() if "mezo" in (name, block.fixed.get("method"))]
    return next(iter([*(name for name, _ in compared_with.most_common(1)), *mezo]), "")


def counts(plan: Plan, standing: Standing) -> str:
    """Return how many trials are in which state: "27 succeeded, 1 diverged"."""
    found = Counter(
        "cannot run here" if i in plan.missing else standing.state(i).value.lower().replace("_", " ")
        for i in plan.every
    )
    return ", ".join(f"{n} {name}" for name, n in found.most_common())


def dates(plan: Plan, standing: Standing) -> tuple[float, float] | None:
    """Return when the first of its trials began and the last changed (Unix seconds); None if none has run."""
    ran = [i for i in plan.every if i in standing.first]
    return (min(standing.first[i] for i in ran), max(standing.last[i] for i in ran)) if ran else None


def day(when: float) -> str:
    """Return a time as a date (UTC)."""
    return time.strftime(DAY, time.gmtime(when))


def _meta(plan: Plan, standing: Standing) -> str:
    seeds = sorted({cell.seed for cell in plan.cells})
    when = dates(plan, standing)
    trials = f"{counted(len(plan.every), 'trial')}: {counts(plan, standing)}"
    seeded = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    between = " to ".join(dict.fromkeys(map(day, when))) if when else "not run yet"
    return " · ".join([f"Grid {plan.name}", trials, seeded, ", ".join(plan.labels.values()), between])


def _figures(plan: Plan, composer: Composer, standing: Standing) -> dict[str, Any]:
    """Return the figures as <svg>: that of the main table, curves, searched values, and those that the grid defines."""
    try:
        made = [_drawn(one, f"figure-{i}") for i, one in enumerate(charts.figures(plan, composer, standing))]
        search = [_drawn(one, f"search-{i}") for i, one in enumerate(charts.searches(plan, standing).values())]
    except UserError as error:  # a page of tables alone is worth having
        return {**dict.fromkeys(FIGURES, ()), "no_figures": f"No figures: {error}"}
    parts = {**dict.fromkeys(FIGURES, ()), "search": search, "no_figures": ""}
    if plan.grid.figures:
        return {**parts, "figures": made}
    first = bool(plan.grid.tables)
    return {**parts, "result": made[:first], "curve_figures": made[first:]}


def _drawn(figure: Figure, prefix: str) -> dict[str, Any]:
    """Return a figure as the page shows it, and as files; prefix: of its ids."""
    caption = " ".join(f"{note.rstrip('.')}." for note in figure.notes)
    files = renderings(replace(figure, title=""), FORMATS)
    links = [
        (form.upper(), f"{figure.name}.{form}", f"data:{TYPES[form]};base64,{base64.b64encode(content).decode()}")
        for form, content in files.items()
    ]
    return {"svg": inline_svg(figure, prefix, files["svg"]), "caption": caption, "title": figure.title, "files": links}


def _failures(plan: Plan, standing: Standing) -> list[tuple[str, ...]]:
    bad = {trial_id: state for trial_id in plan.every if (state := standing.state(trial_id)) in BAD}
    errors = {trial_id: standing.outcomes[trial_id].error for trial_id in bad if trial_id in standing.outcomes}
    return [
        (plan.every[trial_id].label, state.value.lower().replace("_", " "), errors.get(trial_id, ""), trial_id)
        for trial_id, state in bad.items()
    ]


def _machines(plan: Plan, standing: Standing) -> dict[str, Any]:
    ran = {i: standing.outcomes[i] for i in plan.every if i in standing.outcomes}
    kinds = Counter((standing.nodes.get(i, "?"), *device_of(outcome)) for i, outcome in ran.items())
    definitions = {str(o.device["memory_definition"]) for o in ran.values() if "memory_definition" in o.device}
    return {
        "machines": [(*key, count) for key, count in kinds.most_common()],
        "versions": Counter(versions_of(outcome) for outcome in ran.values()).most_common(),
        "memory_definitions": sorted(definitions),
    }


def device_of(outcome: Outcome) -> tuple[str, str, str, str]:
    """Return where a trial ran: device and GPUs, cores, memory, threads."""
    device: Mapping[str, Any] = outcome.device
    gpus = device.get("gpus", ())
    name, memory = str(device.get("name", "?")), device.get("memory_bytes")
    named = [f"{name} ({device.get('profile', device.get('kind', '?'))})", *(gpu for gpu in gpus if gpu != name)]
    cores, threads = (str(device.get(fact, "?")) for fact in ("cores", "threads"))
    return ", ".join(named), cores, bytes_text(memory) if memory else "?", threads


def versions_of(outcome: Outcome) -> str:
    """Return the versions that a trial ran with, in words."""
    versions = outcome.device.get("versions")
    return ", ".join(f"{k} {v}" for k, v in versions.items()) if isinstance(versions, Mapping) else "versions unknown"


def _reproduce(plan: Plan, command: str, here: Mapping[str, Any]) -> dict[str, Any]:
    import yaml

    dirty = " with uncommitted changes" if here["git_commit"] and here["git_dirty"] else ""
    facts = {
        "zo_sweeps": here["packages"]["zo_sweeps"],
        "git commit (when this page was written)": f"{here['git_commit'] or 'none'}{dirty}",
        "platform": here["platform"],
        "cpu": here["cpu"],
        **{name: version for name, version in here["packages"].items() if name != "zo_sweeps"},
    }
    grid = yaml.safe_dump(asdict(plan.grid), sort_keys=False, allow_unicode=True)
    return {"command": command, "facts": facts, "grid": grid}


def made_by(plan: Plan, standing: Standing) -> list[str]:
    """Return the parts of the footer: version of the code, dates, hosts."""
    from zo_sweeps.core.host import provenance

    here = provenance()
    minute = "%Y-%m-%d %H:%M UTC"
    parts = [f"zo_sweeps {here['packages']['zo_sweeps']}"]
    if here["git_commit"]:
        parts.append(f"commit {here['git_commit'][:12]}{'+' if here['git_dirty'] else ''}")
    if when := dates(plan, standing):
        began, ended = when
        parts.append(f"run {time.strftime(minute, time.gmtime(began))} to {time.strftime(minute, time.gmtime(ended))}")
        hosts = sorted({standing.nodes[i] for i in plan.every if i in standing.nodes})
        parts += [f"on {', '.join(hosts)}"] if hosts else []
    return parts


def curve_data(plan: Plan, standing: Standing) -> dict[str, Any]:
    """Return the chart's data: its axes, columns and rows, and a list of runs per row and column; no `rows` if empty.

    A run has its seed, id, examples forwarded per step, and for each y in CURVES steps, seconds and values. Training
    losses are means over windows. Cost: reads the journals of the selected settings; some kB per run.
    """
    rule, journals = Rule(**vars(plan.grid.select)), JournalStore(plan.config.folder)
    records = readout.records(plan, standing)
    measure, measures = readout.column_measures(plan, "accuracy", charts.PERCENT)
    columns = list(plan.labels)
    rows: list[dict[str, Any]] = []
    shown = dict.fromkeys(record.block for record in records)
    for block in shown:
        parts, scores = [], []
        for i, column in enumerate(columns):
            chosen = select(settings([r for r in records if (r.block, r.column) == (block, column)]), rule)
            if chosen is None:
                continue
            unit = measures.get(column, measure).unit_size
            runs = [_run(plan, standing, journals, record.trial_id, record.seed, unit) for record in chosen.records]
            if any(run["curves"] for run in runs):
                values = (f"{key.rpartition('.')[2]} {plain(one)}" for key, one in chosen.hyperparameters.items())
                parts.append({"column": i, "setting": ", ".join(values), "runs": runs})
                scores += [score for score in [chosen.mean(rule.metric)] if score is not None]
        if parts:  # the mean over its columns of what its setting is selected by, the lower the better
            score = (1 if rule.mode == "min" else -1) * fmean(scores) if scores else math.inf
            rows.append({"label": plan.grid.label(block), "parts": parts, "shown": score})
    if not rows:
        return {}
    drawn = sorted(range(len(rows)), key=lambda i: float(rows[i]["shown"]))[:TOLD_APART]
    for i, row in enumerate(rows):
        row["shown"] = i in drawn
    has = {name for row in rows for part in row["parts"] for run in part["runs"] for name in run["curves"]}
    named = {**CURVES, "dev/metric": (f"Dev {measure.name or charts.first_metric(plan)} ({measure.unit})", 1.0)}
    return {
        "x": [
            *({"key": key, "label": label} for key, label in CURVE_X.items()),
            {"key": "forwards", "label": FORWARDS},
        ],
        "y": [{"key": key, "label": label} for key, (label, _) in named.items() if key in has],
        "columns": [plan.labels[column] for column in columns],
        "rows": rows,
        "best_by": rule.metric,
    }


def _run(
    plan: Plan, standing: Standing, journals: JournalStore, trial_id: str, seed: int, metric_unit: float
) -> dict[str, Any]:
    curves = trail(journals.read(trial_id, ended=standing.has_result(trial_id)))
    shown = {}
    for name, (_, unit) in CURVES.items():
        points: Sequence[tuple[int, float, float]] = curves[name]
        if name == "train/loss":
            points = windowed(points)
        if points and points[-1][0] > 0:  # a trial without steps has no curve
            scale = metric_unit if name == "dev/metric" else unit
            steps, times, values = zip(*points, strict=True)
            shown[name] = [list(steps), [_short(t) for t in times], [_short(value / scale) for value in values]]
    each = forwarded_per_step(plan, standing, trial_id)
    return {"id": trial_id, "seed": seed, "forwards": each, "curves": shown}


def _short(value: float) -> float | None:
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


@cache
def chart_library() -> tuple[str, str]:
    """Return the chart library (script, style), the script with its licence as a comment.

    Raises ValueError if a file is not the one that was published.
    """
    source = json.loads((UPLOT / "SOURCE.json").read_text(encoding="utf-8"))
    texts = []
    for name, digest in source["sha256"].items():
        content = (UPLOT / name).read_bytes()
        if hashlib.sha256(content).hexdigest() != digest:
            raise ValueError(f"{name} is not that of {source['name']} {source['version']}")
        texts.append(content.decode().strip())
    script, style = texts
    licence = (UPLOT / "LICENSE").read_text(encoding="utf-8").strip()
    header, _, code = script.partition("\n")  # the library's own comment, which has its address
    assert header.startswith("/*!")
    return f"/* {source['name']} {source['version']}\n\n{licence}\n*/\n{code}", style

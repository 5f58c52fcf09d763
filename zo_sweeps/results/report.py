"""One self-contained page on a sweep: tables, curves, differences, failures, machines, provenance."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.trial import Outcome, TrialState
from zo_sweeps.core.units import bytes_text
from zo_sweeps.plan.build import Plan
from zo_sweeps.results import figures as charts
from zo_sweeps.results import tables as readout
from zo_sweeps.results.examples import compared
from zo_sweeps.results.imports import with_imported
from zo_sweeps.schedule.ledger import Standing
from zo_sweeps.tables.draw import inline_svg
from zo_sweeps.tables.html import differences_html, render, to_html

SHOWN = ("dev/loss", "test/metric", "wall_seconds")
BAD = (TrialState.FAILED, TrialState.LOST, TrialState.DIVERGED, TrialState.OUT_OF_MEMORY)


def html(plan: Plan, composer: Composer, standing: Standing, state_dir: Path, command: str) -> str:
    """Return the report of a plan with the results so far in `state_dir`; report.html.j2 has its text.

    Args:
        command: the command that runs or resumes the grid.

    Raises UserError as the tables and figures do. Cost: reads the journals of the selected trials; draws the figures.
    """
    from zo_sweeps.record.provenance import collect

    here = collect()
    tables = readout.tables(plan, composer, standing)
    return render(
        "report.html.j2",
        Path(__file__).parent,
        title=plan.title,
        summary=_summary(plan, standing),
        tables=[to_html(table) for table in with_imported(tables, plan, composer)],
        **_figures(plan, composer, standing, state_dir),
        differences=list(filter(None, (differences_html(table, compared(table, state_dir)) for table in tables))),
        failures=_failures(plan, standing),
        **_machines(plan, standing),
        **_reproduce(plan, command, here),
        trial_columns=("trial", "state", "selected step", *SHOWN, "id"),
        trials=_trials(plan, standing),
        provenance=_provenance(plan, standing, here),
    )


def _state(standing: Standing, trial_id: str) -> TrialState:
    return standing.states.get(trial_id, TrialState.PENDING)


def _summary(plan: Plan, standing: Standing) -> list[str]:
    counts = Counter("missing" if i in plan.missing else _state(standing, i).value.lower() for i in plan.every)
    seeds = sorted({cell.seed for cell in plan.cells})
    return [
        f"Grid {plan.name}: {len(plan.every)} trials ({', '.join(f'{n} {state}' for state, n in counts.items())}); "
        f"seeds {', '.join(map(str, seeds))}; tasks and columns: {', '.join(plan.labels.values())}.",
        *plan.caveats,
        *(f"Cannot run here ({len(ids)} trials): {why}" for why, ids in plan.obstacles.items()),
    ]


def _figures(plan: Plan, composer: Composer, standing: Standing, state_dir: Path) -> dict[str, Any]:
    try:
        drawn = [(figure, inline_svg(figure)) for figure in charts.figures(plan, composer, standing, state_dir)]
    except UserError as error:  # a page of tables alone is worth having
        return {"figures": [], "no_figures": str(error)}
    figures = []
    for figure, svg in drawn:
        caption = " ".join(f"{note.rstrip('.')}." for note in figure.notes)
        figures.append(
            {"svg": svg.replace("<svg", f'<svg role="img" aria-label="{escape(figure.title)}"', 1), "caption": caption}
        )
    return {"figures": figures, "no_figures": ""}


def _failures(plan: Plan, standing: Standing) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for trial_id, trial in plan.every.items():
        state, outcome = _state(standing, trial_id), standing.outcomes.get(trial_id)
        if state in BAD:
            rows.append(
                (trial.label, state.value.lower().replace("_", " "), outcome.error if outcome else "", trial_id)
            )
    return rows


def _machines(plan: Plan, standing: Standing) -> dict[str, Any]:
    ran = {i: standing.outcomes[i] for i in plan.every if i in standing.outcomes}
    kinds = Counter((standing.nodes.get(i, "?"), *_device(outcome)) for i, outcome in ran.items())
    definitions = {str(o.device["memory_definition"]) for o in ran.values() if "memory_definition" in o.device}
    return {
        "machines": [(*key, count) for key, count in kinds.most_common()],
        "versions": Counter(_versions(outcome) for outcome in ran.values()).most_common(),
        "memory_definitions": sorted(definitions),
    }


def _device(outcome: Outcome) -> tuple[str, str, str, str]:
    device: Mapping[str, Any] = outcome.device
    names = [str(gpu.get("name", "GPU")) for gpu in device.get("gpus", ()) if isinstance(gpu, Mapping)]
    name = str(device.get("name", "?"))
    named = f"{name} ({device.get('profile', device.get('kind', '?'))})"
    memory = device.get("memory_bytes")
    return (
        ", ".join([named, *(gpu for gpu in names if gpu != name)]),
        str(device.get("cores", "?")),
        bytes_text(memory) if memory else "?",
        str(device.get("threads", "?")),
    )


def _versions(outcome: Outcome) -> str:
    versions = outcome.device.get("versions")
    return ", ".join(f"{k} {v}" for k, v in versions.items()) if isinstance(versions, Mapping) else "versions unknown"


def _reproduce(plan: Plan, command: str, here: Mapping[str, Any]) -> dict[str, Any]:
    import yaml

    commit = (
        f"{here['git_commit']}{' with uncommitted changes' if here['git_dirty'] else ''}"
        if here["git_commit"]
        else "none"
    )
    facts = {
        "zo_sweeps": here["packages"]["zo_sweeps"],
        "git commit (when this page was written)": commit,
        "platform": here["platform"],
        "cpu": here["cpu"],
        **{name: version for name, version in here["packages"].items() if name != "zo_sweeps"},
    }
    grid = yaml.safe_dump(asdict(plan.grid), sort_keys=False, allow_unicode=True)
    return {"command": command, "facts": facts, "grid": grid}


def _trials(plan: Plan, standing: Standing) -> list[tuple[str, ...]]:
    rows = []
    for trial_id, trial in plan.every.items():
        outcome = standing.outcomes.get(trial_id)
        metrics: Mapping[str, float] = outcome.metrics if outcome else {}
        shown = [f"{metrics[name]:.4g}" if name in metrics else "" for name in SHOWN]
        state = "missing" if trial_id in plan.missing else _state(standing, trial_id).value.lower()
        rows.append((trial.label, state, str(outcome.selected_step) if outcome else "", *shown, trial_id))
    return rows


def _provenance(plan: Plan, standing: Standing, here: Mapping[str, Any]) -> list[str]:
    """Return the parts of the footer: version of the code, dates, hosts."""
    ran = [i for i in plan.every if i in standing.first]
    day = "%Y-%m-%d %H:%M UTC"
    parts = [f"zo_sweeps {here['packages']['zo_sweeps']}"]
    if here["git_commit"]:
        parts.append(f"commit {here['git_commit'][:12]}{'+' if here['git_dirty'] else ''}")
    if ran:
        began, ended = min(standing.first[i] for i in ran), max(standing.last[i] for i in ran)
        parts.append(f"run {time.strftime(day, time.gmtime(began))} to {time.strftime(day, time.gmtime(ended))}")
        hosts = sorted({standing.nodes[i] for i in ran if i in standing.nodes})
        parts += [f"on {', '.join(hosts)}"] if hosts else []
    parts.append(f"written {time.strftime(day, time.gmtime())}")
    return parts

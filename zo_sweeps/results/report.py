"""One page on a sweep that needs nothing but itself: tables, curves, differences, failures, machines, provenance."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.host import gib
from zo_sweeps.core.trial import Outcome, TrialState
from zo_sweeps.plan.build import Plan
from zo_sweeps.results import figures as charts
from zo_sweeps.results import tables as readout
from zo_sweeps.schedule.ledger import Standing
from zo_sweeps.tables import Table
from zo_sweeps.tables.draw import inline_svg
from zo_sweeps.tables.html import differences_html, listing, page, pairs, to_html

SHOWN = ("dev/loss", "test/metric", "wall_seconds")
BAD = (TrialState.FAILED, TrialState.LOST, TrialState.DIVERGED, TrialState.OUT_OF_MEMORY)


def html(plan: Plan, composer: Composer, standing: Standing, state_dir: Path, command: str) -> str:
    """The report of `plan` as far as it has been run in `state_dir`.

    Args:
        command: what the user types to run it (again).

    Raises UserError as the tables and figures do. Cost: reads the journals of the selected trials; draws the figures.
    """
    found = readout.tables(plan, composer, standing)
    title = str(plan.grid["title"] or plan.name)
    parts = [
        f"<h1>{escape(title)}</h1>",
        _summary(plan, standing),
        "<h2>Tables</h2>",
        *map(to_html, found),
        "<h2>Curves</h2>",
        _figures(plan, composer, standing, state_dir),
        *_differences(found),
        "<h2>Failures</h2>",
        _failures(plan, standing),
        "<h2>Machines and versions</h2>",
        _machines(plan, standing),
        "<h2>How to reproduce</h2>",
        _reproduce(plan, command),
        "<h2>Trials</h2>",
        _trials(plan, standing),
    ]
    return page(title, parts)


def _state(standing: Standing, trial_id: str) -> TrialState:
    return standing.states.get(trial_id, TrialState.PENDING)


def _summary(plan: Plan, standing: Standing) -> str:
    counts = Counter("missing" if i in plan.missing else _state(standing, i).value.lower() for i in plan.every)
    seeds = sorted({cell.seed for cell in plan.cells})
    lines = [
        f"Grid {plan.name}: {len(plan.every)} trials ({', '.join(f'{n} {state}' for state, n in counts.items())}); "
        f"seeds {', '.join(map(str, seeds))}; tasks and columns: {', '.join(plan.labels.values())}.",
        *plan.caveats,
        *(f"Missing here ({n} trials): {why}" for why, n in Counter(plan.missing.values()).most_common()),
    ]
    return "".join(f"<p>{escape(line)}</p>" for line in lines)


def _figures(plan: Plan, composer: Composer, standing: Standing, state_dir: Path) -> str:
    try:
        drawn = [(figure, inline_svg(figure)) for figure in charts.figures(plan, composer, standing, state_dir)]
    except UserError as error:  # the tables are worth a page without the curves
        return f"<p>No figures: {escape(str(error))}</p>"
    parts = []
    for figure, svg in drawn:
        svg = svg.replace("<svg", f'<svg role="img" aria-label="{escape(figure.title)}"', 1)
        notes = " ".join(f"{note.rstrip('.')}." for note in figure.notes)
        parts.append(f"<figure>{svg}<figcaption>{escape(notes)}</figcaption></figure>")
    return f'<div class="figures">{chr(10).join(parts)}</div>'


def _differences(tables: Sequence[Table]) -> list[str]:
    found = [text for text in map(differences_html, tables) if text]
    return ["<h2>Paired differences between rows</h2>", *found] if found else []


def _failures(plan: Plan, standing: Standing) -> str:
    rows = []
    for trial_id, trial in plan.every.items():
        state, outcome = _state(standing, trial_id), standing.outcomes.get(trial_id)
        if state in BAD:
            rows.append(
                (trial.label, state.value.lower().replace("_", " "), outcome.error if outcome else "", trial_id)
            )
    if not rows:
        return "<p>No trial failed, diverged or ran out of memory.</p>"
    return listing(("trial", "state", "what happened", "id"), rows)


def _machines(plan: Plan, standing: Standing) -> str:
    ran = {i: standing.outcomes[i] for i in plan.every if i in standing.outcomes}
    kinds = Counter((standing.nodes.get(i, "?"), *_device(outcome)) for i, outcome in ran.items())
    rows = [(*key, count) for key, count in kinds.most_common()]
    if not rows:
        return "<p>Nothing has been run.</p>"
    versions = Counter(_versions(outcome) for outcome in ran.values())
    parts = [listing(("host", "device", "cores", "memory", "threads", "trials"), rows)]
    parts += [f"<p>{escape(text)} ({count} trials).</p>" for text, count in versions.most_common()]
    definitions = {str(o.device["memory_definition"]) for o in ran.values() if "memory_definition" in o.device}
    parts += [f"<p>Memory: {escape(text)}.</p>" for text in sorted(definitions)]
    return "\n".join(parts)


def _device(outcome: Outcome) -> tuple[str, str, str, str]:
    device: Mapping[str, Any] = outcome.device
    names = [str(gpu.get("name", "GPU")) for gpu in device.get("gpus", ()) if isinstance(gpu, Mapping)]
    name = str(device.get("name", "?"))
    named = f"{name} ({device.get('profile', device.get('kind', '?'))})"
    memory = device.get("memory_bytes")
    return (
        ", ".join([named, *(gpu for gpu in names if gpu != name)]),
        str(device.get("cores", "?")),
        gib(memory) if memory else "?",
        str(device.get("threads", "?")),
    )


def _versions(outcome: Outcome) -> str:
    versions = outcome.device.get("versions")
    return ", ".join(f"{k} {v}" for k, v in versions.items()) if isinstance(versions, Mapping) else "versions unknown"


def _reproduce(plan: Plan, command: str) -> str:
    import yaml

    from zo_sweeps.record.provenance import collect

    here = collect()
    commit = f"{here['git_commit']}{' with changes' if here['git_dirty'] else ''}" if here["git_commit"] else "none"
    facts = {
        "zo_sweeps": here["packages"]["zo_sweeps"],
        "git commit (when this page was written)": commit,
        "platform": here["platform"],
        "cpu": here["cpu"],
        **{name: version for name, version in here["packages"].items() if name != "zo_sweeps"},
    }
    grid = yaml.safe_dump(dict(plan.grid), sort_keys=False, allow_unicode=True)
    return (
        f"<pre>{escape(command)}</pre>\n"
        "<p>The same command in the same state folder runs only what has no result yet; in an empty one, everything. "
        "Trials are keyed by a fingerprint of everything that changes their result.</p>\n"
        f"{pairs(facts)}\n<details><summary>The grid</summary><pre>{escape(grid)}</pre></details>"
    )


def _trials(plan: Plan, standing: Standing) -> str:
    rows = []
    for trial_id, trial in plan.every.items():
        outcome = standing.outcomes.get(trial_id)
        metrics: Mapping[str, float] = outcome.metrics if outcome else {}
        shown = [f"{metrics[name]:.4g}" if name in metrics else "" for name in SHOWN]
        state = "missing" if trial_id in plan.missing else _state(standing, trial_id).value.lower()
        rows.append((trial.label, state, str(outcome.selected_step) if outcome else "", *shown, trial_id))
    listed = listing(("trial", "state", "selected step", *SHOWN, "id"), rows)
    return f"<details><summary>{len(rows)} trials</summary>{listed}</details>\n{_provenance(plan, standing)}"


def _provenance(plan: Plan, standing: Standing) -> str:
    """One line: code, when, where."""
    from zo_sweeps.record.provenance import collect

    here, ran = collect(), [i for i in plan.every if i in standing.first]
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
    return f'<p class="notes provenance">{escape(" · ".join(parts))}</p>'

"""A plan as it was launched, as JSON: what a sweep's results are read by, without its model and its data."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from zo_sweeps.config.schema import GridConfig, RunConfig
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import replace_text
from zo_sweeps.core.fingerprint import fingerprint
from zo_sweeps.core.trial import StoredConfig, Trial, parts_of
from zo_sweeps.methods.definition import convert, hints, write
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan.build import Cell, Plan, by_line

KEYS = {
    "grid",
    "labels",
    "caveats",
    "reasons",
    "remarks",
    "relabelled",
    "altered",
    "cells",
    "trials",
    "parts",
    "sources",
}
Sources = Mapping[str, Mapping[str, str]]  # "model NAME" or "data of NAME" -> file -> digest; "": the whole


def save(plan: Plan, state_dir: Path, sweep_id: str) -> None:
    """Write the plan of a sweep that is launched into its state folder; see `dump`."""
    path = _path(state_dir, sweep_id)
    path.parent.mkdir(exist_ok=True)
    replace_text(path, json.dumps(dump(plan), ensure_ascii=False))


def record(state_dir: Path, sweep_id: str) -> Mapping[str, Any] | None:
    """Return the plan of a sweep as `save` wrote it; None if there is none, or it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        data = dict(json.loads(_path(state_dir, sweep_id).read_text(encoding="utf-8")))
        return data if data.keys() >= KEYS else None
    return None


def has_record(state_dir: Path, sweep_id: str) -> bool:
    """Return whether the plan of a sweep was written."""
    return _path(state_dir, sweep_id).is_file()


def _path(state_dir: Path, sweep_id: str) -> Path:
    return state_dir / "plans" / f"{sweep_id}.json"


def dump(plan: Plan) -> dict[str, Any]:
    """Return a plan as JSON, with its `altered` and `extents`. Equal parts of the configurations are written once."""
    assert plan.altered is not None
    assert plan.extents is not None
    parts: dict[str, dict[str, tuple[int, Any]]] = {}
    places: dict[tuple[str, int], int] = {}  # name and id of a part, which the plan keeps -> its index
    trials = []
    for trial in plan.every.values():
        own = parts_of(trial.config)
        for name, part in own.items():
            if (name, id(part)) not in places:
                known, value = parts.setdefault(name, {}), write(part)
                places[name, id(part)], _ = known.setdefault(fingerprint([value]), (len(known), value))
        indices = {name: places[name, id(part)] for name, part in own.items()}
        trials.append(replace(trial, config=StoredConfig(indices)).to_json())
    lines = {line: index for index, line in enumerate({**by_line(plan.remarks), **by_line(plan.reasons)})}
    remarks, reasons = (
        {trial_id: [lines[line] for line in of_trial] for trial_id, of_trial in of_trials.items()}
        for of_trials in (plan.remarks, plan.reasons)
    )
    return {
        "grid": asdict(plan.grid),
        "labels": dict(plan.labels),
        "caveats": list(plan.caveats),
        "reasons": reasons,
        "lines": [*lines],
        "remarks": remarks,
        "relabelled": sorted(plan.relabelled),
        "altered": sorted(map(list, plan.altered)),
        "extents": [[*cell, *extent] for cell, extent in sorted(plan.extents.items())],
        "cells": [asdict(cell) for cell in plan.cells],
        "trials": trials,
        "parts": {name: [value for _, value in known.values()] for name, known in parts.items()},
        "sources": sources(plan),
    }


def load(data: Mapping[str, Any], run: RunConfig) -> Plan:
    """Return the plan that `dump` wrote; a configuration whose members are not on this machine stays unread.

    Args:
        run: everything of the run's configuration but the grid.
    """
    parts = {name: [_read(name, value) for value in values] for name, values in data["parts"].items()}
    every = {}
    for entry in data["trials"]:
        plain = {name: data["parts"][name][index] for name, index in entry["config"].items()}
        typed = {name: parts[name][index] for name, index in entry["config"].items()}
        trial = Trial.from_json({**entry, "config": plain})
        whole = all(value is not None for value in typed.values())
        every[trial.trial_id] = replace(trial, config=TrialConfig(**typed) if whole else StoredConfig(plain))
    extents = {(block, column): (settings, seeds) for block, column, settings, seeds in data.get("extents", ())}
    return Plan(
        config=replace(run, grid=GridConfig.read(data["grid"])),
        trials=tuple(trial for trial_id, trial in every.items() if trial_id not in data["reasons"]),
        cells=tuple(Cell(**cell) for cell in data["cells"]),
        reasons={trial_id: _lines(data, of_trial) for trial_id, of_trial in data["reasons"].items()},
        labels=data["labels"],
        caveats=tuple(data["caveats"]),
        every=every,
        remarks={trial_id: _lines(data, of_trial) for trial_id, of_trial in data["remarks"].items()},
        relabelled=frozenset(data["relabelled"]),
        altered=frozenset((block, column) for block, column in data["altered"]),
        extents=extents if "extents" in data else None,  # not of an earlier version
    )


def _lines(data: Mapping[str, Any], of_trial: str | Sequence[int | str]) -> tuple[str, ...]:
    listed = [of_trial] if isinstance(of_trial, str) else of_trial
    return tuple(one if isinstance(one, str) else data["lines"][one] for one in listed)  # texts: of an earlier version


def _read(name: str, value: Any) -> Any:
    """Return a part of a configuration, typed; None if it has a member that is not on this machine."""
    try:
        return convert(hints(TrialConfig)[name], value, name)
    except UserError:
        return None


def sources(plan: Plan) -> Sources:
    """Return the identity of every model and data set of a plan, and the digests of its files on this machine."""
    from zo_sweeps.models import identity
    from zo_sweeps.tasks import data

    found: dict[str, dict[str, str]] = {}
    for trial in plan.every.values():
        config = trial.config
        if not isinstance(config, TrialConfig) or not config.method.kind.of_model:
            continue
        model, task = f"model {config.model.name}", f"data of {config.task.name}"
        if model not in found:
            found[model] = {"": config.model.fingerprint, **identity.files_of(config.model)}
        if task not in found:
            found[task] = {"": config.task.fingerprint, **data.files_of(config.task, config.data.dir)}
        if own := config.method.kind.files_read(config):
            found.setdefault(f"{task}'s clients", {"": fingerprint([[*own.values()]]), **own})
    return found


def changes(then: Plan, launched: Sources, now: Plan) -> list[str]:
    """Return one line for each model and data set that is another, or absent, since a plan was launched.

    If the plans have other trials for another reason, one line says that. [] if they have the same trials.

    Args:
        launched: the `sources` of `then`, when it was launched.
    """
    if {*then.every} == {*now.every}:
        return []
    other = "today's plan of this command has other trials: its grid, a task or a member has changed since"
    return moved(launched, now) or [other]


def moved(launched: Sources, now: Plan) -> list[str]:
    """Return one line for each model and data set of `now` that is another, or absent, since it was launched."""
    today, lines = sources(now), []
    for name, files in launched.items():
        here = today.get(name)
        if here is None or here[""] == files[""]:
            continue
        if not here[""]:
            folders = {str(Path(file).parent) for file in files if file}
            key = "model.path" if name.startswith("model ") else "data.dir"
            was = f": it was in {min(folders)}; name its new place, {key}=FOLDER" if folders else ""
            lines.append(f"the {name} is not here{was}")
            continue
        changed = [file for file, digest in files.items() if file and here.get(file, digest) != digest]
        gone = [f"{file} is gone" for file in files if file and file not in here and not Path(file).exists()]
        what = ", ".join([*changed, *gone]) or f"{files['']} then, {here['']} now"
        lines.append(f"the {name} has changed since: {what}")
    return lines

"""A sweep's results as an archive, and an archive as a state folder of its own.

An archive has no paths of the machine that wrote it, no host names, and nothing of trials that did not end in a result.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import End, Event, Start, read_event, write_event
from zo_sweeps.methods.parts import ModelSource
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan import stored
from zo_sweeps.plan.altered import beside_written
from zo_sweeps.plan.build import Plan
from zo_sweeps.plan.texts import texts_of
from zo_sweeps.record import archive, received
from zo_sweeps.record.archive import PLAN, TABLES, Archive
from zo_sweeps.record.journal import JournalStore, outcome
from zo_sweeps.results import tables as readout
from zo_sweeps.schedule.ledger import Ledger, Standing, read_standing
from zo_sweeps.tables import Table
from zo_sweeps.tasks.data import DRAWN

KEPT = received.KINDS  # the types of events in an archive; the others name machines, or are files

ENTRIES = 2**16  # names and values of a grid, which OmegaConf reads at 10,000 per second; the largest has 1,300 lines


@dataclass(frozen=True)
class Shared:
    """The contents of an archive in a folder, with the plan and the ledger of a state folder.

    Args:
        tables: as the archive has them; see `plain`.
    """

    plan: Plan
    standing: Standing
    journals: JournalStore
    tables: Any


def share(plan: Plan, composer: Composer, path: Path, *, by: str = "", key: Path | None = None) -> Archive:
    """Write the finished trials of a plan, with its tables, into an archive.

    Args:
        plan: as launched; see `recalled.read`.
        by: whose results they are.
        key: file of the private key that signs the archive.

    Raises UserError if no trial has a result, a journal is damaged, or as `archive.write`. Runs no model.
    """
    folder = plan.config.folder
    standing, store = read_standing(folder), JournalStore(folder)
    finished = [trial_id for trial_id in plan.every if standing.has_result(trial_id)]
    if not finished:
        raise UserError(f"no trial of {plan.name} has a result in {folder}", fix="run the grid first")
    files = {PLAN: _json({**_without_paths(stored.dump(beside_written(plan, composer)), plan), "drawn": DRAWN})}
    for trial_id in finished:
        log = [_plain(event) for event in store.read(trial_id, ended=True) if event.kind in KEPT]
        files[f"journal/{trial_id}.jsonl"] = b"".join(_json(event) + b"\n" for event in log)
    with TemporaryDirectory(prefix="zo_sweeps-") as name:
        draft = Archive("", plan.name, plan.title, "", "", {**files, TABLES: b"[]"})
        files[TABLES] = _json(tables_of(unpack(draft, Path(name), composer), composer))
    return archive.write(path, files, by=by, grid=plan.name, title=plan.title, key=key)


def unpack(source: Archive, folder: Path, composer: Composer, members: Sequence[str] = ()) -> Shared:
    """Write an archive's journals and a ledger of them into a new or empty folder; return its contents.

    Args:
        composer: of the reader.
        members: the reader's folders with own members. Those that an archive names are never looked at.

    Raises UserError if its contents are not what an archive holds.
    """
    try:
        if not any(name.startswith("journal/") for name in source.files):
            raise ValueError("no trial with a result")
        journals = JournalStore(folder)
        with Ledger(folder) as ledger:
            for name in sorted(source.files):
                if name.startswith("journal/"):
                    trial_id = Path(name).stem
                    log = [_event(line, trial_id) for line in source.files[name].decode().split("\n")[:-1]]
                    ended = outcome(log)
                    if ended is None or not ended.state.is_result:
                        raise ValueError(f"{name} has no result of its trial")
                    journals.append(trial_id, log)
                    ledger.write(trial_id, ended.state, error=ended.error, outcome=ended)
        journals.close()
        return read(source.json(PLAN), source.json(TABLES), folder, composer, members)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError, AssertionError) as error:
        what = f"the archive cannot be read ({type(error).__name__}: {str(error)[:100]})"
        raise UserError(what, fix="it is damaged, or of another version of zo_sweeps") from None


def read(data: Any, tables: Any, folder: Path, composer: Composer, members: Sequence[str] = ()) -> Shared:
    """Return the contents of an unpacked archive, from its `plan.json` and `tables.json`."""
    data, tables = received.clean(data), received.clean(tables)
    _check_grid([data["grid"], data["labels"]])
    data["parts"]["members"] = [[*members] for _ in data["parts"]["members"]]
    plan = stored.load(data, replace(composer.run, state_dir=str(folder)))
    plan = replace(plan, extents=plan.extents or {})  # of an earlier version's archive, the reader's grid tells nothing
    return Shared(plan, read_standing(folder), JournalStore(folder), tables)


def tables_of(shared: Shared, composer: Composer) -> list[dict[str, Any]]:
    """Return the tables of an archive, computed from its logs, as plain JSON."""
    return [plain(table) for table in readout.tables(shared.plan, composer, shared.standing)]


CELL = ("state", "mean", "std", "n", "beside", "selected", "finished", "planned", "values", "trial_ids")


def plain(table: Table) -> dict[str, Any]:
    """Return a table's labels and cells as JSON."""
    cells: dict[str, dict[str, Any]] = {block: {} for block, _ in table.rows}
    for (block, column), cell in table.cells.items():
        whole = asdict(cell)
        cells[block][column] = {name: whole[name] for name in CELL}
    spec = table.spec
    labels = {"name": spec.name, "title": spec.title, "unit": spec.measure.unit, "metric": spec.measure.metric}
    made = {**labels, "rows": table.rows, "columns": table.columns, "cells": cells}
    return dict(json.loads(json.dumps(made)))


def _event(line: str, trial_id: str) -> Event:
    """Return an event of an archive. Raises ValueError unless it has the shape of its type."""
    return read_event(received.checked(received.printable(line, json.loads(line)), trial_id))


def _plain(event: Event) -> dict[str, Any]:
    """Return an event as JSON, without what it says about the machine that nobody else needs."""
    kept = write_event(event)
    kept.pop("node", None)
    if isinstance(event, Start):
        kept["versions"] = {name: value for name, value in event.versions.items() if name != "hostname"}
    if isinstance(event, End):
        del kept["outcome"]["traceback"]
    return kept


def _without_paths(data: dict[str, Any], plan: Plan) -> Any:
    """Return a stored plan in which every path of this machine is its last part, or null where a file is looked for."""
    private = {str(plan.config.folder)}
    for trial in plan.every.values():
        config = trial.config
        whole = config.to_json()
        private |= {whole["data"].get("dir"), whole["device"].get("log"), whole["device"].get("client")}
        private |= {*whole.get("members", ())}
        private |= {whole["model"].get("path")} if whole["model"].get("source") == ModelSource.LOCAL.value else set()
        private |= {name for name, _ in texts_of(config)} if isinstance(config, TrialConfig) else set()
    parts = data["parts"]
    parts["members"] = [[] for _ in parts["members"]]
    parts["data"] = [{**part, "dir": None} for part in parts["data"]]
    parts["device"] = [{**part, "log": None, "client": None} for part in parts["device"]]
    local = ModelSource.LOCAL.value
    parts["model"] = [{**part, "path": None} if part["source"] == local else part for part in parts["model"]]
    data["sources"] = {name: {"": files[""]} for name, files in data["sources"].items()}  # files may be others by now
    paths = sorted((path for path in private if path and path[0] in "/~"), key=len, reverse=True)
    return _replaced(data, paths)


def _replaced(value: Any, paths: Sequence[str]) -> Any:
    if isinstance(value, str):
        for path in paths:
            value = value.replace(path, Path(path).name)
        return value
    if isinstance(value, Mapping):
        return {_replaced(key, paths): _replaced(item, paths) for key, item in value.items()}
    return [_replaced(item, paths) for item in value] if isinstance(value, (list, tuple)) else value


def _check_grid(grid: Any) -> None:
    """Raise ValueError for a text that OmegaConf would replace by something of this machine, or more than ENTRIES."""
    left = [grid]
    for _ in range(ENTRIES):
        if not left:
            return
        value = left.pop()
        if isinstance(value, str) and "${" in value:
            raise ValueError(f"an interpolation: {value}")
        left += [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    raise ValueError(f"a grid of more than {ENTRIES:,} names and values")


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")

"""The command `export-program`: the command line -> the bundle of a trial, for the light client."""

from __future__ import annotations

import json
from collections.abc import Sequence
from os.path import expanduser
from pathlib import Path
from typing import TYPE_CHECKING

from zo_sweeps.cli.parser import grid_parser, parse, with_grid
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.core.trial import Trial
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan.build import Cell, Plan
from zo_sweeps.record.sweep_book import Command
from zo_sweeps.session.export import new_or_empty
from zo_sweeps.session.session import plan_here

if TYPE_CHECKING:
    from zo_sweeps_edge.bundle import Manifest

ON_PROGRAM = "device.runtime=executorch"


def export_program(given: Sequence[str]) -> int:
    """Export a trial as a program and its data, for a board or phone that has only an inference engine."""
    parser = grid_parser("export-program", export_program.__doc__)
    parser.add_argument(
        "--row", default="", metavar="ROW", help="the row of the grid: a key of its blocks, or its label"
    )
    parser.add_argument("--out", type=expanduser, required=True, metavar="DIR", help="a new or empty folder")
    options = parse(parser, given)
    overrides = with_grid(options.overrides)
    folder, manifest, back = write_bundle(overrides, options.config_dir, options.out, options.row)
    settings = manifest.settings
    print(f"{folder}   trial {settings.trial_id}   {settings.steps} steps")
    print("its README.md says how to run it; then read its log back here:")
    print(f"  {back}")
    return 0


def write_bundle(
    overrides: Sequence[str], config_dirs: Sequence[str], folder: str | Path, row: str = ""
) -> tuple[Path, Manifest, Command]:
    """Write the bundle of the one trial that a command line plans in a row.

    Returns (its folder, its contents, the command that reads its log back).

    Args:
        overrides: of one trial; the device's runtime is executorch unless it runs programs anyway.
        folder: absent or empty.
        row: the key of a block, or its printed label; "": every row.

    Raises UserError for bad input, several trials, or a trial that cannot run as a program; and as
    `zo_sweeps_edge.bundles.write` does.
    """
    plan = plan_here(Composer(overrides, config_dirs))
    if not all(TrialConfig.of(plan.every[cell.trial_id].config).device.runs_programs for cell in _cells(plan, row)):
        overrides = [*overrides, ON_PROGRAM]
        plan = plan_here(Composer(overrides, config_dirs))
    trial = _one(plan, row)
    if trial.trial_id in plan.reasons:
        raise UserError(f"the trial cannot run here: {plan.missing[trial.trial_id]}")
    target = new_or_empty(Path(folder).expanduser())
    from zo_sweeps_edge import bundles

    back = Command.of((*overrides, f"device.log={target.resolve()}"), config_dirs)
    return target, bundles.write(trial, str(back), target), back


def _cells(plan: Plan, row: str) -> list[Cell]:
    """Return the cells of a row. Raises UserError for an unknown one."""
    labels = {cell.block: plan.grid.label(cell.block) for cell in plan.cells}
    blocks = [row] if row in labels else [block for block, label in labels.items() if row in ("", label)]
    if not blocks:
        raise unknown("row", row, labels.keys() | labels.values(), where=f"grid {plan.name}")
    return [cell for cell in plan.cells if cell.block in blocks]


def _one(plan: Plan, row: str) -> Trial:
    """Return the only trial of a row. Raises UserError if there are several, with what chooses one of them."""
    cells = _cells(plan, row)
    trials = {cell.trial_id for cell in cells}
    if len(trials) == 1:
        return plan.every[cells[0].trial_id]
    first = next((cell for cell in cells if cell.trial_id not in plan.reasons), cells[0])
    words = [f"--row {first.block}"] if len({cell.block for cell in cells}) > 1 else []
    cells = [cell for cell in cells if cell.block == first.block]
    columns = {cell.task for cell in cells} - {first.task}
    if columns:
        words += [f"~grid.columns.{name}" for name in sorted(columns)] if plan.grid.columns else [f"task={first.task}"]
    for key, value in first.hyperparameters.items():
        if any(cell.hyperparameters.get(key) != value for cell in cells):
            words.append(f"{key}={value if isinstance(value, str) else json.dumps(value)}")
    if len({cell.seed for cell in cells}) > 1:
        words.append(f"grid.seeds=[{first.seed}]")
    what = f"a bundle is of one trial, and these are {len(trials)}"
    raise UserError(what, fix=f"add for one of them: {' '.join(words)}")

"""The command line -> the bundle of a trial, for the light client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.record.commands import Command
from zo_sweeps.results.export import new_or_empty
from zo_sweeps.results.session import plan_here

if TYPE_CHECKING:
    from zo_sweeps.edge.bundle import Manifest

ON_PROGRAM = "device.runtime=executorch"


def export_program(
    overrides: Sequence[str], config_dirs: Sequence[str], folder: str | Path
) -> tuple[Path, Manifest, Command]:
    """Write the bundle of the one trial that a command line plans.

    Returns (its folder, its contents, the command that reads its log back).

    Args:
        overrides: of one trial; the device's runtime is executorch unless it runs programs anyway.
        folder: absent or empty.

    Raises UserError for bad input, several trials, or a trial that cannot run as a program; and as
    `zo_sweeps.run.bundles.write` does.
    """
    composer = Composer(overrides, config_dirs)
    plan = plan_here(composer)
    if not all(TrialConfig.of(trial.config).device.runs_programs for trial in plan.every.values()):
        overrides = [*overrides, ON_PROGRAM]
        plan = plan_here(Composer(overrides, config_dirs))
    if len(plan.every) > 1:
        what = f"a bundle is of one trial, and these are {len(plan.every)}"
        raise UserError(what, fix="choose one row, task, seed and value of each option: `plan --trials` lists them")
    if not plan.trials:
        (trial_id,) = plan.every
        raise UserError(f"the trial cannot run here: {'; '.join(plan.reasons[trial_id])}")
    target = new_or_empty(Path(folder).expanduser())
    from zo_sweeps.run import bundles

    back = Command((*overrides, f"device.log={target}"), tuple(config_dirs))
    return target, bundles.write(plan.trials[0], str(back), target), back

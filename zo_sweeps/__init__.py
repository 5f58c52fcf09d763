"""zo_sweeps: reproduce the papers on zeroth-order fine-tuning of language models, as distributed sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

# The first import of a submodule binds it as an attribute of the package. These three, whose __init__ files are empty,
# are imported before the functions of the same names are defined, so that the functions keep them.
import zo_sweeps.plan
import zo_sweeps.results
import zo_sweeps.run  # noqa: F401  # for its effect, as said above
from zo_sweeps.core.host import VERSION

if TYPE_CHECKING:
    from pathlib import Path

    from pandas import DataFrame
    from torch import Tensor, nn

    from zo_sweeps.plan.build import Plan
    from zo_sweeps.session.optimizer import Optimizer
    from zo_sweeps.session.trainer import ZOTrainer

__version__ = VERSION
__all__ = ["Optimizer", "ZOTrainer", "plan", "replay", "results", "run", "save_adapter", "weights"]


def __getattr__(name: str) -> Any:
    homes = {"Optimizer": "optimizer", "ZOTrainer": "trainer"}  # classes of torch and transformers, loaded on first use
    if name not in homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"zo_sweeps.session.{homes[name]}"), name)


# Every function imports its dependencies when called: the engine alone runs on machines without Ray, Hydra or MLflow.
def plan(
    grid: str = "quickstart",
    overrides: Sequence[str] = (),
    state_dir: str | Path | None = None,
    config_dirs: Sequence[str | Path] = (),
) -> Plan:
    """Return the plan of a grid for this host; launch nothing. See `zo_sweeps.plan.build.Plan`.

    Args:
        overrides: as on the command line, `["scale=smoke", "update.lr=1e-3"]`.
        state_dir: the sweep's state folder; defaults to the command line's.
        config_dirs: folders with grids, tasks and members of your own, as --config-dir.

    Raises UserError as the command line does.
    """
    from zo_sweeps.session import session

    composer, _ = session.compose(grid, overrides, state_dir, config_dirs)
    return session.plan_here(composer)


def run(
    grid: str = "quickstart",
    overrides: Sequence[str] = (),
    state_dir: str | Path | None = None,
    config_dirs: Sequence[str | Path] = (),
    *,
    quiet: bool = True,
) -> DataFrame:
    """Run the trials that have no result yet, and return all trials of the grid as `results` does, failed ones too.

    Args:
        overrides, state_dir, config_dirs: as for `plan`.
        quiet: print nothing; if false, print what the command line prints.

    Raises UserError for bad input, or if nothing can run here; HeadLostError, a UserError, if the cluster's head goes
    away (the same call in a new process resumes the sweep); KeyboardInterrupt after a clean stop.
    """
    from zo_sweeps.results import dataframe
    from zo_sweeps.schedule.ledger import read_standing
    from zo_sweeps.schedule.this_host import must_have_work
    from zo_sweeps.session import session

    composer, command = session.compose(grid, overrides, state_dir, config_dirs)
    planned = session.plan_here(composer)
    must_have_work(planned)
    view = session.View()
    if not quiet:
        from zo_sweeps.cli.run import Terminal
        from zo_sweeps.cli.text import console

        view = Terminal(console())
    if session.run(planned, composer, command, view).summary.interrupted:
        raise KeyboardInterrupt
    return dataframe.frame(planned, read_standing(planned.config.folder))


def results(
    grid: str = "quickstart",
    overrides: Sequence[str] = (),
    state_dir: str | Path | None = None,
    config_dirs: Sequence[str | Path] = (),
) -> DataFrame:
    """Return the trials of a grid with their results so far; see `zo_sweeps.results.dataframe.results`."""
    from zo_sweeps.results import dataframe

    return dataframe.results(grid, overrides, state_dir, config_dirs)


def weights(trial_id: str, state_dir: str | Path = "zo_runs") -> dict[str, Tensor]:
    """Return the trained values of a zeroth-order trial; see `zo_sweeps.session.export.weights`."""
    from zo_sweeps.session import export

    return export.weights(trial_id, state_dir)


def save_adapter(trial_id: str, folder: str | Path, state_dir: str | Path = "zo_runs", *, merge: bool = False) -> Path:
    """Write a zeroth-order trial's weights in PEFT format, or merged; see `zo_sweeps.session.export.save_adapter`."""
    from zo_sweeps.session import export

    return export.save_adapter(trial_id, folder, state_dir, merge=merge)


def replay(model: nn.Module, path: str | Path) -> Optimizer:
    """Apply a log that an `Optimizer` saved to the weights where it began; see `zo_sweeps.session.optimizer.replay`."""
    from zo_sweeps.session import optimizer

    return optimizer.replay(model, path)

"""zo_sweeps: reproduce the papers on zeroth-order fine-tuning of language models, as distributed sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

# These rooms are loaded here, empty as they are, so that the functions below keep their names: importing a submodule
# for the first time writes it over an attribute of the package.
import zo_sweeps.plan
import zo_sweeps.results
import zo_sweeps.run  # noqa: F401

if TYPE_CHECKING:
    from pathlib import Path

    from pandas import DataFrame

__version__ = "0.1.0"


def results(
    grid: str = "quickstart",
    overrides: Sequence[str] = (),
    state_dir: str | Path | None = None,
    config_dirs: Sequence[str] = (),
) -> DataFrame:
    """The trials of a grid as a DataFrame; see `zo_sweeps.results.dataframe.results`."""
    from zo_sweeps.results import dataframe  # what a notebook waits for, `import zo_sweeps` does not

    return dataframe.results(grid, overrides, state_dir, config_dirs)

"""zo_sweeps: reproduce the papers on zeroth-order fine-tuning of language models, as distributed sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

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

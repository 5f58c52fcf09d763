"""The trials of one process that share forwards."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import cast

from zo_sweeps.devices.memory import set_aside
from zo_sweeps.engine.together import Seat, Shareable, Table
from zo_sweeps.engine.types import LanguageModel as Forwards
from zo_sweeps.methods.space import InstalledSpace
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.models.causal import LanguageModel


class Gathering:
    """The trials of one process that share forwards, each in a thread of its own.

    Args:
        trials: how many; all must have the same `warm_key` and `memory_key`.
    """

    def __init__(self, trials: int) -> None:
        self.trials = trials
        self._table = Table(trials)
        set_aside()  # before anything of these trials exists

    def turn(self) -> AbstractContextManager[None]:
        """Hold the baton while a trial runs: one does at a time."""
        return self._table.turn()

    @property
    def gain(self) -> float:
        """How many times faster the forwards were together."""
        return self._table.gain

    def own(self, model: LanguageModel, config: TrialConfig) -> LanguageModel:
        """Return a trial's model, in which its space can be installed; the first prepares the table's."""
        if self._table.host is None:
            host = model.apart()
            space = config.space.install(host.module, list(host.target_modules(config.space.layers)), config.seed)
            self._table.host = host, _shareable(space)
        return model.apart()

    def seat(self, model: LanguageModel, space: InstalledSpace) -> Forwards:
        """Return the model through whose forwards a trial takes part, once its space is installed."""
        return Seat(self._table, model, _shareable(space))


def _shareable(space: InstalledSpace) -> Shareable:
    """Return a space whose definition says that it `shares_forwards`."""
    return cast(Shareable, space)

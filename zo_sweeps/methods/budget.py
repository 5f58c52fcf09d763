"""The caps of a sweep: keys of the run, part of no trial."""

from __future__ import annotations

from dataclasses import dataclass

from zo_sweeps.methods.definition import Checked, option


@dataclass(frozen=True)
class Budget(Checked):
    """Caps on a sweep's trials, over all runs of its command. At one of them it stops, and can be resumed."""

    hours: float | None = option(
        None, "wall-clock hours in which any of the sweep's trials runs; null: no cap", above=0, identity=False
    )
    trials: int | None = option(None, "trials, whatever comes of them; null: no cap", least=1, identity=False)
    joules: float | None = option(
        None, "energy of the trials' steps, as their devices report it; null: no cap", above=0, identity=False
    )
    partial: bool = option(
        False, "true: begin a sweep that is predicted to exceed a cap, and stop it there", identity=False
    )

    @property
    def has_cap(self) -> bool:
        """Whether there is anything to hold."""
        return any(cap is not None for cap in (self.hours, self.trials, self.joules))

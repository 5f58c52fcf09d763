"""The part of a trial before its first step, alone: it fills the cache folder with what the trial needs."""

from __future__ import annotations

from collections.abc import Sequence

from zo_sweeps.core.events import Event
from zo_sweeps.core.trial import Trial
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.run import cache
from zo_sweeps.run.recorder import Nowhere, Recorder
from zo_sweeps.run.workbench import Workbench


def set_up(trial: Trial, journal: Sequence[Event]) -> None:
    """Load a trial's model, install its space and prepare its runtime: computes what the cache folder does not have.

    Raises UserError if they are not those that the journal names, and what loading raises. Cost: as of a trial's start.
    """
    config = TrialConfig.of(trial.config)
    cache.warm = None  # a model that is loaded would not be looked for in the cache folder
    try:
        bench = Workbench(config, trial.warm_key, Recorder(trial, Nowhere(), journal))
        bench.load()
        if config.method.kind.trains:
            space = bench.install()
            try:
                if runtime := config.device.installed_runtime:
                    runtime.prepare(bench, space)
            finally:
                space.uninstall()
    finally:
        cache.warm = None

"""What every document says of a trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zo_sweeps.core.document import key
from zo_sweeps.core.trial import Trial
from zo_sweeps.schedule.ledger import Standing


@dataclass(frozen=True)
class TrialRecord:
    """What every document says of a trial."""

    trial_id: str = key("hash of everything that changes its result")
    label: str = key("its printed name; empty: no record of its sweep is left")
    grid: str = key("name of its grid; empty: not known")
    state: str = key("its state, lower case")
    error: str = key("one line on a failure")
    metrics: Mapping[str, float] = key("measurements, in fractions, bytes, seconds and joules, under MLflow's names")


def recorded(trial: Trial, standing: Standing) -> dict[str, Any]:
    """Return the fields of a TrialRecord, from the ledger."""
    outcome = standing.outcomes.get(trial.trial_id)
    return {
        "trial_id": trial.trial_id,
        "label": trial.label,
        "grid": trial.grid,
        "state": standing.state(trial.trial_id).value.lower(),
        "error": outcome.error if outcome else "",
        "metrics": outcome.metrics if outcome else {},
    }


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of a configuration by their dotted names."""
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            leaves.update(flat(value, f"{prefix}{name}."))
        else:
            leaves[f"{prefix}{name}"] = value
    return leaves

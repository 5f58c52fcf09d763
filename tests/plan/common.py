"""Grids written on the spot, and plans of them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from zo_sweeps.config.composer import Composer
from zo_sweeps.core.trial import Trial
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan.availability import Places
from zo_sweeps.plan.build import Plan, build

PLACES = Places()  # models and rows are looked for once, and their tokens counted, by tests that change none of them
TINY = {  # one row on the demo model and task
    "name": "tiny",
    "fixed": {"model": "demo", "prompt": "mezo", "space": {"targets": ["q", "v"]}},
    "axes": {"task": ["demo_remarks"]},
    "seeds": [0],
    "blocks": {
        "zo": {
            "label": "ZO",
            "fixed": {"method": "prge", "estimator": {"q": 2}, "train": {"steps": 4, "eval_every": 2}},
            "axes": {"update": {"lr": [0.01, 0.1]}},
        }
    },
    "tables": {"accuracy": {"layout": "accuracy", "rows": {"zo": "ZO"}}},
}


def write_grid(folder: Path, grid: dict[str, Any], name: str = "tiny") -> Path:
    """A configuration folder with the grid in it."""
    (folder / "grid").mkdir(parents=True, exist_ok=True)
    text = "# @package grid\n" + yaml.safe_dump(grid, sort_keys=False)
    (folder / "grid" / f"{name}.yaml").write_text(text)
    return folder


def changed(**top: Any) -> dict[str, Any]:
    """TINY with some of its parts replaced."""
    return {**json.loads(json.dumps(TINY)), **top}


def planned(folder: Path, grid: dict[str, Any], *overrides: str) -> Plan:
    return build(Composer(["+grid=tiny", *overrides], [str(write_grid(folder, grid))]))


@cache
def named(grid: str, *overrides: str) -> Plan:
    return build(Composer([f"+grid={grid}", *overrides]), PLACES)


def configs(plan: Plan, block: str = "") -> list[TrialConfig]:
    """The configurations of a plan's trials, or of those that a block asked for first."""
    return [of(trial) for trial in plan.every.values() if block in ("", trial.block)]


def of(trial: Trial) -> TrialConfig:
    return TrialConfig.of(trial.config)


def problem(folder: Path, grid: dict[str, Any], *overrides: str) -> str:
    from zo_sweeps.core.errors import UserError

    with pytest.raises(UserError) as caught:
        planned(folder, grid, *overrides)
    return str(caught.value)

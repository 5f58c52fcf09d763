"""Trials whose models are divided over the GPUs of this host: which, over how many, and what the plan says of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.run.common import SMALL, TINY, make
from zo_sweeps.config.composer import Composer
from zo_sweeps.devices import probe
from zo_sweeps.plan.build import Plan, build
from zo_sweeps.schedule.this_host import for_this_host

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("method", "layers"), [("fo_full", 2), ("fo_full_8bit", 2), ("fo_lora_fa", 0), ("mezo", 0), ("prge", 0)]
)
def test_models_whose_every_weight_is_backpropagated_to_are_divided(method: str, layers: int) -> None:
    assert make(f"method={method}", "update.lr=1e-4").needs.layers == layers


@pytest.mark.parametrize("gpus", [1, 3])
def test_the_plan_says_how_many_gpus_hold_a_trial(gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["+grid=quickstart", "grid.relabel=true", "grid.seeds=[3]", *SMALL, *TINY, "device=auto"]
    left_out = [
        f"~grid.blocks.{name}"
        for name in ("zero_shot", "fo_full", "mezo", "fo_lora_fa", "fo_lora_fa_layerwise", "zo_lora_fa_q1")
    ]
    deep = ["model.arch.num_hidden_layers=8", "method=fo_full", "update.lr=1e-4", "grid.tables={}"]
    plan: Plan = build(Composer([*options, *left_out, *deep]))
    (trial,) = plan.trials
    memory = int(trial.needs.memory_bytes * 0.7)
    here: Any = {**probe.probe(), "profile": "cuda", "gpus": ["GPU"] * gpus, "memory_bytes": memory}
    monkeypatch.setattr(probe, "probe", lambda: here)
    plan = for_this_host(plan)
    texts = plan.reasons[trial.trial_id] if gpus == 1 else plan.remarks[trial.trial_id]
    assert "needs 2 GPUs of one node (about " in texts[-1]
    assert [one.needs.gpus for one in plan.trials] == ([2] if gpus > 1 else [])

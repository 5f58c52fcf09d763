"""Small trials, planned as a user's grid would be, and ways to run them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.plan.common import PLACES
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.events import Event
from zo_sweeps.core.trial import Outcome, Trial
from zo_sweeps.plan.build import build
from zo_sweeps.run.run_trial import run_trial

SMALL = ["split.train=24", "split.dev=8", "split.test=12", "train.batch=4", "train.eval_every=2", "device=cpu"]

SIZES = ("hidden_size=64", "intermediate_size=96", "num_hidden_layers=2")
TINY = ["model=random_llama", *(f"model.arch.{size}" for size in SIZES)]  # a trial takes a third of the demo model's


def make(*overrides: str, folders: Sequence[str] = ()) -> Trial:
    """One trial of the quickstart grid's shape: its first ZO block, and a tiny model, unless others are given."""
    model = () if any(text.startswith("model=") for text in overrides) else TINY
    given = ["+grid=quickstart", "grid.relabel=true", "grid.seeds=[3]", *SMALL, *model, *overrides]
    left_out = [
        f"~grid.blocks.{name}"
        for name in ("zero_shot", "fo_full", "mezo", "fo_lora_fa", "fo_lora_fa_layerwise", "zo_lora_fa_q1")
    ]
    own = any(
        text.startswith(("model=", "data.", "gradients.text=")) for text in overrides
    )  # files that a test may change
    (trial,) = build(Composer([*given, *left_out, "grid.tables={}"], folders), None if own else PLACES).trials
    return trial


class Events(list[Event]):
    """A sink that keeps what it is sent."""

    def emit(self, event: Event) -> None:
        self.append(event)


def run(
    trial: Trial, journal: list[Event] | None = None, stop: Callable[[], bool] = lambda: False, attempt: int = 1
) -> tuple[Outcome, list[Event]]:
    """(outcome, journal after it)."""
    before = list(journal or [])
    events = Events()
    outcome = run_trial(trial, events, list(before), attempt, stop)
    return outcome, [*before, *events]


def measured(outcome: Outcome, journal: list[Event]) -> dict[str, Any]:
    """All that a run found out, without times and places."""
    from zo_sweeps.record.journal import evals, scalars

    scores = {k: v for k, v in outcome.metrics.items() if k.split("/")[0] in ("dev", "test")}
    return {
        "state": outcome.state,
        "selected": outcome.selected_step,
        "steps": outcome.steps_done,
        "scores": scores,
        "log": scalars(journal),
        "evals": {key: (event.loss, event.metric) for key, event in evals(journal).items()},
    }

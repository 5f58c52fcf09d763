"""Small trials, planned as a user's grid would be, and ways to run them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
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

GRID = ["+grid=quickstart", "grid.relabel=true", "grid.seeds=[3]"]
OTHERS = ("zero_shot", "fo_full", "mezo", "fo_lora_fa", "fo_lora_fa_layerwise", "zo_lora_fa_q1")
LEFT_OUT = [*(f"~grid.blocks.{name}" for name in OTHERS), "grid.tables={}"]


def make(*overrides: str, folders: Sequence[str] = ()) -> Trial:
    """One trial of the quickstart grid's shape: its first ZO block, and a tiny model, unless others are given."""
    model = () if any(text.startswith("model=") for text in overrides) else TINY
    own = any(
        text.startswith(("model=", "data.", "gradients.text=")) for text in overrides
    )  # files that a test may change
    (trial,) = build(Composer([*GRID, *SMALL, *model, *overrides, *LEFT_OUT], folders), None if own else PLACES).trials
    return trial


def client_files(folder: Path, clients: int) -> list[str]:
    """A task whose folder has a file of rows for each client, and the overrides for it."""
    texts = [f"{'good' if i % 2 else 'bad'} film number {i}, said one" for i in range(44 + 5 * clients)]
    rows = [{"sentence": text, "label": i % 2} for i, text in enumerate(texts)]
    parts = {"train": rows[:24], "validation": rows[24:32], "test": rows[32:44]}
    parts |= {f"client_{client}": rows[44 + 5 * client : 49 + 5 * client] for client in range(clients)}
    (folder / "sst2").mkdir()
    for name, own in parts.items():
        (folder / "sst2" / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in own))
    return ["task=sst2", f"data.dir={folder}", "method.files=client_"]


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

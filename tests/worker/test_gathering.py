"""Real trials of one process that share forwards: the results of each alone, and what is not its own left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.worker.common import Events, make, measured, run
from zo_sweeps.core.trial import METRICS, Event, Outcome, Stored, Trial, TrialState
from zo_sweeps.engine.together import Pace
from zo_sweeps.run import cache
from zo_sweeps.run.recorder import COSTS
from zo_sweeps.schedule.backend import RUN_TRIAL, Attempt
from zo_sweeps.schedule.fused import run_together

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("one_thread")]
GIVEN = ["method=prge", "estimator.q=2", "train.steps=5", "train.batch=1"]


def trials(*overrides: str) -> list[Trial]:
    """Three trials of one setting, with other seeds and learning rates."""
    return [
        make(*GIVEN, f"grid.seeds=[{seed}]", f"update.lr={lr}", *overrides)
        for seed, lr in ((0, 0.05), (1, 0.02), (2, 0.05))
    ]


def at_once(
    chosen: list[Trial], journals: list[list[Event]] | None = None, stop: Callable[[], bool] = lambda: False
) -> list[tuple[Outcome, list[Event]]]:
    before = journals or [[] for _ in chosen]
    sinks = [Events() for _ in chosen]
    attempts = [Attempt(trial, list(journal), 1) for trial, journal in zip(chosen, before, strict=True)]
    outcomes = run_together(RUN_TRIAL, list(zip(attempts, sinks, strict=True)), stop)
    return [(outcome, [*journal, *sink]) for outcome, journal, sink in zip(outcomes, before, sinks, strict=True)]


@pytest.fixture(autouse=True)
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All forwards that fit into one batch are computed together, also where that is slower."""
    monkeypatch.setattr(Pace, "next_together", property(lambda self: True))
    return


def close(one: tuple[Outcome, list[Event]], other: tuple[Outcome, list[Event]]) -> None:
    """Compare two runs: fp32's rounding in losses, divided by 2 eps in projected gradients."""
    a, b = measured(*one), measured(*other)
    assert (a["state"], a["steps"]) == (b["state"], b["steps"]) == (TrialState.SUCCEEDED, 5)
    (coefs, losses), (others, others_losses) = a["log"], b["log"]
    assert losses == pytest.approx(others_losses, abs=1e-5)
    for line, other_line in zip(coefs, others, strict=True):
        assert line == pytest.approx(other_line, abs=5e-3)
    for key, (loss, _) in a["evals"].items():
        assert loss == pytest.approx(b["evals"][key][0], abs=1e-5)


def test_each_has_the_results_that_it_has_alone_and_no_costs() -> None:
    chosen = trials()
    assert all(trial.shares_forwards for trial in chosen)
    assert len({(trial.warm_key, trial.memory_key) for trial in chosen}) == 1
    ended = at_once(chosen)
    for trial, (outcome, journal) in zip(chosen, ended, strict=True):
        close((outcome, journal), run(trial))
        assert [event["fused"] for event in journal if event["type"] == "start"] == [3]
        assert outcome.metrics["fused_trials"] == 3
        assert not [name for name in outcome.metrics if name.startswith(COSTS)]
        assert all("shared forwards" in outcome.unmeasured[name] for name in COSTS)
        assert {name.partition("/")[0] for name in outcome.metrics} <= {name.partition("/")[0] for name in METRICS}
    assert cache.warm is not None
    assert not cache.warm.dirty


def test_one_that_was_stopped_goes_on_alone_and_says_that_its_costs_are_not_its_own() -> None:
    chosen = trials()
    seen: list[int] = []
    stopped = at_once(chosen, stop=lambda: bool(seen.append(1)) or len(seen) > 6)
    assert {outcome.state for outcome, _ in stopped} == {TrialState.CANCELLED}
    for trial, (_, journal) in zip(chosen, stopped, strict=True):
        outcome, whole = run(trial, [event for event in journal if event["type"] != "end"], attempt=2)
        close((outcome, whole), run(trial))
        assert outcome.metrics["fused_trials"] == 3
        assert "train_seconds" not in outcome.metrics


@pytest.mark.parametrize(
    "overrides",
    [
        ["method=mezo"],
        ["space=vera"],
        ["space=random_subset"],
        ["evaluation.restore=in_place", "evaluation.mode=sequential"],
        ["train.flops=true"],
    ],
)
def test_what_shares_no_forwards_says_so(overrides: list[str]) -> None:
    assert not make(*GIVEN, "update.lr=1e-3", *overrides).shares_forwards


def test_an_error_of_one_is_its_own() -> None:
    chosen = trials()
    first, failed, last = at_once([chosen[0], replace(chosen[1], config=Stored({"seed": 1})), chosen[2]])
    assert failed[0].state is TrialState.FAILED
    close(first, run(chosen[0]))
    close(last, run(chosen[2]))

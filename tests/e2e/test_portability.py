"""One trial in bf16 that begins on an edge device and ends on another machine: a trial is its log of scalars."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.common import zo
from tests.e2e.conftest import FIXED, SMALL
from tests.e2e.drivers import Driver, starts, words
from tests.plan.common import write_grid
from tests.run.common import measured, run
from tests.schedule.nodes import cluster, wait_for
from zo_sweeps.config.composer import Composer
from zo_sweeps.plan.build import build
from zo_sweeps.record.journal import JournalStore, outcome, scalars
from zo_sweeps_tracking import server

pytestmark = [pytest.mark.multiprocess, pytest.mark.chaos]

STEPS = 120
PORTABLE: dict[str, Any] = {
    **SMALL,
    "name": "portable",
    "fixed": {
        **FIXED,
        "precision": "bf16",
        "split": {"train": 32, "dev": 8, "test": 8},
        "train": {"batch": 2, "steps": STEPS, "eval_every": 40},
    },
    "seeds": [0],
    "blocks": {"zo": {"label": "ZO", "fixed": {"method": "prge", "estimator": {"q": 2}, "update": {"lr": 0.03}}}},
    "tables": {"accuracy": {"layout": "accuracy", "rows": {"zo": "ZO"}}},
}


@pytest.fixture(scope="module")
def conf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_grid(tmp_path_factory.mktemp("conf"), PORTABLE, "portable")


@pytest.fixture
def own_tracking(tmp_path: Path) -> Iterator[str]:
    """Each sweep has its own state folder here, and so its own run of the same trial."""
    with contextlib.closing(server.start(tmp_path / "tracking")) as one:
        yield one.uri


@pytest.mark.parametrize("how", ["is lost", "leaves"])
def test_a_bf16_trial_goes_from_an_edge_device_to_another_machine(
    how: str, tmp_path: Path, conf: Path, own_tracking: str
) -> None:
    arguments = ["+grid=portable", "device.kind=cpu"]
    (trial,) = build(Composer(arguments, [str(conf)])).trials
    assert trial.config.to_json()["precision"]["name"] == "bf16"
    with cluster() as nodes:
        edge = nodes.add("edge", "jetson-orin-nano")
        driver = Driver(tmp_path, words("portable", conf, own_tracking), nodes.address, nodes.token)
        journal = JournalStore(driver.state)
        wait_for(lambda: len(scalars(journal.read(trial.trial_id))[0]) > 5, what="steps on the edge device")
        before = scalars(journal.read(trial.trial_id))
        if how == "is lost":
            edge.kill()
        else:
            for actor in edge.actors():
                os.kill(actor, signal.SIGTERM)
        nodes.add("desk")
        assert driver.finish() == 0, driver.log.read_text()

    events = journal.read(trial.trial_id)
    first, second = starts(driver.state, trial.trial_id)
    assert [(e.node, e.profile) for e in (first, second)] == [("edge", "jetson-orin-nano"), ("desk", "cpu")]
    moved_at = second.resumed_from
    assert 5 < len(before[0]) <= moved_at < STEPS, "it moved in the middle"
    assert len(scalars(events[: events.index(second)])[0]) == moved_at, "all that the edge device reported is kept"
    coefficients, losses = scalars(events)
    assert (coefficients[: len(before[0])], losses[: len(before[1])]) == before
    found = outcome(events)
    assert found is not None
    assert measured(found, events) == measured(*run(trial)), "the numbers of a run that nobody disturbed"
    assert [entry.get("blameless", False) for entry in driver.lost()] == [how == "leaves"]

    from mlflow import MlflowClient

    client = MlflowClient(own_tracking)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    (record,) = client.search_runs(experiments, f"tags.`zo.trial_id` = '{trial.trial_id}'")
    curve = client.get_metric_history(record.info.run_id, "train/loss")
    assert sorted(point.step for point in curve) == list(range(1, STEPS + 1)), "one curve, no gap, nothing twice"
    assert [point.value for point in sorted(curve, key=lambda point: point.step)] == losses
    assert record.data.tags["zo.places"] == f"edge (jetson-orin-nano), from step {moved_at} desk (cpu)"
    shown = zo(
        "status", trial.trial_id, *arguments, "--config-dir", str(conf), f"state_dir={driver.state}", cwd=tmp_path
    )
    assert "attempt 1 on edge (jetson-orin-nano), from step 0" in shown.stdout
    assert f"attempt 2 on desk (cpu), from step {moved_at}" in shown.stdout

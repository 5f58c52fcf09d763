"""Events as rows of MLflow: the same events, the same rows, within the limits of the server."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.plan.common import named, of
from tests.record import made_up
from zo_sweeps.core.events import Event, PeersReady, Sensors, SquaredGradients, read_event
from zo_sweeps.core.host import provenance
from zo_sweeps.core.trial import StoredConfig, TrialState
from zo_sweeps_tracking import rows


def curve(points: list[rows.MetricPoint], key: str) -> dict[int, float]:
    found = [(p.step, p.value) for p in points if p.key == key]
    assert len(dict(found)) == len(found), "a step twice"
    return dict(found)


def test_a_short_trial_keeps_every_step() -> None:
    made = made_up.trial(steps=40)
    points = rows.points(made, made_up.whole(made))
    assert list(curve(points, "train/loss")) == list(range(1, 41))
    assert list(curve(points, "dev/accuracy")) == [10, 20, 30, 40]
    assert curve(points, "test/accuracy") == {40: 0.88}
    assert curve(points, "selected/dev_accuracy") == {0: 0.9}
    assert curve(points, "peak_memory_bytes") == {0: 123456789.0}
    assert not curve(points, "diverged")


def test_gradients_that_were_looked_at_are_curves_and_their_last_values_stand_once() -> None:
    made = made_up.trial(steps=4)
    looked = [
        SquaredGradients(
            time=1.0 + step, step=step, shares=(), mean=(), std=(), layers=1, covered={"task_static/0.001": share}
        )
        for step, share in ((0, 0.5), (4, 0.25))
    ]
    *events, end = made_up.whole(made)
    end = replace(end, outcome=replace(end.outcome, metrics={"gradients/task_static/0.001": 0.25}))
    points = rows.points(made, [*looked, *events, end])
    assert curve(points, "gradients/task_static/0.001") == {0: 0.5, 4: 0.25}


def test_what_a_phone_s_sensors_say_is_curves_over_steps() -> None:
    made = made_up.trial(steps=4)
    values = {"battery_celsius": 31.4, "zones/cpu-0": 45200.0}
    reading = Sensors(time=7.5, step=3, values=values)
    points = [point for point in rows.points(made, [reading]) if point.key.startswith("phone/")]
    assert points == [("phone/battery_celsius", 31.4, 7500, 3), ("phone/zones/cpu-0", 45200.0, 7500, 3)]


def test_the_device_of_a_trial_names_a_runtime_other_than_pytorch() -> None:
    device = {"kind": "cpu", "name": "AMD EPYC", "runtime": "torch"}
    named = [
        rows.event_tags([read_event({"type": "start", "time": 1.0, "device": one})])["zo.device"]
        for one in (device, {**device, "runtime": "executorch"})
    ]
    assert named == ["cpu · AMD EPYC", "cpu · AMD EPYC · executorch"]


@pytest.mark.parametrize("steps", [1000, 1001, 20_000])
def test_a_long_trial_is_thinned_to_about_a_thousand_points_whatever_the_chunks(steps: int) -> None:
    made = made_up.trial(steps=steps)
    coarse, fine = (curve(rows.points(made, made_up.whole(made, n)), "train/loss") for n in (steps, 97))
    assert coarse == fine
    assert 490 <= len(coarse) <= 1001
    assert 1 in coarse
    for key in ("train/projected_grad", "train/seconds_per_step"):
        assert len(curve(rows.points(made, made_up.whole(made, 1)), key)) <= 1001


def test_rows_do_not_depend_on_where_the_sending_was_interrupted() -> None:
    made = made_up.trial(steps=60)
    events = made_up.whole(made, chunk=7)
    whole = rows.points(made, events)
    for cut in range(len(events)):
        sent = rows.points(made, events[:cut])
        assert sent + rows.points(made, events)[len(sent) :] == whole


def test_steps_that_a_lost_worker_reports_late_are_passed_over() -> None:
    made = made_up.trial(steps=20)
    late = made_up.steps(made, 5, 10, made_up.BEGAN + 99)
    events = [made_up.steps(made, 1, 10, made_up.BEGAN), late, made_up.steps(made, 11, 20, made_up.BEGAN + 9)]
    assert list(curve(rows.points(made, events), "train/loss")) == list(range(1, 21))


def test_time_runs_through_the_steps_of_an_event() -> None:
    made = made_up.trial(steps=10)
    times = [p.time for p in rows.points(made, [made_up.steps(made, 1, 10, 1000.0)]) if p.key == "train/loss"]
    assert times[-1] == 1_000_000
    assert [b - a for a, b in pairwise(times)] == pytest.approx([100] * 9, abs=1)


def test_no_row_is_ever_infinite_or_nan_and_divergence_is_a_metric() -> None:
    made = made_up.trial(steps=3)
    event = made_up.steps(made, 1, 3, 1000.0)
    event = replace(event, losses=(*event.losses[:2], math.inf), coefs=(event.coefs[0], (math.nan,), event.coefs[2]))
    points = rows.points(made, [event, made_up.end(made, 1001.0, TrialState.DIVERGED, "loss inf at step 3")])
    assert all(math.isfinite(p.value) for p in points)
    assert list(curve(points, "train/loss")) == [1, 2]
    assert curve(points, "diverged") == {0: 1.0}, "a constant: a bar, and no curve of one point"


def test_the_projected_gradient_is_the_mean_size_over_directions() -> None:
    made = made_up.trial(steps=1, q=3)
    event = replace(made_up.steps(made, 1, 1, 1000.0), coefs=((-3.0, 1.0, 2.0),))
    assert curve(rows.points(made, [event]), "train/projected_grad") == {1: 2.0}


@pytest.mark.parametrize(
    ("parts", "line"),
    [
        (("estimator=rge_curved", "perturbation=curvature"), (-3.0, 1.0, 50.0, -60.0)),
        (("estimator=rge_one_sided", "perturbation=agzo", "evaluation.mode=sequential"), (-3.0, 1.0, 7e14)),
    ],
)
def test_the_projected_gradient_leaves_out_what_else_a_line_of_the_log_holds(
    parts: tuple[str, ...], line: tuple[float, ...]
) -> None:
    plan = named("quickstart", "method=mezo", "estimator.q=2", "grid.relabel=true", *parts)
    made = next(iter(plan.every.values()))
    event = replace(made_up.steps(made, 1, 1, 1000.0), coefs=(line,))
    assert curve(rows.points(made, [event]), "train/projected_grad") == {1: 2.0}


def test_dropped_directions_leave_the_curve_to_those_that_came_and_are_tagged() -> None:
    made = made_up.trial(steps=2)
    event = read_event({"type": "steps", "time": 9.0, "first": 1, "losses": [1.0, 1.0], "seconds": 1.0, "tokens": 8})
    coefs = [[-2.0, math.nan, 4.0], [math.nan] * 3]
    assert curve(rows.points(made, [replace(event, coefs=coefs)]), "train/projected_grad") == {1: 3.0}
    end = made_up.end(made, 9.0)
    assert "zo.dropped" not in rows.event_tags([end])
    end = replace(end, outcome=replace(end.outcome, metrics={"directions_dropped": 4.0}))
    tags = rows.event_tags([PeersReady(names=("desk", "nano")), end])
    assert tags["zo.dropped"] == "4 directions of lost or slow peers"
    assert tags["zo.workers"] == "desk, nano"


def test_a_task_scored_by_f1_has_curves_named_so() -> None:
    made = made_up.trial(steps=10)
    config = made.config.to_json()
    task = {**config["task"], "metric": "f1"}
    squad = made.from_json({**made.to_json(), "config": {**config, "task": task}})
    keys = {p.key for p in rows.points(squad, made_up.whole(squad))}
    assert {"dev/f1", "test/f1", "selected/dev_f1"} <= keys
    assert not [key for key in keys if "accuracy" in key]


def test_only_success_is_shown_as_finished() -> None:
    assert [state for state in TrialState if rows.RUN_STATUS[state] == "FINISHED"] == [TrialState.SUCCEEDED]
    assert rows.RUN_STATUS[TrialState.CANCELLED] == rows.RUN_STATUS[TrialState.LOST] == "KILLED"


def test_params_are_flat_names_within_the_servers_limits() -> None:
    params = rows.params(
        StoredConfig({"a": {"b": 1, "c": [1, 2.5], "e": {}}, "t": "x" * 9000, "odd key!": None, "f": 1e-4, "g": True})
    )
    assert params["a.b"] == "1"
    assert params["a.c"] == "[1, 2.5]"
    assert params["a.e"] == "{}"
    assert len(params["t"]) == 6000
    assert (params["odd key_"], params["f"], params["g"]) == ("null", "0.0001", "true")
    assert all(re.fullmatch(r"[\w\-. :/]+", key) for key in params)


def test_a_run_has_the_parameters_that_its_kind_uses() -> None:
    plan = named("quickstart")
    by_kind = {of(trial).method.kind.name: rows.params(trial.config) for trial in plan.every.values()}
    assert not [
        key for key in by_kind["zero_shot"] if key.startswith(("update.", "estimator.", "space.", "train.steps"))
    ]
    assert {"model.name", "precision.name", "train.max_length", "seed"} <= {*by_kind["zero_shot"]}
    assert {"update.lr", "estimator.q", "train.steps"} <= {*by_kind["zo"]}
    assert "update.lr" in by_kind["fo"]
    assert "estimator.q" not in by_kind["fo"]


def test_tags_say_what_and_where_a_trial_is() -> None:
    made = made_up.trial(seed=3)
    tags = rows.trial_tags(made) | rows.event_tags(made_up.whole(made, state=TrialState.FAILED, error="boom"))
    assert tags["zo.trial_id"] == made.trial_id
    assert (tags["zo.seed"], tags["zo.task"], tags["zo.state"]) == ("3", "sst2", "FAILED")
    assert tags["zo.error"] == "boom"
    assert tags["zo.device"] == "cpu · Test CPU"
    assert tags["zo.memory_definition"] == "peak RSS over the baseline"
    assert (tags["zo.model_fingerprint"], tags["zo.data_fingerprint"]) == ("m0de1", "da7a")
    assert "torch 2.13.0" in tags["zo.versions"]


def test_a_later_attempt_clears_the_error_of_an_earlier_one() -> None:
    made = made_up.trial()
    assert rows.event_tags([made_up.start(attempt=2), made_up.end(made, 1.0)])["zo.error"] == ""
    assert "zo.error" not in rows.event_tags(made_up.whole(made))


def test_the_scalar_log_holds_the_run_exactly() -> None:
    made = made_up.trial(steps=12)
    lines = [json.loads(line) for line in rows.scalar_log(made_up.whole(made, chunk=5)).splitlines()]
    original = made_up.steps(made, 1, 12, 0.0)
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert [line["loss"] for line in lines] == [*original.losses]
    assert [line["coefs"] for line in lines] == [*map(list, original.coefs)]


@pytest.mark.multiprocess
def test_provenance_names_code_packages_and_machine_and_nothing_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret_of_the_user")
    found = provenance()
    assert "hf_secret_of_the_user" not in json.dumps(found)
    assert {"python", "zo_sweeps", "torch", "mlflow"} <= found["packages"].keys()
    assert found["git_commit"] is None or re.fullmatch(r"[0-9a-f]{40}", found["git_commit"])
    assert (found["git_dirty"] is None) == (found["git_commit"] is None)
    assert found["ram_bytes"] > 2**28
    assert found["cpu"]
    assert found["hostname"]


def test_a_trial_that_moved_says_where_it_was() -> None:
    def start(node: str, profile: str, step: int) -> Event:
        return read_event({"type": "start", "time": 1.0, "node": node, "profile": profile, "resumed_from": step})

    stayed = [start("nano", "jetson-orin-nano", 0), start("nano", "jetson-orin-nano", 40)]
    assert rows.place_tags(stayed) == {"zo.node": "nano"}
    moved = [*stayed, start("desk", "cpu", 120)]
    assert rows.place_tags(moved) == {
        "zo.node": "desk",
        "zo.places": "nano (jetson-orin-nano), from step 120 desk (cpu)",
    }
    assert rows.place_tags([read_event({"type": "start", "time": 1.0})]) == {}


def test_joules_and_temperature_are_curves_and_why_there_are_none_is_a_tag() -> None:
    made = made_up.trial()
    event = read_event(
        {"type": "steps", "time": 9.0, "first": 1, "losses": [1.0, 0.5], "coefs": [], "seconds": 4.0, "tokens": 8}
    )
    points = {point.key: point for point in rows.points(made, [replace(event, joules=30.0, celsius=61.5)])}
    assert (points["train/joules_per_step"].value, points["train/celsius"].value) == (15.0, 61.5)
    plain = {point.key for point in rows.points(made, [event])}
    assert "train/seconds_per_step" in plain
    assert not plain & {"train/joules_per_step", "train/celsius"}
    *_, end = made_up.whole(made)
    device = {"energy_definition": "RAPL", "condition_definition": "zones"}
    outcome = replace(end.outcome, device=device, unmeasured={"energy/": "for root alone"})
    tags = rows.event_tags([replace(end, outcome=outcome)])
    assert (tags["zo.energy_definition"], tags["zo.condition_definition"]) == ("RAPL", "zones")
    assert tags["zo.unmeasured"] == "energy/: for root alone"

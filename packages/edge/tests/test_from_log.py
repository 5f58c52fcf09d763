"""A trial that is read from a light client's log, without an exported program: the log here is of PyTorch's run."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from built import with_other_last_bits
from tests.run.common import make, measured, run
from zo_sweeps.core.events import ComputedInitial, End, Event, Sensors, Start, Steps, only
from zo_sweeps.core.trial import Outcome, TrialState
from zo_sweeps.engine.replay import digest, rebuild
from zo_sweeps.engine.step import losses_at
from zo_sweeps.record.journal import scalars
from zo_sweeps.run.recorder import Nowhere, Recorder
from zo_sweeps.run.workbench import Workbench
from zo_sweeps_edge import bundle, bundles
from zo_sweeps_edge.program import Calls, Program
from zo_sweeps_edge.rows import Frame
from zo_sweeps_report.metric_meanings import METRICS

pytestmark = [pytest.mark.usefixtures("one_thread")]

TRIAL = [
    *("model=random_llama", "model.arch.hidden_size=64", "model.arch.intermediate_size=96"),
    *("model.arch.num_hidden_layers=2", "method=prge", "update.lr=0.01", "evaluation.mode=both", "estimator.q=2"),
    *("train.steps=4", "train.eval_every=2", "device=auto"),
]
PROGRAM = "device.runtime=executorch"
PLANNED = 12345


@pytest.fixture
def written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> tuple[Path, Outcome, list[Event]]:
    """(a bundle with the log of a whole run, the outcome and the journal of the run in PyTorch)."""
    given = [*TRIAL, *getattr(request, "param", ())]
    file, folder, trial = tmp_path / "program.pte", tmp_path / "bundle", make(*given, PROGRAM)
    file.write_bytes(b"program")

    def program_of(bench: Workbench, space: Any) -> tuple[Program, Path]:
        frame = Frame.of((*bench.splits.train, *bench.splits.dev, *bench.splits.test), bench.objective.gold_only)
        names, shapes = tuple(space.params), tuple(tuple(param.shape) for param in space.params.values())
        return Program(Calls(2, bench.config.evaluation.mode), frame, 4, names, shapes, None, PLANNED), file

    monkeypatch.setattr(bundles, "program_of", program_of)
    bundles.write(trial, "", folder)
    ended, journal = run(make(*given))
    (coefs, _), lines = scalars(journal), []
    bench = Workbench(trial.config, trial.warm_key, Recorder(trial, Nowhere(), []))
    bench.load()

    def losses(step: int) -> list[float]:
        """The losses at the points of a step, by PyTorch."""
        space, method = bench.install(), bench.method()
        try:
            rebuild(method, space, coefs[: step - 1], bench.rates(), seed=trial.config.seed)
            points = method.estimator.points(trial.config.seed, step)
            return losses_at(method, bench.model.module, space, bench.losses(space)(step), points)
        finally:
            space.uninstall()

    def scores(split: str, step: int) -> dict[str, Any]:
        """The line of a split after a step, by PyTorch."""
        space = bench.install()
        try:
            rebuild(bench.method(), space, coefs[:step], bench.rates(), seed=trial.config.seed)
            found = bench.scored(getattr(bench.splits, split)).scores
            theta = b"".join(param.detach().numpy().tobytes() for param in space.params.values())
        finally:
            space.uninstall()
        line = {"type": "scores", "split": split, "step": step, "scores": found, "seconds": 0.1, "peak_bytes": 10**6}
        return {**line, "theta": hashlib.sha256(theta).hexdigest()}

    for step, line in enumerate(coefs, 1):
        lines.append({"type": "step", "step": step, "losses": losses(step), "coefs": line, "seconds": 0.5, "tokens": 8})
        lines += [scores("dev", step)] if step % 2 == 0 else []
    lines.append(scores("test", ended.selected_step))
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder, ended, journal


def test_a_log_gives_the_results_of_the_run_and_what_its_phone_said(
    written: tuple[Path, Outcome, list[Event]],
) -> None:
    folder, torchs, expected = written
    readings = [
        {"time": 100.0, "step": 0, "battery_percent": 81, "battery_celsius": 31.4, "zones": {"cpu-0": 45200}},
        {"time": 110.0, "step": 2, "battery_percent": 79, "battery_celsius": 33.0, "zones": {}},
    ]
    lines = [json.dumps(reading) + "\n" for reading in readings]
    (folder / "phone.jsonl").write_text(lines[0] + "torn {\n" + lines[1])
    log = folder / "log.jsonl"
    first, *others = log.read_text().splitlines(keepends=True)
    asked = {"type": "scores", "split": "dev", "step": 1, "scores": [], "seconds": 0.1}  # --score dev --at 1
    log.write_text("".join([first, json.dumps(asked) + "\n", *others]))
    trial = make(*TRIAL, PROGRAM, f"device.log={folder}")
    ended, journal = run(trial)
    assert ended.state is TrialState.SUCCEEDED, ended.traceback
    found, reference = measured(ended, journal), measured(torchs, expected)
    for name in ("state", "selected", "steps", "log"):
        assert found[name] == reference[name]
    assert found["scores"] == pytest.approx(reference["scores"])

    sensed = [event for event in journal if isinstance(event, Sensors)]
    assert [(event.time, event.step) for event in sensed] == [(100.0, 0), (110.0, 2)]
    assert sensed[0].values == {"battery_percent": 81.0, "battery_celsius": 31.4, "zones/cpu-0": 45200.0}
    metrics = ended.metrics
    assert (metrics["battery_percent"], metrics["battery_celsius"]) == (79.0, 33.0)
    assert (metrics["program_bytes"], metrics["planned_bytes"]) == (len(b"program"), PLANNED)
    assert metrics["peak_memory_bytes"] == 10**6
    assert metrics["trainable_parameters"] == torchs.metrics["trainable_parameters"]
    assert {name for name in metrics if not name.startswith(("dev/", "test/"))} <= {*METRICS}

    again, journal = run(trial, [event for event in journal if not isinstance(event, End)], attempt=2)
    assert sum(isinstance(event, Sensors) for event in journal) == 2, "a reading is recorded once"
    assert again.metrics["battery_percent"] == 79.0
    stopped, _ = run(trial, stop=lambda: True)
    assert (stopped.state, stopped.steps_done) == (TrialState.CANCELLED, 1)


def test_test_scores_that_are_no_numbers_are_a_result_only_at_the_selected_step(
    written: tuple[Path, Outcome, list[Event]],
) -> None:
    folder, torchs, _ = written
    log, best = folder / "log.jsonl", torchs.selected_step
    *whole, _ = log.read_text().splitlines(keepends=True)
    nan = json.dumps({"type": "diverged", "step": 1, "split": "test"}) + "\n"
    log.write_text("".join([*whole, nan]))
    ended, _ = run(make(*TRIAL, PROGRAM, f"device.log={folder}"))
    assert ended.state is TrialState.FAILED
    assert f"the log has no scores of the test split at step {best}" in ended.error
    log.write_text("".join([*whole, nan.replace('"step": 1', f'"step": {best}')]))
    ended, _ = run(make(*TRIAL, PROGRAM, f"device.log={folder}"))
    assert ended.state is TrialState.DIVERGED
    assert f"non-finite test loss at step {best}" in ended.error


def test_a_log_that_is_not_the_trials_is_refused_in_each_attempt(written: tuple[Path, Outcome, list[Event]]) -> None:
    folder, _, expected = written
    log, trial = folder / "log.jsonl", make(*TRIAL, PROGRAM, f"device.log={folder}")
    whole = [json.loads(line) for line in log.read_text().splitlines()]
    first, second, dev, *rest = whole
    another = {"type": "start", "settings": "0" * 64, "trial_id": "another"}
    cases: list[tuple[list[Any], str, int]] = [  # lines, error, steps that are kept
        (
            [{**first, "losses": [first["losses"][0] + 1e-3, *first["losses"][1:]]}, *whole[1:]],
            "a loss of step 1 is",
            0,
        ),
        ([first, {**second, "losses": [1.5 * x for x in second["losses"]]}, dev, *rest], "a loss of step 2 is", 1),
        ([{**first, "losses": first["losses"][1:]}, *whole[1:]], "has 3 losses instead of 4", 0),
        ([another, *whole], "the log is of another bundle, of trial another", 0),
        ([*whole, {**second, "step": 5}], "goes from step 4 of 4 to step 5", 4),
        ([first, {"type": "step", "step": 2}, dev, *rest], "cannot be read (KeyError: 'losses')", 1),
        ([first, second, {**dev, "scores": dev["scores"][1:]}], "scores of 7 rows instead of 8", 2),
    ]
    for lines, said, kept in cases:
        log.write_text("".join(json.dumps(line) + "\n" for line in lines))
        journal: list[Event] = []
        for attempt in (1, 2):
            ended, journal = run(trial, journal, attempt=attempt)
            assert (ended.state, ended.traceback) == (TrialState.FAILED, ""), said
            assert said in ended.error
            assert len(scalars(journal)[0]) == kept, said
    log.write_text("".join(json.dumps(line) + "\n" for line in whole))
    start, steps = next(iter(only(Start, expected))), next(iter(only(Steps, expected)))
    assert steps.coefs is not None
    other = replace(steps, losses=steps.losses[:1], coefs=(tuple(2 * g for g in steps.coefs[0]),))
    ended, _ = run(trial, [start, other], attempt=2)
    assert "step 1 in the trial's journal is of another run than the light client's log" in ended.error
    assert f"--rerun {trial.trial_id}" in ended.error


def test_a_client_that_is_not_there_is_refused_before_the_export() -> None:
    ended, _ = run(make(*TRIAL[:-1], "device=oneplus-12", "device.client=/nonexistent"))
    assert (ended.state, ended.traceback) == (TrialState.FAILED, "")
    assert "device.client: no file /nonexistent; build it" in ended.error


def test_a_log_of_another_theta_is_refused(written: tuple[Path, Outcome, list[Event]]) -> None:
    folder, *_ = written
    log = folder / "log.jsonl"
    *lines, last = log.read_text().splitlines(keepends=True)
    log.write_text("".join([*lines, json.dumps({**json.loads(last), "theta": "0" * 64}) + "\n"]))
    ended, _ = run(make(*TRIAL, PROGRAM, f"device.log={folder}"))
    assert "are not those that its log gives" in ended.error


@pytest.mark.parametrize("written", [("space=prefix",)], indirect=True, ids=["prefix"])
def test_a_log_is_read_where_initial_values_are_computed_with_other_last_bits(
    written: tuple[Path, Outcome, list[Event]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in test_client_trial.py, where the light client computes the log."""
    folder, torchs, expected = written
    with_other_last_bits(monkeypatch)
    ended, journal = run(make(*TRIAL, "space=prefix", PROGRAM, f"device.log={folder}"))
    assert ended.state is TrialState.SUCCEEDED, ended.error
    assert ended.metrics["theta_difference"] == 0
    assert scalars(journal)[0] == scalars(expected)[0]
    assert ended.metrics["test/metric"] == torchs.metrics["test/metric"]
    began = bundle.read(folder).initial
    assert began is not None
    (event,) = (event for event in journal if isinstance(event, ComputedInitial))
    assert event.fingerprint == digest({name: torch.from_numpy(value) for name, value in began.items()})

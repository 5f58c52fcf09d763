from __future__ import annotations

import dataclasses
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.schedule import fakes
from tests.schedule.driver import TARGET, sweep
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import End, Steps
from zo_sweeps.core.trial import Outcome, StoredConfig, TrialState
from zo_sweeps.plan.build import build
from zo_sweeps.record.journal import JournalStore, scalars
from zo_sweeps.schedule.backend import Finished, Lost, Progress
from zo_sweeps.schedule.executors.inline import InlineBackend
from zo_sweeps.schedule.ledger import Ledger, read_standing
from zo_sweeps.schedule.snapshot import Summary
from zo_sweeps.schedule.sweep import Sweep
from zo_sweeps.session.session import Result

REPOSITORY = Path(__file__).parents[2]


def results(state: Path) -> dict[str, tuple]:
    standing = read_standing(state)
    return {name: (o.state, dict(o.metrics), o.steps_done) for name, o in standing.outcomes.items()}


@pytest.fixture
def undisturbed(tmp_path):
    """Outcomes of a plan run in one go, somewhere else."""

    def run(plan):
        state = tmp_path / "undisturbed"
        config = {"folder": str(tmp_path / "elsewhere"), "pause": 0}
        sweep(state, [dataclasses.replace(t, config=StoredConfig({**t.config.to_json(), **config})) for t in plan])
        return results(state)

    return run


def test_each_trial_runs_once_and_the_same_command_again_runs_nothing(tmp_path):
    plan = fakes.trials(tmp_path / "w", 6)
    first = sweep(tmp_path, plan)
    assert (first.counts, first.ran, first.already_done) == ({TrialState.SUCCEEDED: 6}, 6, 0)
    again = sweep(tmp_path, plan)
    assert (again.counts, again.ran, again.already_done) == ({TrialState.SUCCEEDED: 6}, 0, 6)
    grown = sweep(tmp_path, [*fakes.trials(tmp_path / "w", 8), plan[0]])
    assert (grown.ran, grown.already_done) == (2, 6)
    assert set(fakes.completions(tmp_path / "w", [t.trial_id for t in plan]).values()) == {1}


def test_a_warning_of_a_trial_is_said_once_per_sweep(tmp_path):
    said = []
    plan = [fakes.trial(tmp_path / "w", "a", warns=["x"]), fakes.trial(tmp_path / "w", "b", warns=["x", "y"])]
    sweep(tmp_path, plan, say=said.append)
    warned = [line for line in said if "poor" in line]
    assert [line.partition(" (")[0] for line in warned] == ["a: poor x", "b: poor y"]


def test_nothing_to_run_starts_no_backend(tmp_path):
    plan = fakes.trials(tmp_path / "w", 1)
    sweep(tmp_path, plan)

    class Unstartable(InlineBackend):
        def start(self, deliver, trials):
            raise AssertionError("started")

    assert sweep(tmp_path, plan, Unstartable()).already_done == 1


def test_diverged_and_out_of_memory_are_results_that_are_not_retried(tmp_path):
    plan = [fakes.trial(tmp_path / "w", "a", ends="DIVERGED"), fakes.trial(tmp_path / "w", "b", ends="OUT_OF_MEMORY")]
    assert sweep(tmp_path, plan).counts == {TrialState.DIVERGED: 1, TrialState.OUT_OF_MEMORY: 1}
    assert sweep(tmp_path, plan).ran == 0
    assert fakes.completions(tmp_path / "w", "ab") == {"a": 1, "b": 1}


def test_an_error_is_retried_once_from_the_journals_scalars(tmp_path, undisturbed):
    plan = [fakes.trial(tmp_path / "w", "a", raises=[1])]
    assert sweep(tmp_path, plan).counts == {TrialState.SUCCEEDED: 1}
    starts = [line.split(" pid")[0] for line in fakes.log_of(tmp_path / "w", "a") if line.startswith("start")]
    assert starts == ["start attempt=1 from=0", "start attempt=2 from=2"]
    whole = fakes.trial(tmp_path / "w", "a")
    assert results(tmp_path) == undisturbed([whole])


@pytest.mark.parametrize("poison", ["raises", "leaves"])
def test_a_poisoned_trial_ends_after_its_bound_and_never_stops_the_rest(tmp_path, poison):
    plan = fakes.trials(tmp_path / "w", 4)
    plan.insert(0, fakes.trial(tmp_path / "w", "bad", **{poison: list(range(99))}))
    summary = sweep(tmp_path, plan)
    assert summary.counts == {TrialState.SUCCEEDED: 4, TrialState.FAILED: 1}
    assert len(fakes.log_of(tmp_path / "w", "bad")) == 2
    standing = read_standing(tmp_path)
    assert "\n" not in standing.outcomes["bad"].error
    assert ("poisoned bad" in standing.outcomes["bad"].error) == (poison == "raises")
    end = JournalStore(tmp_path).read("bad")[-1]
    assert isinstance(end, End)
    assert "Traceback" in end.outcome.traceback
    assert sweep(tmp_path, plan).ran == 0  # spent: only by request


def test_the_bound_on_retries_holds_across_drivers(tmp_path):
    plan = [fakes.trial(tmp_path / "w", "bad", raises=list(range(99)))]
    sweep(tmp_path, plan, retries_failed=0)
    assert read_standing(tmp_path).failures == {"bad": 1}
    sweep(tmp_path, plan, retries_failed=2)
    assert read_standing(tmp_path).failures == {"bad": 3}


def test_rerun_failed_goes_on_from_the_journal_and_leaves_results_alone(tmp_path):
    plan = [fakes.trial(tmp_path / "w", "good"), fakes.trial(tmp_path / "w", "bad", raises=[1, 2])]
    assert sweep(tmp_path, plan).counts[TrialState.FAILED] == 1
    summary = sweep(tmp_path, plan, rerun=frozenset({"failed"}))
    assert (summary.counts, summary.ran) == ({TrialState.SUCCEEDED: 2}, 1)
    assert fakes.log_of(tmp_path / "w", "bad")[2].startswith("start attempt=3 from=2")
    assert fakes.completions(tmp_path / "w", ["good"]) == {"good": 1}


def test_rerun_of_a_trial_starts_from_nothing_and_keeps_the_old_journal_aside(tmp_path):
    plan = fakes.trials(tmp_path / "w", 2)
    sweep(tmp_path, plan)
    before = results(tmp_path)
    assert sweep(tmp_path, plan, rerun=frozenset({"t001"})).ran == 1
    assert fakes.log_of(tmp_path / "w", "t001")[2].startswith("start attempt=2 from=0")
    assert fakes.completions(tmp_path / "w", ["t000", "t001"]) == {"t000": 1, "t001": 2}
    assert len(list(tmp_path.glob("journal/*/t001*"))) == 2
    assert len([e for e in JournalStore(tmp_path).read("t001") if isinstance(e, Steps)]) == 5
    assert results(tmp_path) == before


def test_an_unknown_rerun_name_is_refused_with_the_likely_one(tmp_path):
    with pytest.raises(UserError, match="did you mean 'failed'"):
        sweep(tmp_path, fakes.trials(tmp_path / "w", 1), rerun=frozenset({"faild"}))


def test_five_equal_errors_and_no_result_stop_the_launching_and_say_so(tmp_path):
    plan = fakes.trials(tmp_path / "w", 40, raises=list(range(99)))
    said: list[str] = []
    summary = sweep(tmp_path, plan, say=said.append)
    assert sum(bool(fakes.log_of(tmp_path / "w", t.trial_id)) for t in plan) == 5
    assert "poisoned" in summary.stopped
    assert said == ["40 trials to run on this process, one at a time", summary.stopped]
    assert summary.counts[TrialState.PENDING] == 40  # five of them have a retry left


def test_a_row_whose_first_three_trials_fail_in_the_same_way_waits_and_the_others_go_on(tmp_path):
    bad = [fakes.trial(tmp_path / "w", f"b{i}", row="bad", raises=[1, 2]) for i in range(6)]
    good = [fakes.trial(tmp_path / "w", f"g{i}", row="good") for i in range(2)]
    said: list[str] = []
    summary = sweep(tmp_path, [*bad, *good], rows={"bad": "LOZO"}, say=said.append)
    assert summary.counts == {TrialState.SUCCEEDED: 2, TrialState.FAILED: 3, TrialState.PENDING: 3}
    assert [*summary.stopped_rows] == ["LOZO"]
    assert not summary.stopped
    assert said[1:] == [summary.stopped_rows["LOZO"]]
    assert "the first 3 trials of the row LOZO failed in the same way, so its other 3 wait" in said[1]
    assert read_standing(tmp_path).held == dict.fromkeys(["b3", "b4", "b5"], said[1])
    again = sweep(tmp_path, [*bad, *good])
    assert (again.ran, again.counts[TrialState.FAILED]) == (3, 6), "the same command tries the others"
    assert read_standing(tmp_path).held == {}


def test_a_result_of_its_row_takes_the_trials_of_a_stopped_row_up_again(tmp_path):
    plan = [fakes.trial(tmp_path / "w", f"b{i}", row="bad", raises=[1]) for i in range(3)]
    plan += [fakes.trial(tmp_path / "w", f"b{i}", row="bad") for i in range(3, 6)]
    summary = sweep(tmp_path, plan)  # the retries succeed
    assert (summary.counts, summary.stopped_rows) == ({TrialState.SUCCEEDED: 6}, {})
    assert read_standing(tmp_path).held == {}


def test_rounds_are_run_one_after_the_other_and_a_round_keeps_the_trials_of_a_model_together(tmp_path):
    plan = [fakes.trial(tmp_path / "w", f"{warm}{i}", warm=warm) for i in range(3) for warm in "xy"]
    order: list[str] = []
    note = lambda s: order.append(s.ended[0].trial_id) if s.ended else None
    sweep(tmp_path, plan, rounds={t.trial_id: (2 - int(t.trial_id[1])) // 2 for t in plan}, on_update=note)
    assert order == ["x1", "x2", "y1", "y2", "y0", "x0"]


def test_a_single_result_proves_that_the_sweep_is_sound(tmp_path):
    plan = [fakes.trial(tmp_path / "w", "good"), *fakes.trials(tmp_path / "w", 9, raises=list(range(99)))]
    summary = sweep(tmp_path, plan)
    assert summary.counts == {TrialState.SUCCEEDED: 1, TrialState.FAILED: 9}
    assert not summary.stopped


def test_a_damaged_journal_fails_its_own_trial_only(tmp_path):
    plan = fakes.trials(tmp_path / "w", 3)
    path = JournalStore(tmp_path).path("t001")
    path.parent.mkdir(parents=True)
    path.write_text("not json\n")
    assert sweep(tmp_path, plan).counts == {TrialState.SUCCEEDED: 2, TrialState.FAILED: 1}
    assert f"{path}:1" in read_standing(tmp_path).outcomes["t001"].error


def test_a_result_that_only_reached_the_journal_is_taken_from_there(tmp_path):
    plan = fakes.trials(tmp_path / "w", 3)
    sweep(tmp_path, plan)
    before = results(tmp_path)
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[:-1]))  # killed before the last line
    summary = sweep(tmp_path, plan)
    assert (summary.ran, summary.already_done) == (1, 2)
    assert results(tmp_path) == before
    assert set(fakes.completions(tmp_path / "w", [t.trial_id for t in plan]).values()) == {1}


def test_the_retry_of_an_error_waits_behind_trials_that_have_not_run(tmp_path):
    plan = [fakes.trial(tmp_path / "w", "bad", raises=[1]), *fakes.trials(tmp_path / "w", 2)]
    order: list[str] = []
    sweep(tmp_path, plan, on_update=lambda s: order.append(s.ended[0].trial_id) if s.ended else None)
    assert order == ["t000", "t001", "bad"]


def test_snapshots_add_up_and_the_eta_counts_only_what_this_run_did(tmp_path):
    plan = fakes.trials(tmp_path / "w", 4)
    sweep(tmp_path, plan[:3])
    snapshots = []
    sweep(tmp_path, plan, on_update=snapshots.append)
    assert {sum(s.counts.values()) for s in snapshots} == {4}
    assert (snapshots[0].cost_done, snapshots[0].cost_this_run, snapshots[0].eta_seconds) == (15, 0, None)
    assert (snapshots[-1].cost_done, snapshots[-1].cost_this_run, snapshots[-1].eta_seconds) == (20, 5, 0)
    assert [s.cost_done for s in snapshots] == sorted(s.cost_done for s in snapshots)
    assert sum(n for state, n in snapshots[-1].counts.items() if state.is_result) == 4


def test_a_full_disk_ends_the_sweep_as_such_and_not_as_a_failed_trial(tmp_path):
    class Full(JournalStore):
        def append(self, trial_id, events):
            raise UserError("cannot write the journal: no space left on device")

    with Ledger(tmp_path) as ledger, pytest.raises(UserError, match="no space left"):
        Sweep(fakes.trials(tmp_path / "w", 3), InlineBackend(TARGET, threads=0), Full(tmp_path), ledger).run()
    assert not read_standing(tmp_path).failures


@pytest.mark.multiprocess
def test_a_disk_that_is_full_stops_the_sweep_and_with_room_the_same_command_ends_it(tmp_path, undisturbed):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("may not mount a file system here; the limits of single files are tested in test_ledger")
    try:
        plan = fakes.trials(tmp_path / "w", 6, steps=600)
        with pytest.raises(UserError, match=r"cannot write the (journal|ledger).*[Nn]o space left"):
            sweep(disk, plan)
        standing = read_standing(disk)
        assert 0 < len(standing.outcomes) < 6
        assert not standing.failures
        subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
        summary = sweep(disk, plan)
        assert (summary.counts, summary.already_done) == ({TrialState.SUCCEEDED: 6}, len(standing.outcomes))
        assert results(disk) == undisturbed(plan)
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_trial_that_was_handed_back_may_be_so_more_often_than_it_may_be_lost(tmp_path):
    back = [[Lost("a", n, "handed back", blameless=True)] for n in range(1, 6)]
    backend = Scripted([*back, [Lost("a", 6, "gone")], [Finished("a", 7, Outcome("a", TrialState.SUCCEEDED))]])
    summary = sweep(tmp_path, [fakes.trial(tmp_path / "w", "a")], backend, retries_lost=1)
    assert summary.counts == {TrialState.SUCCEEDED: 1}
    assert read_standing(tmp_path).losses == {"a": 1}


class Scripted(InlineBackend):
    """A backend whose reports the test writes."""

    def __init__(self, script):
        super().__init__()
        self.script, self.submitted = list(script), []

    def fit(self, trial):
        return 0 if len(self.submitted) > 0 and self.busy else 1

    busy = False

    def submit(self, trial, journal, attempt):
        self.submitted.append((trial.trial_id, attempt, len(journal)))
        self.busy = True
        return "node"

    def poll(self, timeout, left):
        self.busy = False
        for report in self.script.pop(0):
            self._deliver(report)


@pytest.mark.parametrize(("row", "again"), [("mezo", 2), ("fo_full", 4)])
def test_the_eta_of_a_resumed_trial_counts_the_steps_that_are_run_again(tmp_path, row, again):
    every = build(Composer(["+grid=quickstart"])).every.values()
    config = next(trial.config for trial in every if trial.block == row)
    trial = dataclasses.replace(fakes.trial(tmp_path, "a", steps=4), config=config)
    steps = [Steps(first=i, losses=(1.0,), coefs=((1.0,),), seconds=0.0, tokens=0) for i in range(1, 5)]
    JournalStore(tmp_path).append("a", steps[:2])
    backend = Scripted([[Progress("a", 1, steps[2:3])], [Finished("a", 1, Outcome("a", TrialState.SUCCEEDED))]])
    snapshots = []
    sweep(tmp_path, [trial], backend, on_update=snapshots.append)
    assert (snapshots[-1].cost_done, snapshots[-1].cost_this_run) == (4, again)


def test_late_and_doubled_reports_change_nothing(tmp_path):
    good, bad = Outcome("a", TrialState.SUCCEEDED, {"dev/metric": 1.0}), Outcome("a", TrialState.SUCCEEDED)
    event = Steps(first=1, losses=(1.0,), coefs=((1.0,),), seconds=0.0, tokens=0)
    backend = Scripted(
        [
            [Lost("a", 1, "gone")],
            [
                Progress("a", 1, [event]),
                Finished("a", 1, bad),
                Finished("b", 1, bad),
                Finished("a", 2, good),
                Finished("a", 2, bad),
            ],
        ]
    )
    summary = sweep(tmp_path, [fakes.trial(tmp_path / "w", "a")], backend)
    assert summary.counts == {TrialState.SUCCEEDED: 1}
    assert read_standing(tmp_path).outcomes["a"].metrics == {"dev/metric": 1.0}
    assert JournalStore(tmp_path).read("a") == []
    assert backend.submitted == [("a", 1, 0), ("a", 2, 0)]


def test_a_trial_that_kills_every_process_is_lost_after_its_bound_and_its_journal_says_so(tmp_path):
    backend = Scripted([[Lost("a", n, "gone")] for n in range(1, 5)])
    summary = sweep(tmp_path, [fakes.trial(tmp_path / "w", "a")], backend, retries_lost=3)
    assert summary.counts == {TrialState.LOST: 1}
    assert len(backend.submitted) == 4
    assert JournalStore(tmp_path).read("a")[-1].outcome.error == "gone"


def test_a_worker_that_cancels_by_itself_hands_its_trial_back(tmp_path):
    cancelled = Finished("a", 1, Outcome("a", TrialState.CANCELLED))
    backend = Scripted([[cancelled], [Finished("a", 2, Outcome("a", TrialState.SUCCEEDED))]])
    assert sweep(tmp_path, [fakes.trial(tmp_path / "w", "a")], backend).counts == {TrialState.SUCCEEDED: 1}


def start_driver(state: Path, backend: str, plan) -> subprocess.Popen[str]:
    (state / "plan.json").write_text(json.dumps([t.to_json() for t in plan]))
    command = [sys.executable, "-m", "tests.schedule.driver", str(state), backend, str(state / "plan.json")]
    driver = subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    assert driver.stdout is not None
    while (line := driver.stdout.readline()) != "ready\n":
        assert line, "the driver died"
    return driver


def wait_for(condition, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


@pytest.mark.multiprocess
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_at_the_next_step_and_the_same_command_goes_on_from_it(tmp_path, number, undisturbed):
    plan = fakes.trials(tmp_path / "w", 4, pause=0.05, steps=12)
    driver = start_driver(tmp_path, "inline", plan)
    wait_for(lambda: fakes.log_of(tmp_path / "w", "t001"))
    time.sleep(0.2)
    driver.send_signal(number)
    output, _ = driver.communicate(timeout=20)
    assert driver.returncode == 130
    assert output.count("stopping after the current step of 1 running trial;") == 1
    assert read_standing(tmp_path).states["t001"] is TrialState.CANCELLED
    done = len(scalars(JournalStore(tmp_path).read("t001"))[1])
    assert 0 < done < 12
    summary = sweep(tmp_path, plan)
    assert (summary.already_done, summary.ran) == (1, 3)
    assert f"start attempt=2 from={done} " in fakes.log_of(tmp_path / "w", "t001")[2]
    assert results(tmp_path) == undisturbed(plan)


def test_a_signal_while_the_backend_starts_waits_for_it_and_nothing_runs(tmp_path, capfd):
    """Ray's start is no place for an exception: it left tracebacks, and once a segmentation fault."""

    class Starting(InlineBackend):
        def start(self, deliver, trials):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)  # the handler runs here
            super().start(deliver, trials)

    summary = sweep(tmp_path, fakes.trials(tmp_path / "w", 2), Starting(TARGET))
    assert (summary.interrupted, summary.counts) == (True, {TrialState.PENDING: 2})
    assert "as soon as it has started" in capfd.readouterr().err


@pytest.mark.multiprocess
def test_a_second_signal_ends_it_at_once(tmp_path):
    plan = fakes.trials(tmp_path / "w", 1, pause=30, steps=2)
    driver = start_driver(tmp_path, "inline", plan)
    wait_for(lambda: fakes.log_of(tmp_path / "w", "t000"))
    os.kill(driver.pid, signal.SIGINT)
    time.sleep(0.3)
    os.kill(driver.pid, signal.SIGINT)
    driver.communicate(timeout=5)
    assert sweep(tmp_path, fakes.trials(tmp_path / "w", 1)).counts == {TrialState.SUCCEEDED: 1}


@pytest.mark.multiprocess
def test_a_driver_killed_at_random_moments_repeats_no_finished_trial_and_ends_with_the_same_outcomes(
    tmp_path, undisturbed
):
    plan = fakes.trials(tmp_path / "w", 10, pause=0.02, steps=10)
    plan[3] = fakes.trial(tmp_path / "w", "t003", pause=0.02, steps=10, raises=[1])
    chance = random.Random(3)
    executions: dict[str, int] = {}  # of trials that had a result when the driver was killed
    for _ in range(4):
        driver = start_driver(tmp_path, "inline", plan)
        time.sleep(chance.uniform(0.1, 0.9))
        driver.kill()
        driver.communicate()
        finished = [name for name, state in read_standing(tmp_path).states.items() if state.is_result]
        executions |= {k: v for k, v in fakes.completions(tmp_path / "w", finished).items() if k not in executions}
    summary = sweep(tmp_path, plan)
    assert summary.counts == {TrialState.SUCCEEDED: 10}
    assert summary.already_done == len(executions) > 0
    assert fakes.completions(tmp_path / "w", executions) == executions
    assert results(tmp_path) == undisturbed(plan)


@pytest.mark.multiprocess
def test_the_loop_imports_without_the_heavy_libraries():
    program = (
        "import sys, zo_sweeps.schedule.sweep, zo_sweeps_ray.executor;"
        "print([m for m in ('torch', 'ray', 'mlflow', 'transformers', 'hydra', 'datasets') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, -1.0, 2.0**53])
def test_numbers_that_a_node_makes_up_end_no_sweep(tmp_path, number):
    """Every measurement of a trial, and the numbers of its log: the next trial is placed, predicted and run."""
    from zo_sweeps.core.trial import Needs
    from zo_sweeps_report.metric_meanings import METRICS

    names = [*METRICS, "energy/joules", "wall_seconds", "load_seconds"]
    spent = {"seconds": 2.0**40, "tokens": 2**53, "joules": 2.0**40}
    steps = Steps(time=1.0, first=2**53, losses=(number,), coefs=((number,),), **spent)
    made_up = Outcome("a", TrialState.SUCCEEDED, dict.fromkeys(names, number), 2**53, 2**53)
    script = [[Progress("a", 1, [steps])]]
    script += [[Finished("a", 1, made_up)], [Finished("b", 1, Outcome("b", TrialState.SUCCEEDED))]]
    plan = [dataclasses.replace(fakes.trial(tmp_path / "w", one, needs=Needs()), memory_key="m") for one in "ab"]
    assert sweep(tmp_path, plan, Scripted(script)).counts == {TrialState.SUCCEEDED: 2}


@pytest.mark.parametrize(
    ("left", "says", "status"),
    [
        ({}, {}, "FINISHED"),
        ({TrialState.DIVERGED: 1}, {}, "FINISHED"),
        ({TrialState.FAILED: 1}, {}, "FAILED"),
        ({TrialState.PENDING: 1}, {}, "FAILED"),
        ({TrialState.PENDING: 1}, {"over": "2 GPU hours"}, "KILLED"),
    ],
)
def test_a_sweep_that_ends_with_trials_to_run_has_not_finished(left, says, status, tmp_path):
    summary = Summary({TrialState.SUCCEEDED: 1, **left}, 0, 1, False, **says)
    assert Result((), summary, 1.0, tmp_path, "").status == status

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys

import pytest

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.trial import Outcome, TrialState
from zo_sweeps.schedule.ledger import Ledger, driver_of, read_standing

DONE = Outcome(
    "a", TrialState.SUCCEEDED, {"dev/metric": 0.1 + 0.2, "dev/loss": 1e-9}, 7, 9, {"kind": "cpu"}, traceback="T"
)


def test_what_was_written_is_read_back_exactly(tmp_path):
    with Ledger(tmp_path, "sweep") as ledger:
        ledger.write("a", TrialState.RUNNING, attempt=1)
        ledger.write(
            "a", TrialState.FAILED, attempt=1, error="boom", outcome=Outcome("a", TrialState.FAILED, error="boom")
        )
        ledger.write("a", TrialState.RUNNING, attempt=2)
        ledger.write("a", TrialState.SUCCEEDED, attempt=2, node="n1", outcome=DONE)
        live = (ledger.states, ledger.attempts, ledger.failures, ledger.outcomes["a"].metrics)
    with Ledger(tmp_path) as ledger:
        assert (ledger.states, ledger.attempts, ledger.failures, ledger.outcomes["a"].metrics) == live
        assert ledger.outcomes["a"].to_json() == {**DONE.to_json(), "traceback": ""}  # that is in the journal
    entry = json.loads((tmp_path / "ledger.jsonl").read_text().splitlines()[-1])
    assert (entry["sweep_id"], entry["node"]) == ("sweep", "n1")


def test_running_without_a_driver_is_pending_and_no_failure(tmp_path):
    with Ledger(tmp_path) as ledger:
        ledger.write("a", TrialState.RUNNING, attempt=1)
    assert read_standing(tmp_path).states == {"a": TrialState.RUNNING}
    with Ledger(tmp_path) as ledger:
        assert ledger.states == {"a": TrialState.PENDING}
        assert ledger.attempts == {"a": 1}
        assert not ledger.failures
        assert not ledger.losses


def test_a_reset_voids_counts_and_outcome_but_not_the_number_of_attempts(tmp_path):
    with Ledger(tmp_path) as ledger:
        ledger.write("a", TrialState.LOST, attempt=1, outcome=Outcome("a", TrialState.LOST))
        ledger.write("a", TrialState.PENDING, reset=True)
    standing = read_standing(tmp_path)
    assert (standing.losses, standing.outcomes, standing.attempts) == ({}, {}, {"a": 1})


@pytest.mark.parametrize("tail", [b'{"time":1,"trial_', b"\x00\x00\x00", b'{"time":1}x\n'])
def test_a_torn_last_line_is_cut_off_and_the_next_line_is_whole(tmp_path, tail):
    with Ledger(tmp_path) as ledger:
        ledger.write("a", TrialState.SUCCEEDED, outcome=DONE)
    path = tmp_path / "ledger.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    assert read_standing(tmp_path).states == {"a": TrialState.SUCCEEDED}
    with Ledger(tmp_path) as ledger:
        ledger.write("b", TrialState.RUNNING, attempt=1)
    assert path.read_bytes().startswith(whole + b'{"time"')
    assert read_standing(tmp_path).states == {"a": TrialState.SUCCEEDED, "b": TrialState.RUNNING}


def test_every_cut_of_the_file_leaves_a_prefix_of_the_history(tmp_path):
    with Ledger(tmp_path) as ledger:
        for i in range(4):
            ledger.write(f"t{i}", TrialState.SUCCEEDED, outcome=DONE)
    path = tmp_path / "ledger.jsonl"
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        assert list(read_standing(tmp_path).states) == [f"t{i}" for i in range(data[:size].count(b"\n"))]


def test_a_damaged_line_in_the_middle_names_file_and_line(tmp_path):
    with Ledger(tmp_path) as ledger:
        ledger.write("a", TrialState.RUNNING, attempt=1)
        ledger.write("a", TrialState.SUCCEEDED, outcome=DONE)
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b"garbage\n" + path.read_bytes())
    with pytest.raises(UserError, match=r"ledger\.jsonl:1"):
        Ledger(tmp_path)
    path.write_bytes(path.read_bytes().removeprefix(b"garbage\n"))
    Ledger(tmp_path).close()  # the lock is free again, in this process too


@pytest.mark.multiprocess
def test_a_second_driver_is_refused_and_told_the_pid_of_the_first(tmp_path):
    program = """
import pathlib, sys, time
from zo_sweeps.schedule.ledger import Ledger
ledger = Ledger(pathlib.Path(sys.argv[1]))
print('held', flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        try:
            assert driver_of(tmp_path).startswith(f"pid {first.pid} on ")
            with pytest.raises(UserError, match=f"pid {first.pid} on .*another folder"):
                Ledger(tmp_path)
        finally:
            first.kill()
        first.wait()
    assert driver_of(tmp_path) == ""
    Ledger(tmp_path).close()


def test_an_unwritable_folder_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write to the state folder"):
        Ledger(tmp_path / "file" / "state")


@pytest.mark.multiprocess
def test_a_ledger_that_is_a_folder_is_one_clear_line(tmp_path):
    (tmp_path / "ledger.jsonl").mkdir()
    with pytest.raises(UserError, match=r"cannot read .*ledger\.jsonl: Is a directory; it must be a file"):
        read_standing(tmp_path)
    with pytest.raises(UserError, match="Is a directory"):
        Ledger(tmp_path)


@pytest.mark.multiprocess
def test_a_full_disk_leaves_a_ledger_without_the_line(tmp_path):
    program = """
import pathlib, resource, signal, sys
from zo_sweeps.core.errors import UserError
from zo_sweeps.schedule.ledger import Ledger
from zo_sweeps.core.trial import TrialState
ledger = Ledger(pathlib.Path(sys.argv[1]))
ledger.write("a", TrialState.CANCELLED, attempt=1)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as a quota: writes beyond the limit are cut short, then refused
resource.setrlimit(resource.RLIMIT_FSIZE, (ledger._size + 20, resource.RLIM_INFINITY))
try:
    ledger.write("b", TrialState.SUCCEEDED)
except UserError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
ledger.write("c", TrialState.SUCCEEDED)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "cannot write the ledger" in done.stdout
    assert list(read_standing(tmp_path).states) == ["a", "c"]


def test_the_ledger_of_ten_thousand_finished_trials_is_read_whole_and_is_small(tmp_path):
    outcome = Outcome("x", TrialState.SUCCEEDED, {f"metric/{i}": i / 7 for i in range(12)}, 900, 1000, {"kind": "cpu"})
    with Ledger(tmp_path, "sweep") as ledger:
        ledger.write("x", TrialState.RUNNING, attempt=1)
        ledger.write("x", TrialState.SUCCEEDED, attempt=1, node="node", outcome=outcome)
    path = tmp_path / "ledger.jsonl"
    pair = path.read_text()
    path.write_text("".join(pair.replace('"x"', f'"t{i:015d}"') for i in range(10_000)))
    with Ledger(tmp_path) as ledger:
        assert len(ledger.outcomes) == 10_000
    assert path.stat().st_size < 10_000 * 1000


def test_a_folder_that_could_not_be_opened_is_not_locked(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(UserError, match="cannot write to the state folder"):
            Ledger(tmp_path)
    with Ledger(tmp_path) as ledger:
        ledger.write("a", TrialState.SUCCEEDED, outcome=DONE)
    path = tmp_path / "ledger.jsonl"
    whole = path.read_text()
    path.write_text(whole.replace("SUCCEEDED", "PREEMPTED") + whole)
    line = r"a line that this version cannot read \(ValueError: 'PREEMPTED'.* in .*ledger.jsonl:1; delete that line"
    for opened in (Ledger, read_standing):
        with pytest.raises(UserError, match=line):
            opened(tmp_path)
    path.write_text(whole)
    with Ledger(tmp_path) as ledger:
        assert ledger.states == {"a": TrialState.SUCCEEDED}

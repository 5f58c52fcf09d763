"""plan, run and results from Python: quiet, in this process, with rows for what failed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import zo_sweeps
from tests.api.conftest import Swept
from tests.cli.common import NOWHERE
from zo_sweeps.cli.main import main
from zo_sweeps.core.errors import UserError
from zo_sweeps.record.journal import JournalStore, places
from zo_sweeps.run.runner import Untrained
from zo_sweeps.schedule.backend import HeadLostError
from zo_sweeps.schedule.executors.inline import InlineBackend
from zo_sweeps.session import session

pytestmark = pytest.mark.multiprocess
INLINE = ["executor=inline", NOWHERE]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "STORE_SECONDS", 0.1)


def test_a_sweep_runs_once_and_says_nothing(
    swept: Swept, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "execv", lambda *given: pytest.fail("the process is replaced"))
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        again = zo_sweeps.run("forms", INLINE, swept.state, [swept.conf])
        assert torch.get_num_threads() == threads + 1, "the caller's threads are its own"
    finally:
        torch.set_num_threads(threads)
    assert capfd.readouterr() == ("", "")
    assert again.equals(swept.frame)
    first = JournalStore(swept.state).read(swept.id("lora_fa"))
    assert [node for node, _, _ in places(first)] == ["inline"], "where it ran, so that a change of device is seen"
    assert zo_sweeps.results("forms", state_dir=swept.state).equals(swept.frame), "the last sweep is found again"
    assert swept.line("diverged")["state"] == "DIVERGED"


@pytest.mark.long
def test_a_sweep_of_which_every_trial_diverged_does_not_exit_as_one_that_succeeded(
    swept: Swept, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["+grid=forms", f"state_dir={swept.state}", "--config-dir", str(swept.conf)]
    assert main([*given, *only("diverged", swept)]) == 1
    assert "next: no trial succeeded" in capsys.readouterr().out
    assert main([*given, *only("lora_fa", swept)]) == 0


def test_a_sweep_that_is_not_quiet_prints_what_the_command_prints(
    swept: Swept, capsys: pytest.CaptureFixture[str]
) -> None:
    zo_sweeps.run("forms", INLINE, swept.state, [swept.conf], quiet=False)
    said = capsys.readouterr().out
    assert "forms: 1 diverged, 10 succeeded; 0 run now" in said
    assert "next: python -m zo_sweeps ui state_dir=" in said


def test_a_plan_is_what_would_run_and_makes_no_folder(swept: Swept, tmp_path: Path) -> None:
    plan = zo_sweeps.plan("forms", INLINE, tmp_path / "state", [swept.conf])
    assert [trial.trial_id for trial in plan.trials] == list(swept.frame["trial_id"])
    assert not list(tmp_path.iterdir())


def only(block: str, swept: Swept) -> list[str]:
    """The overrides that leave one block of the grid."""
    blocks = set(swept.frame["block"]) - {block}
    return [*INLINE, *(f"~grid.blocks.{name}" for name in sorted(blocks))]


def test_a_trial_that_fails_is_a_row(swept: Swept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Untrained) -> None:
        raise KeyError("no luck")

    monkeypatch.setattr(Untrained, "run", broken)
    frame = zo_sweeps.run("forms", only("zero_shot", swept), tmp_path, [swept.conf])
    (row,) = frame.to_dict("records")
    assert (row["state"], row["error"]) == ("FAILED", "KeyError: 'no luck'")


def test_a_head_that_goes_away_is_an_error_and_no_new_process(
    swept: Swept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(self: InlineBackend, timeout: float, left: int) -> None:
        raise HeadLostError("the head is gone")

    monkeypatch.setattr(InlineBackend, "poll", lost)
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("another process"))
    with pytest.raises(HeadLostError, match="the head is gone"):
        zo_sweeps.run("forms", only("zero_shot", swept), tmp_path, [swept.conf])


def test_ctrl_c_stops_a_sweep_cleanly_and_is_raised(
    swept: Swept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poll = InlineBackend.poll

    def interrupted(self: InlineBackend, timeout: float, left: int) -> None:
        signal.raise_signal(signal.SIGINT)
        poll(self, timeout, left)

    monkeypatch.setattr(InlineBackend, "poll", interrupted)
    state, told = tmp_path / "state", tmp_path / "told"
    told.mkdir()
    hooks = [f"on.{event}=sh -c 'touch {told}/${{ZO_EVENT}}' s3,cret" for event in ("first_result", "done", "failed")]
    with pytest.raises(KeyboardInterrupt):
        zo_sweeps.run("forms", [*only("lora_fa", swept), *hooks], state, [swept.conf])
    assert sorted(path.name for path in told.iterdir()) == ["failed"]
    (row,) = zo_sweeps.results("forms", state_dir=state).to_dict("records")
    assert (row["state"], row["steps_done"]) == ("CANCELLED", 1)
    monkeypatch.undo()
    monkeypatch.setattr(session, "STORE_SECONDS", 0.1)
    given = [*only("lora_fa", swept), *hooks[:2]]
    (row,) = zo_sweeps.run("forms", given, state, [swept.conf]).to_dict("records")
    assert row["dev/loss"] == swept.line("lora_fa")["dev/loss"], "the same call goes on"
    assert sorted(path.name for path in told.iterdir()) == ["done", "failed", "first_result"]
    assert row["trial_id"] == swept.id("lora_fa"), "hooks are no part of a trial, and in no record"
    assert not [path for path in state.rglob("*") if path.is_file() and b"s3,cret" in path.read_bytes()]


@pytest.mark.parametrize("function", [zo_sweeps.plan, zo_sweeps.run])
def test_bad_input_is_an_error_for_users(function: Any, tmp_path: Path) -> None:
    for grid, overrides, said in (
        ("quikstart", [], r"unknown grid 'quikstart'.*did you mean 'quickstart'"),
        ("quickstart", ["train.stepz=3"], "unknown key 'train.stepz'"),
        ("quickstart", ["executor.slots=0"], "executor.slots of ray must be at least 1"),
    ):
        with pytest.raises(UserError, match=said):
            function(grid, overrides, tmp_path)
    with pytest.raises(UserError, match="no such folder"):
        function("quickstart", [], tmp_path, [tmp_path / "none"])
    assert not list(tmp_path.iterdir())


def test_importing_the_package_loads_the_standard_library_alone() -> None:
    code = """\
import sys, sysconfig
before = set(sys.modules)
import zo_sweeps
for name in {*zo_sweeps.__all__} - {"Optimizer", "ZOTrainer"}:  # classes of torch and transformers
    getattr(zo_sweeps, name)
found = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(found - set(sys.stdlib_module_names)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["zo_sweeps"]

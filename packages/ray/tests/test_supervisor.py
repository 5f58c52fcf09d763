"""A driver's supervisor, with sweeps that end as drivers do when their head is lost. No Ray."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.cli.common import ENVIRONMENT
from tests.schedule.nodes import wait_for
from zo_sweeps.cli import run
from zo_sweeps_ray import supervisor

pytestmark = pytest.mark.multiprocess

# Each child takes the next word of the first argument; the head "answers" as the second argument says.
SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from zo_sweeps_ray import supervisor
from zo_sweeps.schedule.backend import CannotJoinError, HeadLostError

ends, waits = sys.argv[1].split(), []
supervisor._answers = lambda address: sys.argv[2] == "there"
supervisor.LONGEST_PAUSE = 0.1
supervisor.await_answer = lambda address: (waits.append(address), ends.pop(0))
stopped = []

def sweep(first):
    print("child", ends[0], first, flush=True)
    if ends[0] == "lost":
        raise HeadLostError("the head is gone")
    if ends[0] == "absent":
        raise CannotJoinError("this machine is not a node")
    if ends[0] == "abort":
        os.abort()
    if ends[0] == "fatal":
        os._exit(1)  # as Ray's C++ does
    if ends[0] == "runs":
        signal.signal(signal.SIGINT, lambda *_: stopped.append(1))
        Path("up").write_text(str(os.getpid()))
        while not stopped:
            time.sleep(0.05)
        time.sleep(0.5)  # a second signal would be counted
        return 100 + len(stopped)
    return int(ends[0])

status = supervisor.supervise("10.0.0.5:6379", sweep)
print("ended", waits, flush=True)
sys.exit(status)
"""


@contextmanager
def supervised(folder: Path, ends: str, head: str = "gone") -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, ends, head],
        cwd=folder,
        env={**os.environ, **ENVIRONMENT},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_driver_that_loses_its_head_or_is_aborted_begins_anew_when_a_head_answers(tmp_path: Path) -> None:
    with supervised(tmp_path, "lost abort fatal abort absent absent fatal lost 1") as process:
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    lines = [line for line in said.splitlines() if line.startswith("child")]
    assert lines[0] == "child lost True"
    assert lines[1:] == [
        *("child abort False", "child fatal False", "child abort False"),
        *["child absent False"] * 2,
        *("child fatal False", "child lost False", "child 1 False"),
    ]
    assert said.splitlines()[-1] == f"ended {['10.0.0.5:6379'] * 8}"
    assert said.count("the head is gone. Waiting for it to return (Ctrl-C to stop)\n") == 2
    assert said.count("Ray has ended the driver, as it does without a head. Waiting for one") == 4
    assert said.count("this machine is not a node. Trying again (Ctrl-C to stop)\n") == 2


def test_a_first_driver_that_cannot_join_says_so_and_ends(tmp_path: Path) -> None:
    with supervised(tmp_path, "absent") as process:
        said, _ = process.communicate(timeout=60)
    assert (process.returncode, said) == (1, "child absent True\nended []\n")


def test_a_driver_that_is_aborted_again_and_again_beside_its_head_is_given_up(tmp_path: Path) -> None:
    with supervised(tmp_path, "fatal fatal abort abort", "there") as process:
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGABRT
    assert said.count("child") == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill"])
def test_ctrl_c_reaches_the_driver_once_and_a_kill_ends_it_too(tmp_path: Path, number: signal.Signals) -> None:
    with supervised(tmp_path, "runs") as process:
        wait_for(lambda: (tmp_path / "up").exists() and (tmp_path / "up").read_text(), what="the driver")
        driver = psutil.Process(int((tmp_path / "up").read_text()))
        os.killpg(process.pid, number)  # as a terminal does: to every process of the group
        process.communicate(timeout=60)
        assert process.returncode == (101 if number == signal.SIGINT else -signal.SIGKILL)
        wait_for(lambda: not driver.is_running() or driver.status() == psutil.STATUS_ZOMBIE, 10, "the driver's end")


def test_a_command_with_a_cluster_is_supervised_and_reruns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    swept = lambda composer, command, order, rerun: calls.append((str(command), order, rerun)) or 0
    monkeypatch.setattr(run, "_sweep", swept)
    twice = lambda address, sweep: calls.append(address) or sweep(True) + sweep(False)
    monkeypatch.setattr(supervisor, "supervise", twice)
    words = ["+grid=quickstart", "cluster.address=10.0.0.5:6379"]
    assert run.run([*words, "--order", "information", "--rerun", "failed"]) == 0
    said = f"python -m zo_sweeps {' '.join(words)}"
    assert calls == ["10.0.0.5:6379", (said, "information", ["failed"]), (said, "information", [])]

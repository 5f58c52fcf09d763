"""jobs/slurm.sh with stand-ins for what it calls: who gets the token, what is ended, what is left behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import REPO
from tests.launch_files.common import JOBS

pytestmark = [pytest.mark.multiprocess]

# Each notes its arguments and the mode of the token's file that it is told of; a step ends with TERM, and says so.
NOTE = (
    'echo "{name} $*" >> called; stat -c "{name} %a" "$RAY_AUTH_TOKEN_PATH" >> modes; echo $$ >> pids\n'
    "all=$*; folder=${{all#*--temp-dir=}}; folder=${{folder%%/ray *}}\n"
    'if [ -d "$folder" ]; then stat -c "sockets %a" "$folder" >> modes; fi\n'
)
STEP = """
import signal, socket, sys
name, port = sys.argv[1], int(sys.argv[2])
listening = socket.create_server(("127.0.0.1", port)) if port else None
def end(*_):
    open("ended", "a").write(name + "\\n")
    sys.exit()
signal.signal(signal.SIGTERM, end)
while True:
    signal.pause()
"""
STAND_INS = {
    "srun": 'echo $* >> sruns; while case $1 in --*) true;; *) false;; esac; do shift; done; exec "$@"\n',
    "scontrol": 'case $1 in show) echo 127.0.0.1; echo node-2;; *) echo "$*" >> requeued; cp ended steps;; esac\n',
    "ray": NOTE.format(name="head") + 'echo "tls $RAY_USE_TLS" >> modes; exec {python} step.py head "$RAY_PORT"\n',
    "zo-sweeps": NOTE.format(name="worker") + "exec {python} step.py worker 0\n",
}


@pytest.fixture
def slurm(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts the script in `tmp_path`, as a job of two nodes whose driver is the given shell code."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "step.py").write_text(STEP)

    def start(driver: str, **stand_ins: str) -> subprocess.Popen[str]:
        python = 'case $1 in -c) exec {python} "$@";; esac\n' + NOTE.format(name="driver") + driver
        for name, code in {**STAND_INS, "python": python, **stand_ins}.items():
            path = tmp_path / "bin" / name
            path.write_text("#!/bin/sh\n" + code.replace("{python}", sys.executable))
            path.chmod(0o755)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_GPUS_PER_NODE": "a100:4"}
        return subprocess.Popen(
            [JOBS / "slurm.sh", "+grid=mine", "state_dir=a b"],
            cwd=tmp_path,
            env={
                "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
                "PYTHONPATH": str(REPO),
                "RAY_PORT": str(port),
                "SLURM_CPUS_PER_TASK": "8",
                **job,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return start


def over(folder: Path) -> None:
    """Nothing is left: no token, no process, and the steps were asked to end."""
    assert not list(folder.glob(".zo-job-*"))
    sockets = re.search(r"--temp-dir=(/tmp/zo-\w{6})/ray ", (folder / "called").read_text())
    assert sockets
    assert not Path(sockets[1]).exists()
    assert (folder / "ended").read_text().split() == ["worker", "head"]
    for pid in (folder / "pids").read_text().split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


WAIT = "while ! grep -q worker pids.names 2>/dev/null; do sleep 0.05; grep worker modes > pids.names; done\n"


def test_the_drivers_status_is_the_jobs_and_nothing_is_left(slurm: Callable, tmp_path: Path) -> None:
    process = slurm(WAIT + "sleep 0.5; cat $RAY_AUTH_TOKEN_PATH > seen; exit 3\n")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 3, output
    over(tmp_path)
    modes = set((tmp_path / "modes").read_text().splitlines())
    assert modes == {"head 600", "worker 600", "driver 600", "sockets 700", "tls 1"}
    token = (tmp_path / "seen").read_text()
    called = (tmp_path / "called").read_text()
    assert len(token) == 64
    assert token not in called + output
    driver, head, worker = sorted(called.splitlines())
    assert "start --head --block" in head
    assert "--num-cpus=8 --num-gpus=4 --labels=zo.device=cuda" in head
    assert driver.startswith("driver -m zo_sweeps +grid=mine state_dir=a b cluster.address=127.0.0.1:")
    assert "worker join 127.0.0.1:" in worker
    assert re.search(r" --state-dir \S+/\.zo-job-7-\w{6}/node-2 ", worker), "one of its own, on a home that nodes share"
    assert worker.endswith(" --cpus 8 --gpus 4")
    assert all(" --cpus-per-task=8 " in line for line in (tmp_path / "sruns").read_text().splitlines())
    assert not (tmp_path / "requeued").exists()


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM], ids=["time limit", "cancelled"])
def test_at_its_time_limit_the_driver_stops_first_then_the_steps_and_the_job_queues_again(
    slurm: Callable, tmp_path: Path, number: signal.Signals
) -> None:
    stop = "trap 'echo driver >> first; cat ended >> first 2>/dev/null; exit 130' TERM\n"
    process = slurm(WAIT + stop + "touch up; while :; do sleep 0.05; done\n")
    deadline = time.monotonic() + 60
    while not (tmp_path / "up").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 143, output
    assert (tmp_path / "first").read_text() == "driver\n", "the steps were still there"
    over(tmp_path)
    assert (tmp_path / "requeued").exists() == (number == signal.SIGUSR1)
    if number == signal.SIGUSR1:
        assert (tmp_path / "requeued").read_text() == "requeue 7\n"
        assert (tmp_path / "steps").read_text().split() == ["worker", "head"], "when everything had ended"


def test_a_head_that_ends_at_once_ends_the_job(slurm: Callable, tmp_path: Path) -> None:
    process = slurm("exit 0\n", ray="echo 'port in use' >&2; exit 1\n")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "port in use" in output
    assert not list(tmp_path.glob(".zo-job-*"))
    assert not (tmp_path / "called").exists(), "no driver, no worker"


def test_a_worker_that_ends_before_the_driver_is_said(slurm: Callable, tmp_path: Path) -> None:
    process = slurm("sleep 0.3\n", **{"zo-sweeps": "echo not joined >&2; exit 1\n"})
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert "not joined\nslurm.sh: the worker on node-2 has ended" in output

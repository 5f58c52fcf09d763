from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import MagicMock

import psutil
import pytest

from listeners import Listener, documented, listeners, refuses
from tests.conftest import REPO
from tests.schedule import fakes
from tests.schedule.driver import TARGET, sweep
from tests.schedule.test_sweep import results, start_driver, wait_for
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.trial import Needs, TrialState
from zo_sweeps.methods.executor import Executor
from zo_sweeps.record.journal import JournalStore, scalars
from zo_sweeps.schedule.ledger import read_standing
from zo_sweeps.schedule.snapshot import Snapshot
from zo_sweeps_ray import executor
from zo_sweeps_ray.cluster import private_folder, private_token, remove_short_folder, short_folder
from zo_sweeps_ray.connection import why_lost
from zo_sweeps_ray.executor import RayBackend, _cause
from zo_sweeps_ray.slots import Slot

pytestmark = pytest.mark.multiprocess


@pytest.fixture(autouse=True)
def _no_remains(tmp_path):
    """Ray's folder outlives a driver that was killed, until the next one."""
    yield
    remove_short_folder(tmp_path)


def starts(folder: Path, name: str) -> list[dict[str, str]]:
    lines = [line.split()[1:] for line in fakes.log_of(folder, name) if line.startswith("start")]
    return [dict(word.split("=") for word in line) for line in lines]


def ray_processes(state: Path) -> list[int]:
    """Processes of the cluster of `state`, found by its folder on their command lines."""
    folder = str(private_folder(state))
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        if any(folder in word for word in process.info["cmdline"] or []):
            found.append(process.info["pid"])
    return found


def test_a_sweep_survives_the_death_of_an_actor_and_leaves_nothing_behind(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "as it was")
    work = tmp_path / "w"
    plan = fakes.trials(work, 12, warm="a", pause=0.01)
    plan[2] = fakes.trial(work, "t002", warm="a", dies=[1])
    plan[3] = fakes.trial(work, "t003", warm="a", raises=[1])
    plan[4] = fakes.trial(work, "t004", warm="a", asked=[1])  # by a user, or a guard of the machine's memory
    plan += [fakes.trial(work, "far", needs=Needs("jetson-tx2")), fakes.trial(work, "big", needs=Needs("auto", 2**50))]
    plan.insert(0, plan.pop())  # nobody waits behind what no node can take
    said: list[str] = []
    ours, modes, sessions = private_folder(tmp_path), set(), set()
    ports: dict[Listener, bool] = {}

    def update(snapshot: Snapshot) -> None:
        modes.add((stat.S_IMODE(ours.stat().st_mode), ours.stat().st_uid))
        sessions.update(ours.glob("ray/session_latest"))
        if not ports and snapshot.running and min(run.step for run in snapshot.running) > 0:
            processes = [psutil.Process(pid) for pid in ray_processes(tmp_path)]
            children = [child for one in processes for child in one.children(recursive=True)]
            ports.update({port: refuses(port) for port in listeners({*processes, *children})})

    backend = RayBackend(tmp_path, options=Executor(slots=2), target=TARGET)
    summary = sweep(tmp_path, plan, backend, say=said.append, on_update=update)

    assert modes == {(0o700, os.getuid())}, "nobody else reaches Ray's sockets, which it lets anyone replace"
    assert len(sessions) == 1, "they are in that folder"
    assert {port.process for port in ports} >= {"gcs_server", "raylet", "ray::DashboardA", "ray::TrialActor"}
    assert {(port.process, port.where) for port in ports} <= documented()
    assert [port for port, refused in ports.items() if not refused] == [], "they answer a stranger"
    assert summary.counts == {TrialState.SUCCEEDED: 12, TrialState.PENDING: 2}
    assert sorted(reason.split(":")[0] for reason in summary.waiting) == [
        "needs any device and 1048576.0 GiB of memory",
        "needs device jetson-tx2",
    ]
    names = [f"t{i:03d}" for i in range(12)]
    assert set(fakes.completions(work, names).values()) == {1}
    assert [start["from"] for start in starts(work, "t002")] == ["0", "2"]
    assert [start["from"] for start in starts(work, "t003")] == ["0", "2"]
    assert [start["from"] for start in starts(work, "t004")] == ["0", "3"]
    lost = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines() if '"LOST"' in line]
    assert sorted((e["trial_id"], e["error"]) for e in lost) == [
        ("t002", "its process ended unexpectedly (killed, or crashed)"),
        ("t004", "handed back: its node was asked to stop"),
    ]
    everything = [start for name in names for start in starts(work, name)]
    assert 3 <= len({start["pid"] for start in everything}) <= 4  # warm actors, and one in place of each that ended
    assert {start["threads"] for start in everything} == {"1"}
    assert len({str(result) for result in results(tmp_path).values()}) == 1  # the same recurrence, disturbed or not

    assert stat.S_IMODE((tmp_path / "ray_token").stat().st_mode) == 0o600
    token = (tmp_path / "ray_token").read_text()
    output = capfd.readouterr()
    assert output.out + output.err == ""  # not a word from Ray, and no token
    assert os.environ["RAY_AUTH_MODE"] == "as it was"
    assert len(token) == 64
    assert not private_folder(tmp_path).exists()
    wait_for(lambda: not ray_processes(tmp_path))


@pytest.mark.long
def test_a_sweep_goes_on_after_all_its_processes_stood_still(tmp_path, monkeypatch):
    monkeypatch.setattr(executor, "SILENT_SECONDS", 3.0)
    work, frozen = tmp_path / "w", []
    plan = fakes.trials(work, 4, steps=40, pause=0.05)

    def update(snapshot: Snapshot) -> None:
        if not frozen and sum(run.step > 2 for run in snapshot.running) == 2:
            frozen.extend(int(start["pid"]) for run in snapshot.running for start in starts(work, run.trial.trial_id))
            for pid in frozen:
                os.kill(pid, signal.SIGSTOP)

    summary = sweep(tmp_path, plan, RayBackend(tmp_path, options=Executor(slots=2), target=TARGET), on_update=update)
    assert summary.counts == {TrialState.SUCCEEDED: 4}
    assert len(set(frozen)) == 2
    assert set(fakes.completions(work, [trial.trial_id for trial in plan]).values()) == {1}
    lost = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines() if '"LOST"' in line]
    assert [entry["error"] for entry in lost] == ["its process does not answer"] * 2
    assert len({str(result) for result in results(tmp_path).values()}) == 1
    wait_for(lambda: not any(map(psutil.pid_exists, frozen)))
    wait_for(lambda: not ray_processes(tmp_path))


@pytest.mark.long
def test_base_models_stay_with_their_actor(tmp_path, capsys):
    work = tmp_path / "w"
    plan = [fakes.trial(work, f"o{i:03d}", warm=f"model{i % 2}") for i in range(200)]
    ends: list[float] = []
    update = lambda snapshot: ends.append(time.perf_counter()) if snapshot.ended else None
    sweep(tmp_path, plan, RayBackend(tmp_path, options=Executor(slots=2), target=TARGET), on_update=update)
    hosts = [{starts(work, t.trial_id)[0]["pid"] for t in plan[m::2]} for m in (0, 1)]
    assert [len(h) for h in hosts].count(1) >= 1, "both models moved between the actors"
    swaps = sum(len(h) - 1 for h in hosts)
    assert swaps <= 1  # only the actor that ran out of work took some of the other model
    milliseconds = (ends[-1] - ends[20]) / (len(ends) - 21) * 1000
    with capsys.disabled():
        print(f"\n  scheduling overhead with 2 warm actors: {milliseconds:.1f} ms a trial")


@pytest.mark.chaos
@pytest.mark.slow
def test_a_driver_killed_three_times_ends_with_the_same_outcomes_and_repeats_no_finished_trial(tmp_path):
    work = tmp_path / "w"
    plan = fakes.trials(work, 16, pause=0.03, steps=20)
    chance = random.Random(5)
    executions: dict[str, int] = {}
    for _ in range(3):
        before = len(fakes_started(work))
        driver = start_driver(tmp_path, "ray", plan)
        wait_for(lambda n=before: len(fakes_started(work)) > n)
        time.sleep(chance.uniform(0.1, 1.5))
        driver.kill()
        driver.communicate()
        finished = [name for name, state in read_standing(tmp_path).states.items() if state.is_result]
        executions |= {k: v for k, v in fakes.completions(work, finished).items() if k not in executions}
    wait_for(lambda: not ray_processes(tmp_path))  # the cluster dies with its driver
    summary = sweep(tmp_path, fakes.trials(work, 16, steps=20))  # another backend finishes it
    assert summary.counts == {TrialState.SUCCEEDED: 16}
    assert summary.already_done == len(executions) > 0
    assert fakes.completions(work, executions) == executions
    assert any(start["from"] != "0" for t in plan for start in starts(work, t.trial_id)), "nothing was resumed"
    alone = tmp_path / "alone"
    sweep(alone, [fakes.trial(alone / "w", "t000", steps=20)])
    expected = results(alone)["t000"]
    assert results(tmp_path) == {t.trial_id: expected for t in plan}


def fakes_started(work: Path) -> list[str]:
    return [line for path in work.glob("*.log") for line in path.read_text().splitlines() if line.startswith("start")]


@pytest.mark.slow
def test_ctrl_c_to_the_whole_process_group_stops_cleanly_and_resumes(tmp_path):
    work = tmp_path / "w"
    plan = fakes.trials(work, 3, pause=0.05, steps=60)
    driver = start_driver(tmp_path, "ray", plan)
    wait_for(lambda: len(fakes_started(work)) >= 2)
    time.sleep(1.2)
    os.killpg(driver.pid, signal.SIGINT)
    output, _ = driver.communicate(timeout=20)
    assert driver.returncode == 130, output
    assert "stopping after the current step of 2 running trials;" in output
    assert "3 trials to run on a Ray cluster on this machine (1 cpu node, 2 CPUs, 1 a trial)" in output
    assert output.count("\n") == 3, output  # these two lines, and the summary
    states = read_standing(tmp_path).states
    assert states == {"t000": TrialState.CANCELLED, "t001": TrialState.CANCELLED}
    done = {name: len(scalars(JournalStore(tmp_path).read(name))[1]) for name in states}
    assert min(done.values()) > 0
    wait_for(lambda: not ray_processes(tmp_path))
    summary = sweep(tmp_path, fakes.trials(work, 3, steps=60))  # another backend takes over
    assert summary.counts == {TrialState.SUCCEEDED: 3}
    assert {name: int(starts(work, name)[1]["from"]) for name in done} == done


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_an_address_where_nobody_answers_is_one_clear_line(tmp_path):
    plan = fakes.trials(tmp_path / "w", 1)
    for address, match in (
        (f"127.0.0.1:{free_port()}", "no Ray head answers at 127.0.0.1:"),
        ("head", "not HOST:PORT"),
    ):
        with pytest.raises(UserError, match=match):
            sweep(tmp_path, plan, RayBackend(tmp_path, address=address, target=TARGET))


@pytest.mark.chaos
@pytest.mark.slow
def test_a_server_that_is_no_ray_head_is_one_clear_line(tmp_path):
    """Waits longer than a busy head may need, and the next test for Ray's own timeout: more than a minute together."""
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connects, and never says a word
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        said = rf"the server at {address} does not answer like a Ray head \(it says nothing for 30 s\)"
        with pytest.raises(UserError, match=said) as caught:
            sweep(tmp_path, fakes.trials(tmp_path / "w", 1), RayBackend(tmp_path, address=address, target=TARGET))
    assert "\n" not in str(caught.value)


UNABLE = """
import resource, sys
from pathlib import Path
from tests.schedule import fakes
from tests.schedule.driver import TARGET, sweep
from zo_sweeps.core.errors import UserError
from zo_sweeps.methods.executor import Executor
from zo_sweeps_ray.executor import RayBackend, _cause
from zo_sweeps_ray.connection import why_lost
from zo_sweeps_ray.slots import Slot
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
state = Path(sys.argv[1])
try:
    sweep(state, fakes.trials(state / "w", 1), RayBackend(state, options=Executor(slots=1), target=TARGET))
except UserError as error:
    sys.exit(str(error))
"""


@pytest.mark.chaos
@pytest.mark.slow
def test_ray_that_does_not_start_is_one_clear_line_and_leaves_nothing_behind(tmp_path):
    """Its processes cannot write more than 100 kB, as on a full disk, so that their start times out."""
    done = subprocess.run([sys.executable, "-c", UNABLE, tmp_path], cwd=REPO, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("Ray did not start on this machine (")
    wait_for(lambda: not ray_processes(tmp_path))
    assert not private_folder(tmp_path).exists()


@pytest.mark.slow
@pytest.mark.chaos  # test_fleet joins clusters of its own
def test_a_standing_cluster_is_joined_with_its_token_and_refuses_another(tmp_path, monkeypatch):
    folder = short_folder(tmp_path)
    port = free_port()
    token, other = private_token(tmp_path), tmp_path / "other"
    other.write_text("b" * 64)
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    command = f"start --head --block --port={port} --num-cpus=2 --include-dashboard=false --temp-dir={folder}"
    command += " --object-store-memory=100000000 --labels=zo.device=jetson-orin-nano"
    environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    head = subprocess.Popen(
        [sys.executable, "-m", "ray.scripts.scripts", *command.split()],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_for(lambda: len(list(folder.glob("session_*/sockets/raylet"))) > 0)
        time.sleep(1)
        plan = fakes.trials(tmp_path / "w", 4, needs=Needs("jetson-orin-nano"))
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(other))
        with pytest.raises(UserError, match="RAY_AUTH_TOKEN_PATH"):
            sweep(tmp_path, plan, RayBackend(tmp_path, address=f"127.0.0.1:{port}", target=TARGET))
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
        summary = sweep(tmp_path, plan, RayBackend(tmp_path, address=f"127.0.0.1:{port}", target=TARGET))
        assert summary.counts == {TrialState.SUCCEEDED: 4}
        assert head.poll() is None  # ours to use, not to end
    finally:
        for process in [*psutil.Process(head.pid).children(recursive=True), head]:
            with contextlib.suppress(psutil.NoSuchProcess):  # some end with their parent
                process.kill()
        head.wait()


@pytest.mark.parametrize(
    ("then", "reason"),
    [
        (lambda of: of.OutOfMemoryError(""), "its process was killed because the node ran low on memory"),
        (lambda of: of.ActorDiedError(), "its process ended unexpectedly (killed, or crashed)"),
        (lambda of: of.GetTimeoutError(), "its node is gone or out of reach"),
        (lambda of: None, "its node is gone or out of reach"),
    ],
    ids=["low memory", "died", "silent", "answers"],
)
def test_a_call_that_broke_off_is_asked_about_again_before_the_node_is_blamed(then, reason, monkeypatch):
    from ray import exceptions

    cut = exceptions.ActorUnavailableError("connection reset", None)
    answers = [cut, then(exceptions)]

    def get(reference, timeout):
        if (answer := answers.pop(0)) is not None:
            raise answer

    monkeypatch.setattr("ray.get", get)
    assert why_lost(_cause(Slot(MagicMock(), MagicMock(), 0), cut)) == reason
    assert answers == []

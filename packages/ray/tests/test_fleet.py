"""A head and its workers, started by the commands: who may join, who stays joined, who leaves and how."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from listeners import documented, listeners, refuses
from machines import PATIENCE, Machines, Worker, environment, machines, zo
from tests.schedule import fakes
from tests.schedule.driver import TARGET, sweep
from tests.schedule.nodes import meanwhile, wait_for
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.trial import Needs, TrialState
from zo_sweeps.record.journal import JournalStore, last_step
from zo_sweeps.schedule.ledger import read_standing
from zo_sweeps_ray.cluster import private_folder
from zo_sweeps_ray.executor import RayBackend
from zo_sweeps_ray.node import running
from zo_sweeps_ray.private import forget_token

pytestmark = [pytest.mark.multiprocess, pytest.mark.chaos, pytest.mark.timeout(1800)]

NANO = ("--device", "jetson-orin-nano", "--gpus", "0", "--cpus", "1", "--grace", "60")


def nano(them: Machines) -> Worker:
    """The worker of that name, which joins (again) unless it is there."""
    worker = them.member("nano", *NANO)
    them.wait_for_node("nano")
    return worker


@pytest.fixture(scope="module")
def cluster() -> Iterator[Machines]:
    with machines("--cpus", "1") as them:
        nano(them)
        yield them


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    yield
    forget_token()


def lines(text: str) -> list[str]:
    return text.strip().splitlines()


def test_head_start_says_how_to_join_and_status_and_devices_know_the_nodes(cluster: Machines) -> None:
    assert f"zo-sweeps worker join {cluster.address} --device NAME --token-file ray_token" in cluster.said
    assert f"cluster.address={cluster.address}" in cluster.said
    status = zo("head", "status", "--state-dir", cluster.state, home=cluster.home)
    assert status.returncode == 0, status.stderr
    assert f"{cluster.address}, Ray " in status.stdout
    assert "nodes: 2" in status.stdout
    wait_for(lambda: zo("devices", f"state_dir={cluster.state}", home=cluster.home).stdout.count("up,") == 2)
    shown = zo("devices", f"state_dir={cluster.state}", home=cluster.home).stdout
    nano = next(line for line in lines(shown) if line.startswith("nano"))
    assert "jetson-orin-nano" in nano
    assert "1 CPU" in nano
    assert "7.5 GiB" in lines(shown)[lines(shown).index(nano) + 1], "the profile's memory, not this machine's"
    again = zo("head", "start", "--state-dir", cluster.state, home=cluster.home)
    assert again.returncode == 2
    assert re.fullmatch(r"zo_sweeps: a head is already running .*\n", again.stderr)


def test_joining_checks_first_a_line_each(cluster: Machines) -> None:
    said = cluster.workers[0].said
    for check in ("head", "python", "ray", "zo-sweeps", "clock", "ports out", "ports in", "disk", "import torch"):
        assert re.search(rf"^ok +{check}: ", said, re.MULTILINE), f"{check} in\n{said}"
    assert re.search(r"^ok +memory: .*\(shared by CPU and GPU\)", said, re.MULTILINE)
    assert re.search(r"^warn  device: jetson-orin-nano: .*but this looks like ", said, re.MULTILINE)


def test_a_stranger_without_the_token_or_with_another_is_refused(cluster: Machines, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("b" * 64)
    other.chmod(0o600)
    none = zo("worker", "join", cluster.address, "--state-dir", tmp_path / "w", home=tmp_path)
    assert none.returncode == 2
    assert re.fullmatch(r"zo_sweeps: no token for the cluster; .*\n", none.stderr)
    wrong = zo("worker", "join", cluster.address, "--token-file", other, "--state-dir", tmp_path / "w", home=tmp_path)
    assert wrong.returncode == 1
    assert re.match(r"fail  head: the head at \S+ refuses the token; ", wrong.stdout)
    assert "joining" not in wrong.stdout
    assert wrong.stderr == ""
    for more in ({}, {"RAY_AUTH_TOKEN_PATH": str(other)}):
        listed = zo("devices", f"cluster.address={cluster.address}", home=tmp_path, **more)
        assert listed.returncode == 2
        assert len(lines(listed.stderr)) == 1, listed.stderr
        plan = ["+grid=quickstart", f"cluster.address={cluster.address}", f"state_dir={tmp_path / 'runs'}"]
        swept = zo(*plan, "scale=smoke", home=tmp_path, **more)
        assert swept.returncode == 2
        assert "refuses the token" in lines(swept.stderr)[-1]
        assert len(lines(swept.stderr)) == 1, swept.stderr
    other.chmod(0o644)
    open_to_all = zo("worker", "join", cluster.address, "--token-file", other, home=tmp_path)
    assert open_to_all.returncode == 2
    assert "others can read the token (mode 644)" in open_to_all.stderr
    assert f"chmod 600 {other}" in open_to_all.stderr


def test_another_version_is_told_what_to_install(cluster: Machines, tmp_path: Path) -> None:
    """The head's versions are its own answer; ours are what this machine's package metadata say."""
    info = tmp_path / "ray-2.59.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ray\nVersion: 2.59.0\n")
    path = os.pathsep.join((str(tmp_path), environment(tmp_path)["PYTHONPATH"]))
    words = ("worker", "join", cluster.address, "--token-file", cluster.token, "--state-dir", tmp_path / "w")
    joined = zo(*words, home=tmp_path, PYTHONPATH=path)
    import ray

    assert joined.returncode == 1
    assert f"fail  ray: 2.59.0 here, {ray.__version__} at the head; pip install 'ray[default]==" in joined.stdout
    assert "not joined: 1 check failed" in joined.stdout
    assert "`zo-sweeps head code` on the head prints its command" in joined.stdout


def test_no_secret_is_on_a_command_line_or_in_a_log(cluster: Machines) -> None:
    token = cluster.token.read_text().strip()
    assert stat.S_IMODE(cluster.token.stat().st_mode) == 0o600
    seen = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue
        seen += str(cluster.folder).encode() in line
        assert token.encode() not in line
    assert seen > 3, "our own processes were among them"
    for folder in (
        cluster.folder,
        private_folder(cluster.state / "head"),
        private_folder(cluster.folder / "nano" / "worker"),
    ):
        for path in folder.rglob("*"):
            if path.is_file() and path != cluster.token and path.stat().st_size < 50e6:
                assert token.encode() not in path.read_bytes(), path


def test_a_head_and_a_worker_listen_on_what_the_table_says_and_refuse_a_stranger(cluster: Machines) -> None:
    nano(cluster)
    roots = cluster.processes()
    found = listeners({*roots, *(child for one in roots for child in one.children(recursive=True))})
    assert {(port.process, port.where) for port in found} <= documented()
    assert {"gcs_server", "raylet", "python"} <= {port.process for port in found}
    assert {port.address[1] for port in found if not refuses(port)} == {cluster.ports[1], 10001}, "MLflow; Ray Client"


@pytest.fixture
def token(cluster: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(cluster.token))


def test_a_node_whose_raylet_is_killed_joins_again_and_no_trial_goes_to_what_it_was(
    cluster: Machines, token: None, tmp_path: Path
) -> None:
    worker = nano(cluster)
    before = cluster.wait_for_node("nano")
    raylet = worker.raylet()
    assert raylet
    raylet.kill()
    after = cluster.wait_for_node("nano", other_than=before)
    plan = fakes.trials(tmp_path / "w", 2, needs=Needs("jetson-orin-nano"))
    summary = sweep(tmp_path / "s", plan, RayBackend(tmp_path, address=cluster.address, target=TARGET))
    assert summary.counts == {TrialState.SUCCEEDED: 2}
    assert set(read_standing(tmp_path / "s").attempts.values()) == {1}, "Ray took the dead node for alive: for 14 s"
    assert after != before
    assert "the node's raylet has ended; starting again in" in worker.said
    shown = zo("devices", f"state_dir={cluster.state}", home=cluster.home).stdout
    assert len([line for line in lines(shown) if line.startswith("nano")]) == 1, "one machine, however often it joined"


def test_a_node_that_leaves_hands_its_trial_back_and_the_command_waits_for_that(
    cluster: Machines, token: None, tmp_path: Path
) -> None:
    worker = nano(cluster)
    work, gate = tmp_path / "w", tmp_path / "gate"
    plan = [fakes.trial(work, name, steps=20, gate=str(gate)) for name in ("a", "b")]
    left: list[subprocess.CompletedProcess[str]] = []
    shown: list[str] = []

    def leave() -> None:
        wait_for(lambda: all(last_step(JournalStore(tmp_path / "s").read(t.trial_id)) == 8 for t in plan))
        shown.append(zo("devices", f"state_dir={cluster.state}", home=cluster.home).stdout)
        left.append(zo("worker", "leave", "--state-dir", worker.state, home=cluster.home))
        gate.touch()

    with meanwhile(leave):
        summary = sweep(tmp_path / "s", plan, RayBackend(tmp_path, address=cluster.address, target=TARGET))
    assert summary.counts == {TrialState.SUCCEEDED: 2}
    (row,) = [line for line in lines(shown[0]) if line.startswith("nano")]
    given = row.split()[-1]
    assert given in ("a", "b"), shown[0]
    assert left[0].returncode == 0
    assert "left: all trials have stopped" in worker.said
    assert worker.process.wait(10) == 0
    assert worker.raylet() is None
    ledger = [json.loads(line) for line in (tmp_path / "s" / "ledger.jsonl").read_text().splitlines()]
    lost = [(entry["trial_id"], entry["node"], entry.get("blameless")) for entry in ledger if entry["state"] == "LOST"]
    assert lost == [(given, "nano", True)]
    assert sorted(read_standing(tmp_path / "s").attempts.values()) == [1, 2]
    assert "nano" not in cluster.nodes()
    starts = [line for t in plan for line in fakes.log_of(work, t.trial_id) if line.startswith("start")]
    assert len(starts) == 3
    again = zo("worker", "leave", "--state-dir", worker.state, home=cluster.home)
    assert (again.returncode, again.stdout) == (1, "no worker runs here\n")


def test_workers_join_again_when_the_head_was_killed_and_came_back(cluster: Machines) -> None:
    nano(cluster)
    before = cluster.wait_for_node("nano")
    gcs = [p for p in psutil.process_iter(["name", "cmdline"]) if p.info["name"] == "gcs_server"]
    short = str(private_folder(cluster.state / "head"))
    mine = [p for p in gcs if any(short in word for word in p.info["cmdline"])]
    assert len(mine) == 1
    mine[0].kill()
    began = time.monotonic()

    def back() -> bool:
        try:
            return cluster.nodes().get("nano", {}).get("NodeID", before) != before
        except UserError:
            return False

    wait_for(back, PATIENCE, "the worker at the new head")
    print(f"joined again after {time.monotonic() - began:.0f} s")
    assert "Ray did not start" not in cluster.log(), "the head was not held up by its own node"


def test_a_driver_elsewhere_is_told_that_it_must_be_on_a_node(cluster: Machines, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {})  # as on a machine with none of the nodes' addresses
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(cluster.token))
    monkeypatch.setenv("RAY_USE_TLS", "0")  # as the head of this test: from elsewhere it would have to speak TLS
    backend = RayBackend(tmp_path, address=cluster.address, target=TARGET)
    with pytest.raises(UserError, match=r"this machine is not a node of the Ray cluster.*join here first") as caught:
        sweep(tmp_path / "s", fakes.trials(tmp_path / "w", 1, needs=Needs("cpu")), backend)
    assert "\n" not in str(caught.value)


def test_stop_ends_what_start_started_and_nothing_else(cluster: Machines) -> None:
    worker = nano(cluster)
    head = running(cluster.state / "head" / "head.json")
    assert head
    mine = psutil.Process(head["pid"]).children(recursive=True)
    mine += [p for p in cluster.processes() if "mlflow" in p.cmdline()]
    assert len(mine) > 4
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "raylet", "mlflow"])
    try:
        stopped = zo("head", "stop", "--state-dir", cluster.state, home=cluster.home)
        assert stopped.stdout == "stopped\n"
        wait_for(lambda: not [p for p in mine if p.is_running() and p.status() != psutil.STATUS_ZOMBIE], 20)
        assert stranger.poll() is None
        assert zo("head", "stop", "--state-dir", cluster.state, home=cluster.home).returncode == 0
        assert zo("head", "status", "--state-dir", cluster.state, home=cluster.home).returncode == 1
        assert worker.process.poll() is None, "it waits for the head to come back"
        worker.process.send_signal(signal.SIGTERM)
        wait_for(lambda: worker.process.poll() is not None, PATIENCE, "the worker's end")
    finally:
        stranger.kill()
        stranger.wait()

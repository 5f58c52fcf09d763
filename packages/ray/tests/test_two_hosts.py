"""A head and a worker on two hosts with addresses of their own (network namespaces), and a stranger between them."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import util
from pathlib import Path

import pytest

from hosts import Host, two_hosts
from machines import PATIENCE, Machines, environment, machines
from tests.schedule.nodes import wait_for
from zo_sweeps.core.trial import TrialState
from zo_sweeps.schedule.ledger import read_standing

pytestmark = [pytest.mark.multiprocess, pytest.mark.chaos, pytest.mark.timeout(1800)]

PROFILE = "name: board\ndisplay: A board\nkind: cpu\nmemory_gb: 8\nunified: true\n"
GRID = """\
# @package grid
name: tiny
fixed: {model: demo, prompt: mezo, method: prge, train: {steps: 4, eval_every: 2}, split: {train: 16, dev: 8, test: 8}}
axes: {task: [demo_remarks]}
seeds: [0, 1]
blocks: {prge: {label: P-RGE}}
tables: {accuracy: {layout: accuracy, rows: {prge: P-RGE}}}
"""


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Machines, Host, Host]]:
    with two_hosts() as (first, second):
        guarded = ["--host", first.address] if util.find_spec("flask_wtf") else []  # MLflow's passwords need it
        with machines(*guarded, "--cpus", "1", prefix=first.prefix) as them:
            (them.home / "conf" / "device").mkdir(parents=True)
            (them.home / "conf" / "grid").mkdir()
            (them.home / "conf" / "device" / "board.yaml").write_text(PROFILE)
            (them.home / "conf" / "grid" / "tiny.yaml").write_text(GRID)
            yield them, first, second


SNIFFER = """
import signal, socket, sys
packets, token = [], sys.argv[1].encode()
listener = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
def end(*_):
    print(len(packets), sum(token in packet for packet in packets))
    sys.exit()
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
while True:
    packets.append(listener.recv(65536))
"""


def on(host: Host, them: Machines, *words: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    command: Sequence[str] = [*host.prefix, sys.executable, "-m", "zo_sweeps", *map(str, words)]
    return subprocess.run(
        command, env=environment(them.home, **more), cwd=them.home, capture_output=True, text=True, timeout=300
    )


def test_a_stranger_on_the_network_is_refused(pair: tuple[Machines, Host, Host], tmp_path: Path) -> None:
    them, first, second = pair
    assert them.address.startswith(first.address + ":")
    none = on(second, them, "worker", "join", them.address, "--state-dir", tmp_path / "w")
    assert none.returncode == 2
    assert none.stderr.startswith("zo_sweeps: no token for the cluster; ")
    wrong = on(second, them, "devices", f"cluster.address={them.address}", RAY_AUTH_TOKEN="c" * 64)
    assert wrong.returncode == 2
    assert "refuses the token" in wrong.stderr
    plain = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--address={them.address}", "--block"]
    with pytest.raises(subprocess.TimeoutExpired) as waited:  # Ray alone, without a token, and so without TLS
        subprocess.run(
            [*second.prefix, *plain, f"--temp-dir={tmp_path}"],
            env=environment(them.home, RAY_AUTH_MODE="disabled"),
            capture_output=True,
            timeout=30,
        )
    assert b"Failed to connect to GCS" in (waited.value.stderr or b"")
    assert b"Ray runtime started" not in (waited.value.stdout or b"")
    if util.find_spec("flask_wtf"):
        address = f"http://{first.address}:{them.ports[1]}"
        code = "import sys, urllib.request as r; r.build_opener(r.ProxyHandler({})).open(sys.argv[1], timeout=20)"
        path = "/api/2.0/mlflow/experiments/search?max_results=1"
        asked = subprocess.run(
            [*second.prefix, sys.executable, "-c", code, address + path], capture_output=True, text=True
        )
        assert "HTTP Error 401" in asked.stderr


def test_a_board_on_another_host_joins_and_runs_the_trials_that_ask_for_it(pair: tuple[Machines, Host, Host]) -> None:
    them, first, second = pair
    copied = them.folder / "copied_token"
    copied.write_text(them.token.read_text())
    copied.chmod(0o600)
    listening = [*second.prefix, sys.executable, "-c", SNIFFER, them.token.read_text()]
    sniffer = subprocess.Popen(listening, stdout=subprocess.PIPE, text=True)
    assert sniffer.stdout
    assert sniffer.stdout.readline() == "ready\n"
    words = ["--config-dir", str(them.home / "conf"), "--device", "board", "--cpus", "1"]
    worker = them.join("--token-file", str(copied), *words, name="board-1", prefix=second.prefix)
    seen = lambda: on(first, them, "devices", f"state_dir={them.state}").stdout
    wait_for(lambda: "board-1" in seen(), PATIENCE, "the board")
    assert re.search(rf"^ok +ports in: the head reaches {second.address}$", worker.said, re.MULTILINE), worker.said
    assert re.search(rf"^ok +ports out: {first.address} can be reached", worker.said, re.MULTILINE)
    wait_for(lambda: re.search(r"^board-1 +board .*up,", seen(), re.MULTILINE))
    words = ["+grid=tiny", "device=board", "--config-dir", "conf", f"state_dir={them.state}"]
    ran = on(first, them, *words, f"cluster.address={them.address}")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    standing = read_standing(them.state)
    assert set(standing.states.values()) == {TrialState.SUCCEEDED}
    assert set(standing.nodes.values()) == {"board-1"}
    with contextlib.closing(sqlite3.connect(them.state / "mlflow" / "mlflow.db")) as store:
        recorded = {row[0] for row in store.execute("select value from tags where key = 'zo.trial_id'")}
    assert recorded == set(standing.states), "in the store that the head's server shows"
    assert "MLflow has not taken" not in ran.stdout
    sniffer.terminate()
    packets, with_token = map(int, sniffer.stdout.read().split())
    assert packets > 500
    assert with_token == 0, "Ray's own authentication sends it with every call"
    left = on(second, them, "worker", "leave", "--state-dir", worker.state)
    assert left.returncode == 0
    assert worker.process.wait(20) == 0

"""The walk of docs/CLUSTER.md in network namespaces: boards with other Pythons join from behind a router.

With ordinary privileges, and this Python alone: test_agent_sweep.py.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from agents import free_port
from boards import Board, other_pythons, write_profile
from hosts import Host, behind_a_router
from machines import machines
from tests.e2e.conftest import FIXED
from tests.e2e.drivers import Driver, logs, outcomes, run_inline, words
from tests.plan.common import write_grid

pytestmark = [pytest.mark.multiprocess, pytest.mark.chaos, pytest.mark.timeout(1800)]

ZO: dict[str, Any] = {"method": "prge", "estimator": {"q": 2}, "train": {"steps": 12}}
CALL = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)"
LISTEN = """import socket, sys, time
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
print(flush=True)
time.sleep(60)
"""


def mixed(boards: list[str]) -> dict[str, Any]:
    """Two trials for each board, and eleven for anything: zeroth-order, first-order, quantized, untrained."""
    anywhere = {
        "zero_shot": {"label": "zero-shot", "fixed": {"method": "zero_shot"}},
        "fo": {"label": "fo", "fixed": {"method": "fo_lora_fa", "update": {"lr": 3e-3}, "train": {"steps": 4}}},
        "zo": {"label": "zo", "fixed": ZO, "axes": {"update": {"lr": [0.03, 0.1]}}},
        "int8": {"label": "int8", "fixed": {**ZO, "precision": "int8"}, "axes": {"update": {"lr": [0.03, 0.1]}}},
    }
    own = {name: {"label": name, "fixed": {**ZO, "device": name}} for name in boards}
    blocks = {**{name.replace("-", "_").replace(".", "_"): block for name, block in own.items()}, **anywhere}
    return {
        "name": "mixed",
        "fixed": {**FIXED, "split": {"train": 32, "dev": 8, "test": 8}, "train": {"batch": 2, "eval_every": 3}},
        "axes": {"task": ["demo_remarks"]},
        "seeds": [0, 1],
        "blocks": blocks,
        "tables": {"accuracy": {"layout": "accuracy", "rows": {name: name for name in blocks}}},
    }


def reaches(one: Host, other: Host) -> bool:
    """Whether `one` can open a connection to a port on which `other` listens."""
    port = str(free_port())
    with subprocess.Popen(
        [*other.prefix, sys.executable, "-c", LISTEN, other.address, port], stdout=subprocess.PIPE
    ) as listener:
        assert listener.stdout
        listener.stdout.readline()
        called = subprocess.run([*one.prefix, sys.executable, "-c", CALL, other.address, port], capture_output=True)
        listener.kill()
    return called.returncode == 0


def test_boards_behind_a_router_run_trials_beside_a_ray_node(tmp_path: Path) -> None:
    pythons = other_pythons()
    conf = write_grid(tmp_path / "conf", mixed([f"board-{version}" for version in pythons]), "mixed")
    with ExitStack() as stack:
        head, router, board = stack.enter_context(behind_a_router())
        assert reaches(board, head)
        assert not reaches(head, board)
        gateway = f"--gateway-port={free_port()}"
        them = stack.enter_context(machines("--host", head.address, "--cpus", "1", gateway, prefix=head.prefix))
        (url,) = re.findall(r"agent join (\S+) --code", them.said)
        boards = {}
        for version, python in pythons.items():
            name = f"board-{version}"
            write_profile(conf, name)
            boards[name] = Board(tmp_path / name, url, conf, name=name, python=python, prefix=board.prefix)
            stack.callback(boards[name].kill)
            print(f"{name} joined after {boards[name].join(them.code()):.0f} s")
        listed = json.loads(them.zo("devices", "--json", f"state_dir={them.state}"))
        versions = {one["name"]: one["facts"]["versions"]["python"] for one in listed if one["name"] in boards}
        assert versions == {f"board-{version}": version for version in pythons}

        began = time.monotonic()
        uri = f"http://{head.address}:{them.ports[1]}"
        driver = Driver(tmp_path, words("mixed", conf, uri), them.address, them.login, head.prefix)
        assert driver.finish() == 0, driver.said
        print(f"the sweep took {time.monotonic() - began:.0f} s")
        gateway_said = (them.state / "head" / "gateway.log").read_text()
        for name, one in boards.items():
            assert f"{name} ({name}) enrolled from {router.address}" in gateway_said, (
                "the router's address, not its own"
            )
            assert one.leave() == 0, one.said
    assert {entry["state"] for entry in driver.ledger()} == {"RUNNING", "SUCCEEDED"}
    ended = [entry for entry in driver.ledger() if entry["state"] == "SUCCEEDED"]
    ran = Counter(entry["node"] for entry in ended)
    print(dict(ran))
    assert all(ran[name] >= 2 for name in boards)
    assert ran.keys() - boards.keys(), "the head's own node took part"
    assert all(entry["outcome"]["metrics"]["agent_bytes_up"] > 0 for entry in ended if entry["node"] in boards)
    alone = run_inline(tmp_path / "inline", conf, "+grid=mixed", "device.kind=cpu")
    assert len(outcomes(alone)) == 11 + 2 * len(boards)
    assert outcomes(driver.state) == outcomes(alone)
    assert logs(driver.state) == logs(alone)

"""A sweep over a Ray node and an agent while the head, its gateway and the board go away and come back.

However it is hit: every trial ends once, each step is in its journal once, and every number is the undisturbed run's.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from agents import free_port
from boards import Board, write_profile
from machines import PATIENCE, Machines, machines
from tests.e2e.conftest import FIXED
from tests.e2e.drivers import Driver, logs, outcomes, run_inline, words
from tests.plan.common import write_grid
from tests.schedule.nodes import wait_for
from zo_sweeps.record.journal import JournalStore, last_step, outcome, places
from zo_sweeps_agent.gateway.process import MODULE as GATEWAY
from zo_sweeps_ray.cluster import private_folder

pytestmark = [pytest.mark.multiprocess, pytest.mark.chaos, pytest.mark.timeout(1800)]

BOARD, NODE = "board", "node"
ZO: dict[str, Any] = {"method": "prge", "estimator": {"q": 2}, "train": {"steps": 40}}
GRID: dict[str, Any] = {
    "name": "mixed",
    "fixed": {**FIXED, "split": {"train": 32, "dev": 8, "test": 8}, "train": {"batch": 2, "eval_every": 8}},
    "axes": {"task": ["demo_remarks"]},
    "seeds": [0, 1],
    "blocks": {
        "edge": {"label": "edge", "fixed": {**ZO, "device": BOARD}, "axes": {"update": {"lr": [0.03, 0.1]}}},
        "any": {"label": "any", "fixed": ZO, "axes": {"update": {"lr": [0.01, 0.03, 0.1]}}},
        "cpu": {"label": "cpu", "fixed": {**ZO, "device": "cpu", "precision": "int8"}},
        "fo": {"label": "fo", "fixed": {"method": "fo_lora_fa", "update": {"lr": 3e-3}, "train": {"steps": 10}}},
    },
    "tables": {"accuracy": {"layout": "accuracy", "rows": {name: name for name in ("edge", "any", "cpu", "fo")}}},
}
TRIALS = 14
LEASE_MINUTES = 0.5  # longer than a long poll, which is an idle agent's sign of life


@dataclass
class Drill:
    """A head, a Ray node and an agent; `driver` is the sweep of the moment."""

    them: Machines
    board: Board
    conf: Path
    driver: Driver

    def begin(self, folder: Path, *, shared: bool) -> None:
        """Start a sweep, with a state folder of its own or the head's."""
        uri = "" if shared else f"http://127.0.0.1:{self.them.ports[1]}"
        state = self.them.state if shared else None
        self.driver = Driver(folder, words("mixed", self.conf, uri), self.them.address, self.them.login, state=state)

    def runs_on(self, node: str) -> str:
        """A trial that is between two of its steps there, as far as the driver knows; "" if there is none."""
        store = JournalStore(self.driver.state)
        for trial_id in store:
            events = store.read(trial_id)
            where = places(events)
            if where and where[-1][0] == node and outcome(events) is None and last_step(events) > 0:
                return trial_id
        return ""

    def hit(self, node: str = BOARD) -> str:
        """Wait for a trial in the middle of its run on that node; return its id."""
        found: list[str] = []
        wait_for(lambda: found.append(self.runs_on(node)) or found[-1], PATIENCE, f"a trial there\n{self.driver.said}")
        return found[-1]

    def lost(self, why: str) -> list[str]:
        return [entry["trial_id"] for entry in self.driver.lost() if re.search(why, entry["error"])]

    def gateway(self) -> psutil.Process:
        (one,) = [one for one in self.them.processes() if GATEWAY in one.cmdline()]
        return one


@pytest.fixture(scope="module")
def conf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    conf = write_grid(tmp_path_factory.mktemp("conf"), GRID, "mixed")
    write_profile(conf, BOARD)
    return conf


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, conf: Path) -> Path:
    return run_inline(tmp_path_factory.mktemp("inline"), conf, "+grid=mixed", "device.kind=cpu")


@pytest.fixture(scope="module")
def drill(tmp_path_factory: pytest.TempPathFactory, conf: Path) -> Iterator[Drill]:
    folder = tmp_path_factory.mktemp("drill")
    gateway = ("--gateway-port", str(free_port()), "--lease", str(LEASE_MINUTES))
    with ExitStack() as stack:
        them = stack.enter_context(machines("--cpus", "0", *gateway))
        them.join("--device", "cpu", "--cpus", "1", name=NODE)
        them.wait_for_node(NODE)
        (url,) = re.findall(r"agent join (\S+) --code", them.said)
        board = Board(folder / BOARD, url, conf, name=BOARD)
        stack.callback(board.kill)
        board.join(them.code())
        yield Drill(them, board, conf, None)  # type: ignore[arg-type]


def stop_and_start(drill: Drill) -> None:
    """At once: the driver may meet the new head without having missed the old one."""
    drill.hit()
    drill.them.zo("head", "stop", "--state-dir", drill.them.state)
    drill.them.start()


def stop_and_start_later(drill: Drill) -> None:
    drill.hit(NODE)
    drill.them.zo("head", "stop", "--state-dir", drill.them.state)
    wait_for(lambda: "Waiting for" in drill.driver.said, 120, f"the driver's word\n{drill.driver.said}")
    drill.them.start()


def kill_the_head(drill: Drill) -> None:
    """Its keeper, which takes the MLflow server along, and all of Ray there."""
    drill.hit()
    short = str(private_folder(drill.them.state / "head"))
    mine = [one for one in drill.them.processes() if "zo_sweeps_ray.head" in one.cmdline()]
    mine += [one for one in drill.them.processes() if any(short in word for word in one.cmdline())]
    assert len(mine) > 2
    for one in mine:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    drill.them.start()


def kill_the_gateway(drill: Drill) -> None:
    drill.hit()
    before = drill.gateway()
    before.kill()
    wait_for(lambda: any(GATEWAY in one.cmdline() and one != before for one in drill.them.processes()), 60)


def cut_the_board_off(drill: Drill) -> None:
    """For longer than its lease, with its power."""
    trial = drill.hit()
    drill.board.kill()
    wait_for(lambda: drill.lost("was not heard of for 0.5 min"), PATIENCE, f"the lease's end\n{drill.driver.said}")
    assert drill.lost("was not heard of") == [trial]
    drill.board.join()


def revoke_the_key(drill: Drill) -> None:
    trial = drill.hit()
    drill.them.zo("devices", "revoke", BOARD, f"state_dir={drill.them.state}")
    wait_for(lambda: drill.lost(f"the key of {BOARD} was revoked"), 60, drill.driver.said)
    assert drill.lost("revoked") == [trial]
    assert drill.board.process.wait(60) == 2
    drill.board.join(drill.them.code())


BLOWS = (stop_and_start, stop_and_start_later, kill_the_head, kill_the_gateway, cut_the_board_off, revoke_the_key)


@pytest.mark.parametrize("blow", BLOWS, ids=lambda blow: blow.__name__)
def test_every_trial_runs_once_with_the_undisturbed_results(
    blow: Callable[[Drill], None], drill: Drill, undisturbed: Path, tmp_path: Path
) -> None:
    drill.begin(tmp_path, shared=blow is stop_and_start_later)
    try:
        blow(drill)
        began = time.monotonic()
        assert drill.driver.finish() == 0, drill.driver.said
        print(f"{time.monotonic() - began:.0f} s from the blow to the end")
    finally:
        drill.driver.process.kill()  # its child ends with it
        drill.driver.process.wait()
    assert "Traceback" not in drill.driver.said
    assert len(outcomes(drill.driver.state)) == TRIALS
    assert outcomes(drill.driver.state) == outcomes(undisturbed)
    assert logs(drill.driver.state) == logs(undisturbed)
    assert all(entry["state"] != "FAILED" for entry in drill.driver.ledger())
    assert {entry["node"] for entry in drill.driver.ledger() if entry["state"] == "SUCCEEDED"} == {BOARD, NODE}

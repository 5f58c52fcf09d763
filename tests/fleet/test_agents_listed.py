"""Agents in `devices`, their revocation by command, and the known answers that decide what they lend."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from rich.console import Console

from zo_sweeps.cli.main import main
from zo_sweeps.fleet import inventory, known_answers
from zo_sweeps.schedule import leases
from zo_sweeps.schedule.leases import Store

pytestmark = pytest.mark.unit
FACTS = {"profile": "jetson-tx2", "cpus": 4, "gpus": 1, "memory_bytes": 8 * 10**9, "zo_sweeps": "9.9"}
PROBE = {"name": "a board", "versions": {"python": "3.12.1", "torch": "2.11"}, "codes": {"nf4": ""}}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "head").mkdir()
    store = Store(tmp_path / "head" / leases.FILE)
    for name in ("board", "other"):
        secret = name.ljust(10).encode()
        store.add_code(secret, time.time() + 60)
        store.enrol(secret, name, "cpu", "key", "AB")
    store.join("board", {**FACTS, "probe": PROBE}, 1, {"fp16": "other losses"}, "")
    store.hear({"board": time.time()}, {"board": {"temperature": 51.2}})
    store.lease("d", "board", {"trial_id": "t", "label": "a trial"}, [], 1)
    store.close()
    return tmp_path


def listed(state: Path) -> list[inventory.Device]:
    store = Store(state / "head" / leases.FILE)
    note = {"time": time.time(), "agents": [asdict(agent) for agent in store.agents()]}
    store.close()
    return inventory.agents(json.loads(json.dumps(note)))


def test_agents_are_machines_of_the_inventory(state: Path) -> None:
    board, other = listed(state)
    assert (board.name, board.device, board.state, board.runs) == ("board", "jetson-tx2", "up", ("a trial",))
    cells = inventory.row(board, time.time())
    assert cells[3] == "4 CPU, 1 GPU\n7.5 GiB\nnot fp16"
    assert "python 3.12.1" in cells[5]
    assert cells[7] == "51 °C"
    assert other.state == "enrolled"
    note = {"time": time.time() + 100, "agents": [asdict(a) for a in _agents(state)]}
    assert inventory.agents(note)[0].state == "offline"


def _agents(state: Path) -> list[leases.Agent]:
    store = Store(state / "head" / leases.FILE)
    agents = store.agents()
    store.close()
    return agents


def test_a_machine_whose_facts_make_no_sense_is_listed_without_them() -> None:
    console = Console(record=True, width=200)
    odd = inventory.Device("odd", "cpu", "up", facts={"memory_bytes": "much", "time": "now", "codes": 3})
    inventory.show([odd, replace(odd, name="well", facts={})], console, time.time())
    text = console.export_text()
    assert "odd" in text
    assert "well" in text


def test_devices_revoke(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "revoke", "board", f"state_dir={state}"]) == 0
    assert "board was revoked" in capsys.readouterr().out
    board, _ = listed(state)
    assert (board.state, board.runs) == ("revoked", ())
    for words, text in (
        (["bord", f"state_dir={state}"], "did you mean 'board'?"),
        ([f"state_dir={state}"], "which agent's key?"),
        (["board", f"state_dir={state / 'absent'}"], "no gateway's store"),
    ):
        assert main(["devices", "revoke", *words]) == 2
        assert text in capsys.readouterr().err


def test_known_answers_are_compared_by_precision() -> None:
    """Bits of the noise; losses up to rounding units of the precision; anything malformed is a wrong answer."""
    expected = {"noise": ["a", "b"], "losses": {"fp32": [10.0, 9.0], "fp16": [10.0, 9.0], "w4a8": [10.0]}}
    tolerated = known_answers.TOLERATED
    near = {
        "fp32": [10.0 * (1 + 0.9 * tolerated * 2.0**-24), 9.0],
        "fp16": [10.0 * (1 - 0.9 * tolerated * 2.0**-11), 9.0],
        "w4a8": [10.0 * (1 + 0.9 * tolerated * 2.0**-8)],
    }
    assert known_answers.compare(expected, {"noise": ["a", "b"], "losses": near}) == {}
    far = {**near, "fp32": [10.0, 9.0 * (1 + 1.1 * tolerated * 2.0**-24)], "fp16": [float("nan"), 9.0]}
    refused = known_answers.compare(expected, {"noise": ["a", "c"], "losses": far})
    assert refused.keys() == {"noise", "fp32", "fp16"}
    assert "the loss of row 1" in refused["fp32"]
    assert refused["noise"] == "its noise has other bits than the head's"
    failed = {"fp32": "no kernel", "fp16": 3}
    got = {"losses": {"w4a8": "10"}, "failed": failed}
    wrong = {"noise": "it computed no noise", "fp32": "no kernel", "fp16": "3", "w4a8": "it computed no losses"}
    assert known_answers.compare(expected, got) == wrong
    assert known_answers.compare(expected, {"losses": [], "failed": 1}).keys() == wrong.keys()


def test_a_challenge_has_this_machines_answers() -> None:
    """Equal ones twice; another seed's noise and losses differ; a small change of the computation is found."""
    asked = {**known_answers.challenge(1), "precisions": ["fp32", "nf4"]}
    answer = known_answers.answer(asked)
    assert answer["failed"] == {}
    assert known_answers.compare(answer, json.loads(json.dumps(known_answers.answer(asked)))) == {}
    other = known_answers.answer({**known_answers.challenge(2), "precisions": ["fp32"]})
    assert known_answers.compare({**answer, "losses": {"fp32": other["losses"]["fp32"]}}, answer).keys() == {"fp32"}
    assert not set(other["noise"]) & set(answer["noise"])
    swapped = {**answer, "losses": {**answer["losses"], "fp32": answer["losses"]["nf4"]}}
    assert "fp32" in known_answers.compare(answer, swapped), "4-bit codes are no fp32"

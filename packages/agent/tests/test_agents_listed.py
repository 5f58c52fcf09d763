"""Agents in `devices`, their revocation by command, and the known answers that decide what they lend."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from facts import FACTS
from zo_sweeps.cli.main import main
from zo_sweeps.devices.probe import Reading
from zo_sweeps_agent import known_answers, leases
from zo_sweeps_agent.agent_facts import EnrolledAgent, Note
from zo_sweeps_agent.known_answers import Challenge, MachineAnswers
from zo_sweeps_agent.leases import Store
from zo_sweeps_agent.on_the_head import HeadGateway as OnTheHead
from zo_sweeps_ray import inventory
from zo_sweeps_ray.commands import show_devices

LISTED = OnTheHead()
pytestmark = pytest.mark.unit


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "head").mkdir()
    store = Store(tmp_path / "head" / leases.FILE)
    for name in ("board", "other"):
        secret = name.ljust(10).encode()
        store.add_code(secret, time.time() + 60)
        store.enrol(secret, name, "cpu", f"key of {name}", "AB")
    store.join("board", FACTS, {"fp16": "other losses"}, "")
    store.hear({"board": time.time()}, {"board": Reading(ram_free_bytes=10**9, temperature=51.2)})
    store.lease("d", "board", {"trial_id": "t", "label": "a trial"}, [], 1)
    store.close()
    return tmp_path


def listed(state: Path) -> list[inventory.Machine]:
    store = Store(state / "head" / leases.FILE)
    note = Note(time.time(), "", tuple(store.agents()))
    store.close()
    return list(LISTED.devices(note.to_json()))


def test_agents_are_machines_of_the_inventory(state: Path) -> None:
    board, other = listed(state)
    assert (board.name, board.device, board.state, board.runs) == ("board", "jetson-tx2", "up", ("a trial",))
    cells = inventory.row(board, time.time())
    assert cells[3] == "4 CPU, 1 GPU\n7.5 GiB\nnot fp16"
    assert "python 3.12.1" in cells[5]
    assert cells[7] == "51 °C"
    assert other.state == "enrolled"
    assert LISTED.devices(Note(time.time() + 100, "", tuple(_agents(state))).to_json())[0].state == "offline"


def _agents(state: Path) -> list[EnrolledAgent]:
    store = Store(state / "head" / leases.FILE)
    agents = store.agents()
    store.close()
    return agents


def test_a_machine_whose_facts_make_no_sense_is_listed_without_them() -> None:
    console = Console(record=True, width=200)
    odd = inventory.Machine("odd", "cpu", "up", facts={"memory_bytes": "much", "time": "now", "codes": 3})
    show_devices([odd, replace(odd, name="well", facts={})], console, time.time())
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
    """Bits of the noise; losses up to rounding units of the precision; what is missing is a wrong answer."""
    noise = ("a", "b")
    expected = MachineAnswers(noise, {"fp32": (10.0, 9.0), "fp16": (10.0, 9.0), "w4a8": (10.0,)})
    tolerated = known_answers.TOLERATED
    near = {
        "fp32": (10.0 * (1 + 0.9 * tolerated * 2.0**-24), 9.0),
        "fp16": (10.0 * (1 - 0.9 * tolerated * 2.0**-11), 9.0),
        "w4a8": (10.0 * (1 + 0.9 * tolerated * 2.0**-8),),
    }
    assert known_answers.compare(expected, MachineAnswers(noise, near)) == {}
    far = {**near, "fp32": (10.0, 9.0 * (1 + 1.1 * tolerated * 2.0**-24)), "fp16": (float("nan"), 9.0)}
    refused = known_answers.compare(expected, MachineAnswers(("a", "c"), far))
    assert refused.keys() == {"noise", "fp32", "fp16"}
    assert "the loss of row 1" in refused["fp32"]
    assert refused["noise"] == "its noise has other bits than the head's"
    got = MachineAnswers(losses={"fp16": (10.0,)}, failed={"fp32": "no kernel"})
    no_losses = "it computed no losses"
    wrong = {"noise": "it computed no noise", "fp32": "no kernel", "fp16": no_losses, "w4a8": no_losses}
    assert known_answers.compare(expected, got) == wrong


def test_a_challenge_has_this_machines_answers() -> None:
    """Equal ones twice; another seed's noise and losses differ; a small change of the computation is found."""
    asked = replace(known_answers.challenge(1), precisions=("fp32", "nf4"))
    answer = known_answers.answer(asked)
    assert answer.failed == {}
    sent = Challenge.read(json.loads(json.dumps(asked.to_json())))
    again = MachineAnswers.read(json.loads(json.dumps(known_answers.answer(sent).to_json())))
    assert known_answers.compare(answer, again) == {}
    other = known_answers.answer(replace(known_answers.challenge(2), precisions=("fp32",)))
    assert known_answers.compare(replace(answer, losses={"fp32": other.losses["fp32"]}), answer).keys() == {"fp32"}
    assert not set(other.noise) & set(answer.noise)
    swapped = replace(answer, losses={**answer.losses, "fp32": answer.losses["nf4"]})
    assert "fp32" in known_answers.compare(answer, swapped), "4-bit codes are no fp32"

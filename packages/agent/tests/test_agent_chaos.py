"""Agents through kills, cuts and restarts: each trial exactly once, with the undisturbed run's result.

With every change: killed agents, trials that stop or die, keys and codes. Cuts, restarts and full disks are `chaos`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agents import DRIVER, Cable, Head, head, wait
from tests.schedule import fakes
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import End, Event, Steps
from zo_sweeps.core.trial import Trial
from zo_sweeps.record.journal import scalars
from zo_sweeps_agent.agent import commands, light
from zo_sweeps_agent.agent_facts import Note
from zo_sweeps_agent.lease_contents import StoredFile
from zo_sweeps_agent.on_the_head import HeadGateway as OnTheHead

LISTED = OnTheHead()
pytestmark = pytest.mark.multiprocess

STEPS = 12


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Head]:
    with head(tmp_path / "head") as one:
        yield one


def a_trial(tmp_path: Path, name: str = "t", *, gated: bool = True) -> Trial:
    """Eight steps, and the rest when `gate` exists."""
    gate = {"gate": str(tmp_path / "gate")} if gated else {}
    return fakes.trial(tmp_path / "ran", name, steps=STEPS, pause=0.02, **gate)


def open_gate(tmp_path: Path) -> None:
    (tmp_path / "gate").touch()


def undisturbed(trial: Trial) -> tuple[object, object]:
    events: list[Event] = []
    sink = type("Sink", (), {"emit": staticmethod(events.append)})()
    config = {**trial.config.to_json(), "folder": trial.config.to_json()["folder"] + "-oracle"}
    config.pop("gate", None)
    oracle = Trial.from_json({**trial.to_json(), "config": config})
    outcome = fakes.run_trial(oracle, sink, [], 1, lambda: False)
    return scalars(events), outcome.metrics


def must_be_exact(one: Head, lease: str, trial: Trial, before: list[Event] | None = None) -> None:
    """The lease's events, after those of `before`, are one whole run with the undisturbed run's numbers."""
    outcome = one.outcome(lease)
    events = [*(before or []), *one.events(lease)]
    assert (scalars(events), outcome["metrics"]) == undisturbed(trial)
    assert [event.first for event in events if isinstance(event, Steps)] == list(range(1, STEPS + 1))
    assert sum(isinstance(event, End) for event in events) == 1


def test_a_killed_agent_goes_on_from_its_disk(gateway: Head, tmp_path: Path) -> None:
    trial, agent = a_trial(tmp_path), gateway.agent("a")
    lease = gateway.lease(trial, "a")
    wait(lambda: gateway.steps(lease) == 8)
    agent.kill()
    open_gate(tmp_path)
    again = gateway.agent("a")
    must_be_exact(gateway, lease, trial)
    starts = [line.split()[2] for line in fakes.log_of(tmp_path / "ran", "t") if line.startswith("start")]
    assert starts == ["from=0", "from=8"], "no step was run twice"
    assert again.kill(signal.SIGTERM) == 0
    assert "left" in again.said


@pytest.mark.chaos
def test_a_cut_in_the_middle_of_a_journal(gateway: Head, tmp_path: Path) -> None:
    """The trial ends while nothing passes; the rest of its journal arrives once when the way is whole again."""
    cable = Cable(gateway.port)
    trial = a_trial(tmp_path)
    gateway.agent("a", port=cable.port)
    lease = gateway.lease(trial, "a")
    wait(lambda: gateway.steps(lease) >= 4)
    cable.cut()
    open_gate(tmp_path)
    wait(lambda: fakes.completions(tmp_path / "ran", ["t"]) == {"t": 1})
    assert gateway.steps(lease) <= 8 < STEPS, "of what followed the gate, which opened after the cut, nothing came"
    cable.whole = True
    must_be_exact(gateway, lease, trial)


@pytest.mark.chaos
def test_the_head_restarts(gateway: Head, tmp_path: Path) -> None:
    trial, agent = a_trial(tmp_path), gateway.agent("a")
    lease = gateway.lease(trial, "a")
    wait(lambda: gateway.steps(lease) == 8)
    gateway.kill()
    open_gate(tmp_path)
    wait(lambda: fakes.completions(tmp_path / "ran", ["t"]) == {"t": 1})
    gateway.start()
    must_be_exact(gateway, lease, trial)
    assert "cannot reach" in agent.said


@pytest.mark.chaos
def test_a_board_is_off_for_longer_than_its_lease(tmp_path: Path) -> None:
    """The trial is leased to it again, with the journal that the head has; its own, longer one is not run again."""
    with head(tmp_path / "head", lease_seconds=6.0) as gateway:
        cable = Cable(gateway.port)
        trial, agent = a_trial(tmp_path), gateway.agent("a", port=cable.port)
        lease = gateway.lease(trial, "a")
        wait(lambda: gateway.steps(lease) == 8)
        cable.cut()
        open_gate(tmp_path)
        wait(lambda: fakes.completions(tmp_path / "ran", ["t"]) == {"t": 1})
        agent.kill()
        assert "not heard of" in gateway.why(lease, "a")
        had = gateway.events(lease)
        again = gateway.agent("a", port=cable.port)
        cable.whole = True
        wait(lambda: "is over" in again.said)
        must_be_exact(gateway, gateway.lease(trial, "a", had, 2), trial, had)
        assert fakes.completions(tmp_path / "ran", ["t"]) == {"t": 1}


@pytest.mark.chaos
def test_a_trial_that_another_machine_went_on_with_is_not_taken_from_the_disk(gateway: Head, tmp_path: Path) -> None:
    trial, agent = a_trial(tmp_path), gateway.agent("a")
    lease = gateway.lease(trial, "a")
    wait(lambda: gateway.steps(lease) == 8)
    gateway.store.give_up(lease, "another machine has it")
    wait(lambda: "another machine has it" in agent.said)
    open_gate(tmp_path)
    other = [replace(event, time=0.0) for event in gateway.events(lease)][:5]  # its events: other times
    must_be_exact(gateway, gateway.lease(trial, "a", other, 2), trial, other)


def test_a_trial_is_stopped_at_its_next_step(gateway: Head, tmp_path: Path) -> None:
    trial = a_trial(tmp_path)
    gateway.agent("a")
    lease = gateway.lease(trial, "a")
    wait(lambda: gateway.steps(lease) == 8)
    gateway.store.ask_to_stop(lease)
    assert gateway.outcome(lease)["state"] == "CANCELLED"


def test_a_process_that_dies_is_lost_and_the_agent_lives(gateway: Head, tmp_path: Path) -> None:
    gateway.agent("a")
    lease = gateway.lease(fakes.trial(tmp_path / "ran", "dies", dies=[1]), "a")
    outcome = gateway.outcome(lease)
    assert (outcome["state"], outcome["error"]) == (
        "LOST", "its process was ended by SIGKILL (perhaps for lack of memory)",
    )  # fmt: skip
    trial = a_trial(tmp_path, "next", gated=False)
    must_be_exact(gateway, gateway.lease(trial, "a"), trial)


def test_two_slots_run_two_trials_of_one_model_that_is_sent_once(gateway: Head, tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(os.urandom(2**25))
    digest, stat = hashlib.sha256(path.read_bytes()).hexdigest(), path.stat()
    file = StoredFile("bundle", "weights", digest, stat.st_size, str(path), stat.st_mtime_ns)
    gateway.agent("a", slots=2)
    trials = [a_trial(tmp_path, name) for name in ("one", "two")]
    held = {gateway.lease(trial, "a", files=[file]): trial for trial in trials}
    wait(lambda: all(gateway.steps(lease) == 8 for lease in held), 60)  # both wait at the gate, side by side
    open_gate(tmp_path)
    for lease, trial in held.items():
        must_be_exact(gateway, lease, trial)
    leases = gateway.store.of_driver(DRIVER)
    assert sum(leases[lease].down for lease in held) < 1.5 * stat.st_size


@pytest.mark.chaos
def test_a_damaged_spool_is_given_back_and_the_agent_lives(gateway: Head, tmp_path: Path) -> None:
    trial, agent = a_trial(tmp_path), gateway.agent("a")
    lease = gateway.lease(trial, "a")
    wait(lambda: gateway.steps(lease) == 8)
    agent.kill()
    (journal,) = (tmp_path / "a").rglob("events.jsonl")
    journal.write_bytes(journal.read_bytes().replace(b'"first":3', b'"first":4'))
    gateway.agent("a")
    outcome = gateway.outcome(lease)
    assert outcome["state"] == "LOST"
    assert "in a journal" in outcome["error"]
    other = a_trial(tmp_path, "other", gated=False)
    must_be_exact(gateway, gateway.lease(other, "a"), other)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder with a disk of its own, of 80 MiB."""
    folder = tmp_path / "a"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=80m", "none", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small tmpfs: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.chaos
def test_a_board_whose_disk_is_full_lends_nothing_until_there_is_room_and_says_so(
    small_disk: Path, tmp_path: Path
) -> None:
    with head(tmp_path / "head") as gateway:
        trial, agent = a_trial(tmp_path), gateway.agent("a", code=gateway.code())
        lease = gateway.lease(trial, "a")
        wait(lambda: gateway.steps(lease) == 8)
        with contextlib.suppress(OSError), (small_disk / "other").open("wb", buffering=0) as file:
            while file.write(bytes(2**20)):
                pass  # to the last byte: nothing can be written, no note and no event
        why = gateway.why(lease, "a")
        assert re.fullmatch(r"handed back: its disk is full \(.* free at .*\), so it lends nothing", why)
        assert gateway.store.of_driver(DRIVER)[lease].blameless, "no loss of the trial"
        (device,) = LISTED.devices(Note(time.time(), "", tuple(gateway.store.agents())).to_json())
        assert (device.state, f"handed back: {device.turned_away}") == ("left", why)
        had = gateway.events(lease)
        (small_disk / "other").unlink()
        wait(lambda: agent.said.count("joined") == 2)
        assert "lends nothing until there are" in agent.said
        assert "Traceback" not in agent.said
        open_gate(tmp_path)
        must_be_exact(gateway, gateway.lease(trial, "a", had, 2), trial, had)
        (device,) = LISTED.devices(Note(time.time(), "", tuple(gateway.store.agents())).to_json())
        assert (device.state, device.turned_away) == ("up", "")


@pytest.mark.chaos
def test_two_machines_with_one_key_are_told_of(gateway: Head, tmp_path: Path) -> None:
    """As cloned cards are: both compute each trial."""
    first = gateway.agent("a")
    wait(lambda: "joined" in first.said)
    first.kill()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    agents = [gateway.agent(name) for name in "ab"]
    assert gateway.store.agent("a").refused == {}, "a restart is no copy"
    gateway.lease(a_trial(tmp_path), "a")
    fix = "two machines use its key; zo-sweeps devices revoke a, and register each with a code and a --name of its own"
    wait(lambda: all(f"the head says: {fix}" in one.said for one in agents))
    (device,) = LISTED.devices(Note(time.time(), "", tuple(gateway.store.agents())).to_json())
    assert device.turned_away == fix
    assert f"a: {fix} (the last asks from 127.0.0.1)" in gateway.said

    def status(name: str) -> str:
        said: list[str] = []
        commands.status(tmp_path / name, said.append)
        return "\n".join(said)

    wait(lambda: all(fix in status(name) for name in "ab"))


def test_a_revoked_key_ends_the_trial_and_the_agent(gateway: Head, tmp_path: Path) -> None:
    trial, agent = a_trial(tmp_path), gateway.agent("a")
    lease = gateway.lease(trial, "a")
    wait(lambda: gateway.steps(lease) == 8)
    gateway.store.revoke("a")
    assert gateway.why(lease, "a") == "the key of a was revoked"
    assert agent.ended() == 2
    had = len(gateway.events(lease))
    again = gateway.agent("a")
    assert again.ended() == 2
    assert "not registered" in again.said
    assert len(gateway.events(lease)) == had


def test_a_code_registers_one_machine(gateway: Head, tmp_path: Path) -> None:
    code, proxy = gateway.code(), Cable(gateway.port)
    first = gateway.agent("a", code=code, proxy=proxy.port)
    wait(lambda: "joined" in first.said)
    assert proxy.asked > 0, "it went through the HTTP proxy that its environment names"
    second = gateway.agent("b", code=code)
    assert second.ended() == 2
    assert "this one-time code is not valid" in second.said
    key = next((tmp_path / "a").rglob("key.pem"))
    assert key.stat().st_mode & 0o777 == 0o600
    assert json.loads((key.parent / "registration.json").read_text())["name"] == "a"


def test_nothing_is_sent_to_another_head(gateway: Head, tmp_path: Path) -> None:
    with head(tmp_path / "other") as other:
        stranger = gateway.agent("a", code=other.code())
        assert stranger.ended() == 2
        assert "nothing was sent to it" in stranger.said


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("exit 3", "status 3"),
        ("echo zo_client: cannot open library >&2; exit 127", "cannot open library"),
        ("echo another program", "status 0"),
    ],
)
def test_a_client_that_does_not_run_here_is_refused(tmp_path: Path, text: str, why: str) -> None:
    client = tmp_path / "client"
    client.write_text(f"#!/bin/sh\n{text}\n")
    with pytest.raises(UserError, match=r"does not start \(Permission denied\)"):
        light.checked(client)
    client.chmod(0o755)
    with pytest.raises(UserError, match=f"no light client that runs here .*{why}"):
        light.checked(client)
    client.write_text("#!/bin/sh\necho usage: zo_client BUNDLE\n")
    assert light.checked(client) == client
    for device in ("cpu", "oneplus-12"):
        with pytest.raises(UserError, match="use --device executorch"):
            commands.join(
                tmp_path, commands.AgentOptions("https://10.8.0.1:7443", "CODE", device, client=client), print
            )

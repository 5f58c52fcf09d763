"""The light client on a board that has no torch: an agent of a gateway, and the head's side of its trial."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import venv
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest

pytest.importorskip("executorch", reason="needs the extra [edge]")

from agents import Head, head, wait
from boards import CODE
from built import client, one_store
from test_client_trial import TRIAL, by_the_bindings
from tests.conftest import REPO
from tests.run.common import make, measured
from toy import script
from zo_sweeps.core.events import ClientLine, Event, ScoredDev
from zo_sweeps.core.trial import Outcome, Trial
from zo_sweeps.schedule.backend import RUN_TRIAL
from zo_sweeps_agent import known_answers, known_programs
from zo_sweeps_agent.agent import light
from zo_sweeps_agent.boards import BoardActor
from zo_sweeps_agent.leases import FILE

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow, pytest.mark.usefixtures("one_thread", "one_store")]
__all__ = ["by_the_bindings", "client", "one_store"]  # fixtures


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A Python that has what `pip install ./packages/agent/board` brings, and nothing else: no torch, no NumPy."""
    folder = tmp_path / "python"
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/*/site-packages")
    text = (REPO / "packages/agent/board/pyproject.toml").read_text()
    listed = re.search(r"^dependencies = \[(.*?)\]", text, re.DOTALL | re.MULTILINE)
    assert listed
    left, seen = re.findall(r'"([\w.-]+)', listed[1]), set()
    while left:
        name = left.pop()
        if name.lower() in seen:
            continue
        seen.add(name.lower())
        with contextlib.suppress(ModuleNotFoundError):  # of another system, or a Python that needs it
            found = distribution(name)
            for top in {file.parts[0] for file in found.files or () if file.parts[0] != ".."}:
                if not (packages / top).exists():
                    os.symlink(found.locate_file(top), packages / top)
            needs = (one for one in found.requires or () if "extra ==" not in one)
            left += [match[0] for one in needs if (match := re.match(r"[\w.-]+", one))]
    assert not {"torch", "numpy", "transformers"} & seen
    return folder / "bin" / "python"


class Board:
    """`agent join` with the light client, by that Python."""

    def __init__(self, folder: Path, python: Path, client: Path, gateway: Head) -> None:
        self._words = [python, "-m", "zo_sweeps_agent", "agent", "join", f"https://127.0.0.1:{gateway.port}"]
        self._words += ["--client", client, "--name", "pi", "--cpus", "1", "--state-dir", folder / "state"]
        self._log, self._env = folder / "board.log", {**os.environ, "PYTHONPATH": CODE, "HOME": str(folder)}

    def start(self, *words: str) -> None:
        with self._log.open("a") as log:
            command = [*self._words, *words]
            self._process = subprocess.Popen(command, env=self._env, cwd=self._log.parent, stdout=log, stderr=log)

    def wait_for(self, text: str) -> None:
        wait(lambda: text in self.said or self._process.poll() is not None, 300)
        assert text in self.said, self.said

    @property
    def said(self) -> str:
        return self._log.read_text()

    def kill(self, number: int = signal.SIGKILL) -> int:
        self._process.send_signal(number)
        return self._process.wait(60)


@pytest.fixture
def gateway(one_store: None, tmp_path: Path) -> Iterator[Head]:
    """With one of the precisions that programs hold: an export takes seconds."""
    programs = {"fp32": known_programs.KnownProgram(known_programs.offered()["fp32"])}
    with head(tmp_path / "head", programs=known_programs.challenge(programs, 0)) as one:
        yield one


def on_the_board(trial: Trial, gateway: Head) -> tuple[BoardActor, threading.Thread]:
    """The head's side of the trial, as Ray would call it, at work."""
    actor = BoardActor(RUN_TRIAL, 1, {"node": "pi", "profile": "executorch"}, str(gateway.folder / FILE), "driver/1")
    thread = threading.Thread(target=actor.run, args=(trial.to_json(), [], 1), daemon=True)
    thread.start()
    return actor, thread


@pytest.mark.long
def test_a_trial_on_a_board_is_the_trial(
    client: Path,
    python: Path,
    gateway: Head,
    tmp_path: Path,
    by_the_bindings: tuple[Outcome, list[Event]],
) -> None:
    """The agent is killed after the client's third step, with the client; the trial ends with the bindings' numbers."""
    halting = script(
        tmp_path / "client",
        f'case "$1" in --help) exec {client} --help;; esac',
        f'[ -e "$1/settings.txt" ] && grep -q "^trial_id known" "$1/settings.txt" && exec {client} "$@"',
        f'[ -e {tmp_path}/half ] && exec {client} "$@"',
        f'cp -r "$1" {tmp_path}/copy && {client} {tmp_path}/copy || exit 1',
        f'head -n 4 {tmp_path}/copy/log.jsonl >"$1/log.jsonl"; touch {tmp_path}/half; exec sleep 1000',
    )
    board, trial = Board(tmp_path, python, halting, gateway), make(*TRIAL)
    board.start("--code", gateway.code())
    board.wait_for("joined")
    assert "equal to the head: fp32, noise\n" in board.said, board.said
    known = gateway.store.agent("pi")
    assert known is not None
    assert known.facts is not None
    assert (len(known.facts.client), known.facts.probe.versions["torch"]) == (16, "")
    actor, thread = on_the_board(trial, gateway)
    (lease,) = wait(lambda: gateway.store.open_leases("pi"), 120)
    wait(lambda: len(gateway.events(lease.id)) == 4)
    board.kill()
    board.start()
    thread.join(120)
    events, outcome, leaving = actor.drain(trial.trial_id, 1, 0, 1.0)
    assert outcome is not None
    assert not leaving
    ended = Outcome.read(outcome)
    assert measured(ended, events) == measured(*by_the_bindings), ended.error
    assert (events[0].node, events[0].device["runtime"]) == ("pi", "light client")
    assert [event.step for event in events if isinstance(event, ScoredDev)] == [4, 8]
    log = [event.line for event in gateway.events(lease.id) if isinstance(event, ClientLine)]
    assert [line["step"] for line in log if line["type"] == "step"] == list(range(1, 9)), "each step once"
    assert [line["replayed"] for line in log if line["type"] == "start"] == [0, 3]
    program = ended.metrics["program_bytes"]
    assert program < ended.metrics["agent_bytes_down"] < 1.5 * program + 2**20, "the files are fetched once"
    assert board.kill(signal.SIGTERM) == 0
    assert not list((tmp_path / "state").rglob("leases/*"))


@pytest.mark.long
def test_the_light_client_answers_in_every_precision(client: Path, one_store: None) -> None:
    """Also: other noise and other losses are noticed."""
    programs = {name: known_programs.KnownProgram(one) for name, one in known_programs.offered().items()}
    assert programs.keys() == {"fp32", "fp16", "w4a8"}
    asked, expected = known_programs.challenge(programs, 1)
    answers = light.answers(client, asked)
    assert known_answers.compare(expected, answers) == {}
    other = light.answers(client, known_programs.challenge(programs, 2)[0])
    assert known_answers.compare(expected, other).keys() == {"noise", *programs}

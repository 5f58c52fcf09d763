"""The agent's parts, without processes: codes, spools, files, paths, what it lends."""

from __future__ import annotations

import hashlib
import json
import math
import os
import pwd
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import httpx2
import pytest

import facts as boards
from tests.schedule import fakes
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import ClientLine, End, Event, Start, Steps, read_event
from zo_sweeps.core.events import write_event as to_json
from zo_sweeps.core.trial import Outcome, TrialState
from zo_sweeps.methods.parts import ModelSource
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.models import identity
from zo_sweeps.models.identity import DEMO, fingerprint_model, gguf_file
from zo_sweeps.record.journal import Journal
from zo_sweeps.tasks import data
from zo_sweeps.tasks.spec import TaskSpec
from zo_sweeps_agent import codes, command
from zo_sweeps_agent.agent import agent, commands, facts, keys, link, trials
from zo_sweeps_agent.agent import files as fetched
from zo_sweeps_agent.agent import spool as spools
from zo_sweeps_agent.agent.spool import Spool
from zo_sweeps_agent.lease_contents import LeaseContents, LeaseFile
from zo_sweeps_agent.lease_files import lease_files
from zo_sweeps_agent.protocol import Refusal

pytestmark = pytest.mark.unit
URL = "https://10.8.0.1:7443"

# --- codes


def test_a_code_is_read_as_people_type_it() -> None:
    code = codes.Code(bytes(range(10)), bytes(range(240, 250)))
    assert len(code.text) == 39
    assert codes.parse(code.text) == code
    assert codes.parse(code.text.lower().replace("-", " ").replace("0", "o").replace("1", "l")) == code
    assert codes.new(b"certificate").pin == hashlib.sha256(b"certificate").digest()[:10]
    assert codes.new(None).pin == codes.PUBLIC
    assert codes.new(None).secret != codes.new(None).secret


@pytest.mark.parametrize("text", ["", "4F7K", "U" * 32, "0" * 33])
def test_a_mistyped_code_is_named(text: str) -> None:
    with pytest.raises(UserError, match="is not a code of 32 characters in --code"):
        codes.parse(text)


# --- spools

START = Start(time=1.0, attempt=1, device={}, versions={}, resumed_from=0)


def steps(first: int, coef: float = 0.5) -> Event:
    return Steps(time=1.0, first=first, losses=(1.0,), coefs=((coef,),), seconds=0.1, tokens=1)


def end(state: TrialState) -> Event:
    return End(time=2.0, outcome=Outcome("t", state, steps_done=2))


def lease(root: Path, name: str, journal: list[Event] | None = None, attempt: int = 1) -> Spool:
    trial = fakes.trial(root / "unused", "t").to_json()
    return Spool.create(
        root, LeaseContents(name, "t", attempt, 0, trial, tuple(map(to_json, journal or ())), threads=3)
    )


def write(spool: Spool, *events: Event) -> None:
    with Journal(spool.folder / "events.jsonl") as journal:
        journal.extend(events)


def test_a_spool_survives_its_process(tmp_path: Path) -> None:
    first = lease(tmp_path, "one", [START])
    write(first, steps(1), steps(2, math.nan))
    (again,) = spools.spools(tmp_path)
    assert (again.lease, again.attempt, again.threads, again.trial_id) == ("one", 1, 3, "t")
    assert [event.kind for event in again.journal] == ["start", "steps", "steps"]
    message = again.post()
    assert message is not None
    assert (message.first, len(message.events), message.outcome) == (0, 2, None)
    again.acknowledged = 2
    assert again.post() is None
    write(again, end(TrialState.SUCCEEDED))
    message = again.post()
    assert message is not None
    assert message.outcome is not None
    assert (message.first, len(message.events), message.outcome["state"]) == (2, 1, "SUCCEEDED")
    again.forget()
    assert spools.spools(tmp_path) == []


def test_a_lease_whose_writing_was_cut_off_is_asked_for_again_and_keeps_its_events(tmp_path: Path) -> None:
    write(lease(tmp_path, "one"), START, steps(1))
    (tmp_path / "leases" / "one" / "lease.json").write_text('{"lease": "o')
    assert spools.spools(tmp_path) == []
    assert len(lease(tmp_path, "one").events()) == 2


def test_a_long_journal_is_sent_in_parts_and_the_outcome_with_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spools, "POST_BYTES", 250)
    spool = lease(tmp_path, "one")
    write(spool, START, *(steps(i) for i in range(1, 8)), end(TrialState.SUCCEEDED))
    sent: list[Event] = []
    messages = 0
    while (message := spool.post()) is not None:
        assert message.first == len(sent)
        sent += map(read_event, message.events)
        spool.acknowledged, messages = len(sent), messages + 1
        if message.outcome:
            break
    assert messages > 2
    assert sent == spool.events()


def test_a_spool_goes_on_from_an_older_one_that_begins_with_its_journal(tmp_path: Path) -> None:
    older = lease(tmp_path, "one", [START])
    write(older, steps(1), steps(2, math.nan), end(TrialState.SUCCEEDED))
    older.retire()
    newer = lease(tmp_path, "two", [START, steps(1)], attempt=2)
    assert [event.kind for event in newer.events()] == ["steps", "end"]
    assert newer.outcome is not None


@pytest.mark.parametrize("journal", [[START, steps(1, 0.7)], [replace(START, time=1.5)]])
def test_it_does_not_where_another_machine_went_on(tmp_path: Path, journal: list[Event]) -> None:
    older = lease(tmp_path, "one", [START])
    write(older, steps(1), steps(2))
    older.retire()
    assert lease(tmp_path, "two", journal).events() == []


def test_the_end_of_an_attempt_that_was_stopped_is_not_taken_over(tmp_path: Path) -> None:
    older = lease(tmp_path, "one")
    write(older, START, steps(1), end(TrialState.CANCELLED))
    assert older.outcome is not None
    older.retire()
    newer = lease(tmp_path, "two")
    assert [event.kind for event in newer.events()] == ["start", "steps"]
    assert newer.outcome is None


def line(kind: str, step: int = 0, **fields: Any) -> Event:
    return ClientLine(time=1.0, line={"type": kind, "step": step, **fields})


def test_a_log_of_the_light_client_goes_on_from_what_decides_it(tmp_path: Path) -> None:
    """The head sends coefficients alone; the board's log has measurements, and the starts of the client."""
    own = [line("step", 1, coefs=[0.5], losses=[1.0]), line("start"), line("step", 2, coefs=[0.25], losses=[2.0])]
    older = lease(tmp_path, "one")
    write(older, line("start"), *own, line("step", 3, coefs=[0.75]))
    older.retire()
    journal = [line("step", 1, coefs=[0.5]), line("step", 2, coefs=[0.25])]
    assert [event.line["step"] for event in lease(tmp_path, "two", journal).events()] == [3]
    assert lease(tmp_path, "three", [line("step", 1, coefs=[0.7])]).events() == []
    scoring = {**fakes.trial(tmp_path / "unused", "t").to_json(), "client": ["--score", "test", "--at", "2"]}
    assert (
        Spool.create(tmp_path, LeaseContents("four", "t", 1, 0, scoring, tuple(map(to_json, journal)))).events() == []
    )


def test_a_client_that_never_reaches_a_step_is_given_back(tmp_path: Path) -> None:
    spool = lease(tmp_path, "one")
    write(spool, line("step", 1, coefs=[0.5]), line("start"), line("start"))
    assert not spool.fruitless
    write(spool, line("start"))
    assert spool.fruitless


def test_a_trial_that_ends_the_board_is_given_back(tmp_path: Path) -> None:
    spool = lease(tmp_path, "one")
    write(spool, START, steps(1), START, START)
    assert not spool.fruitless
    write(spool, START)
    assert spool.fruitless
    spool.lose("it ends the board")
    message = spool.post()
    assert message is not None
    assert message.outcome is not None
    assert (message.outcome["state"], message.outcome["error"]) == ("LOST", "it ends the board")


def test_a_lease_that_is_stopped_before_it_starts_is_cancelled(tmp_path: Path) -> None:
    spool = lease(tmp_path, "one")
    spool.cancel()
    assert spool.outcome is not None
    assert spool.outcome.state is TrialState.CANCELLED


def test_only_the_newest_retired_spools_are_kept(tmp_path: Path) -> None:
    for i in range(spools.RETIRED + 3):
        lease(tmp_path, f"{i:02d}").retire()
    assert len(list((tmp_path / "retired").iterdir())) == spools.RETIRED


# --- files


class Source:
    """A link that sends the files that it is made of, and ends the connection after `cut` bytes."""

    def __init__(self, *contents: bytes) -> None:
        self._contents = {hashlib.sha256(content).hexdigest(): content for content in contents}
        self.cut, self.asked = 10**9, []
        self.size, self.pause = 10**9, 0.0  # of its parts, and before each

    @contextmanager
    def bytes_from(self, path: str, start: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        content = self._contents[path.rpartition("/")[2]]
        self.asked.append(start)

        def parts() -> Iterator[bytes]:
            for first in range(start, min(start + self.cut, len(content)), self.size):
                time.sleep(self.pause)
                yield content[first : min(first + self.size, start + self.cut)]
            if start + self.cut < len(content):
                raise link.UnreachableError("cut")

        yield start, parts()


def listed(name: str, content: bytes) -> LeaseFile:
    return LeaseFile("data", name, hashlib.sha256(content).hexdigest(), len(content))


def test_a_file_is_fetched_once_and_resumed(tmp_path: Path) -> None:
    cache, source = fetched.Cache(tmp_path), Source(b"rows" * 10, b"others", b"")
    files = [listed("sst2/train.jsonl", b"rows" * 10), listed("sst2/test.jsonl", b"others"), listed("empty", b"")]
    source.cut = 25
    with pytest.raises(link.UnreachableError):
        cache.folder(source, "lease", files, ())
    folder = cache.folder(source, "lease", files, ())
    assert source.asked == [0, 25, 0, 0]
    assert (folder / "empty").read_bytes() == b""
    assert (folder / "sst2/train.jsonl").read_bytes() == b"rows" * 10
    assert (folder / "sst2/test.jsonl").read_bytes() == b"others"
    assert cache.folder(source, "another", files[::-1], ()) == folder
    cache.folder(source, "another", [listed("a.jsonl", b"others")], ())
    assert len(source.asked) == 4, "a file under another name is not fetched again"


def test_two_slots_fetch_a_model_once_and_neither_takes_the_others_files_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One model for both, rows for each, and a disk that has no room for more: two writers of one .part damaged it."""
    model, rows = bytes(range(256)) * 40, (b"a" * 3000, b"b" * 3000)

    def usage(path: Path) -> Any:
        used = sum(file.stat().st_size for file in (tmp_path / "files" / "blobs").iterdir())
        return type("Usage", (), {"free": fetched.SPARE + len(model) + 6500 - used})()

    monkeypatch.setattr(fetched.shutil, "disk_usage", usage)
    source = Source(model, *rows)
    source.size, source.pause = 512, 0.002
    board = agent.Agent.__new__(agent.Agent)
    board._folders, board._cache, board._link, board._fetching = {}, fetched.Cache(tmp_path), source, threading.Lock()
    config = {"config": {"model": {"source": "local"}}}
    got: dict[int, Any] = {}

    def slot(i: int) -> None:
        files = [replace(listed("w", model), of="model"), listed(f"{i}", rows[i])]
        got[i] = board._files(SimpleNamespace(lease=f"{i}", files=files, trial=config, client=False))

    slots = [threading.Thread(target=slot, args=(i,)) for i in range(2)]
    for one in slots:
        one.start()
    for one in slots:
        one.join()
    assert source.asked == [0, 0, 0]
    for i in range(2):
        assert (got[i]["model"] / "w").read_bytes() == model
        assert (got[i]["data"] / f"{i}").read_bytes() == rows[i]


@pytest.mark.parametrize("part", [b"ro", b"xx", b"rows", b"rowsrows"])
def test_a_file_that_was_begun_is_gone_on_with_or_fetched_again(tmp_path: Path, part: bytes) -> None:
    """A damaged beginning is this disk's, and no reason to accuse the head."""
    blobs, file = tmp_path / "files" / "blobs", listed("a", b"rows")
    blobs.mkdir(parents=True)
    (blobs / f"{file.sha256}.part").write_bytes(part)
    source = Source(b"rows")
    assert (fetched.Cache(tmp_path).folder(source, "lease", [file], ()) / "a").read_bytes() == b"rows"
    assert source.asked == {b"ro": [2], b"xx": [2, 0], b"rows": [], b"rowsrows": [0]}[part]


def test_a_machine_with_two_gpus_lends_one_to_each_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    monkeypatch.setattr(trials, "DEV", tmp_path)
    monkeypatch.delenv(trials.VISIBLE, raising=False)
    desk = facts.profile("cuda", [])
    assert [facts.lending(desk, 2, 8, slots).gpus for slots in (1, 2, 3)] == [1, 2, 2]
    assert facts.lending(facts.profile("cpu", []), 2, 8, 2).gpus == 0
    lent = facts.lending(desk, 2, 8, 2)
    monkeypatch.setattr(agent.EnergyMeter, "of", lambda kind: None)

    def seen() -> list[str | None]:
        board = agent.Agent(tmp_path, SimpleNamespace(link=lambda root: None, name="a"), desk, lent, print)
        return [slot._gpu for slot in board._slots]

    assert seen() == ["0", "1"]
    monkeypatch.setenv(trials.VISIBLE, "2,3,GPU-5")
    assert facts.lending(desk, 2, 8, 4).gpus == 3
    assert seen() == ["2", "3"], "the others are somebody else's"


def test_a_gpu_that_is_not_there_is_not_lent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "DEV", tmp_path)
    monkeypatch.delenv(trials.VISIBLE, raising=False)
    desk, nano = facts.profile("cuda", []), facts.profile("jetson-orin-nano", [])
    assert facts.lending(replace(desk, kind="auto"), 1, None, 1).gpus == 0
    for device in (desk, nano):
        with pytest.raises(UserError, match=f"no GPU here for {device.name}"):
            facts.lending(device, 1, None, 1)
    (tmp_path / "nvhost-ctrl").touch()
    lent = facts.lending(nano, 2, 3.5, 2)
    assert lent == facts.Lending(2, 1, 3_500_000_000, 2)
    with pytest.raises(UserError, match="torch sees 0 CUDA GPUs here, and 1 are lent"):
        facts.facts(nano, lent, replace(boards.HOST, gpus=()))
    assert facts.facts(nano, lent, boards.HOST).gpus == 1


def test_a_file_that_is_not_the_announced_one_is_not_used(tmp_path: Path) -> None:
    source = Source(b"rows")
    wrong = replace(listed("a", b"rows"), bytes=3)
    with pytest.raises(UserError, match="is not the file that it announced"):
        fetched.Cache(tmp_path).folder(source, "lease", [wrong], ())
    assert not list((tmp_path / "files" / "blobs").iterdir())


@pytest.mark.parametrize("name", ["../key.pem", "/etc/passwd", "a/../../b"])
def test_a_name_outside_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="sent a file with the name"):
        fetched.Cache(tmp_path).folder(Source(b"x"), "lease", [listed(name, b"x")], ())


def test_a_full_disk_drops_what_no_trial_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk of 100 bytes: what files take twice, as links, counts once."""

    def usage(path: Path) -> Any:
        used = sum(file.stat().st_size for file in (tmp_path / "files" / "blobs").iterdir())
        return type("Usage", (), {"free": fetched.SPARE + 100 - used})()

    monkeypatch.setattr(fetched.shutil, "disk_usage", usage)
    contents = [bytes([i]) * 40 for i in range(4)]
    cache, source = fetched.Cache(tmp_path), Source(*contents, b"-" * 200)
    first, second = (cache.folder(source, "lease", [listed("f", content)], ()) for content in contents[:2])
    third = cache.folder(source, "lease", [listed("f", contents[2])], (second,))
    assert not first.exists()
    assert second.exists()
    assert third.exists()
    with pytest.raises(UserError, match="no room"):
        cache.folder(source, "lease", [listed("f", b"-" * 200)], (second, third))


# --- the trial on this machine


def test_the_paths_of_a_trial_are_the_boards_and_its_id_stays(tmp_path: Path) -> None:
    from tests.run.common import make

    trial = make("model=demo", "update.lr=1e-3")
    there = trials.here(trial.to_json(), {"model": str(DEMO), "data": str(tmp_path)})
    config = TrialConfig.of(there.config)
    assert (config.model.source.value, config.model.path, config.data.dir) == ("local", str(DEMO), str(tmp_path))
    assert config.trial_id() == trial.trial_id == there.trial_id
    assert fingerprint_model(config.model) == config.model.fingerprint
    other = replace(there, config=replace(config, model=replace(config.model, fingerprint="local:0123")))
    with pytest.raises(UserError, match="and the trial's is local:0123"):
        trials.run_checked(other)


# --- what it lends, and where it registers


def test_a_profile_is_one_of_the_packages_or_ones_own(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown device 'jetson-nano-orin'"):
        facts.profile("jetson-nano-orin", [])
    (tmp_path / "device").mkdir()
    board = tmp_path / "device" / "board.yaml"
    board.write_text("name: board\nkind: cpu\nmemory_gb: 1\n")
    assert facts.lending(facts.profile("board", [str(tmp_path)]), 1, None, 1).memory_bytes == 10**9
    for text in ("", "name: [x\n", "- a\n"):
        board.write_text(text)
        with pytest.raises(UserError, match=rf"no device profile: .* in {board}"):
            facts.profile("board", [str(tmp_path)])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("--cpus", "0"),
        ("--cpus", "4097"),
        ("--slots", "-1"),
        ("--slots", "65"),
        ("--memory", "nan"),
        ("--memory", "inf"),
    ],
)
def test_a_number_that_no_head_takes_is_refused_before_the_code_is_used(name: str, value: str) -> None:
    with pytest.raises(UserError, match=f"{name}: {value} is not above 0 and at most"):
        command.agent(["join", URL, name, value])


def test_a_code_replaces_a_damaged_registration_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enrolled, said = MagicMock(), []
    monkeypatch.setattr(keys, "enrol", enrolled)
    monkeypatch.setattr(commands, "Agent", MagicMock())
    options = commands.AgentOptions(URL, codes.Code(bytes(10), bytes(10)).text, "cpu", "b")
    folder = keys.folder_of(tmp_path / "agent", URL)
    folder.mkdir(parents=True)
    (folder / "registration.json").write_text("{")
    with pytest.raises(UserError, match="damaged registration"):
        commands.join(tmp_path, replace(options, code=""), said.append)
    keys.also(folder, keys.Registration(URL, "a", "cpu", True), [])
    with pytest.raises(UserError, match="cannot use the key"):
        commands.join(tmp_path, replace(options, code=""), said.append)
    commands.join(tmp_path, options, said.append)
    assert enrolled.call_count == 1
    monkeypatch.setattr(keys.Registration, "link", MagicMock())
    commands.join(tmp_path, options, said.append)
    assert said[1:] == ["registered already, as a: --code, --name and --ca are for a new registration"]
    assert enrolled.call_count == 1


def test_a_machine_without_a_name_says_so(tmp_path: Path) -> None:
    options = commands.AgentOptions(URL, "code", "cpu", name="\N{CJK UNIFIED IDEOGRAPH-677F}")
    with pytest.raises(UserError, match="no letter of A-Z and no digit is in this machine's name in --name"):
        commands.join(tmp_path, options, print)


def test_the_address_of_a_head_is_https(tmp_path: Path) -> None:
    assert keys.folder_of(tmp_path, "https://10.8.0.1:7443/") == tmp_path / "heads" / "10.8.0.1_7443"
    for wrong in ("http://10.8.0.1:7443", "10.8.0.1:7443", "https://10.8.0.1", "https://../x:1"):
        with pytest.raises(UserError, match="is not the address of a head"):
            keys.folder_of(tmp_path, wrong)


def test_a_service_runs_as_the_owner_of_the_key_and_is_confined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, own = tmp_path / "rows", tmp_path / "home" / "conf" / "device"
    for path in (rows / "sst2", own):
        path.mkdir(parents=True)
    (rows / "sst2" / "train.jsonl").write_text("{}\n")
    (own / "board.yaml").write_text("name: board\nkind: cpu\n")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    also = "https://10.0.0.2:7443"
    options = commands.AgentOptions(URL, memory_gb=6.0, slots=2, data=rows, also=[also], config_dirs=["~/conf"])

    def printed(options: commands.AgentOptions) -> str:
        commands.install_service(tmp_path, options, print, only_print=True)
        return capsys.readouterr().out

    with pytest.raises(UserError, match=f"is not registered with {re.escape(URL)}"):
        printed(options)
    folder = keys.folder_of(tmp_path / "agent", URL)
    folder.mkdir(parents=True)
    keys.also(folder, keys.Registration(URL, "a", "board", True), [])
    if os.getuid() == 0:
        with pytest.raises(UserError, match="root registered this machine"):
            printed(options)
        os.chown(tmp_path, pwd.getpwnam("nobody").pw_uid, -1)
    for wrong, line in (
        ({"config_dirs": ()}, "unknown device 'board'"),
        ({"also": ["10.0.0.2"]}, "is not the address of a head"),
    ):
        with pytest.raises(UserError, match=line):
            printed(replace(options, **wrong))
    text = printed(options)
    words = f"--memory 6 --slots 2 --data {rows} --config-dir {tmp_path}/home/conf --also {also}"
    assert f"agent join {URL} {words} --state-dir {tmp_path}\n" in text
    assert "--code" not in text
    assert f"User={pwd.getpwuid(tmp_path.stat().st_uid).pw_name}" in text
    assert f"ReadWritePaths={tmp_path} {rows} -" in text
    assert {"NoNewPrivileges=true", "ProtectSystem=strict", "RestartPreventExitStatus=2"} <= {*text.splitlines()}


def test_waits_grow_are_spread_and_begin_again() -> None:
    backoff = link.Backoff()
    waits = [backoff.wait(link.UnreachableError("")) for _ in range(9)]
    for i, wait in enumerate(waits):
        assert min(2**i, 60) / 2 <= wait <= min(2**i, 60)
    backoff.reset()
    assert backoff.wait(link.UnreachableError("")) <= 1
    assert backoff.wait(link.UnreachableError("", 90.0)) == 90


def test_a_request_that_took_too_long_is_made_again() -> None:
    with pytest.raises(link.UnreachableError, match="took too long"):
        link._checked(httpx2.Response(408, json={"error": "the request took too long"}))


def test_rows_of_the_hub_reach_a_board_without_its_library_as_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder stands for the hub's data set; its column `answer` is renamed."""
    import datasets

    from tests.run.common import make

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "prepared")
    monkeypatch.setenv("ZO_SWEEPS_CACHE", str(tmp_path / "cache"))
    datasets.disable_progress_bars()
    (tmp_path / "boolq").mkdir()
    for split, count in (("train", 90), ("validation", 40)):
        rows = [{"question": "is it", "passage": f"{split} {i}\u2028", "answer": i % 3 == 0} for i in range(count)]
        (tmp_path / "boolq" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    trial = make(
        "model=random_llama",
        "task=boolq",
        f"task.hub.path={tmp_path / 'boolq'}",
        "task.hub.name=null",
        "update.lr=1e-3",
    )
    listed = lease_files(TrialConfig.of(trial.config))
    assert [file.of for file in listed] == ["rows", "rows"]
    source = Source(*(Path(file.here).read_bytes() for file in listed))
    folder = fetched.Cache(tmp_path / "board").folder(source, "lease", listed, ())

    def drawn(config: TrialConfig) -> data.Splits:
        return data.load_splits(
            TaskSpec.of(config.task, config.prompt.name), config.task, config.data.dir, config.split
        )

    here = drawn(TrialConfig.of(trial.config))
    monkeypatch.setitem(sys.modules, "datasets", None)
    there = trials.here(trial.to_json(), {"rows": str(folder)})
    assert drawn(TrialConfig.of(there.config)) == here
    assert {row["label"] for row in here.train} == {False, True}
    assert TrialConfig.of(there.config).trial_id() == trial.trial_id


def test_a_gguf_file_is_sent_as_it_is(tmp_path: Path) -> None:
    from tests.run.common import make

    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    (tmp_path / "notes.json").write_text("{}")  # beside it, and no part of the model
    config = TrialConfig.of(make("model=demo", "update.lr=1e-3").config)
    model = replace(config.model, source=ModelSource.LOCAL, path=str(file))
    (listed,) = [one for one in lease_files(replace(config, model=model)) if one.of == "model"]
    assert (listed.path, listed.here) == ("model.gguf", str(file))
    (tmp_path / "board").mkdir()
    file.rename(tmp_path / "board" / "model.gguf")
    assert gguf_file(replace(model, path=str(tmp_path / "board"))) == tmp_path / "board" / "model.gguf"


def test_a_hub_model_comes_from_the_hub_or_the_head_or_is_told_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason is asked for at each trial: a board's network comes and goes."""
    network = ["the hub cannot be reached"]
    monkeypatch.setattr(identity, "cached_folder", lambda repo, revision: None)
    monkeypatch.setattr(identity, "unreachable", lambda repo, revision: network[0])
    board = agent.Agent.__new__(agent.Agent)
    board._folders, board._cache, board._link = {}, fetched.Cache(tmp_path), Source(b"weights")
    board._fetching = threading.Lock()
    config = {"config": {"model": {"source": "hub", "path": "org/x"}}}
    spool = SimpleNamespace(lease="one", files=[], trial=config, client=False)
    what = (
        "org/x is in the Hugging Face cache neither of this board nor of the head, and the hub cannot be reached here"
    )
    with pytest.raises(UserError, match=f"{what}; run `hf download org/x` on the head"):
        board._files(spool)
    spool.files = [replace(listed("model.safetensors", b"weights"), of="hub")]
    assert (board._files(spool)["model"] / "model.safetensors").read_bytes() == b"weights"
    network[0] = ""
    assert board._files(spool) == {}


def test_an_agent_of_another_version_than_the_head_ends_so_that_its_service_starts_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "signal", MagicMock())
    monkeypatch.setattr(agent, "UPDATE_SECONDS", 0.0)
    one = MagicMock(_root=tmp_path, _spools={}, _slots=[], _leaving=threading.Event())
    refused = link.HeadRefusedError(409, Refusal("this board has zo-sweeps 0.1.0", version="0.2.0"))
    one._take.side_effect = lambda _: agent.Agent._refused(one, refused)
    assert agent.Agent.run(one) == 1, "after status 2 a service would not start it again"
    assert one._say.call_args_list[0].args == ("the head refuses this agent: this board has zo-sweeps 0.1.0",)


def test_a_head_that_was_restarted_while_a_board_answered_is_joined_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "FIRST_WAIT", 0.01)
    one = MagicMock(_full="", _joined=False, _leaving=threading.Event())
    forgot = link.HeadRefusedError(409, Refusal("an unknown or used challenge", challenge=True))
    one._join.side_effect = [forgot, KeyError("a second time")]
    agent.Agent._ask(one)
    assert [str(call.args[0]) for call in one._inbox.put.call_args_list] == ["'a second time'"]


def test_a_revoked_key_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "signal", MagicMock())
    for name in ("registration.json", keys.KEY):
        (tmp_path / name).touch()
    one = MagicMock(_root=tmp_path, _spools={}, _slots=[], _leaving=threading.Event())
    one._take.side_effect = lambda _: agent.Agent._refused_of(one, link.HeadRefusedError(403, Refusal("revoked")))
    assert agent.Agent.run(one) == 2
    assert not list(tmp_path.iterdir())


def test_a_head_that_puts_off_some_of_the_leases_hears_of_the_others_next() -> None:
    spools = {name: SimpleNamespace(lease=name) for name in "abcd"}
    one = MagicMock(_spools=spools, _quiet_until=0.0)
    heard: list[str] = []

    def send(spool: Any) -> None:
        if len(heard) % 4 == 3:
            heard.append("")
            raise link.UnreachableError("too many requests")
        heard.append(spool.lease)

    one._send_one, one._backoff.wait.return_value = send, 0.0
    for _ in range(4):
        one._quiet_until = 0.0
        agent.Agent._send(one)
    assert "".join(heard) == "abcdabcdabcd"

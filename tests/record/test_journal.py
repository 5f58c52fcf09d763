"""The journal keeps what it was given, whatever ends its writer."""

from __future__ import annotations

import errno
import json
import math
import os
import random
import re
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.record import made_up
from tests.record.forged import EVENTS as FORGED
from tests.record.forged import START
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import EVENTS, Steps, Unknown, only, read_event, write_event
from zo_sweeps.core.trial import TrialState
from zo_sweeps.record.journal import Journal, JournalStore, evals, last_step, outcome, read_events, scalars


def step(number: int, loss: float = 0.5, coefs: Sequence[float] = (1.0,)) -> Steps:
    return Steps(time=1.0, first=number, losses=(loss,), coefs=(tuple(coefs),), seconds=1.0, tokens=1)


def test_events_come_back_in_order_from_another_journal_object(tmp_path: Path) -> None:
    events = made_up.whole(made_up.trial())
    with Journal(tmp_path / "a" / "t.jsonl") as journal:
        for event in events:
            journal.append(event)
    assert Journal(tmp_path / "a" / "t.jsonl").events() == events


def test_a_journal_that_was_never_written_is_empty(tmp_path: Path) -> None:
    assert Journal(tmp_path / "none.jsonl").events() == []
    assert not (tmp_path / "none.jsonl").exists()


def test_every_float_comes_back_bit_for_bit(tmp_path: Path) -> None:
    bits = random.Random(0)
    floats = [struct.unpack("<d", bits.randbytes(8))[0] for _ in range(5000)]
    floats += [0.0, -0.0, 5e-324, 1.7976931348623157e308, 0.1 + 0.2, math.inf, -math.inf, math.nan]
    journal = Journal(tmp_path / "t.jsonl")
    journal.append(step(1, coefs=floats))
    back = only(Steps, journal.events())[0].coefs[0]
    assert [struct.pack("<d", x) for x in back if x == x] == [struct.pack("<d", x) for x in floats if x == x]
    assert [x != x for x in back] == [x != x for x in floats]


def test_text_of_any_kind_stays_one_line(tmp_path: Path) -> None:
    text = 'Zeile\n"zwei"\r\u2028\x00 · ± é 🙂 \ud800'
    journal = Journal(tmp_path / "t.jsonl")
    journal.extend([Unknown(type="note", more={"text": text}), step(1)])
    assert journal.events()[0].more["text"] == text
    assert (tmp_path / "t.jsonl").read_bytes().count(b"\n") == 2


def test_a_last_line_torn_at_any_byte_is_never_read_and_cut_off_by_the_next_append(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    Journal(path).extend([step(1), step(2, loss=0.25)])
    whole = path.read_bytes()
    first_line = whole.index(b"\n") + 1
    for cut in range(first_line, len(whole)):
        path.write_bytes(whole[:cut])
        assert Journal(path).events() == [step(1)]
        with Journal(path) as journal:
            journal.append(step(2, loss=0.75))
        assert Journal(path).events() == [step(1), step(2, loss=0.75)]


def test_a_torn_line_longer_than_any_buffer_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(json.dumps(write_event(step(1))).encode() + b"\n" + b"[" * 300_000)
    Journal(path).append(step(2))
    assert Journal(path).events() == [step(1), step(2)]


def test_a_journal_of_one_torn_line_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"type": "sta')
    Journal(path).append(step(1))
    assert Journal(path).events() == [step(1)]


@pytest.mark.parametrize("damage", [b"not json", b"\xff\xfe", b"[1]", b'{"time": 1}', b"", b"\x00" * 8])
def test_a_damaged_line_in_the_middle_is_named_by_file_and_line(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "t.jsonl"
    lines = [json.dumps(write_event(step(i))).encode() for i in (1, 2, 3)]
    path.write_bytes(b"\n".join([lines[0], damage, lines[2]]) + b"\n")
    with pytest.raises(UserError, match=rf"unreadable line in a journal in {path}:2;"):
        Journal(path).events()
    with pytest.raises(UserError, match=":2;"):
        read_events(path, len(lines[0]) + 1)


def test_every_changed_byte_of_a_line_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "ab01.jsonl"
    Journal(path).extend([step(1), step(2, loss=0.25), step(3)])
    whole = path.read_bytes()
    first, second = (i + 1 for i, byte in enumerate(whole) if byte == 10 and i + 1 < len(whole))
    for at in range(first, second - 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(UserError, match=rf"line.* in a journal in {path}:[23];.* --rerun ab01"):
            read_events(path)
        with pytest.raises(UserError, match=r":[23];"):
            read_events(path, first)


@pytest.mark.parametrize("kept", [[1, 2], [0, 2], [0, 2, 1], [0, 1, 1]])
def test_lines_that_are_missing_moved_or_repeated_are_noticed(tmp_path: Path, kept: list[int]) -> None:
    path = tmp_path / "ab01.jsonl"
    Journal(path).extend([step(1), step(2), step(3)])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[i] for i in kept))
    with pytest.raises(UserError, match="changed line, or missing lines above it, in a journal"):
        read_events(path)


def test_a_journal_without_checksums_is_read_and_gets_them_from_the_next_line_on(tmp_path: Path) -> None:
    path = tmp_path / "ab01.jsonl"
    old = b"".join(json.dumps(write_event(step(i))).encode() + b"\n" for i in (1, 2))
    path.write_bytes(old)
    with Journal(path) as journal:
        journal.append(step(3))
        journal.append(step(4))
    assert Journal(path).events() == [step(1), step(2), step(3), step(4)]
    whole = path.read_bytes()
    assert whole.startswith(old)
    path.write_bytes(whole + json.dumps(write_event(step(5))).encode() + b"\n")
    with pytest.raises(UserError, match=f"line without a checksum in a journal in {path}:5"):
        read_events(path)


def test_checksums_cost_little_space(tmp_path: Path) -> None:
    made = made_up.trial(steps=200)
    Journal(tmp_path / "t.jsonl").extend(made_up.whole(made))
    plain = sum(len(json.dumps(write_event(e), separators=(",", ":"))) + 1 for e in made_up.whole(made))
    assert (tmp_path / "t.jsonl").stat().st_size < 1.05 * plain


def test_a_finished_trial_s_journal_without_its_end_is_damaged_and_a_running_one_s_is_not(tmp_path: Path) -> None:
    store, events = JournalStore(tmp_path), made_up.whole(made_up.trial())
    store.append("ab01", events)
    assert store.read("ab01", ended=True) == events
    path = store.path("ab01")
    whole = path.read_bytes()
    end = whole.rindex(b"\n", 0, len(whole) - 1) + 1
    for left in (whole[:end], whole[: len(whole) // 2], whole[:-1], b"\x07garbage", b""):
        path.write_bytes(left)
        assert store.read("ab01") == events[: left.count(b"\n")]
        with pytest.raises(UserError, match=f"missing end of the journal of a finished trial in {path};.*--rerun ab01"):
            store.read("ab01", ended=True)
    path.unlink()
    with pytest.raises(UserError, match="no journal of a finished trial"):
        store.read("ab01", ended=True)


def test_reading_goes_on_from_an_offset_without_a_line_twice_or_half(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    events, offset, expected = [], 0, [step(i) for i in range(1, 30)]
    Journal(path).extend(expected)
    data = path.read_bytes()
    for size in range(0, len(data) + 1, 37):  # the file as it grows, mostly torn
        path.write_bytes(data[:size])
        new, offset = read_events(path, offset)
        events += new
    path.write_bytes(data)
    assert events + read_events(path, offset)[0] == expected


def test_an_event_that_json_cannot_hold_leaves_the_journal_as_it_was(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "t.jsonl")
    journal.append(step(1))
    with pytest.raises(TypeError):
        journal.extend([step(2), Unknown(type="note", more={"bad": object()})])
    assert journal.events() == [step(1)]


WRITER = """
import sys
from zo_sweeps.core.events import ScoredDev, Steps
from zo_sweeps.record.journal import Journal
journal = Journal(sys.argv[1])
done = len(journal.events())
print("ready", flush=True)
while True:
    done += 1
    more = {"n": done, "pad": "x" * (done % 5000)}
    if done % 50:
        journal.append(Steps(first=1, losses=(), seconds=0.0, tokens=0, more=more))
    else:
        journal.append(ScoredDev(step=0, loss=0.0, metric=0.0, more=more))
"""


@pytest.mark.multiprocess
def test_a_writer_killed_at_random_moments_leaves_a_journal_without_a_gap(tmp_path: Path) -> None:
    path, moments, count = tmp_path / "t.jsonl", random.Random(7), 0
    for _ in range(5):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
        assert writer.stdout
        writer.stdout.readline()
        threading.Event().wait(moments.uniform(0.02, 0.2))
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        numbers = [event.more["n"] for event in Journal(path).events()]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) > count
        count = len(numbers)


FULL = """
import resource, sys
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import ScoredDev
from zo_sweeps.record.journal import JournalStore
store = JournalStore(sys.argv[1])
event = lambda n: ScoredDev(time=0.0, step=0, loss=0.0, metric=0.0, more={"text": "x" * 70, "n": n})
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
written = 0
try:
    while True:
        store.append("ab01", [event(written + 1)])
        written += 1
except UserError as error:
    print(written, error)
try:
    store.append("ab01", [event(written + 1)])
    print("taken")
except UserError as error:
    print("refused again")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store.append("ab01", [event(written + 1)])
"""


@pytest.mark.multiprocess
def test_a_write_that_is_cut_short_raises_and_leaves_whole_events_only(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=True)
    first, second = ran.stdout.splitlines()
    written = int(first.split()[0])
    assert "cannot write the journal: File too large in" in first
    assert second == "refused again"
    numbers = [event.more["n"] for event in JournalStore(tmp_path).read("ab01")]
    assert numbers == list(range(1, written + 2))  # and the one after there was room again


@pytest.mark.multiprocess
def test_a_full_disk_raises_and_keeps_what_was_written(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small tmpfs: {mounted.stderr.decode().strip()}")
    try:
        store, written, error = JournalStore(disk), 0, None
        while error is None:
            try:
                store.append("ab01", [replace(step(written + 1), more={"n": written + 1, "pad": "x" * 700})])
                written += 1
            except UserError as raised:
                error = raised
        assert "No space left on device" in str(error)
        assert isinstance(error.__cause__, OSError)
        assert error.__cause__.errno == errno.ENOSPC
        assert [event.more["n"] for event in JournalStore(disk).read("ab01")] == list(range(1, written + 1))
        assert written > 50
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_folder_that_cannot_be_made_is_a_users_error(tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("a file in the way")
    with pytest.raises(UserError, match="cannot write the journal"):
        JournalStore(tmp_path).append("ab01", [step(1)])


def test_scalars_are_in_step_order_and_end_at_a_gap() -> None:
    events = [
        replace(step(3), losses=(0.3, 0.4), coefs=((3.0,), (4.0,))),
        replace(step(1), losses=(0.1, 0.2), coefs=((1.0,), (2.0,))),
        replace(step(6), losses=(0.6,), coefs=((6.0,),)),
    ]
    assert scalars(events) == ([[1.0], [2.0], [3.0], [4.0]], [0.1, 0.2, 0.3, 0.4])
    assert last_step(events) == 4
    assert (scalars(events[2:]), last_step(events[2:]), last_step([])) == (([], []), 0, 0)


def test_a_step_that_was_written_twice_counts_once_as_first_written() -> None:
    events = [replace(step(1), losses=(0.1, 0.2), coefs=((1.0,), (2.0,))), step(2, 0.9), step(3, 0.3)]
    assert scalars(events) == ([[1.0], [2.0], [1.0]], [0.1, 0.2, 0.3])


def test_scalars_of_any_split_of_a_run_into_events_are_the_same() -> None:
    made = made_up.trial(steps=37)
    assert scalars(made_up.whole(made, chunk=5)) == scalars(made_up.whole(made, chunk=37))
    assert last_step(made_up.whole(made, chunk=7)) == 37


def test_a_first_order_run_has_losses_and_no_coefs() -> None:
    assert scalars([replace(step(1), coefs=())]) == ([[]], [0.5])


def test_evaluations_are_found_by_split_and_step() -> None:
    made = made_up.trial(steps=20)
    events = made_up.whole(made)
    assert set(evals(events)) == {("dev", 10), ("dev", 20), ("test", 20)}
    assert evals(events)["test", 20].metric == 0.88


def test_the_outcome_is_that_of_the_last_attempt_and_none_while_one_runs() -> None:
    made = made_up.trial()
    failed = made_up.whole(made, state=TrialState.FAILED, error="boom")
    assert outcome([]) is None
    found = outcome(failed)
    assert found is not None
    assert (found.state, found.error) == (TrialState.FAILED, "boom")
    resumed = [*failed, made_up.start(attempt=2)]
    assert outcome(resumed) is None
    succeeded = outcome([*resumed, made_up.end(made, 1.0)])
    assert succeeded is not None
    assert succeeded.state is TrialState.SUCCEEDED


def test_the_store_keeps_trials_apart_by_their_first_two_digits(tmp_path: Path) -> None:
    store = JournalStore(tmp_path)
    store.append("ab01", [step(1)])
    store.append("cd02", [step(2)])
    store.append("ab01", [step(3)])
    assert (tmp_path / "journal" / "ab" / "ab01.jsonl").exists()
    assert store.read("ab01") == [step(1), step(3)]
    assert list(store) == ["ab01", "cd02"]
    assert store.read("ef03") == []
    assert list(JournalStore(tmp_path / "empty")) == []


def test_ten_thousand_trials_are_appended_to_in_turn_with_few_open_files(tmp_path: Path) -> None:
    store, ids = JournalStore(tmp_path), [f"{i * 2654435761 % 2**32:08x}" for i in range(10_000)]
    before = len(os.listdir("/proc/self/fd"))  # other tests' files among them
    for first in (1, 2):
        for trial_id in ids:
            store.append(trial_id, [step(first)])
    assert len(os.listdir("/proc/self/fd")) < before + 100
    assert len(list(store)) == len(set(ids))
    assert all(last_step(store.read(trial_id)) == 2 for trial_id in ids[::100])
    store.close()


def test_threads_may_append_to_the_same_trials(tmp_path: Path) -> None:
    store = JournalStore(tmp_path)

    def append(thread: int) -> None:
        for i in range(200):
            store.append(f"{i % 100:04x}", [Unknown(type="note", more={"thread": thread, "i": i})])

    threads = [threading.Thread(target=append, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = sorted((e.more["thread"], e.more["i"]) for trial_id in store for e in store.read(trial_id))
    assert found == [(thread, i) for thread in range(8) for i in range(200)]


def test_a_journal_set_aside_is_not_read_and_not_lost(tmp_path: Path) -> None:
    store = JournalStore(tmp_path)
    for loss in (0.1, 0.2, 0.3):
        store.append("ab01", [step(1, loss)])
        store.set_aside("ab01")
    assert store.read("ab01") == []
    assert list(store) == []
    assert sorted(p.name for p in (tmp_path / "journal" / "ab").iterdir()) == [f"ab01.old{n}" for n in (1, 2, 3)]
    store.append("ab01", [step(1, 0.4)])
    assert store.read("ab01") == [step(1, 0.4)]


# What the gateway refuses and no reader minds: names, states that a node may report, other trials, surplus fields; and
# what journals of an earlier version lack.
READ = {"no tokens", "a file for MLflow", "a decision at a rung", "an odd score", "another trial's end", "a pause"}
READ |= {"no such state", "unknown field", "odd metric", "half a character", "a line of no log"}
READ |= {"without a time", "a list as a line's type", "a line without coefficients", "a line of a step that is none"}


@pytest.mark.parametrize("what", [what for what, (event, _) in FORGED.items() if str(event.get("type")) in EVENTS])
def test_a_journal_is_not_trusted(tmp_path: Path, what: str) -> None:
    """Written by an earlier version, which let everything in: its line is named, and no reader meets the event."""
    event, _ = FORGED[what]
    path = tmp_path / "t.jsonl"
    with Journal(path) as journal:
        journal.extend([Unknown(type="", more=START), Unknown(type="", more=event)])
    if what in READ:
        assert len(read_events(path)[0]) == 2
        return
    with pytest.raises(UserError) as refused:
        read_events(path)
    assert re.fullmatch(rf"event .* in a journal in {path}:2; restore it .* --rerun t", str(refused.value))


OLD = Path(__file__).parent / "journals"  # named after the commit that wrote them


@pytest.mark.parametrize("name", ["9b06abb_zero_shot", "9b06abb_lora"])
def test_events_of_an_earlier_version_are_copied_to_the_byte(tmp_path: Path, name: str) -> None:
    with Journal(tmp_path / "copy.jsonl") as journal:
        journal.extend(read_events(OLD / f"{name}.jsonl")[0])
    assert (tmp_path / "copy.jsonl").read_bytes() == (OLD / f"{name}.jsonl").read_bytes()


@pytest.mark.parametrize("name", ["9b06abb_zero_shot", "9b06abb_lora", "945c2c0_lora"])
def test_journals_of_earlier_versions_are_read(name: str) -> None:
    """The last one is of a version without checksums, whose events had no `metrics`, `rows` and `code`."""
    events = read_events(OLD / f"{name}.jsonl")[0]
    lines = [json.loads(line) for line in (OLD / f"{name}.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["type"] == "steps"]
    assert [event.kind for event in events] == [line["type"] for line in lines]
    assert scalars(events) == (
        [c for line in steps for c in line["coefs"]],
        [x for one in steps for x in one["losses"]],
    )
    scores = {(one.get("split", "test"), one["step"]): one["loss"] for one in lines if one["type"] in ("eval", "test")}
    assert {key: event.loss for key, event in evals(events).items()} == scores
    ended = outcome(events)
    assert ended is not None
    assert (ended.state, ended.selected_step) == (TrialState.SUCCEEDED, last_step(events))


def test_what_a_newer_version_knows_stays_where_an_event_is_copied(tmp_path: Path) -> None:
    unknown = {"type": "dream", "time": 2.0, "of": ["sheep"]}
    lines = [{**write_event(step(1)), "humidity": 0.5, "more": {}}, unknown]
    with Journal(tmp_path / "t.jsonl") as journal:
        journal.extend([read_event(line) for line in lines])
    first, second = read_events(tmp_path / "t.jsonl")[0]
    assert isinstance(first, Steps)
    assert json.dumps([write_event(first), write_event(second)]) == json.dumps(lines)
    assert (last_step([first, second]), second) == (1, Unknown(type="dream", time=2.0, more={"of": ["sheep"]}))

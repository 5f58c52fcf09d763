"""The phone's runner, against a stand-in for adb that runs the light client in a folder of this machine."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from reference import log_of
from toy import script
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.light_client import LOG
from zo_sweeps.run.runner import StoppedError
from zo_sweeps_edge.phone import Adb, DisconnectedError, Phone

pytestmark = pytest.mark.multiprocess

Exported = tuple[Path, list[dict[str, Any]]]
SERIAL = "FAKE0123"


@pytest.fixture
def folder(exported: Exported, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported[0], tmp_path / "bundle"))


def phone(folder: Path, client: Path, **options: float) -> Phone:
    return Phone(Adb(), folder, client, **{"poll": 0.02, "sensors_every": 0.0, "patience": 30.0, **options})


def on_phone(device: Path, name: str) -> Path:
    return device / "data" / "local" / "tmp" / "zo_sweeps" / "0123abcd" / name


def test_a_run_on_the_phone_has_the_log_of_the_bindings(
    client: Path, device: Path, folder: Path, exported: Exported
) -> None:
    lines = list(phone(folder, client).run())
    assert log_of(folder) == exported[1]
    assert [line["type"] for line in lines].count("step") == 3000
    assert (folder / LOG).read_bytes() == on_phone(device, "log.jsonl").read_bytes()
    readings = [json.loads(line) for line in (folder / "phone.jsonl").read_text().splitlines()]
    shown = {"battery_percent": 81.0, "battery_celsius": 31.4, "zones": {"cpu-0": 45200, "skin": 33100}}
    assert all({key: reading[key] for key in shown} == shown for reading in readings)
    before = len((device / "calls").read_text().splitlines())
    (scores,) = (
        line for line in phone(folder, client).run("--score", "test", "--at", "70") if line["type"] == "scores"
    )
    assert (scores["split"], scores["step"]) == ("test", 70)
    assert not any(call.startswith("push") for call in (device / "calls").read_text().splitlines()[before:])


def test_a_disconnect_does_not_stop_the_run(client: Path, device: Path, folder: Path, exported: Exported) -> None:
    lines, unplugged = phone(folder, client).run(), device / "unplugged"
    seen = [next(lines)]
    unplugged.touch()
    plug = threading.Timer(0.7, unplugged.unlink)
    plug.start()
    seen += lines
    plug.join()
    assert log_of(folder) == exported[1]
    assert [line["step"] for line in seen if line["type"] == "step"] == list(range(1, 3001))


def test_a_client_that_is_killed_is_started_again(
    client: Path, device: Path, folder: Path, exported: Exported, tmp_path: Path
) -> None:
    """With the shell that would report its end, as a phone does that needs memory."""
    killed = script(
        tmp_path / "killed",
        f"[ -e ran ] && exec {client} .",
        f"touch ran; {client} . & while [ $(wc -l <log.jsonl) -lt 200 ]; do :; done; kill -9 $! $PPID",
    )
    list(phone(folder, killed).run())
    assert log_of(folder) == exported[1]
    starts = [line for line in on_phone(device, "log.jsonl").read_text().splitlines() if '"start"' in line]
    assert len(starts) == 2, "the client was over before it was killed"


def test_a_client_that_runs_on_after_a_stop_is_followed_and_ends_with_a_void_run(
    client: Path, device: Path, folder: Path, exported: Exported, tmp_path: Path
) -> None:
    waits = script(tmp_path / "waits", "touch began.$$; while [ ! -e go ]; do sleep 0.02; done", f"exec {client} .")
    looks: list[int] = []

    def began() -> list[int]:
        return [int(path.suffix[1:]) for path in on_phone(device, "").glob("began.*")]

    def stopped_after(n: int) -> bool:
        looks.append(len(began()))
        return looks.count(1) > n

    def stop() -> None:
        looks.clear()
        one = phone(folder, waits)
        one.should_stop = lambda: stopped_after(5)
        with pytest.raises(StoppedError):
            list(one.run())

    stop()
    stop()
    (first,) = began()
    again = phone(folder, waits)
    again.forget()
    again.install()
    command = Path(f"/proc/{first}/cmdline")  # of one that waits to be reaped: empty
    while command.exists() and command.read_bytes():
        time.sleep(0.02)
    on_phone(device, f"began.{first}").unlink()
    stop()
    on_phone(device, "go").touch()
    list(phone(folder, waits).run())
    assert log_of(folder) == exported[1]
    starts = [line for line in on_phone(device, "log.jsonl").read_text().splitlines() if '"start"' in line]
    assert len(starts) == 1, "the one that is started when the followed one has ended finds nothing to do"


def test_a_run_that_began_here_goes_on_there(client: Path, device: Path, folder: Path, exported: Exported) -> None:
    """And back: a log of the phone is continued here."""
    lines = phone(folder, client).run()
    next(lines)
    lines.close()
    time.sleep(0.3)
    (folder / LOG).write_bytes(b"".join(on_phone(device, "log.jsonl").read_bytes().splitlines(True)[:51]))
    shutil.rmtree(device / "data")
    (device / "data" / "local" / "tmp").mkdir(parents=True)
    list(phone(folder, client).run())
    assert log_of(folder) == exported[1]


def test_logs_that_differ_are_refused_and_a_void_run_is_moved_aside_here_and_there(
    client: Path, device: Path, folder: Path
) -> None:
    list(phone(folder, client).run())
    (folder / LOG).write_text('{"type":"start"}\n')
    with pytest.raises(UserError, match="does not begin with the one here"):
        list(phone(folder, client).run())
    again = phone(folder, client)
    again.forget()
    with pytest.raises(UserError, match="--at 5: the log has 0 steps"):
        list(again.run("--score", "test", "--at", "5"))
    assert (folder / "log.void").read_text() == '{"type":"start"}\n'
    assert on_phone(device, "log.void").read_text().count("coefs") == 3000


def test_the_clients_own_error_is_reported(client: Path, device: Path, folder: Path) -> None:
    with pytest.raises(UserError, match="failed on the phone: zo_client: --at 5: the log has 0 steps"):
        list(phone(folder, client).run("--score", "test", "--at", "5"))


def test_a_client_that_is_killed_again_and_again_is_given_up(
    tmp_path: Path, client: Path, device: Path, folder: Path
) -> None:
    for command in ("kill -9 $$", "kill -9 $$ $PPID"):
        with pytest.raises(UserError, match="killed on the phone 6 times in a row"):
            list(phone(folder, script(tmp_path / "killed", command)).run())


def test_without_a_phone_the_run_gives_up(
    client: Path, device: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (device / "unplugged").touch()
    with pytest.raises(DisconnectedError, match="no devices"):
        list(phone(folder, client, patience=0.2).run())
    monkeypatch.setenv("ANDROID_SERIAL", "GONE")
    with pytest.raises(DisconnectedError, match="'GONE' not found"):
        list(phone(folder, client, patience=0.2).run())


def test_one_of_several_phones_is_named(
    client: Path, device: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (device / "second").touch()
    with pytest.raises(UserError, match=f"choose from: {SERIAL}, SECOND; name one with ANDROID_SERIAL"):
        list(phone(folder, client).run())
    monkeypatch.setenv("ANDROID_SERIAL", SERIAL)
    assert list(phone(folder, client).run())


def test_without_adb_there_is_one_line(
    client: Path, device: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(device))
    with pytest.raises(UserError, match="adb is not installed; install Android's platform-tools"):
        list(phone(folder, client).run())

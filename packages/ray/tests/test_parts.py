"""The small parts of the machine commands, without a cluster."""

from __future__ import annotations

import configparser
import io
import json
import os
import pwd
import re
import shutil
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from rich.console import Console

from tests.cli.parsing import parse
from tests.conftest import REPO
from zo_sweeps import __version__
from zo_sweeps.cli.main import main
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.host import GIB
from zo_sweeps.devices.doctor import Check
from zo_sweeps.devices.probe import l4t, power_mode
from zo_sweeps.methods import registry
from zo_sweeps_ray import choice, cluster, head, inventory, private, systemd, worker
from zo_sweeps_ray.cluster import living
from zo_sweeps_ray.commands import show_devices
from zo_sweeps_ray.inventory import Machine, capabilities, row
from zo_sweeps_ray.node import FIXED_PORTS, labels, node_arguments, port_range, running, sanitised, terminate
from zo_sweeps_ray.worker import gpus_lent, memory_lent, profile


def test_labels_are_such_as_ray_takes() -> None:
    from ray._private.label_utils import parse_node_labels_string, validate_node_labels

    assert sanitised("NVIDIA Jetson Orin Nano (8 GB)\0") == "NVIDIA-Jetson-Orin-Nano-8-GB"
    assert sanitised("-_." * 50) == ""
    assert len(sanitised("x" * 200)) == 63
    found = parse_node_labels_string(labels("jetson-orin-nano", "abc", "Ole's board, ünd so"))
    validate_node_labels(found)
    assert found["zo.device"] == "jetson-orin-nano"
    assert found["zo.name"] == "Ole-s-board-nd-so"
    assert found["zo.version"] == __version__
    assert found["zo.programs"] == "true", "executorch is part of the tests' environment"
    tools = {key.removeprefix("zo.tool."): version for key, version in found.items() if key.startswith("zo.tool.")}
    assert tools == registry.member("kind", "synthesis").installed_tools() != {}


def test_of_a_machine_that_joined_again_only_the_newest_node_counts_as_alive() -> None:
    def node(name: str, *, alive: bool = True, address: str = "10.0.0.1", **labels: str) -> dict[str, Any]:
        return {"NodeID": name, "Alive": alive, "NodeManagerAddress": address, "Labels": labels}

    before = node("before", **{"zo.id": "abc", "zo.began": "1000"})
    after = node("after", **{"zo.id": "abc", "zo.began": "1007"})
    left = node("left", alive=False, **{"zo.id": "abc", "zo.began": "1010"})
    copied = node("copied", address="10.0.0.2", **{"zo.id": "abc", "zo.began": "900"})  # a card with its id, elsewhere
    dead = node("dead", alive=False, **{"zo.id": "abc", "zo.began": "990"})
    plain = [node("x"), node("y")]  # Ray's own, without our labels
    for nodes in ([before, after, copied, dead, *plain], [*plain, dead, copied, after, before]):
        assert {found["NodeID"] for found in living(nodes)} == {"after", "copied", "x", "y"}
    assert [found["NodeID"] for found in living([before, dead])] == ["before"]
    assert living([before, after, left]) == [], "what it was before is dead too, whatever Ray says as yet"


def test_a_range_of_ports_holds_all_that_ray_listens_on() -> None:
    words = node_arguments(2, 1, 8 * GIB, "20000-20040")
    ports = [int(word.split("=")[1]) for word in words if "port" in word]
    assert len(set(ports)) == len(ports) == len(FIXED_PORTS) + 2
    assert all(20000 <= port <= 20040 for port in ports)
    assert {"--num-cpus=2", "--num-gpus=1", f"--memory={8 * GIB}"} <= set(words)
    for bad in ("20000", "20040-20000", "20000-20005", "1-100", "65530-65600"):
        with pytest.raises(UserError, match="is not a range of at least 21 ports in --ports"):
            port_range(bad)


@pytest.mark.parametrize(
    ("name", "gpus", "gb"),
    [("jetson-orin-nano", 1, 8), ("jetson-tx2", 1, 8.589934592), ("cuda", 1, None), ("cpu", 0, None)],
)
def test_a_node_lends_what_its_profile_has_unless_told_otherwise(name: str, gpus: int, gb: float | None) -> None:
    import psutil

    device = profile(name, [])
    assert gpus_lent(None, device) == gpus
    assert gpus_lent(3, device) == 3
    lent = memory_lent(None, device)
    assert lent == (None if gb is None else min(round(gb * 10**9), psutil.virtual_memory().total))
    assert memory_lent(1.5, device) == 1_500_000_000


def test_a_profile_of_ones_own_is_one_yaml(tmp_path: Path) -> None:
    (tmp_path / "device").mkdir()
    text = "name: board\ndisplay: My board\nkind: cpu\nmemory_gb: 2\nunified: true\n"
    (tmp_path / "device" / "board.yaml").write_text(text)
    assert profile("board", [str(tmp_path)]).memory_gb == 2
    with pytest.raises(UserError, match=r"unknown device 'bord'.*did you mean 'board'"):
        profile("bord", [str(tmp_path)])


def test_a_token_is_only_taken_from_a_file_that_others_cannot_read(tmp_path: Path, monkeypatch) -> None:
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cluster.find_token(None, tmp_path) is None
    monkeypatch.setenv("RAY_AUTH_TOKEN", "t" * 64)
    found = cluster.find_token(None, tmp_path / "state")
    assert found
    assert found.read_text() == "t" * 64
    assert found.stat().st_mode & 0o777 == 0o600
    found.chmod(0o640)
    with pytest.raises(UserError, match=r"others can read the token \(mode 640\).*chmod 600"):
        cluster.checked(found)
    found.chmod(0o600)
    found.write_text(" \n")
    with pytest.raises(UserError, match="the token file is empty"):
        cluster.checked(found)
    with pytest.raises(UserError, match="cannot read the token: No such file"):
        cluster.checked(tmp_path / "none")
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    made = cluster.token_for_head(None, tmp_path / "head")
    assert made.stat().st_mode & 0o777 == 0o600
    assert cluster.token_for_head(None, tmp_path / "head").read_text() == made.read_text()


@pytest.mark.parametrize(
    ("there", "where"),
    [
        ("head", "in {tmp}/runs/head/ray_token; "),
        ("RAY_AUTH_TOKEN", "in the variable RAY_AUTH_TOKEN; "),
        ("RAY_AUTH_TOKEN_PATH", "in {tmp}/other (the variable RAY_AUTH_TOKEN_PATH); "),
        ("~/.ray", "in {tmp}/.ray/auth_token; "),
        ("", ": none is in RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray, and the state folder is another's; "),
    ],
)
def test_a_refused_token_is_named_by_where_it_is_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str, where: str
) -> None:
    """Also from a second state folder, whose head is another, where the message named an environment without one."""
    from ray.exceptions import AuthenticationError

    def refuse(address: str) -> None:
        raise AuthenticationError("Unauthenticated")

    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(cluster, "must_answer", lambda address: None)
    monkeypatch.setattr(cluster, "tls_environment", lambda auth, address: {})
    monkeypatch.setattr(private, "control_store", refuse)
    (tmp_path / ".ray").mkdir()
    (tmp_path / "runs" / "head").mkdir(parents=True)
    known = {"address": "10.0.0.5:6379" if there == "head" else "10.0.0.6:6379"}
    known["token_file"] = str(tmp_path / "runs" / "head" / "ray_token")
    (tmp_path / "runs" / "head" / "head.json").write_text(json.dumps(known))
    if there == "~/.ray":
        (tmp_path / ".ray" / "auth_token").write_text("t" * 64)
    elif there.startswith("RAY"):
        monkeypatch.setenv(there, str(tmp_path / "other"))
    auth = cluster.joining_environment(tmp_path / "runs", "10.0.0.5:6379")
    with cluster.environment(auth), pytest.raises(UserError) as refused:
        private.Head("10.0.0.5:6379", auth)
    assert where.format(tmp=tmp_path) in str(refused.value)
    assert "the head at 10.0.0.5:6379 refuses the token" in str(refused.value)


def test_versions_that_differ_say_what_to_install() -> None:
    heads = {"ray": "2.60.0", "python": "3.11.7"}
    found = {check.name: check for check in worker.versions(heads, {"ray": "2.60.0", "python": "3.10.12"})}
    assert found["ray"].status == "ok"
    assert found["python"].status == "fail"
    assert found["python"].detail == "3.10.12 here, 3.11.7 at the head"
    assert "3.11.7" in found["python"].fix
    assert worker.same_code("0.0.9").fix == "pip install 'zo-sweeps==0.0.9'"
    assert worker.same_code(__version__).status == "ok"


@pytest.mark.parametrize(("skew", "status"), [(0, "ok"), (12, "ok"), (-30, "warn"), (3600, "warn")])
def test_a_clock_that_differs_is_said(skew: float, status: str) -> None:
    assert worker.clock(1e9 + skew, 1e9).status == status


@pytest.mark.multiprocess
def test_power_mode_and_release_are_read_as_a_jetson_writes_them(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert power_mode(tmp_path / "status") == ""
    (tmp_path / "status").write_text("pmode:0002 fmode:fanNull")
    assert power_mode(tmp_path / "status") == "mode 2"
    program = tmp_path / "nvpmodel"
    program.write_text("#!/bin/sh\necho 'NV Fan Mode:quiet'\necho 'NV Power Mode: MAXN_SUPER'\necho 2\n")
    program.chmod(0o755)
    assert power_mode(tmp_path / "status") == "MAXN_SUPER"
    program.write_text("#!/bin/sh\nexit 1\n")
    assert power_mode(tmp_path / "status") == "mode 2"
    assert l4t(tmp_path / "none") == ""
    (tmp_path / "l4t").write_text("# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64\n")
    assert l4t(tmp_path / "l4t") == "36.4.3"


def test_a_phone_is_reached_with_adb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    phone = profile("oneplus-12", [])
    assert gpus_lent(None, phone) == 0
    monkeypatch.setenv("PATH", str(tmp_path))
    assert worker.adb(phone).status == "fail"
    (tmp_path / "adb").write_text("#!/bin/sh\n")
    (tmp_path / "adb").chmod(0o755)
    assert worker.adb(phone) == Check("adb", "ok", str(tmp_path / "adb"))


def test_what_is_not_known_of_a_device_is_a_dash_and_unified_memory_is_one_number() -> None:
    assert row(Machine("a", "cpu", "gone"), 0.0)[2:] == ["–"] * 6 + ["gone", "–"]
    facts = {
        "name": "Orin Nano",
        "memory_bytes": 8 * GIB,
        "ram_bytes": 8 * GIB,
        "ram_free_bytes": 3 * GIB,
        "unified": True,
        "gpus": ["Orin"],
        "codes": {"int8": "", "nf4": "", "fp4": "RuntimeError: no kernel image is available"},
        "versions": {"python": "3.10.12"},
        "temperature": 51.6,
        "power_mode": "15W",
        "watts": 9.27,
        "throttled": ["heat"],
        "l4t": "36.4.3",
        "time": 100.0,
    }
    shown = row(Machine("n", "jetson-orin-nano", "up", cpus=6, gpus=1, memory_bytes=8 * GIB, facts=facts), 103.0)
    assert shown[2] == "3.0 of 8.0 GiB\nfree, unified"
    assert shown[3:] == [
        "6 CPU, 1 GPU\n8.0 GiB",
        "cuda, int8, nf4",
        "python 3.10.12\nL4T 36.4.3",
        "15W\n9.3 W\nthrottled: heat",
        "52 °C",
        "up,\n3 s ago",
        "–",
    ]
    assert capabilities({"executorch": True, "tools": ["pyosys 0.70"]}) == ["executorch", "pyosys"]
    discrete = {**facts, "unified": False, "memory_bytes": 24 * GIB}
    assert row(Machine("n", "cuda", "up", facts=discrete), 0.0)[2] == "3.0 of 8.0 GiB\nfree; GPU 24.0 GiB"


HARDENING = ("User", "StateDirectory", "NoNewPrivileges", "PrivateTmp", "ProtectSystem", "UMask")
JOBS = REPO / "jobs"


def service_section(text: str) -> dict[str, str]:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read_string(text)
    return dict(unit["Service"])


@pytest.mark.multiprocess
def test_a_service_of_the_system_has_an_account_and_a_token_of_its_own_and_goes_without_a_trace(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    """With folders in place of /etc, a `useradd` and a `systemctl` that note how they are called."""
    monkeypatch.setattr(systemd, "SYSTEM", tmp_path / "UNITS")
    for name in ("SETTINGS", "STATE"):
        monkeypatch.setattr(systemd, name, tmp_path / name)
    for tool in ("useradd", "systemctl"):
        (tmp_path / tool).write_text(f'#!/bin/sh\necho "{tool} $*" >> {tmp_path}/called\n')
        (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    mine = pwd.getpwuid(os.getuid())
    monkeypatch.setattr(pwd, "getpwnam", lambda name: mine if (tmp_path / "called").exists() else {}[name])
    token = tmp_path / "token"
    token.write_text("s3cret" * 10)
    token.chmod(0o600)
    words = ["worker", "install-service", "10.0.0.5:6379", "--device=cpu", f"--token-file={token}"]
    monkeypatch.setattr(systemd, "_used", lambda config_dirs: iter([Path("/usr")]))
    assert main(words) == 0
    said = capsys.readouterr().out
    unit, copy = tmp_path / "UNITS" / systemd.NAME, tmp_path / "SETTINGS" / "ray_token"
    assert said.splitlines() == [
        f"runs as zo, with its copy of the token in {copy}",
        str(unit),
        f"next: systemctl daemon-reload && systemctl enable --now {systemd.NAME}",
    ]
    assert copy.read_text() == token.read_text()
    assert (copy.stat().st_mode & 0o777, copy.stat().st_uid) == (0o600, mine.pw_uid)
    assert str(token) not in unit.read_text()
    assert main(["worker", "uninstall-service"]) == 0
    assert not unit.exists()
    assert not copy.exists()
    called = (tmp_path / "called").read_text().splitlines()
    assert called[0].startswith("useradd --system ")
    assert called[0].endswith(" --shell /usr/sbin/nologin zo")
    assert called[1:] == [f"systemctl disable --now {systemd.NAME}"]
    assert main(["worker", "uninstall-service"]) == 1
    (tmp_path / "systemctl").write_text("#!/bin/sh\necho 'Access denied' >&2\nexit 1\n")
    unit.write_text("[Unit]\n")
    capsys.readouterr()
    assert main(["worker", "uninstall-service"]) == 2
    assert "the service cannot be stopped: Access denied" in capsys.readouterr().err
    assert unit.exists()


def test_a_service_whose_account_cannot_read_the_code_is_not_installed(tmp_path: Path, monkeypatch) -> None:
    closed = tmp_path / "closed"
    (closed / "venv").mkdir(parents=True)
    closed.chmod(0o700)
    monkeypatch.setattr(systemd, "SYSTEM", tmp_path / "units")
    monkeypatch.setattr(systemd, "_used", lambda config_dirs: iter([closed / "venv"]))
    unit = systemd.unit([], "10.0.0.5:6379", 120.0, [], system=True)
    with pytest.raises(UserError, match=r"the account zo cannot read \S+/venv \(mode of \S+: 700\).*or use --user"):
        systemd.install(unit, [], tmp_path / "token", say=print)
    assert not (tmp_path / "units").exists()


def test_devices_fit_80_columns_and_are_json_for_programs(monkeypatch, capsys) -> None:
    facts = {
        "memory_bytes": 8 * GIB,
        "ram_bytes": 8 * GIB,
        "ram_free_bytes": 3 * GIB,
        "unified": True,
        "codes": dict.fromkeys(("int8", "nf4", "fp4", "int4", "squeezellm", "adam_8bit"), ""),
        "versions": {"python": "3.10.12", "ray": "2.60.0", "torch": "2.13.0+cpu"},
        "time": 100.0,
    }
    run = "P-RGE (outer loop) · Movie remarks · lr 0.0003 · seed 2"
    devices = [
        Machine("orin-nano-on-the-bench", "jetson-orin-nano", "up", "a", cpus=6, gpus=1, facts=facts, runs=(run, run)),
        Machine("gone", "cpu", "gone"),
    ]
    printed = {}
    for width in (80, 160):
        console = Console(width=width, file=io.StringIO(), highlight=False)
        show_devices(devices, console, 103.0)
        printed[width] = console.file.getvalue()
        assert max(map(len, printed[width].splitlines())) <= width
    narrow = [" ".join(line.split()) for line in printed[80].splitlines()]
    assert narrow[0] == "orin-nano-on-the-bench"
    assert {"memory 3.0 of 8.0 GiB", "free, unified", "lends 6 CPU, 1 GPU", f"runs now {run}", run} <= set(narrow)
    assert [line for line in narrow if "–" in line] == [], "what is unknown is left out"
    assert printed[160].splitlines()[0].split()[:2] == ["name", "device"]
    monkeypatch.setattr(inventory, "connect", lambda *_: None)
    monkeypatch.setattr(inventory, "read", lambda head: devices)
    assert main(["devices", "--json"]) == 0
    printed_json = json.loads(capsys.readouterr().out)
    assert [(one["name"], one["state"], one["runs"]) for one in printed_json] == [
        ("orin-nano-on-the-bench", "up", [run, run]),
        ("gone", "gone", []),
    ]
    assert printed_json[0]["can"] == ["int8", "nf4", "fp4", "int4", "squeezellm", "adam_8bit"]


def test_a_head_waits_for_the_end_of_the_last_one_and_reports_it_once(tmp_path: Path, monkeypatch) -> None:
    left, said = [[psutil.Process()], [psutil.Process()], []], []
    monkeypatch.setattr(head, "_processes", lambda folder: left.pop(0))
    head._await_the_end_of_the_last(tmp_path, said.append)
    assert left == []
    monkeypatch.setattr(head, "_processes", lambda folder: [psutil.Process()])
    monkeypatch.setattr(head, "END_SECONDS", -1.0)
    with pytest.raises(UserError, match=rf"does not end in {tmp_path}; kill -9 {os.getpid()}"):
        head._await_the_end_of_the_last(tmp_path, said.append)
    with head._alone(tmp_path, said.append):
        waits = threading.Event()
        second = threading.Thread(target=lambda: head._alone(tmp_path, lambda text: waits.set()).__enter__())
        second.start()
        assert waits.wait(20), "a stop that goes on"
    second.join(20)
    assert not second.is_alive()
    assert said == [head.ENDING] * 2


def test_the_node_and_the_processes_of_another_user_are_refused_in_one_line(tmp_path: Path, monkeypatch) -> None:
    socket = tmp_path / "ray" / "session" / "sockets" / "raylet"
    socket.parent.mkdir(parents=True)
    socket.touch()
    nodes = [{"RayletSocketName": str(socket)}]
    private._must_be_ours(nodes)
    monkeypatch.setattr(os, "access", lambda *_: False)
    me = pwd.getpwuid(os.getuid()).pw_name
    with pytest.raises(
        UserError, match=f"the Ray node on this machine runs as {me}, and only {me} can .*run this command as"
    ):
        private._must_be_ours(nodes)

    class Theirs(psutil.Process):
        def terminate(self) -> None:
            raise psutil.AccessDenied(self.pid)

    with pytest.raises(UserError, match=rf"pid {os.getpid()} runs as {me}; run this command as {me}"):
        terminate(Theirs())


@pytest.mark.multiprocess
def test_the_unit_joins_with_a_token_by_its_path_and_systemd_accepts_it(tmp_path: Path, capsys) -> None:
    token = tmp_path / "ray_token"
    token.write_text("s3cret" * 10)
    token.chmod(0o600)
    words = ["worker", "install-service", "10.0.0.5:6379", "--device", "jetson-orin-nano", "--token-file", str(token)]
    assert main([*words, "--print"]) == 0
    text = capsys.readouterr().out
    assert "s3cret" not in text
    start = re.search(r"^ExecStart=(.*)$", text, re.MULTILINE)
    assert start
    own = "--token-file /etc/zo-sweeps/ray_token --state-dir /var/lib/zo-sweeps"
    assert start[1].endswith(f"worker join 10.0.0.5:6379 --device jetson-orin-nano {own}")
    written, shipped = service_section(text), service_section((JOBS / "systemd" / systemd.NAME).read_text())
    assert {name: written.get(name) for name in HARDENING} == {name: shipped[name] for name in HARDENING}
    assert written["ProtectHome"] in ("true", "read-only"), "as this Python is in a home or not"
    assert main([*words[:-2], "--token", "ray_token", "--print"]) == 2, "the unit starts in /: a path by half a flag"
    assert main([*words, "--print", "--user"]) == 0
    users = service_section(capsys.readouterr().out)
    assert users["ExecStart"].endswith(f"--token-file {token}")
    assert "User" not in users
    assert users["NoNewPrivileges"] == "true"
    assert "TimeoutStopSec=180" in text, "longer than the trials are given to stop"
    assert "Restart=on-failure" in text
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze to ask")
    path = tmp_path / systemd.NAME
    path.write_text(text)
    said = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, timeout=60)
    assert systemd.NAME not in said.stderr, said.stderr


def test_the_units_files_are_found_from_wherever_systemd_starts(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    words = ["--token-file=tok", "--state-dir", "~/s", "--name", "tok"]
    arguments = systemd.unit_arguments(words, system=False)
    assert arguments == [
        f"--token-file={tmp_path / 'tok'}",
        "--state-dir",
        str(Path.home() / "s"),
        "--name",
        "tok",
    ]
    said: list[str] = []
    unit = systemd.unit(arguments, "10.0.0.5:6379", 120.0, [], system=False)
    systemd.install(unit, [], None, say=said.append)
    assert (tmp_path / "config" / "systemd" / "user" / systemd.NAME).read_text() == unit.text
    assert "systemctl --user daemon-reload" in said[1]


def test_a_file_of_a_process_that_is_gone_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "head.json"
    assert running(path) is None
    for text in ("{", '{"pid": 0, "started": 0.0}', '{"pid": 1, "started": 5.0}'):
        path.write_text(text)
        assert running(path) is None


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["worker", "join"], "no head named"),
        (["worker", "jion"], "invalid choice: 'jion'"),
        (["worker", "join", "h:1", "--device", "jetson"], "unknown device 'jetson'"),
        (["head", "start", "--prot", "1"], "unrecognized arguments: --prot"),
        (["head", "start", "--lease", "0"], "argument --lease: 0 is not above 0"),
        (["head", "code", "--minutes", "nan"], "argument --minutes: nan is not above 0"),
        (["devices", "state_dir=/nowhere"], "no cluster is known here"),
        (["devices", "cluster.adress=h:1"], "adress"),
    ],
)
def test_bad_input_is_one_line(words: list[str], what: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(worker, "HOME", tmp_path)
    assert main(words) == 2
    said = capsys.readouterr().err
    assert what in said
    assert said.count("\n") == 1


def test_without_the_package_of_agents_there_is_no_gateway_and_no_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A head and a sweep do without; whoever asks for one is told what to install."""
    offered = registry.offered
    monkeypatch.setattr(registry, "offered", lambda group: {} if group == "part" else offered(group))
    assert parse(["head", "start"], capsys).gateway_port == 0
    assert choice.agents().nodes() == ()
    note = {private.AGENTS: {"time": 0.0, "store": "", "agents": []}}
    listing = SimpleNamespace(nodes=lambda: [], notes=lambda kind: note if kind == private.AGENTS else {})
    for asked in (
        lambda: head.start(tmp_path, head.HeadOptions(gateway_port=7443), print),
        lambda: head.code(tmp_path, 15.0, print),
        lambda: inventory.read(listing),
    ):
        with pytest.raises(UserError, match=r"^zo-sweeps-agent is not installed.*; pip install 'zo-sweeps\[agents\]'$"):
            asked()

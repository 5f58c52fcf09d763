"""The page: its states by Streamlit's own tester, and a run from start to stop in a browser."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("streamlit", reason="needs the extra [demo]")

from streamlit.testing.v1 import AppTest

from browser import CHROMIUM, Browser
from tests.record import made_up
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.trial import TrialState
from zo_sweeps.record.journal import JournalStore
from zo_sweeps.session.answers import Answer
from zo_sweeps_demo import command, runs
from zo_sweeps_demo.answers import Compared, background
from zo_sweeps_demo.runs import Choice, Page, Run

CHOICE = Choice(lr="0.1", q=4)


def script(folder: str, overrides: tuple[str, ...]) -> None:
    from pathlib import Path

    from zo_sweeps_demo.page import show
    from zo_sweeps_demo.runs import Page

    show(Page(Path(folder), (), overrides))


def opened(folder: Path, *overrides: str) -> AppTest:
    return AppTest.from_function(script, args=(str(folder), overrides), default_timeout=60).run()


def enabled(app: AppTest) -> list[str]:
    return [button.label for button in app.button if not button.disabled]


def numbers(app: AppTest) -> dict[str, str]:
    return {metric.label: metric.value for metric in app.metric}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of all tests: the page composes and plans a choice once per process."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(autouse=True)
def _main(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streamlit puts its page in the place of the main module, with which `multiprocessing` starts children."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


@pytest.fixture(scope="module")
def prepared(folder: Path) -> Run:
    return runs.prepare(Page(folder), CHOICE)


@pytest.fixture
def run(prepared: Run) -> Run:
    """The run that the page shows first; nothing of it is there."""
    shutil.rmtree(prepared.folder, ignore_errors=True)
    return prepared


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Compared:
    """Answers that nothing has to be computed for."""
    before = (Answer("It was *bold*: $5", "great", False), Answer("dull", "great", False))
    made = Compared(150, before, (before[0], Answer("dull", "terrible", True)))
    monkeypatch.setattr(background, "latest", lambda *_, **__: made)
    return made


def test_a_new_choice_shows_its_command_and_what_is_predicted(folder: Path, run: Run) -> None:
    app = opened(folder)
    assert not app.exception
    assert app.code[0].value == str(run.command)
    assert enabled(app) == ["Start"]
    assert (numbers(app)["State"], numbers(app)["Step"]) == ("new", "0 of 150")
    assert any(re.match(r"Predicted: \d+\.\d MiB, ", one.value) for one in app.caption)


def test_bad_input_is_one_line_and_nothing_can_be_started(folder: Path) -> None:
    app = opened(folder)
    app.text_input[0].set_value("fast").run()
    assert [error.value.partition(" in ")[0] for error in app.error] == ["update.lr='fast' has the wrong type"]
    assert not app.button
    app.text_input[0].set_value("0.2").run()
    assert not app.error
    assert "update.lr=0.2" in app.code[0].value


def test_another_method_brings_its_own_defaults(folder: Path) -> None:
    app = opened(folder)
    app.selectbox[2].set_value("mezo").run()
    assert app.text_input[0].value == "0.001"
    assert app.number_input[0].value == 1
    assert any("MeZO: all parameters" in one.value for one in app.caption)


def test_what_the_command_line_sets_cannot_be_chosen(folder: Path) -> None:
    app = opened(folder, "method=lozo", "update.lr=1e-4")
    assert app.selectbox[2].disabled
    assert app.text_input[0].disabled
    assert "method=lozo update.lr=1e-4" in app.code[0].value


def test_a_stopped_run_can_be_resumed(folder: Path, run: Run, known: Compared) -> None:
    events = [made_up.start(), made_up.steps(run.trial, 1, 30, 1.0), made_up.evaluation(run.trial, 30, 2.0)]
    JournalStore(run.folder).append(run.trial.trial_id, events)
    app = opened(folder)
    assert not app.exception
    assert enabled(app) == ["Resume"]
    assert numbers(app)["State"] == "stopped"
    assert numbers(app)["Step"] == "30 of 150"
    assert numbers(app)["Dev accuracy"].endswith(" %")


def test_a_finished_run_shows_its_score_and_its_answers_and_can_be_exported(
    folder: Path, run: Run, known: Compared, monkeypatch: pytest.MonkeyPatch
) -> None:
    JournalStore(run.folder).append(run.trial.trial_id, made_up.whole(run.trial, 15))
    asked: list[bool] = []

    def export(run: Run, *, merge: bool) -> None:
        asked.append(merge)
        (run.folder / "merged").mkdir()

    monkeypatch.setattr(runs, "export", export)
    app = opened(folder)
    assert enabled(app) == ["Export adapter", "Export model"]
    assert numbers(app)["State"] == "succeeded"
    assert any("On test, with the weights after step 150: accuracy 88.0 %." in one.value for one in app.caption)
    assert app.subheader[0].value == "1 of 2 answers on dev changed"
    table = app.table[0].value
    assert list(table["now"]) == [":green[✓] terrible", ":red[✗] great"], "the changed one first"
    assert table["text"][1] == r"It was \*bold\*\: \$5", "no Markdown"
    app.button[3].click().run()
    assert asked == [True]
    assert app.success[0].value == f"written: {run.folder / 'merged'}"


def test_a_diverged_run_says_where(folder: Path, run: Run, known: Compared) -> None:
    events = made_up.whole(run.trial, 15, TrialState.DIVERGED, "step 150: loss nan")
    JournalStore(run.folder).append(run.trial.trial_id, events)
    app = opened(folder)
    assert app.error[0].value == "step 150: loss nan"
    assert enabled(app) == []


def test_start_and_stop_are_passed_on(folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[Any] = []
    monkeypatch.setattr(runs, "start", lambda run: did.append(("start", run.folder)))
    monkeypatch.setattr(runs, "stop", lambda folder: did.append(("stop", folder)))
    app = opened(folder)
    app.button[0].click().run()
    monkeypatch.setattr(runs, "pid_of", lambda folder: os.getpid())
    app.run()
    assert numbers(app)["State"] == "starting"
    app.button[1].click().run()
    assert did == [("start", run.folder), ("stop", run.folder)]


def test_the_command_refuses_bad_input_before_it_serves(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="no such folder: nowhere"):
        command.demo(["--config-dir", "nowhere"])
    with pytest.raises(UserError, match="port 99999 cannot be used"):
        command.demo(["--port", "99999"])
    with pytest.raises(UserError, match="the page sets state_dir for each run; write --state-dir DIR"):
        command.demo(["state_dir=D"])
    assert capsys.readouterr().out == ""
    options = command.parsed(["--port", "9000", "data.dir=D", "--state-dir", "~/x"])
    assert (options.port, options.state_dir, options.overrides) == (9000, os.path.expanduser("~/x"), ["data.dir=D"])


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_a_browser_starts_a_run_watches_it_and_stops_it(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["demo", "--port", str(port), "--state-dir", str(tmp_path / "runs"), "split.dev=16", "train.steps=5000"]
    words += ["train.eval_every=5", "estimator.q=1"]
    command = [sys.executable, "-m", "zo_sweeps", *words]
    with open(tmp_path / "log", "w+") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            with Browser(tmp_path / "browser") as browser:
                wait_for_port(port, server)
                browser.open(f"http://127.0.0.1:{port}")
                browser.press("Start")
                browser.shows("running")
                browser.until("!!document.querySelector('[data-testid=stVegaLiteChart] canvas, .vega-embed svg')")
                browser.until("document.querySelectorAll('table tbody tr').length === 12")
                browser.shows("answers on dev changed")
                browser.press("Stop")
                browser.shows("stopped")
                browser.shows("Resume")
                assert not [*runs.running(Page(tmp_path / "runs"))]
                assert {address.split("/")[2] for address in browser.requests if "//" in address} == {
                    f"127.0.0.1:{port}"
                }
        finally:
            server.send_signal(signal.SIGINT)
            status = server.wait(60)
        log.seek(0)
        said = log.read()
    assert status == 130
    assert "Traceback" not in said


def wait_for_port(port: int, server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 120
    while True:
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                break
        assert time.monotonic() < end
        assert server.poll() is None
        time.sleep(0.2)
    with socket.socket() as one:  # on loopback alone
        outside = socket.gethostbyname(socket.gethostname())
        assert outside.startswith("127.") or one.connect_ex((outside, port)) != 0


@pytest.mark.multiprocess
def test_the_end_of_the_page_interrupts_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped: list[Path] = []
    program = [sys.executable, "-c", "import time; time.sleep(60)"]
    starting, other = subprocess.Popen([*program, runs.GRID]), subprocess.Popen(program)

    class Server:
        pid = os.getpid()

        def __init__(self, command: list[str], **_: object) -> None:
            assert "--server.address=127.0.0.1" in command
            assert "--browser.gatherUsageStats=false" in command
            (tmp_path / "one").mkdir()

        def wait(self) -> int:
            if not stopped:
                stopped.append(tmp_path)
                raise KeyboardInterrupt
            return 0

        def terminate(self) -> None:
            pass

    monkeypatch.setattr(subprocess, "Popen", Server)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(runs, "pid_of", lambda folder: os.getpid())
    monkeypatch.setattr(command, "stop", stopped.append)
    with starting, other:
        assert command.demo(["--state-dir", str(tmp_path)]) == 130
        assert starting.wait(20) == -signal.SIGTERM, "it holds no lock yet"
        assert other.poll() is None
        other.kill()
    assert stopped[1:] == [tmp_path / "one"]
    assert "the same choices go on from there" in capsys.readouterr().out

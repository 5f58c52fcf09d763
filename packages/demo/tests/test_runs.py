"""The page's runs, without a page: what is offered, a choice's command and folder, its states, its answers."""

from __future__ import annotations

import contextlib
import io
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.record import made_up
from zo_sweeps.cli.main import main
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import Event, ScoredDev, Start, only
from zo_sweeps.core.trial import TrialState
from zo_sweeps.record.journal import JournalStore
from zo_sweeps.run.run_trial import run_trial
from zo_sweeps.session.answers import Answer, answers
from zo_sweeps_demo import runs
from zo_sweeps_demo.answers import CHOSEN, ROWS, Compared
from zo_sweeps_demo.runs import Choice, Page, Run

SMALL = ("split.dev=16", "split.test=16")


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return Page(tmp_path / "runs")


@pytest.fixture(scope="module")
def prepared() -> Run:
    return runs.prepare(Page(Path("runs").resolve()), Choice(lr=0.1, q=2, steps=40))


@pytest.fixture
def run(page: Page, prepared: Run) -> Run:
    """A run that has a folder of its own in each test."""
    return replace(prepared, folder=page.state_dir / prepared.folder.name)


def keep(run: Run, *, state: TrialState | None = None, error: str = "") -> None:
    """Write a journal of 20 steps, with that end."""
    events = [made_up.start(), made_up.steps(run.trial, 1, 20, 1.0), made_up.evaluation(run.trial, 20, 2.0)]
    end = [] if state is None else [made_up.end(run.trial, 3.0, state, error)]
    JournalStore(run.folder).append(run.trial.trial_id, [*events, *end])


def test_what_is_offered_is_here_and_trains_by_estimates(page: Page) -> None:
    there = runs.offered(page)
    assert "demo" in there.models
    assert "llama2_7b" not in there.models, "not downloaded"
    assert {"demo_remarks", "demo_sums"} <= {*there.tasks}
    assert "sst2" not in there.tasks, "no data.dir"
    assert {"mezo", "prge", "lozo"} <= {*there.methods}
    assert not {"fo_full", "zero_shot", "generate", "rtl"} & {*there.methods}
    assert there.methods["prge"].startswith("P-RGE: q directions over LoRA-FA")


def test_a_method_of_a_package_that_is_not_there_is_not_offered(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "names", lambda axis: ("zo",))
    assert "mezo" in runs.offered(page).methods
    monkeypatch.setattr(runs, "names", lambda axis: ("fo",))
    assert not runs.offered(page).methods


def test_rows_of_a_folder_are_offered_and_so_is_what_the_command_line_names(page: Page, tmp_path: Path) -> None:
    (tmp_path / "data" / "sst2").mkdir(parents=True)
    own = replace(page, overrides=(f"data.dir={tmp_path / 'data'}", "model=llama2_7b"))
    there = runs.offered(own)
    assert "sst2" in there.tasks
    assert "llama2_7b" in there.models


def test_a_method_that_inherits_its_kind_is_offered_and_a_malformed_file_is_refused(page: Page, tmp_path: Path) -> None:
    own = replace(page, config_dirs=(str(tmp_path / "my"),))
    for group, text in (
        ("method", "# @package _global_\ndefaults: [mezo]\nmethod: {name: mine}\n"),
        ("task", "name: rows\n"),
    ):
        (tmp_path / "my" / group).mkdir(parents=True)
        (tmp_path / "my" / group / "mine.yaml").write_text(text)
    with pytest.raises(UserError, match=r"task\.display is missing in .*my/task/mine\.yaml"):
        runs.offered(own)
    (tmp_path / "my" / "task" / "mine.yaml").unlink()
    assert "mine" in runs.offered(own).methods


def test_defaults_are_the_methods_or_the_leagues_for_its_model(page: Page) -> None:
    usual = runs.defaults(page, "demo", "demo_remarks", "prge")
    assert (usual.lr, usual.q, usual.prompt) == (0.1, 4, "mezo"), "the league's third rate"
    assert runs.defaults(page, "smollm2_135m", "demo_sums", "mezo").lr == 1e-6, "MeZO's own"
    assert runs.defaults(page, "smollm2_135m", "demo_sums", "mezo").prompt == "chat"
    assert runs.defaults(page, "demo", "demo_remarks", "mezo_lora").lr == 1e-5, "not in the league"


def test_a_choice_is_a_command_for_a_terminal_too(prepared: Run) -> None:
    run, words = prepared, prepared.command.overrides
    assert words[0] == "+grid=demo"
    assert {"method=prge", "update.lr=0.1", "estimator.q=2", "train.batch=8", "train.eval_every=4"} <= {*words}
    assert words[-1] == f"state_dir={run.folder}"
    assert str(run.command).startswith("python -m zo_sweeps +grid=demo model=demo ")
    assert run.trial.steps == 40
    assert run.memory_bytes is not None
    assert run.memory_bytes > 20 * 2**20


def test_a_reward_is_an_objective_of_texts(page: Page) -> None:
    run = runs.prepare(page, Choice(task="demo_sums", method="eggroll", lr=1e-3, q=8))
    assert {"train.objective=reward", "train.select=metric"} <= {*run.command.overrides}
    assert run.metric.name == "reward"


def test_what_the_command_line_sets_is_left_to_it(page: Page) -> None:
    run = runs.prepare(replace(page, overrides=("update.lr=0.5", *SMALL)), Choice(lr=0.1, q=2))
    assert [word for word in run.command.overrides if word.startswith("update.lr")] == ["update.lr=0.5"]


def test_equal_choices_share_a_folder_and_others_do_not(prepared: Run) -> None:
    page = Page(prepared.folder.parent)
    assert runs.prepare(page, Choice(lr="1e-1", q=2, steps=40)).folder == prepared.folder
    others = [Choice(lr=0.2, q=2, steps=40), Choice(lr=0.1, q=2, steps=40, seed=1)]
    assert len({prepared.folder, *(runs.prepare(page, other).folder for other in others)}) == 3


@pytest.mark.parametrize(
    ("choice", "line"),
    [
        (Choice(lr="fast", q=4), "update.lr='fast' has the wrong type in the command line; it must be a number"),
        (Choice(lr=0.1, q=0), "estimator.q of rge must be at least 1, not 0"),
        (Choice(method="mezzo", lr=0.1), "did you mean 'mezo'?"),
        (Choice(model="llama2_7b", lr=0.1, q=4), "is not in the Hugging Face cache"),
    ],
)
def test_a_choice_that_cannot_run_is_refused_in_one_line(page: Page, choice: Choice, line: str) -> None:
    with pytest.raises(UserError) as error:
        runs.prepare(page, choice)
    assert line in str(error.value)
    assert "\n" not in str(error.value)
    assert not page.state_dir.exists(), "nothing has started"


def test_several_trials_are_refused(page: Page) -> None:
    with pytest.raises(UserError, match=r"these are 2 trials; give one value of each option"):
        runs.prepare(replace(page, overrides=("update.lr=0.1,0.2",)), Choice(q=2))


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        (None, "stopped"),  # its process was killed
        (TrialState.CANCELLED, "stopped"),
        (TrialState.FAILED, "failed"),
        (TrialState.DIVERGED, "diverged"),
        (TrialState.OUT_OF_MEMORY, "out of memory"),
        (TrialState.SUCCEEDED, "succeeded"),
    ],
)
def test_a_state_is_that_of_the_journal(run: Run, state: TrialState | None, shown: str) -> None:
    assert runs.progress(run).state == "new"
    keep(run, state=state, error="too large" if state is TrialState.FAILED else "")
    now = runs.progress(run)
    assert (now.state, now.step, now.alive) == (shown, 20, False)
    assert now.error == ("too large" if state is TrialState.FAILED else "")
    assert (now.outcome is not None) == bool(state and state.is_result)
    assert now.shown == (run.trial.steps if state is TrialState.SUCCEEDED else 20), "the selected step, or the last dev"
    assert now.seconds_per_step == pytest.approx(0.1)


def test_a_journal_is_read_on_and_a_new_one_from_its_start(run: Run) -> None:
    keep(run)
    assert len(runs.progress(run).journal) == 3
    store = JournalStore(run.folder)
    store.append(run.trial.trial_id, [ScoredDev(step=20, loss=0.5, metric=0.5)])
    assert len(runs.progress(run).journal) == 4
    store.set_aside(run.trial.trial_id)
    assert runs.progress(run).state == "new"


def test_a_process_that_ended_without_a_journal_says_why(run: Run) -> None:
    run.folder.mkdir(parents=True)
    (run.folder / runs.LOG).touch()
    assert runs.progress(run).state == "new", "stopped before it said anything"
    (run.folder / runs.LOG).write_text("zo_sweeps: no room; free some\n\n")
    now = runs.progress(run)
    assert (now.state, now.error) == ("failed", "no room; free some")


def test_rows_with_another_answer_come_first() -> None:
    before = tuple(Answer(f"row {i}", "great", i % 2 == 0) for i in range(20))
    now = tuple(replace(one, text="terrible", right=True) if i == 17 else one for i, one in enumerate(before))
    compared = Compared(5, before, now)
    assert (compared.changed, len(compared.rows), compared.rows[0][1].prompt) == (1, ROWS, "row 17")
    assert (compared.right(before), compared.right(now)) == ("10", "11")
    assert compared.right([Answer("row", "3.1", None)]) == "–", "numbers are not right or wrong"


@pytest.mark.long
@pytest.mark.multiprocess
@pytest.mark.slow
def test_a_stopped_run_goes_on_and_has_answers_and_weights(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    run = runs.prepare(replace(page, overrides=SMALL), Choice(lr=0.3, q=1, steps=60))
    store, steps = JournalStore(run.folder), iter(range(100))
    stopped = run_trial(run.trial, Keep(store, run.trial.trial_id), [], 1, lambda: next(steps) == 20)
    assert stopped.state is TrialState.CANCELLED
    assert 0 < stopped.steps_done < 60
    assert (runs.progress(run).state, runs.progress(run).step) == ("stopped", stopped.steps_done)

    runs.start(run)
    runs.start(run)  # it runs already
    assert [*runs.running(page)] == [run.folder]
    assert runs.progress(run).alive
    wait_for(run, lambda: not runs.progress(run).alive)
    now = runs.progress(run)
    assert (now.state, now.step) == ("succeeded", 60)
    assert [start.resumed_from for start in only(Start, now.journal)] == [0, stopped.steps_done]
    assert [step for step, _, _ in now.curves["dev/metric"]] == [*range(6, 61, 6)]

    before, after = (answers(run.trial, now.journal, step, "dev", CHOSEN) for step in (0, now.shown))
    assert {one.text for one in (*before, *after)} <= {"great", "terrible"}
    assert [one.text for one in before] != [one.text for one in after]
    scored = {step: value for step, _, value in now.curves["dev/metric"]}[now.shown]
    assert sum(bool(one.right) for one in after) / len(after) == scored, "the weights of the run"

    wait_for(run, lambda: runs.pid_of(run.folder) is None)
    monkeypatch.setattr(subprocess, "run", in_process)
    with pytest.raises(UserError, match="none"):
        runs.export(replace(run, trial=replace(run.trial, trial_id="none")), merge=True)
    runs.export(run, merge=False)
    assert runs.exported(run) == [run.folder / "adapter"]
    assert (run.folder / "adapter" / "adapter_model.safetensors").is_file()


class Keep:
    """A sink that writes a journal."""

    def __init__(self, store: JournalStore, trial_id: str) -> None:
        self.store, self.trial_id = store, trial_id

    def emit(self, event: Event) -> None:
        self.store.append(self.trial_id, [event])


def in_process(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
    """Run a command of ours here, where torch is imported already."""
    assert command[:3] == [sys.executable, "-m", "zo_sweeps"]
    with contextlib.redirect_stderr(io.StringIO()) as said:
        status = main(command[3:])
    return subprocess.CompletedProcess(command, status, "", said.getvalue())


def wait_for(run: Run, done: object, seconds: float = 240.0) -> None:
    assert callable(done)
    end = time.monotonic() + seconds
    while not done():
        log = run.folder / runs.LOG
        assert time.monotonic() < end, log.read_text() if log.exists() else "no log"
        time.sleep(0.1)


@pytest.mark.long
@pytest.mark.multiprocess
def test_a_process_of_a_terminal_is_known_by_its_lock(run: Run) -> None:
    program = "import sys, time; from pathlib import Path; from zo_sweeps.schedule.ledger import Ledger\n"
    program += "Ledger(Path(sys.argv[1])); print(flush=True); time.sleep(60)"
    run.folder.mkdir(parents=True)
    command = [sys.executable, "-c", program, str(run.folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert runs.pid_of(run.folder) == process.pid
        assert runs.progress(run).state == "starting"
        runs.stop(run.folder)
        assert process.wait(20) == -signal.SIGTERM
    assert runs.pid_of(run.folder) is None

"""`sync`: a state folder's results on a tracking server, from another process than the sweep's."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.record import made_up
from zo_sweeps.cli.main import main
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.trial import Trial
from zo_sweeps.record.journal import JournalStore
from zo_sweeps.record.sweep_book import SweepBook, SweepInfo, books
from zo_sweeps_tracking import server
from zo_sweeps_tracking.store import lock_mirror

pytestmark = pytest.mark.multiprocess


def swept(folder: Path, count: int = 2) -> list[Trial]:
    """A state folder whose sweeps sent nothing: two grids, and a trial that never started."""
    store, trials = JournalStore(folder), [made_up.trial(seed, steps=10) for seed in range(count + 1)]
    for grid, seeds in (("one", (0, count)), ("two", range(count))):
        book = SweepBook(folder, grid, SweepInfo(grid, grid, grid))
        for seed in seeds:
            book.add(trials[seed])
        book.finish({"table.md": "| a |"}, {}, "FINISHED")
        book.close()
    for made in trials[:count]:
        store.append(made.trial_id, made_up.whole(made))
    store.close()
    return trials[:count]


def test_sync_writes_what_the_folders_own_store_lacks_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trials, store = swept(tmp_path), tmp_path / "mlflow" / "mlflow.db"
    whole = [f"one: 1 trial sent to {store}", f"two: 2 trials sent to {store}"]
    assert main(["sync", f"state_dir={tmp_path}"]) == 0
    assert capsys.readouterr().out.splitlines() == whole
    shutil.rmtree(tmp_path / "mlflow")
    assert main(["sync", f"state_dir={tmp_path}"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == whole, "the mirror is made again"
    assert not said.err, "MLflow has nothing to say to the user"
    assert main(["sync", f"state_dir={tmp_path}"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == [f"one: 0 trials sent to {store}", f"two: 0 trials sent to {store}"]
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{store}")
    assert {each.artifact_location.partition("/")[0] for each in client.search_experiments()} == {"mlflow-artifacts:"}
    (two,) = [each for each in client.search_experiments() if each.name == "two"]
    found = client.search_runs([two.experiment_id], "tags.`zo.kind` = 'trial'")
    assert {run.data.tags["zo.trial_id"] for run in found} == {made.trial_id for made in trials}
    assert {run.info.status for run in found} == {"FINISHED"}


def test_a_book_of_an_earlier_version_leaves_the_mirrors_folder_when_it_is_written(tmp_path: Path) -> None:
    swept(tmp_path)
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "books").rename(tmp_path / "mlflow" / "sweeps")
    before = list(books(tmp_path))
    assert [book.sweep.title for book in before] == ["one", "two"]
    assert [len(book.trials) for book in before] == [2, 2]
    SweepBook(tmp_path, "one", before[0].sweep).close()
    shutil.rmtree(tmp_path / "mlflow")
    (one,) = books(tmp_path)
    assert (one.trials, one.began, one.final) == (before[0].trials, before[0].began, None)


def test_a_server_that_cannot_be_reached_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    swept(tmp_path)
    assert main(["sync", f"state_dir={tmp_path}", "tracking.uri=http://127.0.0.1:9"]) == 2
    said = capsys.readouterr()
    assert said.err == (
        "zo_sweeps: MLflow at http://127.0.0.1:9 does not answer (connection refused); check tracking.uri; "
        "the same command goes on where this one stopped\n"
    )
    assert not said.out


def test_a_folder_without_sweeps_or_with_one_that_runs_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sync", f"state_dir={tmp_path / 'none'}"]) == 2
    assert "nothing has been run in" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
    swept(tmp_path)
    assert lock_mirror(tmp_path) is not None
    assert main(["sync", f"state_dir={tmp_path}"]) == 2
    assert "a sweep is running here and sends its own results" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_or_where_nothing_ran_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mlflow").write_text("a file")
    for call in (lock_mirror, server.prepare):
        with pytest.raises(UserError, match="cannot write: "):
            call(tmp_path)
    (tmp_path / "empty").mkdir()
    assert main(["ui", f"state_dir={tmp_path / 'empty'}"]) == 2
    assert "nothing has been run in" in capsys.readouterr().err
    assert not [*(tmp_path / "empty").iterdir()]

"""The package as commands and sweeps meet it: `ui` at once, and what there is where it is not installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plan.common import TINY, write_grid
from zo_sweeps.cli.main import main
from zo_sweeps.methods import registry
from zo_sweeps.session.tracking import Tracking
from zo_sweeps_tracking.command import ui


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what this package offers."""
    whole = registry.offered
    left = lambda group: {k: p for k, p in whole(group).items() if not p.value.startswith("zo_sweeps_tracking.")}
    monkeypatch.setattr(registry, "offered", left)


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch)


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """A sweep of two trials of four steps."""
    conf = write_grid(tmp_path / "conf", TINY)
    sizes = ["split.train=4", "split.dev=4", "split.test=4"]
    return ["+grid=tiny", "executor=inline", *sizes, f"state_dir={tmp_path / 'state'}", "--config-dir", str(conf)]


def test_without_the_package_a_sweep_makes_its_table_and_sync_makes_the_store_once_it_is_there(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        forget(patch)
        assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"note: {Tracking.notes[0]}" in lines
    assert any(line.startswith("ZO  ") for line in lines), "the table"
    assert f"results: {tmp_path / 'state'}" in lines
    assert f"next: python -m zo_sweeps table --format latex state_dir={tmp_path / 'state'}" in lines
    assert not (tmp_path / "state" / "mlflow").exists()
    assert main(["sync", f"state_dir={tmp_path / 'state'}"]) == 0
    assert capsys.readouterr().out.endswith(f": 2 trials sent to {tmp_path}/state/mlflow/mlflow.db\n")
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path}/state/mlflow/mlflow.db")
    (experiment,) = [one for one in client.search_experiments() if one.name == "tiny"]
    (parent,) = client.search_runs([experiment.experiment_id], "tags.`zo.kind` = 'sweep'")
    assert parent.info.status == "FINISHED"
    files = (tmp_path / "state" / "mlflow" / "artifacts").glob(f"*/{parent.info.run_id}/artifacts/*")
    assert {file.name for file in files} >= {"table.md", "table.csv"}


@pytest.mark.parametrize(
    ("named", "key", "names"),
    [
        ("tracking.uri=http://127.0.0.1:9", "tracking.uri", "tracking"),
        ("tracking.also=[wandb]", "tracking.also", "tracking,wandb"),
        ("tracking.also=[wandb,tensorboard]", "tracking.also", "tracking,wandb,tensorboard"),
        ("on.done=true", "on.done", "tracking"),
    ],
)
def test_a_tracker_or_hook_that_is_named_without_the_package_is_refused_before_anything_starts(
    absent: None,
    words: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    named: str,
    key: str,
    names: str,
) -> None:
    assert main([*words, named]) == 2
    wrong = f"{key}: zo-sweeps-tracking is not installed; pip install 'zo-sweeps[{names}]'"
    assert capsys.readouterr().err == f"zo_sweeps: {wrong}\n"
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("command", ["ui", "sync"])
def test_a_command_of_the_package_says_what_to_install(
    absent: None, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert main([command]) == 2
    assert capsys.readouterr().err == (
        f"zo_sweeps: zo-sweeps-tracking is not installed, which brings the command '{command}'; "
        "pip install 'zo-sweeps[tracking]'\n"
    )


def test_the_page_of_mlflow_says_at_once_what_is_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    class Server:
        uri = "http://127.0.0.1:9"

        def wait(self) -> None:
            said.append(capsys.readouterr().out)
            raise KeyboardInterrupt

        def close(self) -> None:
            pass

    (tmp_path / "mlflow").mkdir()
    monkeypatch.setattr("zo_sweeps_tracking.server.start", lambda *_: Server())
    with pytest.raises(KeyboardInterrupt):
        ui([f"state_dir={tmp_path}"])
    assert said == [f"waiting for the MLflow server of {tmp_path}, which takes up to half a minute to start\n"]

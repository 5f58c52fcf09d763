"""`gc`: what the cache holds for the trials of a state folder goes once it is computed again to the bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.run.common import make, run
from zo_sweeps.cli.main import main
from zo_sweeps.core.events import Event
from zo_sweeps.core.files import cache_at
from zo_sweeps.core.trial import Trial, TrialState
from zo_sweeps.record.journal import JournalStore
from zo_sweeps.record.sweep_book import SweepBook, SweepInfo
from zo_sweeps.run import workbench
from zo_sweeps.schedule.ledger import Ledger


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A machine's cache and a state folder with a finished trial over quantized weights with a sparse mask."""
    folder = tmp_path_factory.mktemp("ran")
    coded = ["precision=squeezellm", "precision.sensitivity=none", "method=sensitive_task", "space.samples=2"]
    trial = make(*coded, "update.lr=1e-3", "train.steps=1", "split.train=8", "split.dev=4", "split.test=4")
    with cache_at(folder / "cache"):
        workbench.warm = None
        outcome, events = run(trial)
    assert outcome.state is TrialState.SUCCEEDED, outcome.error
    write(folder / "state", trial, events)
    return folder


@pytest.fixture
def state(ran: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same for one test."""
    shutil.copytree(ran, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("ZO_SWEEPS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "state"


def write(state: Path, trial: Trial, events: list[Event]) -> None:
    with Ledger(state) as ledger:
        JournalStore(state).append(trial.trial_id, events)
        SweepBook(state, "kept", SweepInfo("5ee9", "kept", "kept")).add(trial)
        ledger.write(trial.trial_id, TrialState.SUCCEEDED, attempt=1)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_only_what_is_computed_again_to_the_bit_goes(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def gc(*flags: str) -> str:
        assert main(["gc", f"state_dir={state}", *flags]) == 0
        return " ".join(capsys.readouterr().out.split())

    kept, in_state = files(tmp_path / "cache"), files(state)
    (mask,) = (tmp_path / "cache" / "masks").glob("*.safetensors")
    (codes,) = (path for path in (tmp_path / "cache" / "codes").iterdir() if path.is_dir())

    shown = gc()
    assert files(tmp_path / "cache") == kept
    assert f"codes {codes.name}" in shown
    assert f"mask {mask.stem}" in shown
    assert shown.count("1 trial not proven yet") == 2

    mask.write_bytes(kept[f"masks/{mask.name}"][:-1] + b"?")  # one value is another
    other = codes.with_name("0123456789abcdef")
    other.mkdir()
    (other / "model.safetensors").write_bytes(b"of nobody that is known here")
    shown = gc("--yes")
    assert "kept: computed with other bytes here" in shown
    assert "dropped: computed again, the same to the bit" in shown
    assert not codes.exists()
    assert sorted(path.name for path in codes.parent.iterdir()) == sorted([f"{codes.name}.lock", other.name])
    assert mask.is_file()
    assert mask.with_suffix(".json").is_file()

    mask.write_bytes(kept[f"masks/{mask.name}"])
    gc("--yes")
    assert [path.suffix for path in mask.parent.iterdir()] == [".lock"]
    assert "there is nothing to drop" in gc("--yes")
    assert not list((tmp_path / "cache").glob("gc-*")), "what the proof computed is gone too"
    same = {name: data for name, data in files(state).items() if name != "lock"}
    assert same == {name: data for name, data in in_state.items() if name != "lock"}, "a state folder is not touched"


def test_what_a_trial_still_needs_and_a_running_sweeps_folder_are_left(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = files(tmp_path / "cache")
    with Ledger(state) as ledger:
        assert main(["gc", "--yes", f"state_dir={state}"]) == 2
        assert "another sweep" in capsys.readouterr().err
        (trial_id,) = ledger.states
        ledger.write(trial_id, TrialState.CANCELLED, attempt=2)
    assert main(["gc", f"state_dir={state}"]) == 0
    assert capsys.readouterr().out.count("kept: 1 trial without a result") == 2
    assert main(["gc", "--yes", f"state_dir={state}"]) == 0
    assert "0 B dropped" in capsys.readouterr().out
    assert files(tmp_path / "cache") == kept
    (journal,) = state.glob("journal/*/*.jsonl")
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join([json.dumps({"type": "mask"}), *lines[1:]]) + "\n")
    assert main(["gc", f"state_dir={state}"]) == 2, "in doubt nothing is named"

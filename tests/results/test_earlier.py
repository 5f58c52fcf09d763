"""Results of other versions in a state folder, and of sweeps whose records are lost, are counted and shown.

`earlier/COMMIT.tar.gz` is the state folder of a sweep that this commit ran; `earlier/make.sh` makes one.
"""

from __future__ import annotations

import json
import shutil
import tarfile
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from zo_sweeps import results
from zo_sweeps.cli.main import main
from zo_sweeps.core.trial import StoredConfig
from zo_sweeps.results.facts import status_facts
from zo_sweeps.results.papers import Item, standings
from zo_sweeps.results.past_sweeps import earlier, listed, read
from zo_sweeps.schedule.ledger import read_standing
from zo_sweeps_report.site import write_site

ARCHIVES = sorted((Path(__file__).parent / "earlier").glob("*.tar.gz"))
OLD = "945c2c0"  # its trials have other ids than today's of the same command
NEW = "0af34f5"  # keeps the plan of its sweep
LINE = "4 finished trials are of other ids: made by {}; `status` lists them"


def stored(commit: str, folder: Path) -> Path:
    with tarfile.open(next(path for path in ARCHIVES if path.name.startswith(commit))) as archive:
        archive.extractall(folder)  # ours: Python 3.11.2 has no filter
    return folder


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "1000")
        assert main(words) == 0
    out, err = capsys.readouterr()
    return out + err


@pytest.mark.unit
@pytest.mark.parametrize("commit", [path.name.partition(".")[0] for path in ARCHIVES])
def test_every_finished_trial_of_a_past_commit_is_shown_or_listed_with_its_scores(commit: str, tmp_path: Path) -> None:
    folder = stored(commit, tmp_path)
    reading, ledger = read([f"state_dir={folder}"]), read_standing(folder)
    status = status_facts(reading.plan)
    shown = {trial.trial_id: trial.metrics for trial in status.trials if ledger.has_result(trial.trial_id)}
    below = {trial.trial_id: trial.metrics for trial in status.earlier}
    assert not shown.keys() & below.keys()
    assert {**shown, **below} == {trial_id: outcome.metrics for trial_id, outcome in ledger.outcomes.items()}
    assert len(ledger.outcomes) == 4
    assert (LINE.format(commit) in reading.notes) == (len(below) == 4)
    assert commit != OLD or len(below) == 4


@pytest.mark.unit
def test_an_earlier_trial_has_its_name_and_the_trial_of_today_with_its_settings(tmp_path: Path) -> None:
    plan = read([f"state_dir={stored(OLD, tmp_path)}"]).plan
    standing = read_standing(tmp_path)
    (group,) = earlier(plan, standing)
    was = next(trial for trial in group.trials.values() if trial.block == "zo_lora_fa_q1")
    settings = was.config.to_json()

    def like(**update: object) -> str:
        today = StoredConfig({**settings, "update": {**settings["update"], **update}})
        now = replace(plan, every={"today": replace(was, trial_id="today", config=today)})
        found = {trial.trial_id: trial for trial in listed(now, standing)}
        assert {(one.grid, one.state, one.made_by) for one in found.values()} == {("quickstart", "succeeded", OLD)}
        assert found[was.trial_id].label == "ZO-LoRA-FA (q=1) · Movie remarks · seed 0"
        return found[was.trial_id].like

    assert like(new_option=1) == "today", "of an option that it could not record, nothing is known"
    assert like(lr=0.2) == ""


@pytest.mark.long
@pytest.mark.e2e
def test_every_reader_says_that_there_are_earlier_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, line = stored(OLD, tmp_path), LINE.format(OLD)
    where = f"state_dir={folder}"
    for words in (["status"], ["table"], ["figure"], ["report"], ["plan", "+grid=quickstart", "scale=smoke"]):
        assert line in said(capsys, *words, where), words
    assert line in (folder / "quickstart.html").read_text()
    assert "FO-LoRA-FA, made by 945c2c0" in (folder / "quickstart.html").read_text()
    assert "Zero-shot · Movie remarks" in said(capsys, "status", "973229eff12d0153", where), "one of them, by its id"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        frame = results(state_dir=folder)
    assert line in [str(one.message) for one in caught]
    assert "973229eff12d0153" not in set(frame["trial_id"])


@pytest.mark.e2e
def test_rows_of_earlier_results_stand_below_and_leave_those_of_today_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = stored(OLD, tmp_path)
    text = said(capsys, "table", f"state_dir={folder}")
    accuracy = text.partition("Accuracy (%)")[2].partition("\n\n")[0].splitlines()[2:]
    assert [(line.rpartition("  ")[0].strip(), line.split()[-1]) for line in accuracy] == [
        ("Zero-shot", "–"),
        ("FO-Adam, full", "–"),
        ("MeZO, full", "–"),
        ("FO-LoRA-FA", "–"),
        ("FO-LoRA-FA, layer by layer", "–"),
        ("ZO-LoRA-FA (q=1)", "–"),
        ("ZO-LoRA-FA (q=4)", "–"),
        ("Zero-shot, made by 945c2c0 [a]", "59.4"),
        ("FO-LoRA-FA, made by 945c2c0 [a]", "46.9"),
        ("ZO-LoRA-FA (q=1), made by 945c2c0 [a]", "59.4"),
        ("ZO-LoRA-FA (q=4), made by 945c2c0 [a]", "59.4"),
    ]
    assert "Memory by part (MiB)  " in text, "which that version did not measure: it has no row there"
    assert "scale=smoke executor=inline" in text, "the command that made them"


@pytest.mark.e2e
@pytest.mark.parametrize("lost", ["empty", "gone", "without keys", "with its plan"])
def test_results_whose_command_is_lost_are_shown_and_that_is_said(
    lost: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = stored(NEW, tmp_path)
    (record,) = (folder / "sweeps").glob("*.json")
    if lost == "gone":
        record.unlink()
    else:
        record.write_text(json.dumps({"grid": "quickstart"}) if lost == "without keys" else "")
    if lost == "with its plan":
        (folder / "plans" / record.name).write_text("{")
    text = said(capsys, "table", f"state_dir={folder}")
    assert f"none of these trials has run in {folder}" in text
    assert LINE.format(NEW) in text
    assert (f"{record} cannot be read" in text) == (lost != "gone")
    assert "FO-LoRA-FA, made by 0af34f5 [a]" in text


@pytest.mark.unit
def test_results_without_any_record_of_their_sweep_are_counted_and_listed(tmp_path: Path) -> None:
    folder = stored(OLD, tmp_path)
    for path in [*folder.glob("sweeps/*"), *folder.glob("mlflow/sweeps/*")]:
        path.unlink()
    reading = read(["+grid=quickstart", f"state_dir={folder}"])
    assert LINE.format(OLD) in reading.notes
    found = status_facts(reading.plan).earlier
    assert [(trial.label, trial.grid, trial.made_by) for trial in found] == [("", "", OLD)] * 4
    assert all("test/metric" in trial.metrics for trial in found)


@pytest.mark.unit
def test_another_sweep_of_the_grid_is_named_by_its_command_and_has_no_rows(tmp_path: Path) -> None:
    folder = stored(NEW, tmp_path)
    reading = read(["+grid=quickstart", f"state_dir={folder}", "train.batch=3"])
    (line,) = (note for note in reading.notes if note.startswith("4 finished"))
    assert line.startswith("4 finished trials are of another sweep of this grid: python -m zo_sweeps table +grid=")
    assert status_facts(reading.plan).earlier == []


@pytest.mark.unit
@pytest.mark.parametrize("gone", [False, True])
def test_papers_says_at_a_grid_that_there_are_earlier_results(gone: bool, tmp_path: Path) -> None:
    folder = stored(OLD, tmp_path)
    if gone:
        shutil.rmtree(folder / "sweeps")
    items = [Item("mine", name, "Mine", "accuracy", "…", (name,)) for name in ("quickstart", "low_rank")]
    found = standings(items, folder)
    line = f"4 finished trials are of other ids: made by {OLD}; `table +grid=quickstart` shows them"
    assert [(one.state, line in one.notes) for one in found.values()] == [("not run", True), ("not run", False)]


@pytest.mark.unit
def test_a_site_says_that_results_have_no_page(tmp_path: Path) -> None:
    folder = stored(OLD, tmp_path / "state")
    shutil.rmtree(folder / "sweeps")
    made = write_site(folder, tmp_path / "site")
    assert (made.sweeps, [line.partition(";")[0] for line in made.left_out]) == (
        0,
        [LINE.format(OLD).partition(";")[0]],
    )

"""A sweep's results are read by its own record: its model and its data may have moved or changed since."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tests.plan.common import named
from tests.results.common import GRID, fill
from zo_sweeps.cli.main import main
from zo_sweeps.config.composer import Composer
from zo_sweeps.methods import registry
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.models.identity import DEMO
from zo_sweeps.plan import stored
from zo_sweeps.plan.as_written import beside_written
from zo_sweeps.plan.build import build
from zo_sweeps.record.sweep_book import Command, remember
from zo_sweeps.results import past_sweeps
from zo_sweeps.results.dataframe import frame, results
from zo_sweeps.schedule.ledger import read_standing

pytestmark = pytest.mark.unit
OWN = """from dataclasses import dataclass
from zo_sweeps.engine.perturbations.gaussian import Gaussian

@dataclass(frozen=True)
class Mine(Gaussian):
    \"\"\"Nothing else.\"\"\"
"""


def launched(folder: Path) -> list[str]:
    """A finished sweep in folder/state with a model, data, grid and member in folder/here; return its command."""
    here = folder / "here"
    shutil.copytree(DEMO, here / "model")
    (here / "data" / "sst2").mkdir(parents=True)
    for split in ("train", "validation", "test"):
        rows = [{"sentence": f"{split} film {i}", "label": i % 2} for i in range(8)]
        (here / "data" / "sst2" / f"{split}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (here / "conf" / "grid").mkdir(parents=True)
    (here / "conf" / "grid" / "tiny.yaml").write_text("# @package grid\n" + json.dumps(GRID))
    (here / "conf" / "perturbation").mkdir()
    (here / "conf" / "perturbation" / "mine.py").write_text(OWN)
    words = ["+grid=tiny", "model=local", f"model.path={here / 'model'}", "task=sst2", f"data.dir={here / 'data'}"]
    words += ["perturbation=mine", f"state_dir={folder / 'state'}"]
    command = Command(tuple(words), (str(here / "conf"),))
    composer = Composer(command.overrides, command.config_dirs)
    plan = build(composer)
    fill(plan, folder)
    past_sweeps.save(plan, composer, folder / "state", "ab01")
    remember(folder / "state", "ab01", "tiny", command)
    return words


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("launched")
    with registry.using_folders(()):
        launched(folder)
        yield folder


@pytest.fixture
def folder(sweep: Path) -> Iterator[Path]:
    """The sweep's folder; what a test does to its model, data and configuration is undone."""
    shutil.copytree(sweep / "here", sweep / "kept")
    yield sweep
    shutil.rmtree(sweep / "here", ignore_errors=True)
    (sweep / "kept").rename(sweep / "here")


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, list[str]]:
    """(output, notes) of a command that succeeds."""
    status = main(words)
    out, err = capsys.readouterr()
    assert status == 0, err
    return out, [line for line in err.splitlines() if "# note: " in line]


def test_a_copied_state_folder_gives_the_same_table_without_model_data_grid_and_member(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["+grid=tiny", f"state_dir={folder / 'state'}"]
    table, notes = said(capsys, "table", *given, "--format", "md")
    assert " 7" in table, "with results"
    assert notes == []
    copied = shutil.copytree(folder / "state", tmp_path / "laptop")
    shutil.rmtree(folder / "here")
    elsewhere, (note,) = said(capsys, "table", "+grid=tiny", f"state_dir={copied}", "--format", "md")
    assert elsewhere == table
    assert "the command cannot be planned here: no such folder" in note
    status, _ = said(capsys, "status", "+grid=tiny", f"state_dir={copied}")
    assert "pending" not in status
    with pytest.warns(UserWarning, match="the command cannot be planned here: no such folder"):
        found = results("tiny", state_dir=copied)
    assert found["state"].isin(["SUCCEEDED", "DIVERGED", "FAILED"]).all()
    assert said(capsys, "report", "+grid=tiny", f"state_dir={copied}", "--output", str(tmp_path / "page.html"))
    assert said(capsys, "figure", "+grid=tiny", f"state_dir={copied}")


def test_a_line_more_in_the_data_keeps_the_results_and_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["+grid=tiny", f"state_dir={folder / 'state'}"]
    before, _ = said(capsys, "table", *given)
    file = folder / "here" / "data" / "sst2" / "train.jsonl"
    file.write_text(file.read_text() + json.dumps({"sentence": "one more", "label": 1}) + "\n")
    after, notes = said(capsys, "table", *given)
    assert after == before
    assert notes == [f"# note: the data of sst2 has changed since: {file}"]


def test_of_a_model_that_moved_it_is_said_where_it_was_and_its_new_place_shows_the_results(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, given = folder / "here", ["+grid=tiny", f"state_dir={folder / 'state'}"]
    before, notes = said(capsys, "table", *given)
    assert notes == []
    (here / "model").rename(here / "elsewhere")
    after, (note,) = said(capsys, "table", *given)
    assert after == before
    where = f"it was in {here / 'model'}; name its new place, model.path=FOLDER"
    assert note == f"# note: the model local is not here: {where}"
    words = ["model=local", "task=sst2", f"data.dir={here / 'data'}", "perturbation=mine"]
    conf = ["--config-dir", str(here / "conf")]
    _, (first, *others) = said(capsys, "table", *given, *words, f"model.path={here / 'model'}", "train.batch=4", *conf)
    assert "the last sweep of the grid there: python -m zo_sweeps table +grid=tiny" in first
    assert f"# note: the model local is not here: {where}" in others
    assert not any("today's plan of this command" in line for line in others), "it is another command"
    moved, notes = said(capsys, "table", *given, *words, f"model.path={here / 'elsewhere'}", *conf)
    assert notes == []
    assert moved.splitlines()[:4] == before.splitlines()[:4]


def test_the_command_that_was_run_is_recalled_when_it_is_typed_again_in_any_order(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = folder / "here"
    words = [
        "task=sst2",
        f"data.dir={here / 'data'}",
        f"model.path={here / 'model'}",
        "model=local",
        "perturbation=mine",
    ]
    given = ["+grid=tiny", *words, f"state_dir={folder / 'state'}", "--config-dir", str(here / "conf")]
    (here / "model" / "tokenizer_config.json").write_text("{}")
    out, notes = said(capsys, "status", *given)
    assert notes == [f"# note: the model local has changed since: {here / 'model' / 'tokenizer_config.json'}"]
    assert "succeeded" in out
    shutil.rmtree(here / "data")
    _, (_, note) = said(capsys, "status", *given)
    place = here / "data" / "sst2"
    assert note == f"# note: the data of sst2 is not here: it was in {place}; name its new place, data.dir=FOLDER"
    out, notes = said(capsys, "status", *given, "train.batch=4")
    assert "succeeded" not in out, "another command"
    assert "none of these trials has run" in notes[0]


def test_a_plan_comes_back_as_it_was_written() -> None:
    for overrides in (["scale=smoke"], ["train.steps=3", "device=cpu"]):
        composer = Composer(["+grid=quickstart", *overrides])
        plan = beside_written(build(composer), composer)
        data = json.loads(json.dumps(stored.dump(plan)))
        back = stored.load(data, composer.run)
        assert asdict(back.grid) == asdict(plan.grid)
        assert [back.cells, back.trials, back.labels] == [plan.cells, plan.trials, plan.labels]
        assert [back.caveats, back.reasons, back.remarks] == [plan.caveats, plan.reasons, plan.remarks]
        assert list(back.every.items()) == list(plan.every.items())
        assert (back.altered, back.extents) == (plan.altered, plan.extents)
        assert all(TrialConfig.of(trial.config).trial_id() == trial_id for trial_id, trial in back.every.items())
        assert stored.changes(back, data["sources"], plan) == []


def test_the_record_of_many_trials_is_small() -> None:
    plan = named("llama2_superglue")
    text = json.dumps(stored.dump(replace(plan, altered=frozenset(), extents={})))
    whole: list[Any] = [trial.to_json() for trial in plan.every.values()]
    assert len(text) < 0.5 * len(json.dumps(whole))


def test_remarks_and_reasons_come_back_and_those_of_earlier_versions() -> None:
    composer = Composer(["+grid=llama2_superglue", "task=rte"])
    plan = build(composer)
    data = json.loads(json.dumps(stored.dump(beside_written(plan, composer))))
    assert max(map(len, plan.remarks.values())) > 2
    assert stored.load(data, composer.run).remarks == plan.remarks
    earlier = {**data, "remarks": dict.fromkeys(data["remarks"], "one; two")}
    assert {*stored.load(earlier, composer.run).remarks.values()} == {("one; two",)}
    assert plan.reasons
    assert stored.load(data, composer.run).reasons == plan.reasons
    texts = [line for of_trial in plan.reasons.values() for line in of_trial]
    assert len({*texts}) < len(texts)
    assert all(json.dumps(data).count(json.dumps(line)) == 1 for line in {*texts}), "each is written once"
    earlier = {**data, "reasons": {trial_id: list(of_trial) for trial_id, of_trial in plan.reasons.items()}}
    assert stored.load(earlier, composer.run).reasons == plan.reasons


def test_a_record_that_lacks_a_part_is_as_none(tmp_path: Path) -> None:
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / "0a1b.json").write_text('{"grid": {}}')
    assert stored.record(tmp_path, "0a1b") is None


def test_a_state_folder_without_the_record_is_read_by_the_plan_of_today(folder: Path, tmp_path: Path) -> None:
    old = shutil.copytree(folder / "state", tmp_path / "old", ignore=shutil.ignore_patterns("plans"))
    reading = past_sweeps.read(["+grid=tiny", f"state_dir={old}"])
    assert reading.notes == ()
    assert frame(reading.plan, read_standing(old))["state"].eq("SUCCEEDED").any()

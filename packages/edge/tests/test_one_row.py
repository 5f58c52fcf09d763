"""`export-program` chooses one trial of a grid with several rows, and the command it prints reads that one back."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.trial import Trial
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.session.session import plan_here
from zo_sweeps_edge import bundle, bundles
from zo_sweeps_edge.command import write_bundle

pytest.importorskip("executorch", reason="without it, no trial of a program can run here")
pytestmark = pytest.mark.unit

SETTINGS = bundle.Settings("", 0, 1, 1, 2, 1, 1, 1, 1, 1, 8, 1e-3, 0.0, (), ())
LR = "update.lr=0.1"
SEED = "grid.seeds=[0]"
SMALL = ("device=executorch", "model=random_llama", "scale=smoke", "grid.relabel=true")
COLUMNS = tuple(f"~grid.columns.{name}" for name in ("seq64_e8", "seq64_e16", *(f"seq128_e{e}" for e in (2, 4, 8, 16))))


@pytest.fixture(autouse=True)
def _manifests_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(trial: Trial, command: str, folder: Path) -> bundle.Manifest:
        splits = dict.fromkeys(bundle.SPLITS, (1, 8))
        made = bundle.Manifest(replace(SETTINGS, trial_id=trial.trial_id), {"command": command}, {}, splits, {})
        folder.mkdir()
        (folder / bundle.MANIFEST).write_text(json.dumps(made.to_json()))
        return made

    monkeypatch.setattr(bundles, "write", write)


def exported(folder: Path, *overrides: str, row: str = "", grid: str = "quickstart") -> tuple[str, list[str]]:
    """The trial of a bundle, and the overrides of the command that reads it back."""
    given = [f"+grid={grid}", f"state_dir={folder / 'runs'}", "on.done=https://hooks.example.com/SECRET", *overrides]
    _, manifest, back = write_bundle(given, (), folder / "a (b), c", row)
    assert "SECRET" not in manifest.config["command"], "it goes to the board"
    return manifest.settings.trial_id, [*back.overrides]


@pytest.mark.parametrize("row", ["zo_lora_fa_q4", "ZO-LoRA-FA (q=4)"])
def test_a_row_is_chosen_by_key_or_label_and_its_log_is_read_back_as_the_same_trial(tmp_path: Path, row: str) -> None:
    trial_id, back = exported(tmp_path, LR, SEED, row=row)
    plan = plan_here(Composer(back))
    (trial,) = plan.trials
    assert trial.trial_id == trial_id
    config = TrialConfig.of(trial.config)
    assert (trial.block, config.estimator.budget, config.seed) == ("zo_lora_fa_q4", 4, 0)
    others = plan.every.keys() - {trial_id}
    assert {trial.block for trial in plan.every.values()} == {*plan.grid.blocks}, "the grid keeps its rows"
    assert all(f"device.log is of {trial.label}" in plan.reasons[other] for other in others)


@pytest.mark.parametrize(
    ("grid", "overrides", "row", "named"),
    [
        ("quickstart", (), "", f"--row zo_lora_fa_q1 {LR} {SEED}"),
        ("quickstart", (SEED,), "", f"--row zo_lora_fa_q1 {LR}"),
        ("quickstart", ("train.steps=3",), "zo_lora_fa_q4", f"{LR} {SEED}"),
        ("prge_table4", (*SMALL, *COLUMNS), "", "--row dual ~grid.columns.seq64_e4"),
    ],
)
def test_what_the_message_names_leaves_one_trial(
    tmp_path: Path, grid: str, overrides: tuple[str, ...], row: str, named: str
) -> None:
    with pytest.raises(UserError) as caught:
        exported(tmp_path, *overrides, row=row, grid=grid)
    what, _, words = str(caught.value).partition("; add for one of them: ")
    assert what.startswith("a bundle is of one trial, and these are ")
    assert words == named
    flags = shlex.split(words)
    row = flags.pop(flags.index("--row") + 1) if "--row" in flags else row
    exported(tmp_path, *overrides, *(word for word in flags if word != "--row"), row=row, grid=grid)


def test_an_unknown_row_is_one_line_with_the_choices_and_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        exported(tmp_path, row="zo_lora_fa_q2")
    assert str(caught.value) == (
        "unknown row 'zo_lora_fa_q2' in grid quickstart; choose from: FO-Adam, full, FO-LoRA-FA, "
        "FO-LoRA-FA, layer by layer, MeZO, full, ZO-LoRA-FA (q=1), ZO-LoRA-FA (q=4), Zero-shot, fo_full, fo_lora_fa, "
        "fo_lora_fa_layerwise, mezo, zero_shot, zo_lora_fa_q1, zo_lora_fa_q4; did you mean 'zo_lora_fa_q4'?"
    )

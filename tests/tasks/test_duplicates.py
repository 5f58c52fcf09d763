"""Rows in two splits, splits of one label, and the scores of a guess: counted, planned, recorded and printed."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.run.common import SMALL, TINY, run
from tests.tasks.common import load_task, spec_of
from zo_sweeps.config.composer import Composer
from zo_sweeps.plan.build import Plan, build, by_line
from zo_sweeps.results.tables import tables
from zo_sweeps.schedule.ledger import Ledger, read_standing
from zo_sweeps.tables import to_csv, to_text
from zo_sweeps.tasks.data import facts, mark

Rows = list[dict[str, Any]]
ONE_ROW = [
    "~grid.blocks.zero_shot",
    "~grid.blocks.fo_full",
    "~grid.blocks.mezo",
    "~grid.blocks.fo_lora_fa",
    "~grid.blocks.fo_lora_fa_layerwise",
    "~grid.blocks.zo_lora_fa_q1",
]


def rows(start: int, end: int, labels: tuple[int, ...] = (0, 1)) -> Rows:
    return [{"sentence": f"sentence {i}", "label": labels[i % len(labels)]} for i in range(start, end)]


def composed(folder: Path, *overrides: str) -> Composer:
    given = ["+grid=quickstart", "grid.relabel=true", "grid.seeds=[0]", *SMALL, *TINY, *ONE_ROW]
    given += [
        "task=sst2",
        "prompt=mezo",
        f"data.dir={folder}",
        f"state_dir={folder / 'state'}",
        "train.steps=1",
        "update.lr=0.01",
    ]
    return Composer([*given, *overrides])


@pytest.fixture
def planned(write_jsonl: Callable[..., Path], tmp_path: Path) -> Callable[..., Plan]:
    """The plan of one trial on an SST-2 with these rows."""

    def plan(train: Rows, validation: Rows, test: Rows, *overrides: str) -> Plan:
        write_jsonl(tmp_path / "sst2", train=train, validation=validation, test=test)
        return build(composed(tmp_path, *overrides))

    return plan


def notes(plan: Plan) -> list[str]:
    return [note for note in by_line(plan.remarks) if note.startswith("all ") or " rows have the inputs of " in note]


def test_rows_are_counted_by_their_inputs_and_by_their_label_too() -> None:
    task = spec_of(load_task("sst2"), "mezo")
    test = [*rows(9, 12), *rows(2, 4, (1,)), *rows(20, 25, (0,))]
    splits = {"train": rows(0, 10), "dev": rows(8, 14), "test": test}
    metrics = facts(task, {name: [mark(task, row) for row in of] for name, of in splits.items()})
    assert metrics == {
        **{"test_in_train": 3, "test_in_train_labelled": 2},  # 9, 3 and 2, the last with another label
        **{"test_in_dev": 3, "test_in_dev_labelled": 3},
        **{"dev_in_train": 2, "dev_in_train_labelled": 2},
        **{"dev_rows": 6, "test_rows": 10},
        **{"chance": 0.5, "majority": 0.6},
    }


def test_clean_splits_have_no_note(planned: Callable[..., Plan]) -> None:
    assert notes(planned(rows(0, 30), rows(30, 40), rows(40, 60))) == []


def test_a_plan_says_which_rows_of_the_draw_are_in_two_splits(planned: Callable[..., Plan]) -> None:
    test = rows(40, 60)
    train_is_test, dev_is_test = planned(test, rows(60, 70), test), planned(rows(0, 30), test[:8], test[:8])
    assert notes(train_is_test) == [
        "12 of the 12 test rows have the inputs of a training row (12 its label too): no test of what was learned"
    ]
    assert notes(dev_is_test) == [
        "8 of the 8 test rows have the inputs of a dev row (8 its label too): "
        "the step and the setting are selected on them"
    ]


def test_a_plan_says_that_rows_have_one_label_or_are_all_the_same(planned: Callable[..., Plan]) -> None:
    one_label = planned(rows(0, 30, (1,)), rows(30, 40), rows(40, 60, (0,)))
    assert notes(one_label) == ["all training rows have one label", "all test rows have one label"]
    one_row = planned(rows(0, 1) * 30, rows(30, 40), rows(40, 60))
    assert notes(one_row) == ["all training rows have one label", "all training rows are the same"]


def test_the_table_has_the_note_at_the_column_and_the_scores_of_a_guess(
    planned: Callable[..., Plan], tmp_path: Path
) -> None:
    test = [*rows(40, 60, (1,)), *rows(60, 65, (0,))]
    plan = planned(test, rows(70, 80), test, "split.test=25")
    (trial,) = plan.trials
    outcome, _ = run(trial)
    with Ledger(tmp_path / "state") as ledger:
        ledger.write(trial.trial_id, outcome.state, outcome=outcome)
    table = next(
        one
        for one in tables(plan, composed(tmp_path, "split.test=25"), read_standing(tmp_path / "state"))
        if one.guesses
    )
    (note,) = notes(plan)
    assert table.column_notes["sst2"] == (note,)
    assert note.startswith("24 of the 25 test rows")  # the draw leaves one training row out
    assert "A guess on the same test rows has: chance 50.0; majority class 80.0." in to_text(table, width=200)
    lines = {line["row"]: line for line in csv.DictReader(io.StringIO(to_csv(table)))}
    assert [float(lines[guess]["mean"]) for guess in ("chance", "majority class")] == pytest.approx([50.0, 80.0])
    assert note in lines["ZO-LoRA-FA (q=4)"]["notes"]

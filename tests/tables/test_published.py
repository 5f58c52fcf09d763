"""The published numbers in conf/paper and the measures in conf/table."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tasks.test_examples import check_layout
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.trial import TO_TARGET
from zo_sweeps.methods import registry
from zo_sweeps.tables import Measure, build
from zo_sweeps.tables.published import NUMERIC_KINDS, load, names, read
from zo_sweeps_report.metric_meanings import METRICS

from .examples import measure as load_measure
from .examples import spec

pytestmark = pytest.mark.unit

# Of the metrics that trial.Outcome names, those of tasks, and those that a table computes from journals.
MEASURED = {
    *METRICS,
    *(f"{split}/{name}" for split in ("dev", "test") for name in registry.names("metric")),
    *TO_TARGET,
    *(f"gradients/{mask}/0.001" for mask in ("task_dynamic", "task_static", "text_static")),
}


def references() -> list[str]:
    """Every published table there is, as "<paper>/<table>"."""
    return [f"{paper}/{table}" for paper in names("paper") for table in read("paper", paper)["tables"]]


@pytest.mark.parametrize("reference", references())
def test_every_published_table_loads_whole(reference: str) -> None:
    table = load(reference)
    assert table.rows
    assert table.caption
    assert all(set(row) == set(table.columns) for row in table.rows.values())
    if table.kind in NUMERIC_KINDS:
        numbers = [value for row in table.rows.values() for value in row.values() if value is not None]
        assert all(value > 0 for value in numbers)
        assert all(value <= 100 for value in numbers if table.unit == "%")


@pytest.mark.realdata
@pytest.mark.parametrize("reference", references())
def test_every_published_number_is_that_of_the_reference(reference: str, shared: Path) -> None:
    paper, _, name = reference.partition("/")
    path = shared / "reference" / "tables" / f"{paper}.yaml"
    if not path.is_file():
        pytest.skip(f"no transcription at {path}")
    source = yaml.safe_load(path.read_text(encoding="utf-8"))
    if name.startswith("figure"):  # no table of the paper, but numbers that its text states
        stated = {entry.get("value") for figure in source["figures"] for entry in figure.get("stated", ())}
        assert {value for row in load(reference).rows.values() for value in row.values()} <= {*stated, None}
        return
    if name.startswith("claim"):  # no table either: numbers of its text
        stated = {float(n) for claim in source["claims"] for text in claim.get("numbers", ()) for n in numbers_in(text)}
        assert {value for row in load(reference).rows.values() for value in row.values()} <= {*stated, None}
        return
    tables = {table["id"]: table for table in source["tables"]}
    table, original = load(reference), tables[name.partition("_")[0]]  # table2_memory: a part of table2, by its unit
    if table.kind == "hardware":
        assert {row: printed(cells) for row, cells in table.rows.items()} == recorded(original["rows"])
        return
    assert list(table.rows) == list(original["rows"])
    if reference == "prge/table8":
        assert {row: searched(values) for row, values in table.rows.items()} == original["rows"]
        return
    assert list(table.columns) == [column for column in original["columns"] if column in table.columns]
    assert "_" in name or list(table.columns) == original["columns"]
    for row, cells in original["rows"].items():
        for column in table.columns:
            cell = cells.get(column)  # the rows of an algorithm have no eps: null here
            mean, std = (cell["mean"], cell["std"]) if isinstance(cell, dict) else (cell, None)
            assert table.rows[row][column] == mean
            assert table.std.get(row, {}).get(column) == std


@pytest.mark.realdata
@pytest.mark.parametrize("paper", names("paper"))
def test_every_table_and_figure_of_the_reference_is_listed(paper: str, shared: Path) -> None:
    path = shared / "reference" / "tables" / f"{paper}.yaml"
    if not path.is_file():
        pytest.skip(f"no transcription at {path}")
    original, ours = yaml.safe_load(path.read_text(encoding="utf-8")), read("paper", paper)
    listed = {name.partition("_")[0] for part in ("tables", "figures", "others") for name in ours[part]}
    assert listed - {"claim"} == {item["id"] for item in [*original["tables"], *original["figures"]]}


def numbers_in(text: object) -> list[str]:
    return re.findall(r"\d+(?:\.\d+)?", str(text).replace(",", ""))


def printed(cells: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in cells.items() if value is not None}


def recorded(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The rows of a table of hardware in the reference, without cells that are not printed."""
    texts = {
        row: {k: ", ".join(v) if isinstance(v, list) else v for k, v in cells.items()} for row, cells in rows.items()
    }
    return {row: printed({k: v for k, v in cells.items() if k != "parsed"}) for row, cells in texts.items()}


def searched(values: dict[str, Any]) -> dict[str, Any]:
    """A row of our table of grids in the terms of the reference."""
    found = {"batch_size": values["batch"], "q": values["q"], "learning_rate": values["lr"], "epsilon": values["eps"]}
    if values["effective_batch"]:
        found["effective_batch_size"] = [values["effective_batch"]]
    if values["lr_exceptions"]:
        tasks = "_".join(task.replace("-", "") for task in values["lr_exceptions"]["tasks"])
        found[f"learning_rate_{tasks}"] = values["lr_exceptions"]["lr"]
    return {key: value for key, value in found.items() if value is not None}


@pytest.mark.realdata
def test_every_table_of_numbers_of_a_paper_is_there(shared: Path) -> None:
    for paper in names("paper"):
        path = shared / "reference" / "tables" / f"{paper}.yaml"
        if not path.is_file():
            pytest.skip(f"no transcription at {path}")
        tables = yaml.safe_load(path.read_text(encoding="utf-8"))["tables"]
        text = ("prompts", "notation", "qualitative", "code layout")
        numeric = {f"{paper}/{table['id']}" for table in tables if table["kind"] not in text}
        assert numeric == {name.partition("_")[0] for name in references() if name.startswith(f"{paper}/table")}


def test_a_few_published_numbers_are_those_of_the_paper() -> None:
    assert load("prge/table2").rows["ZO-LoRA-FA (q>1)"]["SQuAD"] == 82.1
    assert load("prge/table11").rows["ZO-LoRA-FA (q=1) / Inner-loop"]["RTE"] == 181.51
    assert load("prge/table13").rows["ZO-Full (q=1)"]["SST-2"] == 13.64
    large = "RoBERTa-large / k=256 / MeZO"
    assert (load("pezo/table4").rows[large]["TREC"], load("pezo/table4").std[large]["TREC"]) == (90.8, 0.9)
    assert load("sensitive/table1c").rows["ZO / Full fine-tuning"]["Rank"] == 3.29
    cost = load("pezo/table6").rows
    assert sum(value is not None for row in cost.values() for value in row.values()) == 23
    assert cost["MeZO"]["power_W"] == 4.474
    assert load("sensitive/table4b").rows["ZO / Random (static)"]["COPA"] == 2e-5


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("prge/table22", r"unknown published table 'prge/table22'.*choose from: .*did you mean 'prge/table2'"),
        ("prgee/table2", r"unknown paper 'prgee' in conf/paper; .*did you mean 'prge'"),
        ("table2", r"'table2' is not a published table; write it as paper/table"),
    ],
)
def test_an_unknown_reference_is_one_clear_line(reference: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(reference)


def test_a_table_of_grids_cannot_stand_beside_ours() -> None:
    with pytest.raises(UserError, match=r"prge/table8 is a table of hyperparameters"):
        build(spec(published="prge/table8"), [], load("prge/table8"))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("{A: [1.0]}", r"row 'A' has 1 values for 2 columns in conf/paper/mine.yaml, table1"),
        ("{A: [1.0, high]}", r"row 'A': 'high' is not a number"),
        ("{A: [1.0", r"not valid YAML"),
        ("{A: [1.0, 2.0], A: [3.0, 4.0]}", r"not valid YAML: the key 'A' stands twice"),
        ("{A: [1.0, 2.0]}, footnotes: [n], footnotes: [m]", r"not valid YAML: the key 'footnotes' stands twice"),
    ],
)
def test_a_broken_table_in_a_users_folder_is_one_clear_line(tmp_path: Path, rows: str, message: str) -> None:
    (tmp_path / "paper").mkdir()
    (tmp_path / "paper" / "mine.yaml").write_text(
        "paper: {key: mine, name: Mine, id: none}\n"
        "tables:\n  table1: {caption: c, kind: accuracy, metric: m, unit: '%', columns: [X, Y], rows: " + rows + "}\n",
        encoding="utf-8",
    )
    with pytest.raises(UserError, match=message) as error:
        load("mine/table1", [tmp_path])
    assert "\n" not in str(error.value)


def test_a_table_in_a_users_folder_that_lacks_a_part_says_which(tmp_path: Path) -> None:
    (tmp_path / "paper").mkdir()
    text = "paper: {key: mine, name: Mine, id: none}\ntables: {table1: {caption: c, kind: accuracy, columns: [X]}}\n"
    (tmp_path / "paper" / "mine.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"it has no metric, unit, rows in conf/paper/mine.yaml, table1"):
        load("mine/table1", [tmp_path])


def names_a_measured_metric(measure: Measure) -> None:
    assert measure.metric in MEASURED
    assert measure.beside is None or measure.beside.metric in MEASURED


@pytest.mark.parametrize("name", names("table"))
def test_every_measure_loads_and_names_a_metric_that_trials_record(name: str) -> None:
    names_a_measured_metric(load_measure(name))


@pytest.mark.parametrize("metric", registry.names("metric"))
def test_a_new_table_over_a_task_s_metric_is_one_yaml(metric: str, tmp_path: Path) -> None:
    text = (
        f"metric: test/{metric}\nunit: '%'\nunit_size: 0.01\nexample: {{trial: {{test/{metric}: 0.5}}, shows: [50]}}\n"
    )
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "mine.yaml").write_text(text, encoding="utf-8")
    measure = Measure.from_mapping(read("table", "mine", [tmp_path]), "mine.yaml")
    names_a_measured_metric(measure)
    check_layout(measure)
    with pytest.raises(AssertionError, match="another"):
        names_a_measured_metric(replace(measure, metric="test/another"))


def test_an_unknown_measure_is_refused_with_the_choices() -> None:
    with pytest.raises(UserError, match=r"unknown table 'acuracy' in conf/table; .*did you mean 'accuracy'"):
        load_measure("acuracy")


@pytest.mark.parametrize(("reference", "kind"), [("sensitive/table1a", "population"), ("pezo/table4", "not stated")])
def test_a_published_deviation_says_which_kind_it_is(reference: str, kind: str) -> None:
    table = load(reference)
    assert table.std_kind == kind
    assert table.std_note


def test_a_kind_of_deviation_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    (tmp_path / "paper").mkdir()
    (tmp_path / "paper" / "mine.yaml").write_text(
        "paper: {key: mine, name: Mine, id: none}\n"
        "tables:\n  table1: {caption: c, kind: accuracy, metric: m, unit: '%', columns: [X], rows: {A: [1.0]},"
        " std_kind: samples, std: {A: [0.1]}}\n",
        encoding="utf-8",
    )
    with pytest.raises(UserError, match=r"unknown std_kind 'samples'.*did you mean 'sample'"):
        load("mine/table1", [tmp_path])


def test_the_deviations_of_the_extreme_sparsity_paper_are_those_of_a_population() -> None:
    """Three accuracies on a test set of N rows are multiples of 1/N: few pairs of mean and deviation are possible."""
    only = {"population": 0, "sample": 0}
    for name in ("table1a", "table1b", "table1c"):
        table = load(f"sensitive/{name}")
        for row, cells in table.std.items():
            for column, size in (("CB", 56), ("COPA", 100), ("WSC", 104)):
                mean, std = table.rows[row][column], cells[column]
                if std:
                    kinds = possible_kinds(mean, std, size)
                    only.update({kind: only[kind] + 1 for kind in kinds if len(kinds) == 1})
    assert only == {"population": 42, "sample": 2}


def possible_kinds(mean: float, std: float, rows: int) -> set[str]:
    """The kinds of deviation that `std` can be, of 3 accuracies on `rows` rows (percent) with the mean `mean`."""
    centre, reach, half = mean / 100 * rows, int((std + 0.05) * 2 / 100 * rows) + 2, 0.0501
    counts = range(max(0, int(centre) - reach), min(rows, int(centre) + reach) + 1)
    kinds = set()
    for one, two, three in combinations_with_replacement(counts, 3):
        m = (one + two + three) / 3
        if abs(m * 100 / rows - mean) > half:
            continue
        squares = (one - m) ** 2 + (two - m) ** 2 + (three - m) ** 2
        for kind, n in (("population", 3), ("sample", 2)):
            if abs(math.sqrt(squares / n) * 100 / rows - std) <= half:
                kinds.add(kind)
    return kinds

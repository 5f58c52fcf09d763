"""`papers`: everything that the papers number, the grid behind it, and how far it is here."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from tests.cli.common import in_process
from tests.papers import common
from tests.plan.common import changed, write_grid
from zo_sweeps.cli.browse import show_papers
from zo_sweeps.cli.status import show_limits
from zo_sweeps.config.composer import Composer, conf_dir
from zo_sweeps.core.errors import UserError
from zo_sweeps.plan import availability
from zo_sweeps.plan.build import build
from zo_sweeps.results import tables as readout
from zo_sweeps.results.facts import plan_facts
from zo_sweeps.results.papers import Item, ItemFacts, Obstacles, items, named, obstacles, standings
from zo_sweeps.schedule.ledger import Standing
from zo_sweeps.schedule.this_host import for_this_host, must_have_work
from zo_sweeps_report.report import html

pytestmark = pytest.mark.unit

ITEMS = items()
NUMBERS = ("accuracy", "runtime", "memory", "flops", "hardware", "figure", "claim")


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.reference)
def test_every_table_and_figure_has_a_grid_or_says_why_not(item: Item) -> None:
    assert bool(item.grids) != bool(item.why)
    assert item.caption
    for grid in item.grids:
        assert (conf_dir() / "grid" / f"{grid}.yaml").is_file()


def test_every_grid_of_a_paper_is_behind_something() -> None:
    files = (conf_dir() / "grid").glob("*.yaml")
    of_a_paper = {path.stem for path in files if yaml.safe_load(path.read_text()).get("paper")}
    assert of_a_paper == {grid for item in ITEMS for grid in item.grids}


def test_a_table_that_a_grid_cites_names_that_grid() -> None:
    grids = {item.reference: item.grids for item in ITEMS}
    for path in (conf_dir() / "grid").glob("*.yaml"):
        for table in yaml.safe_load(path.read_text())["tables"].values():
            if table.get("published"):
                assert grids[table["published"]] == (path.stem,)


def test_the_four_papers_are_there_with_all_that_has_numbers() -> None:
    assert {item.paper for item in ITEMS} == {"prge", "bytebots", "pezo", "sensitive"}
    assert len(ITEMS) == len({item.reference for item in ITEMS})
    without = {item.reference for item in ITEMS if item.kind in NUMBERS and not item.grids}
    assert without == {"prge/table14", "sensitive/table3"}, "device profiles"


def test_what_the_grids_do_otherwise_is_listed_with_the_item_it_is_of() -> None:
    """Neither a row of another table nor a column is lost; the overview stays short."""
    of = {item.reference: item.differs for item in ITEMS}
    assert any(line.startswith("Dual-Forwarding: differs in method: ") for line in of["prge/table4"])
    assert any(line.startswith("INT8: differs in measure") for line in of["prge/table9"])
    assert any("bytes per logit" in line for line in of["prge/table13"])
    assert not any("bytes per logit" in line for line in (*of["prge/table2"], *of["prge/table11"]))
    assert any("plain PyTorch" in line for line in of["sensitive/figure1_inference"])
    assert all(of[item.reference] == () for item in ITEMS if not item.grids)
    progress, held = standings(ITEMS, Path("nowhere")), Obstacles()
    facts = [ItemFacts(item, progress[item.reference], held) for item in named(ITEMS, ["prge"])]
    for captions in (True, False):
        show_papers(facts, console := Console(record=True, width=1000), Path("nowhere"), captions=captions)
        printed = console.export_text()
        assert all((line in printed) is captions for one in facts for line in one.item.differs)


def test_the_overview_plans_no_grid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[obstacles.__module__], "build", None)
    printed = in_process(capsys, "papers", f"state_dir={tmp_path}")
    assert re.search(r"^item +grid +state here$", printed, re.MULTILINE)
    assert "pezo_table6" in printed


def test_the_report_and_the_figures_say_what_differs(tmp_path: Path) -> None:
    """A default figure of a grid is of the table's rows, and leaves it to the table."""
    grid = changed(differs=[{"about": "precision", "text": "NF4", "rows": ["zo"]}])
    for figures, said in (({}, 1), ({"loss": {"kind": "curve", "x": "step", "y": "dev/loss"}}, 2)):
        folder = str(write_grid(tmp_path, {**grid, "figures": figures}))
        made = build(composer := Composer(["+grid=tiny"], [folder]))
        page = html(made, composer, Standing(), "zo_sweeps +grid=tiny")
        assert page.count("differs in precision: NF4") == said
    assert "ZO: differs in precision: NF4" in page


@pytest.mark.parametrize("grid", ["sensitive_table1a", "sensitive_table1b", "sensitive_table1c"])
def test_rows_q_have_the_codes_of_the_paper_and_nf4_is_ours(grid: str) -> None:
    made = common.plan(grid)
    codes = {
        block: {made.every[c.trial_id].config.precision.name for c in made.cells if c.block == block}
        for block in made.grid.blocks
    }
    rows = made.grid.tables["accuracy"].rows
    quantized = [block for block, name in rows.items() if name.startswith("Q, ZO")]
    assert len(quantized) == 3
    assert all(codes[block] == {"squeezellm"} and codes[f"{block}_nf4"] == {"nf4"} for block in quantized)
    assert all(codes[block] == {"fp16"} for block in rows if block not in quantized)
    assert not any(block.endswith("_nf4") for block in rows), "they would change the ranks"


def test_a_precision_leaves_out_the_rows_that_fix_another_one() -> None:
    composer = Composer(["+grid=sensitive_table1a", "precision=squeezellm"])
    made = build(composer)
    assert [*made.grid.blocks] == ["q_sensitive", "q_lora", "q_prefix"]
    assert any("precision=squeezellm leaves out what fixes another value" in note for note in made.caveats)
    tables = {table.spec.name: table for table in readout.tables(made, composer, Standing())}
    assert tables["sensitive_table1a_accuracy"].cells["q_sensitive", "sst2"].published is not None


def test_what_a_command_does_and_no_grid_names_the_command() -> None:
    commands = {item.reference: re.findall(r"python -m zo_sweeps (\w+(?: noise)?)", item.why) for item in ITEMS}
    named_there = {reference: found for reference, found in commands.items() if found}
    assert named_there == {"sensitive/figure4": ["package"], "pezo/claim_latency": ["bench noise"]}


def test_every_reason_that_holds_trials_back_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """2 models in 4 precisions, of which 2 cannot be stored here; and 7 trials without model and without data."""
    broken = {"int8": "RuntimeError: no kernel image", "nf4": "trying it ended with SIGABRT", "fp4": ""}
    monkeypatch.setattr(availability, "troubles", lambda: broken)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    some = named(ITEMS, ["prge/table9", "bytebots/table1", "prge/table7"])
    found = obstacles(some, [f"data.dir={tmp_path}"])
    precisions = {why: count for why, count in found["prge/table9"].reasons.items() if "stored" in why}
    assert sorted(precisions) == [
        "weights cannot be stored as int8 on this machine: RuntimeError: no kernel image",
        "weights cannot be stored as nf4 on this machine: trying it ended with SIGABRT",
    ]
    assert sorted(precisions.values()) == [2, 2]
    assert (found["prge/table9"].trials, found["bytebots/table1"].trials) == (8, 7)
    assert found["bytebots/table1"].missing == 7
    assert list(found["bytebots/table1"].reasons.values())[:2] == [7, 7], "the model and the data"
    assert (found["prge/table7"].trials, found["prge/table7"].reasons) == (0, {})


def test_every_reason_of_a_trial_is_given_in_its_plan_and_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No model, no data, no codes, no 8-bit steps, too little memory on the board, and this host is no board."""
    broken = {"int8": "RuntimeError: no kernel image", "adam_8bit": "trying it ended with SIGABRT", "nf4": "no"}
    monkeypatch.setattr(availability, "troubles", lambda: broken)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    overrides = ["grid.relabel=true", "method=fo_lora_fa", "update=adam_8bit", "precision=int8", "task=sst2"]
    overrides += ["device=jetson-orin-nano", "train.batch=64", f"data.dir={tmp_path}", f"state_dir={tmp_path}"]
    plan = for_this_host(build(Composer(["+grid=llama2_superglue", *overrides])))
    assert not plan.trials
    begins = (
        "meta-llama/Llama-2-7b-hf is not in the Hugging Face cache",
        f"no folder {tmp_path / 'sst2'}",
        "weights cannot be stored as int8 on this machine: RuntimeError: no kernel image",
        "update 'adam_8bit' does not work on this machine: trying it ended with SIGABRT",
        "needs about ",
        "needs device jetson-orin-nano, and this host is a c",
    )
    for reasons in plan.reasons.values():
        assert len(reasons) == len(begins)
        assert all(why.startswith(text) for why, text in zip(reasons, begins, strict=True)), reasons
    console = Console(record=True, width=1000)
    show_limits(plan_facts(plan), console, whole=True)
    lines = [line for line in console.export_text().splitlines() if line.startswith("cannot run here (")]
    assert len(lines) == len(plan.obstacles)
    for text in begins:
        here = [line for line in lines if f"): {text}" in line]
        counts = [re.match(r"cannot run here \((?:all )?(\d+) trial", line) for line in here]
        assert sum(int(count[1]) for count in counts if count) == len(plan.every), text
    table2 = obstacles(named(ITEMS, ["prge/table2"]), overrides)["prge/table2"]
    assert table2.reasons == {why: len(ids) for why, ids in plan.obstacles.items()}
    with pytest.raises(UserError) as refused:
        must_have_work(plan)
    assert all(text in str(refused.value) for text in begins)


def test_a_grid_that_does_not_go_with_the_command_line_says_why() -> None:
    found = obstacles(named(ITEMS, ["bytebots/table1"]), ["task=nosuch"])["bytebots/table1"]
    assert (found.trials, found.missing) == (1, 1)
    assert "unknown task 'nosuch'" in next(iter(found.reasons))


def test_an_item_that_no_paper_has_is_refused() -> None:
    with pytest.raises(UserError, match=r"unknown table or figure of a paper 'prge/table99'.*did you mean"):
        named(ITEMS, ["prge/table99"])


def test_nothing_is_run_in_an_empty_folder(tmp_path: Path) -> None:
    assert {standing.state for standing in standings(ITEMS, tmp_path).values()} == {"not run"}

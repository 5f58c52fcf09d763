"""What the commands print, at 80 columns and for programs: no word is cut or broken, every key is documented."""

from __future__ import annotations

import contextlib
import io
import json
import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.results.common import composed, fill
from zo_sweeps.cli import machine
from zo_sweeps.cli import status as watching
from zo_sweeps.cli.browse import show_papers
from zo_sweeps.cli.main import commands as every_command
from zo_sweeps.cli.main import main
from zo_sweeps.cli.status import show_plan, show_status, show_trial
from zo_sweeps.cli.text import UNLIMITED, console, grouped, listing, some, wrapped
from zo_sweeps.core.document import key, keys, plain
from zo_sweeps.core.units import BYTES, bytes_text, metric_text, seconds_text, unit_for
from zo_sweeps.plan.build import Plan
from zo_sweeps.record.sweep_book import SweepBook, SweepInfo
from zo_sweeps.results.facts import PlanFacts, plan_facts, status_facts, trial_facts
from zo_sweeps.results.papers import Deviation, ItemFacts, ItemProgress, Obstacles, items
from zo_sweeps.schedule.ledger import Ledger
from zo_sweeps_report.compare import compared, show_comparison

pytestmark = pytest.mark.unit

Shown = Callable[..., str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("output")


@pytest.fixture(scope="module")
def plan(folder: Path) -> Plan:
    """A sweep with results, two failures and their reasons."""
    _, plan = composed(folder)
    fill(plan, folder)
    with contextlib.closing(
        SweepBook(folder / "state", "tiny", SweepInfo(sweep_id="s", grid="tiny", title="t"))
    ) as book:
        for trial in plan.every.values():
            book.add(trial)
    return plan


@pytest.fixture
def shown(folder: Path, plan: Plan, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shown:
    """The standard output of a command on that sweep, at 80 columns."""

    given = ["+grid=tiny", f"state_dir={folder / 'state'}", "--config-dir", str(folder / "conf")]

    monkeypatch.setenv("COLUMNS", "80")

    def run(*words: str) -> str:
        assert main([*words, *given]) == 0
        return capsys.readouterr().out

    return run


def two(plan: Plan) -> list[str]:
    return [i for i, trial in plan.every.items() if trial.label.startswith("ZO ")][:2]


def check_fits(narrow: str, wide: str) -> None:
    """Every word of the wide output is whole in the narrow one, of which no line of several words is wider than 80."""
    assert not set(wide.split()) - set(narrow.split())
    for line in narrow.splitlines():
        assert len(line) <= 80 or len(line.split()) == 1, line


def commands(plan: Plan) -> dict[str, Callable[[Console], None]]:
    """What each command prints of the sweep."""
    one, other = two(plan)
    both = compared(plan.config.folder, (one, other))
    planned, status, trial = plan_facts(plan), status_facts(plan), trial_facts(plan, one)
    return {
        "plan": lambda to: show_plan(planned, to, trials=False),
        "plan --trials": lambda to: show_plan(planned, to, trials=True),
        "status": lambda to: show_status(status, to, failed=False, trials=False),
        "status --failed": lambda to: show_status(status, to, failed=True, trials=False),
        "status ID": lambda to: show_trial(trial, to, config=False),
        "compare": lambda to: show_comparison(both, to, config=False),
        "compare --config": lambda to: show_comparison(both, to, config=True),
    }


def test_commands_fit_80_columns_and_break_no_word(plan: Plan) -> None:
    for command, show in commands(plan).items():
        narrow, wide = io.StringIO(), io.StringIO()
        show(Console(file=narrow, width=80))
        show(Console(file=wide, width=5000))
        check_fits(narrow.getvalue(), wide.getvalue())
        assert len(wide.getvalue().split()) > 20, command


def test_the_papers_fit_80_columns() -> None:
    deviation = Deviation(-12.345, "%", "ZO-LoRA-FA (q>1), searched", "A long name of a task", 1)
    reasons = {"no text at a/b.jsonl": 3, "no text at c/d.jsonl": 1, "another reason": 2}
    facts = [
        ItemFacts(item, ItemProgress("3 of 8 cells", deviation, ("scale=smoke: less",)), Obstacles(8, 4, reasons))
        for item in items()
    ]
    printed = {}
    for width in (80, 5000):
        page = io.StringIO()
        show_papers(facts, Console(file=page, width=width), Path("nowhere"), captions=True)
        printed[width] = page.getvalue()
    check_fits(printed[80] + "item", printed[5000])  # a heading that a block does not need
    names = {grid for one in facts for grid in one.item.grids}
    assert names <= set(re.split(r"[\s,]+", printed[80]))
    assert printed[80].count("no text at a/b.jsonl") == 1, "a reason is printed once, however many items have it"


@pytest.mark.parametrize("command", every_command())
def test_the_help_of_a_command_fits_80_columns(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([command, "--help"])
    check_fits(text := capsys.readouterr().out, "")
    assert text.startswith("usage: ")


def test_the_overview_fits_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["--help"]) == 0
    check_fits(text := capsys.readouterr().out, "")
    assert all(f"\n  {name} " in text for name in every_command())


@pytest.mark.parametrize("seed", range(20))
def test_a_listing_of_any_shape_keeps_its_words_and_the_width(seed: int) -> None:
    rng = random.Random(seed)
    words = lambda most: " ".join("x" * rng.randint(1, 20) for _ in range(rng.randint(1, most)))
    headers = [f"h{i}" for i in range(rng.randint(1, 7))]
    cell = lambda i: str(rng.randint(0, 10**6)) if i % 2 else words(6)
    rows = [[cell(i) for i in range(len(headers))] for _ in range(rng.randint(1, 4))]
    page = io.StringIO()
    listing(Console(file=page, width=60), headers, rows)
    printed = page.getvalue()
    assert max(map(len, printed.splitlines())) <= 60
    given = sorted(word for row in rows for text in row for word in text.split())
    assert sorted(word for word in printed.split() if word not in headers) == given


def test_a_line_is_broken_between_words_only() -> None:
    text = "results: /a/long/path-with-hyphens/and_no_spaces  id 0123456789abcdef"
    for width in range(10, 80):
        assert wrapped(text, width).split() == text.split()


def test_a_pipe_has_room_for_every_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert console(io.StringIO()).width == UNLIMITED
    monkeypatch.setenv("COLUMNS", "80")
    assert console(io.StringIO()).width == 80


# --- JSON


def paths(value: Any, prefix: str = "") -> set[str]:
    """The paths of a JSON value's keys, "rows[].counts" for those of a list's entries."""
    if isinstance(value, list):
        return {path for one in value for path in paths(one, f"{prefix[:-1]}[]." if prefix else "")}
    if not isinstance(value, dict):
        return set()
    return {path for name, one in value.items() for path in ({prefix + name} | paths(one, f"{prefix}{name}."))}


@pytest.mark.parametrize("words", [["plan"], ["status"], ["status", "ID"], ["compare", "ID", "ID"]], ids=" ".join)
def test_json_has_the_keys_that_help_lists(
    words: list[str], plan: Plan, shown: Shown, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = iter(two(plan))
    given = [next(ids) if word == "ID" else word for word in words]
    value = json.loads(shown(*given, "--json"))
    with pytest.raises(SystemExit):
        main([*given, "--help"])
    listed = re.findall(r"^  (\S+)  ", capsys.readouterr().out.partition("keys of --json")[2], re.MULTILINE)
    found = paths(value)
    assert set(listed) >= {path for path in found if "." not in path}, "every key is documented"
    free = tuple(
        path + "." for path in listed if not any(other.startswith((f"{path}.", f"{path}[]")) for other in listed)
    )
    assert {path for path in found if not path.startswith(free)} <= set(listed)


@pytest.mark.parametrize("width", [".in", "in", "3.3.in", "1.4in", "3 ft"])
def test_a_figure_s_width_that_is_none_is_one_clear_line(
    folder: Path, plan: Plan, capsys: pytest.CaptureFixture[str], width: str
) -> None:
    given = ["+grid=tiny", f"state_dir={folder / 'state'}", "--config-dir", str(folder / "conf")]
    assert main(["figure", "--width", width, *given]) == 2
    assert f"{width!r} is no width from 1.5in to 20in in --width" in capsys.readouterr().err


def test_a_table_fits_80_columns_and_its_widths_come_from_the_terminal(shown: Shown) -> None:
    text = shown("table")
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("Selected hyper-parameters") == 1


def test_json_says_what_the_text_says(plan: Plan, shown: Shown) -> None:
    value = json.loads(shown("plan", "--json"))
    assert [trial["trial_id"] for trial in value["trials"]] == list(plan.every)
    assert value["rows"][1]["trials"] == sum(trial.block == "zo" for trial in plan.every.values())
    value = json.loads(shown("status", "--json"))
    assert value["counts"] == {"succeeded": 17, "diverged": 1, "failed": 1}
    assert value["driver"] is None
    failed = next(trial for trial in value["trials"] if trial["state"] == "failed")
    assert failed["error"] == "went wrong with <seed> 2"
    one, other = two(plan)
    value = json.loads(shown("compare", one, other, "--json"))
    assert (value["a"]["trial_id"], value["b"]["trial_id"]) == (one, other)
    assert {one["setting"] for one in value["differences"]} == {"seed"}


def test_a_document_is_plain_json_with_null_for_what_is_no_number() -> None:
    @dataclass(frozen=True)
    class Part:
        x: float = key("a number")

    @dataclass(frozen=True)
    class Whole:
        parts: dict[str, list[Part]] = key("parts by name")
        where: Path | None = key("a path", None)

    value = Whole({"a": [Part(math.nan), Part(-math.inf), Part(1.5)]}, Path("x"))
    assert plain(value) == {"parts": {"a": [{"x": None}, {"x": None}, {"x": 1.5}]}, "where": "x"}
    assert dict(keys(PlanFacts))["rows[].memory_bytes"].startswith("estimated peak")


# --- words


def test_sentences_of_one_pattern_are_one_group() -> None:
    line = "hf:{0} is not in the cache; set data.dir to a folder with {0}/train.jsonl"
    lines = {line.format(name): [f"t-{name}", "t"] for name in ("sst2", "rte", "cb")}
    first, second = grouped({**lines, "no text at c4.jsonl": ["t"]})
    assert (first.text, first.others, first.holds) == (
        line.format("sst2"),
        ["hf:rte", "hf:cb"],
        ["t-sst2", "t", "t-rte", "t-cb"],
    )
    assert (second.texts, second.others) == (["no text at c4.jsonl"], [])
    assert some(["a", "b", "c", "d"]) == "a, b, c, d"
    assert some(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("weights_bytes", 2.34752e7, "22.4 MiB"),
        ("memory/logits_bytes", 0.0, "0 B"),
        ("seconds_per_step", 0.001234, "1.23 ms"),
        ("train_seconds", 4000.0, "1.11 h"),
        ("energy/joules", 3400.0, "3.4 kJ"),
        ("energy/mean_watts", 12.34, "12.3 W"),
        ("device/celsius", 61.25, "61.2 °C"),
        ("trainable_parameters", 98304.0, "98,304"),
        ("test/metric", 0.8451, "0.8451"),
        ("dev/loss", math.nan, "nan"),
    ],
)
def test_a_measurement_is_printed_in_the_unit_that_its_name_says(name: str, value: float, text: str) -> None:
    assert metric_text(name, value) == text


def test_units_change_at_a_thousand() -> None:
    assert [unit_for(x, BYTES)[1] for x in (0, 1, 999, 1000, 2**20, 1008 * 2**20, 2**50)] == [
        "B", "B", "B", "KiB", "MiB", "GiB", "GiB",
    ]  # fmt: skip
    assert bytes_text(3 * 2**30, 8 * 2**30) == "3.0 of 8.0 GiB"
    assert bytes_text(-1536) == "-1.5 KiB"
    assert seconds_text(89.6) == "1.49 min"


# --- status --watch


def test_a_stage_says_at_once_what_it_does_and_from_the_second_part_on_how_long_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = io.StringIO()
    with machine.stages(Console(file=file, width=80)) as update:
        update("gradients", 0, 3)
        update("gradients", 1, 3)
        monkeypatch.setattr(machine, "STAGE_SECONDS", 0.0)
        update("gradients", 2, 3)
        update("layers quantized", 0, 7)
    first, second, third = file.getvalue().splitlines()
    assert (first, third) == ("gradients: 0/3", "layers quantized: 0/7")
    assert second.startswith("gradients: 2/3, ETA ")


def test_a_page_that_is_left_with_ctrl_c_gives_the_terminal_back(
    plan: Plan, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ctrl_c(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(watching.time, "sleep", ctrl_c)
    page = io.StringIO()
    terminal = Console(file=page, width=80, height=20, force_terminal=True, legacy_windows=False)
    with Ledger(folder / "state"), pytest.raises(KeyboardInterrupt):
        watching.watch(plan, terminal, failed=False, trials=False)
    written = page.getvalue()
    assert "running (pid " in written
    assert "1 failure (" in written
    assert written.index("\x1b[?1049h") < written.index("running (pid "), "on a page of its own"
    assert written.index("\x1b[?1049l") > written.rindex("Ctrl-C leaves this page")
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l"), "the cursor is shown again"

"""README, tutorial, pages and notebooks as their readers use them: what they show is written to disk and run."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch

import zo_sweeps
from tests.cli.common import ENVIRONMENT, NOWHERE, in_process
from tests.cli.parsing import parse
from tests.conftest import REPO
from tests.plan.common import PLACES
from zo_sweeps.cli.main import main
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.document import keys
from zo_sweeps.core.memory_parts import TOTAL
from zo_sweeps.core.trial import COSTS
from zo_sweeps.methods import registry
from zo_sweeps.models.identity import DEMO
from zo_sweeps.plan.build import build
from zo_sweeps.results import tables as readout
from zo_sweeps.results.facts import SweepStatus
from zo_sweeps.schedule.ledger import Standing
from zo_sweeps.session import session

TEXT = (REPO / "README.md").read_text(encoding="utf-8")
TUTORIAL, SWEEPS, LOOP, WEIGHTS, MEMBER, *OTHERS = (
    (REPO / "docs" / f"{page}.md").read_text(encoding="utf-8")
    for page in (
        *("TUTORIAL", "SWEEPS", "NOTEBOOK", "GRID_NOTEBOOK", "adding/perturbation"),
        *("PACKAGE", "SHARE", "FAILURES", "ENERGY"),
    )
)
PROGRAMS = (REPO / "llms.txt").read_text(encoding="utf-8")
COMMAND = "python -m zo_sweeps"
SMALL = [
    "scale=smoke",
    "grid.seeds=[0]",
    "executor=inline",
]  # added to the README's commands, so that they take seconds
FEWER = "grid.only=[zero_shot,fo_lora_fa,fo_lora_fa_layerwise,zo_lora_fa_q4]"  # of the quickstart: six trials


def section(page: str, title: str) -> str:
    """From a heading of a page to the next one of its level or above."""
    found = re.search(rf"^(#+) {re.escape(title)}$", page, re.MULTILINE)
    assert found, f"no section {title!r}"
    rest = page[found.end() :]
    end = re.search(rf"^#{{1,{len(found[1])}}} ", re.sub(r"^```.*?^```", _blank, rest, flags=re.M | re.S), re.MULTILINE)
    return rest[: end.start()] if end else rest


def _blank(fence: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", fence[0])  # `# ...` in code is no heading


def code(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def shown(text: str) -> list[str]:
    """Every command of this project: lines of their own, and in the text between backquotes."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line[4:] for line in prose.splitlines() if line.startswith("    ")]
    lines += [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]
    return [line.split("  #")[0].strip() for line in lines if COMMAND in line]


def meant(line: str) -> list[str]:
    """The command lines that one with `a|b` and `[--option]` in it stands for."""
    line = re.sub(r" \[(--[^]]+)\]", r" \1", line)
    choice = re.search(r"[\w-]+(?:\|[\w-]+)+", line)
    return [line.replace(choice[0], one) for one in choice[0].split("|")] if choice else [line]


COMMANDS = sorted(
    {
        line
        for text in (TEXT, TUTORIAL, SWEEPS, WEIGHTS, MEMBER, PROGRAMS, *OTHERS)
        for one in shown(text)
        for line in meant(one)
    }
)


def typed(line: str, *more: str) -> list[str]:
    """A command of the README, as the arguments of `main`."""
    words = shlex.split(line)
    assert words[:3] == COMMAND.split()
    return [*words[3:], *more]


def executed(script: str) -> dict[str, Any]:
    """The names that a program leaves."""
    names: dict[str, Any] = {}
    exec(script, names)
    return names


# --- the commands

composer, planned = (
    cache(lambda overrides, folders: Composer(overrides, folders)),
    cache(lambda one: build(one, PLACES)),
)


def write_example(folder: Path) -> Path:
    """Write the member of the page on perturbations where its first line says; return the file."""
    (member,) = code(MEMBER, "python")
    path = folder / member.splitlines()[0].removeprefix("# ")
    path.parent.mkdir(parents=True)
    path.write_text(member)
    return path


def cells(notebook: str) -> str:
    """The code of a notebook, in order."""
    every = json.loads((REPO / "examples" / notebook).read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in every if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in code), "outputs in git would be of another run"
    return "\n".join("".join(cell["source"]) for cell in code)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of README and tutorial: a method, a task, a grid, the rows of a script; FOLDER with a perturbation."""
    folder = tmp_path_factory.mktemp("own")
    write_example(folder)
    files = re.findall(r"^```(?:python|yaml)\n# (\S+)\n(.*?)^```", TUTORIAL + TEXT, re.MULTILINE | re.DOTALL)
    method = ["my/perturbation/laplace.py", "my/method/laplace.yaml"]
    assert [name for name, _ in files] == ["make_rows.py", "my/task/mood.yaml", "my/grid/mine.yaml", *method]
    for name, text in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"# {name}\n{text}")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        executed(files[0][1])
    with registry.using_folders(()):  # the plans made here look into FOLDER
        yield folder


@pytest.mark.unit
def test_there_are_commands_and_notation_is_understood() -> None:
    assert len(COMMANDS) > 15
    assert meant("x table --format md|csv [--output FILE]") == [
        "x table --format md --output FILE",
        "x table --format csv --output FILE",
    ]
    assert shown("see `python -m zo_sweeps\nplan`\n\n    A=1 python -m zo_sweeps   # comment\n") == [
        "A=1 python -m zo_sweeps",
        "python -m zo_sweeps plan",
    ]


@pytest.mark.unit
@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_is_one_that_the_command_line_understands(
    line: str, own: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read by the real parser; what it composes is composed, and planned where that needs no data of the reader's."""
    monkeypatch.chdir(own)
    words = [word for word in shlex.split(line[line.index(COMMAND) + len(COMMAND) :]) if word != "…"]
    options = parse(words, capsys)
    if not hasattr(options, "overrides"):
        return
    grid = [] if any(word.startswith("+grid=") for word in options.overrides) else ["+grid=quickstart"]
    overrides = [text for text in options.overrides if "=" in text]  # a trial's id is none
    composed = composer((*grid, *overrides), tuple(options.config_dir or [str(own / "my")]))
    if "MODEL" not in line and ("+grid=mine" not in line or "data.dir=" in line):  # else it reads the last sweep
        assert planned(composed).every


@pytest.mark.unit
@pytest.mark.parametrize(("grid", "first"), [("llama2_superglue", "task="), ("quickstart", "scale=")])
def test_overrides_that_are_listed_can_be_given_together(grid: str, first: str) -> None:
    (line,) = [line for line in section(SWEEPS, "Run a paper's grid").splitlines() if line.startswith(f"    {first}")]
    for one in meant(line):
        composer = Composer([f"+grid={grid}", *one.split()])
        plan = build(composer, PLACES)
        assert plan.every
        assert readout.tables(plan, composer, Standing())


# --- a perturbation of one's own


def example_commands() -> list[str]:
    return [line.strip() for line in MEMBER.splitlines() if re.match("    (python|make) ", line)]


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.long  # tests/docs/test_adding runs the page's member and holds it to its contract on every change
def test_the_added_method_runs_and_its_results_are_a_data_frame(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_example(tmp_path)
    monkeypatch.chdir(tmp_path)
    (command,) = [line for line in example_commands() if line.startswith(COMMAND)]
    words = typed(command, *SMALL, FEWER)
    said = in_process(capsys, *words, NOWHERE)
    assert "succeeded" in said

    (notebook,) = code(section(SWEEPS, "Export tables, figures and weights"), "python")
    flag = words.index("--config-dir")
    own = {"overrides": [*words[1:flag], *words[flag + 2 :]], "config_dirs": [words[flag + 1]]}  # it names the grid
    monkeypatch.setattr(zo_sweeps, "results", partial(zo_sweeps.results, **own))
    monkeypatch.setenv("COLUMNS", "1000")  # a row of the data frame is one line
    trials = executed(notebook)["trials"]
    printed = capsys.readouterr().out.splitlines()
    assert {*trials["state"]} == {"SUCCEEDED"}
    for row in {*trials["row"]}:
        (line,) = [line for line in printed if line.startswith(f"{row} ")]
        assert "NaN" not in line or row == "Zero-shot", "zero-shot has no steps to time"
    ran = [json.loads(line) for line in (tmp_path / "zo_runs" / "ledger.jsonl").read_text().splitlines()]
    assert len(ran) > 5


@pytest.mark.unit
def test_the_page_for_programs_names_keys_and_pages_that_there_are() -> None:
    named, ours = {name for name, _ in keys(SweepStatus)}, {"test/metric", "dev/metric", TOTAL, *COSTS}
    (listed,) = re.findall(r"In `status --json`:\n\n- (.*?)\n\n", PROGRAMS, re.DOTALL)
    for line in listed.split("\n- "):
        first, *rest = re.findall(r"`([^`]+)`", line)
        inside = [f"{first}.{name}" for name in rest if name not in ours] if first.endswith("[]") else [first, *rest]
        assert {*inside} <= named, line
    links = re.findall(r"\]\(([^)]+)\)", PROGRAMS)
    assert len(links) > 12
    assert [link for link in links if not (REPO / link).is_file()] == []


@pytest.mark.unit
def test_a_loop_of_ones_own_is_run_and_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notebook's own assertion is that the replay has the same bits."""
    monkeypatch.chdir(tmp_path)
    executed(cells("engine.ipynb"))
    before, *after = (float(line.rpartition(" ")[2]) for line in capsys.readouterr().out.splitlines())
    assert before < 0.2, "ten digits"
    assert len(after) == 3
    assert min(after) > 0.65, "a network of 2,410 weights"


@pytest.mark.unit
def test_the_loop_of_the_readme_trains_and_replays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (script,) = code(section(TEXT, "Train in your own loop"), "python")
    names = executed(
        script.replace('"HuggingFaceTB/SmolLM2-135M-Instruct"', repr(str(DEMO))).replace("range(20)", "range(2)")
    )
    before = names["AutoModelForCausalLM"].from_pretrained(DEMO, dtype=torch.float32)
    assert zo_sweeps.replay(before, "run.jsonl").log == names["opt"].log
    assert all(value.equal(before.state_dict()[name]) for name, value in names["model"].state_dict().items())


@pytest.mark.unit
def test_the_loops_of_the_page_train_and_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the model that ships, in fp32, with fewer steps; each method's first and last losses are kept."""
    monkeypatch.chdir(tmp_path)
    script, _ = code(LOOP, "python")
    script = script.replace('"HuggingFaceTB/SmolLM2-135M-Instruct"', repr(str(DEMO))).replace("range(20)", "range(4)")
    made: list[zo_sweeps.Optimizer] = []

    class Kept(zo_sweeps.Optimizer):
        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, **options)
            made.append(self)

    monkeypatch.setattr(zo_sweeps, "Optimizer", Kept, raising=False)
    names = executed(script.replace("zo_sweeps.replay(same", "lozo, again = model, zo_sweeps.replay(same"))
    mezo, lozo, prge = made
    assert [len(opt.losses) for opt in made] == [2, 2, 8]
    assert [line.lr for line in lozo.log] != [lozo.log[0].lr] * 4
    assert names["again"].log == lozo.log
    replayed = names["same"].state_dict()
    assert all(value.equal(replayed[name]) for name, value in names["lozo"].state_dict().items())
    assert prge.log[-1].loss < prge.log[0].loss
    assert {name.rsplit(".", 2)[1] for name in prge.space.params} == {"q_proj", "v_proj"}
    assert mezo.log[0].loss == pytest.approx(lozo.log[0].loss, rel=1e-3), "both begin at the same weights"


@pytest.mark.unit
def test_the_trainer_of_the_page_goes_on_from_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As written, on the model that ships: the page's own assertion is that both logs are the same."""
    monkeypatch.chdir(tmp_path)
    _, script = code(LOOP, "python")
    script = script.replace('"HuggingFaceTB/SmolLM2-135M-Instruct"', repr(str(DEMO))).replace("steps=20", "steps=4")
    names = executed(script.replace("save_steps=10", "save_steps=2").replace("checkpoint-10", "checkpoint-2"))
    assert [len(names[name].zo.log) for name in ("whole", "resumed")] == [4, 4]
    assert (tmp_path / "out" / "checkpoint-4" / "adapter_model.safetensors").is_file()


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.long
def test_the_python_interface_gives_weights_that_peft_and_transformers_load(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook that runs the quickstart, the command, and a program that loads: as written, but smaller."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setattr(session, "STORE_SECONDS", 0.1)
    notebook, loading = code(WEIGHTS, "python")
    script = f"{notebook}\nprint(best['trial_id'], len(weights))\n{cells('grid.ipynb')}"
    assert script.count("small = [") == 2
    executed(script.replace("small = [", f'small = ["{NOWHERE}", "{FEWER}", '))
    first, last, again, *table = capsys.readouterr().out.splitlines()
    trial_id, parameters = last.split()
    assert first == again == "6 trials"
    assert {line.split()[0] for line in table} >= {"Zero-shot", "FO-LoRA-FA", "ZO-LoRA-FA"}
    assert (tmp_path / "accuracy.png").stat().st_size > 5000
    for line in shown(WEIGHTS):
        assert main(typed(line.replace("TRIAL_ID", trial_id).replace("--out ", "--out exported/"))) == 0
    for name in ("adapter", "model"):
        files = sorted(path.name for path in (tmp_path / name).iterdir())
        assert files == sorted(path.name for path in (tmp_path / "exported" / name).iterdir())
    loaded = executed(loading.replace('"BASE"', f"{str(DEMO)!r}, dtype='float32'"))
    ids = torch.arange(2, 20).view(1, -1)
    one, two = (loaded[name].eval()(input_ids=ids).logits.float() for name in ("merged", "adapted"))
    torch.testing.assert_close(one, two, rtol=2e-5, atol=2e-5)
    assert sum("lora_B" in name for name, _ in loaded["adapted"].named_parameters()) == int(parameters)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files of the repository, with the worked example written into them as its page says."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPO, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(REPO / name, tmp_path / name)
    assert not (tmp_path / "FOLDER").exists(), "the example is no part of the package"
    write_example(tmp_path)
    return tmp_path


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.long  # tests/docs/test_adding holds every page's member to its contract
def test_the_contract_holds_the_added_method(checkout: Path) -> None:
    """`make test` as the page has it; an environment that is set up already is the one of these tests."""
    (command,) = [line for line in example_commands() if line.startswith("make ")]
    (copy,) = [line.strip() for line in MEMBER.splitlines() if line.startswith("    cp ")]
    subprocess.run(shlex.split(copy), cwd=checkout, check=True)
    python = checkout / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    for stamp in (".torch", ".installed", ".installed-dev"):
        (checkout / ".venv" / stamp).touch()
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(checkout), "PYTEST_ADDOPTS": "-rA", "JOBS": "0"}
    environment["MAKEFLAGS"] = "PIP=false"  # nothing is installed into the environment of these tests
    done = subprocess.run(shlex.split(command), cwd=checkout, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.findall(r"^PASSED (\S+)", done.stdout, re.MULTILINE)
    assert any("moments_of_directions" in name and "three_point" in name for name in passed), done.stdout
    assert any("order_and_history" in name for name in passed)
    assert any("test_a_member_of_an_axis" in name for name in passed)


# --- the tutorial: a grid and a task of the reader's, to a table in a paper


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.long
def test_the_tutorial_ends_with_a_table_and_an_archive_that_verifies(
    own: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (planning, running, *reading) = shown(TUTORIAL)
    assert planning == running.replace("zo_sweeps ", "zo_sweeps plan ", 1)
    monkeypatch.chdir(own)
    ran = in_process(capsys, *typed(running, *SMALL, "update.lr=0.3", NOWHERE))
    assert re.search(r"mine: 4 succeeded; 4 run now", ran), ran
    said = {}
    for line in reading:
        words = typed(line.replace("--n 3", "--n 1"))
        assert main(words) == 0, line
        said[words[0]] = capsys.readouterr().out
    assert [*said] == ["status", "report", "table", "check", "export", "verify"]
    table = (own / "table.tex").read_text()
    assert table.count(r"\begin{table}") == 2
    assert re.search(r"^P-RGE, q = 4 & [\d.]+ ", table, re.MULTILINE)
    assert len(re.findall("^ok ", said["verify"], re.MULTILINE)) == 3, said["verify"]

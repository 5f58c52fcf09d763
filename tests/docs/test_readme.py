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
from functools import cache
from pathlib import Path

import pytest

from tests.cli.common import ENVIRONMENT
from tests.cli.parsing import parse
from tests.conftest import REPO
from tests.plan.common import PLACES
from zo_sweeps.cli.main import main
from zo_sweeps.config.composer import Composer
from zo_sweeps.methods import registry
from zo_sweeps.models.identity import DEMO
from zo_sweeps.plan.build import build
from zo_sweeps.results import tables as readout
from zo_sweeps.schedule.ledger import Standing

TEXT = (REPO / "README.md").read_text(encoding="utf-8")
TUTORIAL = (REPO / "docs" / "TUTORIAL.md").read_text(encoding="utf-8")
WEIGHTS, MEMBER, *OTHERS = (
    (REPO / "docs" / f"{page}.md").read_text(encoding="utf-8")
    for page in ("GRID_NOTEBOOK", "adding/perturbation", "PACKAGE", "SHARE", "FAILURES", "ENERGY")
)
COMMAND = "python -m zo_sweeps"
SMALL = [
    "scale=smoke",
    "grid.seeds=[0]",
    "executor=inline",
]  # added to the README's commands, so that they take seconds


def section(title: str) -> str:
    """From a heading to the next one of its level or above."""
    found = re.search(rf"^(#+) {re.escape(title)}$", TEXT, re.MULTILINE)
    assert found, f"the README has no section {title!r}"
    rest = TEXT[found.end() :]
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
    {line for text in (TEXT, TUTORIAL, WEIGHTS, MEMBER, *OTHERS) for one in shown(text) for line in meant(one)}
)


def run(command: list[str], folder: Path, package: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": str(package), **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def typed(line: str, *more: str) -> list[str]:
    """A command of the README as arguments, with the interpreter of these tests."""
    words = shlex.split(line)
    assert words[:3] == COMMAND.split()
    return [sys.executable, *words[1:], *more]


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
    """The tutorial's folder, with its task, its grid and the rows of its script; FOLDER with a perturbation."""
    folder = tmp_path_factory.mktemp("own")
    write_example(folder)
    files = re.findall(r"^```(?:python|yaml)\n# (\S+)\n(.*?)^```", TUTORIAL, re.MULTILINE | re.DOTALL)
    assert [name for name, _ in files] == ["make_rows.py", "my/task/mood.yaml", "my/grid/mine.yaml"]
    for name, text in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(files[0][1], {})
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
    (line,) = [line for line in section("Run a paper's grid").splitlines() if line.startswith(f"    {first}")]
    for one in meant(line):
        composer = Composer([f"+grid={grid}", *one.split()])
        plan = build(composer, PLACES)
        assert plan.every
        assert readout.tables(plan, composer, Standing())


# --- a perturbation of one's own: in a copy of the checkout, with the copy's own code


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the repository, with the worked example written into them as its page says."""
    folder = tmp_path_factory.mktemp("checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPO, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(REPO / name, folder / name)
    assert not (folder / "FOLDER").exists(), "the example is no part of the package"
    write_example(folder)
    return folder


def example_commands() -> list[str]:
    return [line.strip() for line in MEMBER.splitlines() if re.match("    (python|make) ", line)]


@pytest.mark.e2e
@pytest.mark.slow
def test_the_added_method_runs_and_its_results_are_a_data_frame(checkout: Path, tracking: str) -> None:
    (command,) = [line for line in example_commands() if line.startswith(COMMAND)]
    done = run(typed(command, *SMALL, f"tracking.uri={tracking}"), checkout, checkout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "succeeded" in done.stdout

    (notebook,) = code(section("Export tables, figures and weights"), "python")
    options = shlex.split(command)[4:]
    flag = options.index("--config-dir")
    given, folders = [*options[:flag], *SMALL], [options[flag + 1]]
    script = f"""\
import functools, json, zo_sweeps
zo_sweeps.results = functools.partial(zo_sweeps.results, overrides={given!r}, config_dirs={folders!r})
{notebook}
print(json.dumps([zo_sweeps.__file__, sorted(set(trials["state"])), sorted(set(trials["row"]))]))
"""
    done = run([sys.executable, "-c", script], checkout, checkout)
    assert done.returncode == 0, done.stderr
    *printed, last = done.stdout.splitlines()
    file, states, rows = json.loads(last)
    assert Path(file).is_relative_to(checkout)
    assert states == ["SUCCEEDED"]
    for row in rows:
        (line,) = [line for line in printed if line.startswith(row)]
        assert "NaN" not in line or row == "Zero-shot", "zero-shot has no steps to time"
    ran = [json.loads(line) for line in (checkout / "zo_runs" / "ledger.jsonl").read_text().splitlines()]
    assert len(ran) > 5


@pytest.mark.multiprocess
def test_a_loop_of_ones_own_is_run_and_replayed(tmp_path: Path) -> None:
    """The notebook's own assertion is that the replay has the same bits."""
    script = cells("engine.ipynb")
    done = run([sys.executable, "-c", script], tmp_path, REPO)
    assert done.returncode == 0, done.stderr
    before, after = (float(line.rpartition(" ")[2]) for line in done.stdout.splitlines())
    assert before < 0.2 < 0.7 < after, "ten digits; a network of 2,410 weights"


@pytest.mark.e2e
@pytest.mark.slow
def test_the_python_interface_gives_weights_that_peft_and_transformers_load(
    tmp_path: Path, tracking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook that runs the quickstart, the command, and a program that loads: as written but for the server."""
    notebook, loading = code(WEIGHTS, "python")
    script = f"{notebook}\nprint(best['trial_id'], len(weights))\n{cells('grid.ipynb')}"
    assert script.count("small = [") == 2
    script = script.replace("small = [", f'small = ["tracking.uri={tracking}", ')
    done = run([sys.executable, "-c", script], tmp_path, REPO, MPLBACKEND="agg")
    assert done.returncode == 0, done.stderr
    first, last, again, *table = done.stdout.splitlines()
    trial_id, parameters = last.split()
    assert first == again == "8 trials"
    assert {line.split()[0] for line in table} >= {"Zero-shot", "FO-LoRA-FA", "ZO-LoRA-FA"}
    assert (tmp_path / "accuracy.png").stat().st_size > 5000
    for line in shown(WEIGHTS):
        exported = line.replace("TRIAL_ID", trial_id).replace("--out ", "--out exported/")
        monkeypatch.chdir(tmp_path)
        assert main(typed(exported)[3:]) == 0
    for name in ("adapter", "model"):
        files = sorted(path.name for path in (tmp_path / name).iterdir())
        assert files == sorted(path.name for path in (tmp_path / "exported" / name).iterdir())
    check = """
import torch
ids = torch.arange(2, 20).view(1, -1)
one, two = (model.eval()(input_ids=ids).logits.float() for model in (merged, adapted))
torch.testing.assert_close(one, two, rtol=2e-5, atol=2e-5)
print(sum("lora_B" in name for name, _ in adapted.named_parameters()))
"""
    loading = loading.replace('"BASE"', f"{str(DEMO)!r}, dtype='float32'")
    done = run([sys.executable, "-c", loading + check], tmp_path, REPO)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == parameters


@pytest.mark.e2e
@pytest.mark.slow
def test_the_contract_holds_the_added_method(checkout: Path) -> None:
    """`make test` as the page has it; an environment that is set up already is the one of these tests."""
    (command,) = [line for line in example_commands() if line.startswith("make ")]
    (copy,) = [line.strip() for line in MEMBER.splitlines() if line.startswith("    cp ")]
    subprocess.run(shlex.split(copy), cwd=checkout, check=True)
    python = checkout / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    for stamp in (".installed", ".installed-dev"):
        (checkout / ".venv" / stamp).touch()
    done = run(shlex.split(command), checkout, checkout, PYTEST_ADDOPTS="-rA", JOBS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.findall(r"^PASSED (\S+)", done.stdout, re.MULTILINE)
    assert any("moments_of_directions" in name and "three_point" in name for name in passed), done.stdout
    assert any("order_and_history" in name for name in passed)
    assert any("test_a_member_of_an_axis" in name for name in passed)


# --- the tutorial: a grid and a task of the reader's, to a table in a paper


@pytest.mark.e2e
@pytest.mark.slow
def test_the_tutorial_ends_with_a_table_and_an_archive_that_verifies(
    own: Path, tracking: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (planning, running, *reading) = shown(TUTORIAL)
    assert planning == running.replace("zo_sweeps ", "zo_sweeps plan ", 1)
    done = run(typed(running, *SMALL, "update.lr=0.3", f"tracking.uri={tracking}"), own, REPO)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"mine: 4 succeeded; 4 run now", done.stdout), done.stdout
    monkeypatch.chdir(own)
    said = {}
    for line in reading:
        words = typed(line.replace("--n 3", "--n 1"))[3:]
        assert main(words) == 0, line
        said[words[0]] = capsys.readouterr().out
    assert [*said] == ["status", "report", "table", "check", "export", "verify"]
    table = (own / "table.tex").read_text()
    assert table.count(r"\begin{table}") == 2
    assert re.search(r"^P-RGE, q = 4 & [\d.]+ ", table, re.MULTILINE)
    assert len(re.findall("^ok ", said["verify"], re.MULTILINE)) == 3, said["verify"]

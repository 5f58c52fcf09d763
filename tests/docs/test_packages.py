"""The packages that a release builds: what is in them, and the wheel where there is no checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
import yaml

from tests.cli.common import ENVIRONMENT, NOWHERE
from tests.conftest import REPO
from zo_sweeps import __version__

pytestmark = pytest.mark.multiprocess
SDIST, WHEEL = f"zo_sweeps-{__version__}.tar.gz", "zo_sweeps"


def tracked(*folders: str) -> set[str]:
    listed = subprocess.run(["git", "ls-files", "-z", *folders], cwd=REPO, check=True, capture_output=True, text=True)
    return {name for name in listed.stdout.split("\0") if name and (REPO / name).exists()}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the release workflow builds, by the backend that pyproject.toml names."""
    folder = tmp_path_factory.mktemp("packages")
    build = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder), "--target", "wheel"]
    done = subprocess.run([*build, "--target", "sdist"], cwd=REPO, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def contents(packages: Path, package: str) -> tuple[set[str], Message]:
    """The files of a wheel and its metadata."""
    with zipfile.ZipFile(packages / f"{package}-{__version__}-py3-none-any.whl") as wheel:
        names = {name for name in wheel.namelist() if not name.endswith("/")}
        about = f"{package}-{__version__}.dist-info"
        points = wheel.read(f"{about}/entry_points.txt").decode()
        assert "zo-sweeps = zo_sweeps.cli.main:main" in points
        return {name for name in names if not name.startswith(about)}, message_from_bytes(
            wheel.read(f"{about}/METADATA")
        )


def test_the_wheel_holds_every_file_of_the_package_and_the_sdist_the_repository(packages: Path) -> None:
    whole = tracked("zo_sweeps") | {f"zo_sweeps/{name}" for name in tracked("conf")}
    files, about = contents(packages, WHEEL)
    assert files == whole
    assert about["Version"] == __version__
    with tarfile.open(packages / SDIST) as sdist:
        inside = {name.partition("/")[2] for name in sdist.getnames()}
    assert inside == tracked() | {"PKG-INFO"}


def test_the_version_has_one_home() -> None:
    assert yaml.safe_load((REPO / "CITATION.cff").read_text())["version"] == __version__
    for path in ("pyproject.toml", "packages/agent/board/pyproject.toml"):
        text = (REPO / path).read_text()
        assert f'"{__version__}"' not in text
        assert 'dynamic = ["version"' in text
    for file in REPO.glob("packages/*/pyproject.toml"):
        text = file.read_text()
        assert 'dynamic = ["version"]' in text
        assert re.findall(r'"zo-sweeps==(.*)"', text) == [__version__], "a package uses parts inside of zo_sweeps"


@pytest.fixture(scope="module")
def installed(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and nothing else; its dependencies are those of this environment."""
    folder = tmp_path_factory.mktemp("installed")
    wheel = next(packages.glob(f"{WHEEL}-*.whl"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", str(folder)]
    done = subprocess.run([*pip, str(wheel)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def zo(installed: Path, cwd: Path, *words: str) -> str:
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(installed)}
    command = [installed / "bin" / "zo-sweeps", *words]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_installed_command_plans_in_any_folder(installed: Path, tmp_path: Path) -> None:
    """Grids, the demo model and its task come from the wheel: their fingerprints are in the plan."""
    assert "25 trials" in zo(installed, tmp_path, "plan")


@pytest.mark.slow
@pytest.mark.long
def test_the_installed_command_runs_a_sweep_and_knows_the_papers(installed: Path, tmp_path: Path) -> None:
    small = ["scale=smoke", "grid.seeds=[0]", "update.lr=0.3", "train.steps=2", "executor=inline", NOWHERE]
    assert re.search(r"\b(\d+) succeeded; \1 run now", zo(installed, tmp_path, *small))
    assert (tmp_path / "zo_runs" / "ledger.jsonl").is_file()
    assert "pezo_table6" in zo(installed, tmp_path, "papers", "pezo/table6")
    zo(installed, tmp_path, "report", "--output", "report.html")
    assert "<svg" in (tmp_path / "report.html").read_text() or "<canvas" in (tmp_path / "report.html").read_text()

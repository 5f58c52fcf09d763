"""zo_sweeps without this package, and what is in its wheel."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.common import NOWHERE, in_process
from tests.conftest import REPO
from tests.docs.test_packages import tracked
from tests.plan.common import changed, write_grid
from zo_sweeps import __version__
from zo_sweeps.cli.main import main
from zo_sweeps.core.errors import UserError
from zo_sweeps.methods import registry

INSTALL = "pip install 'zo-sweeps[report]'"


@pytest.fixture
def _absent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No entry point is this package's."""
    offered = registry.offered

    def others(group: str) -> dict[str, object]:
        points = offered(group).items()
        return {name: point for name, point in points if not point.module.startswith("zo_sweeps_report.")}

    monkeypatch.setattr(registry, "offered", others)
    registry._names.cache_clear()
    yield
    registry._names.cache_clear()


@pytest.mark.multiprocess
@pytest.mark.usefixtures("_absent")
def test_without_the_package_a_sweep_has_its_table_and_one_line_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = changed(
        blocks={"zero_shot": {"label": "Zero-shot", "fixed": {"method": "zero_shot"}}},
        tables={"accuracy": {"layout": "accuracy", "rows": {"zero_shot": ""}}},
        figures={"unchecked": {"kind": "of_no_package", "x": "nothing"}},
    )
    folder = ["--config-dir", str(write_grid(tmp_path / "conf", grid))]
    few = ["executor=inline", NOWHERE, "split.train=8", "split.dev=8", "split.test=8"]
    out = in_process(capsys, "+grid=tiny", f"state_dir={tmp_path / 'state'}", *few, *folder)
    (line,) = [line for line in out.splitlines() if "zo-sweeps-report" in line]
    assert line.startswith("no report: zo-sweeps-report is not installed")
    assert line.endswith(INSTALL)
    assert any(line.startswith("Zero-shot") for line in out.splitlines())


@pytest.mark.usefixtures("_absent")
def test_a_command_and_a_kind_of_figure_name_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("figure", "report"):
        assert main([command, "+grid=quickstart"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"brings the command '{command}'" in line
        assert line.endswith(INSTALL)
    with pytest.raises(UserError, match="brings the figure_kind 'line'"):
        registry.member("figure_kind", "line")


@pytest.mark.multiprocess
def test_the_wheel_holds_templates_scripts_and_the_licence_of_the_chart_library(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--directory", str(tmp_path), "--target", "wheel"]
    done = subprocess.run(build, cwd=REPO / "packages" / "report", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    about = f"zo_sweeps_report-{__version__}.dist-info"
    with zipfile.ZipFile(tmp_path / f"zo_sweeps_report-{__version__}-py3-none-any.whl") as wheel:
        names = {name for name in wheel.namelist() if not name.endswith("/")}
    whole = {name.removeprefix("packages/report/") for name in tracked("packages/report/zo_sweeps_report")}
    assert {name for name in names if not name.startswith(about)} == whole
    assert f"{about}/licenses/zo_sweeps_report/web/uplot/LICENSE" in names

"""Where none of packages/ is installed: trials run one after the other, and what needs Ray says what to install."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from zo_sweeps.cli.main import main
from zo_sweeps.config import composer
from zo_sweeps.methods import registry

ABSENT = "zo-sweeps-ray is not installed, which brings the {}; pip install 'zo-sweeps[ray]'"
EXECUTOR = "executor 'ray'"
GRID = """\
# @package grid
name: tiny
fixed: {model: demo, task: demo_remarks, split: {test: 8}, method: zero_shot}
blocks: {zero_shot: {label: Zero-shot}}
tables: {accuracy: {layout: accuracy}}
"""


@pytest.fixture(autouse=True)
def _without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(registry, "offered", lambda group: {})
    monkeypatch.setattr(registry, "_names", registry._names.__wrapped__)  # which keeps what it was told
    composer._registered = []  # what Hydra was told is another then, and after the test
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my/grid").mkdir(parents=True)
    (tmp_path / "my/grid/tiny.yaml").write_text(GRID)
    yield
    composer._registered = []


def test_a_sweep_runs_to_its_table_in_its_own_process(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["+grid=tiny", "--config-dir", "my"]) == 0
    said = capsys.readouterr().out
    assert said.count(f"note: trials run one after the other: {ABSENT.format(EXECUTOR)}\n") == 1
    assert "Zero-shot" in said
    assert composer.Composer(["executor=inline"]).notes == ()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["plan", "executor=ray"], f"{EXECUTOR} in the command line"),
        (["plan", "executor.name=ray"], EXECUTOR),
        (["plan", "cluster.address=10.0.0.5:6379"], f"{EXECUTOR} in cluster.address"),
        (["cluster.address=10.0.0.5:6379"], f"{EXECUTOR} in cluster.address"),
        (["head", "start"], "command 'head'"),
        (["worker", "join"], "command 'worker'"),
        (["devices"], "command 'devices'"),
    ],
)
def test_what_needs_it_says_what_to_install(words: list[str], what: str, capsys: pytest.CaptureFixture[str]) -> None:
    grid = ["+grid=quickstart"] if words[0] == "plan" or "=" in words[0] else []
    assert main([*words, *grid]) == 2
    assert capsys.readouterr().err == f"zo_sweeps: {ABSENT.format(what)}\n"

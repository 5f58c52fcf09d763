from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

import toy
from built import client, one_store
from reference import Reference

__all__ = ["client", "one_store"]  # fixtures
BATTERY = "Current Battery Service state:\n  AC powered: false\n  level: 81\n  scale: 100\n  temperature: 314\n"


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that is the phone; `adb` on the search path is the stand-in."""
    phone, tools = tmp_path / "phone", tmp_path / "tools"
    (phone / "data" / "local" / "tmp").mkdir(parents=True)
    for i, (kind, value) in enumerate((("cpu-0", 45200), ("skin", 33100))):
        zone = phone / "sys" / "class" / "thermal" / f"thermal_zone{i}"
        zone.mkdir(parents=True)
        (zone / "type").write_text(f"{kind}\n")
        (zone / "temp").write_text(f"{value}\n")
    (tools / "phone_bin").mkdir(parents=True)
    toy.script(tools / "phone_bin" / "dumpsys", f"cat <<END\n{BATTERY}END")
    adb = Path(__file__).with_name("fake_adb.py").read_text()
    (tools / "adb").write_text(f"#!{sys.executable} -IS\n{adb}")
    (tools / "adb").chmod(0o755)
    monkeypatch.setenv("PHONE", str(phone))
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    return phone


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A bundle of 3,000 steps, and the log that it leads to."""
    written = toy.write(tmp_path_factory.mktemp("exported") / "bundle", steps=3000, evaluations=(100, 3000))
    return written.folder, Reference(written).run()

"""`gc` finds an exported program by what the journals of its trials say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.results.test_reclaim import write
from tests.run.common import make
from zo_sweeps.cli.main import main
from zo_sweeps.core.events import read_event
from zo_sweeps.methods.trial_config import TrialConfig, code_of
from zo_sweeps.run.run_trial import set_up
from zo_sweeps_edge import in_program
from zo_sweeps_edge.program import Program


def test_a_program_is_found_by_what_its_trials_journal_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("executorch", reason="needs the extra [edge]")
    exported: list[bytes] = []

    def export(
        model: Any, space: Any, noise: Any, calls: Any, frame: Any, batch: int, *_: Any, **__: Any
    ) -> tuple[Program, bytes]:
        exported.append(b"a program")
        return Program(calls, frame, batch, (), (), None, 0), exported[-1]

    monkeypatch.setattr(in_program, "export", export)  # half a minute
    monkeypatch.setattr(in_program, "compare", lambda *_: None)
    given = ["method=prge", "update.lr=1e-3", "train.steps=1", "split.train=8", "split.dev=4", "split.test=4"]
    trial = make(*given, "device.runtime=executorch")
    monkeypatch.setenv("ZO_SWEEPS_CACHE", str(tmp_path / "cache"))
    set_up(trial, [])
    (program,) = tmp_path.glob("cache/programs/*/program.pte")
    code = code_of(TrialConfig.of(trial.config))
    for name, attempt in (("same", code), ("of_other_code", "0" * 16)):
        write(tmp_path / name, trial, [read_event({"type": "start", "time": 0.0, "attempt": 1, "code": attempt})])
    assert main(["gc", "--yes", f"state_dir={tmp_path / 'of_other_code'}"]) == 0
    assert "there is nothing to drop" in capsys.readouterr().out
    assert main(["gc", "--yes", f"state_dir={tmp_path / 'same'}"]) == 0
    assert f"program {program.parent.name}" in capsys.readouterr().out
    assert len(exported) == 2
    assert [path.name for path in (tmp_path / "cache" / "programs").iterdir()] == [f"{program.parent.name}.lock"]

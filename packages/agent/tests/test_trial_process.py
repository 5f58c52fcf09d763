"""The process in which an agent runs trials, one after the other."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agents import wait
from zo_sweeps_agent.agent.trials import TrialProcess

ENDS_WHAT_IS_SHORT = """
import json, sys
for line in sys.stdin:
    if json.loads(line)["run"].endswith("short"):
        print("ended", flush=True)
"""


@pytest.mark.multiprocess
def test_a_word_on_a_trial_of_a_killed_process_is_none_on_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "short_ends.py").write_text(ENDS_WHAT_IS_SHORT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    slot = TrialProcess(tmp_path / "log", None, ["short_ends"])

    def begin(name: str) -> None:
        spool: Any = SimpleNamespace(folder=Path(name))
        slot.spool = spool
        slot.run({}, {})

    begin("/short")
    wait(lambda: not slot._ended.empty(), 20)
    slot.kill()  # as where the disk is full, before the agent has looked
    begin("/long")
    time.sleep(0.2)
    assert slot.ended() is None
    begin("/short")
    wait(lambda: slot.ended() == "", 20)
    assert slot._process is not None
    slot._process.kill()  # the kernel's, while it is idle
    slot._process.wait()
    begin("/short")
    wait(lambda: slot.ended() == "", 20)
    slot.kill()

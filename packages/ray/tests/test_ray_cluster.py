"""How a driver's own cluster starts."""

from __future__ import annotations

import contextlib
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from zo_sweeps.core.errors import UserError
from zo_sweeps_ray.connection import Connection

pytestmark = pytest.mark.unit


def test_ray_whose_processes_are_late_is_started_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late, other = Exception("The current node timed out during startup. This could"), Exception("no space left")
    for raised, starts, fails in (([late], 2, False), ([late, late], 2, True), ([other], 1, True)):
        began = MagicMock(side_effect=[*raised, None])
        monkeypatch.setattr(Connection, "_init", began)
        connection = Connection(tmp_path, None)
        with pytest.raises(UserError, match="did not start") if fails else contextlib.nullcontext():
            connection.start_local(1)
        connection._opened.close()
        assert began.call_count == starts

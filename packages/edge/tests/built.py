"""What takes long to build, as fixtures; the tests of packages/agent use them, too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import of_all_workers
from zo_sweeps.engine.spaces.prefix import PrefixTuning
from zo_sweeps.methods.space import InstalledSpace


@pytest.fixture(scope="module")
def one_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One store of programs for all processes of the tests: each program is exported once."""
    patch = pytest.MonkeyPatch()
    patch.setenv("ZO_SWEEPS_CACHE", str(of_all_workers(tmp_path_factory, "programs")))
    yield
    patch.undo()


@pytest.fixture(scope="session")
def client() -> Path:
    """The light client, built for this machine."""
    pytest.importorskip("executorch", reason="needs the extra [edge]")
    from zo_sweeps_edge.build_client import build

    return build()


def with_other_last_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make prefixes begin where another kind of CPU computes them: at values with other last bits."""
    here = PrefixTuning.install

    def elsewhere(*args: Any, **options: Any) -> InstalledSpace:
        installed = here(*args, **options)
        for param in installed.params.values():
            param.data *= 1 + 2**-22
        return installed

    monkeypatch.setattr(PrefixTuning, "install", elsewhere)

"""What takes long to build, as fixtures; the tests of packages/agent use them, too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import of_all_workers


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

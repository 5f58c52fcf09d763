"""Equal shares of real sweeps, each a process, on a node of Ray's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.schedule.nodes import Cluster, joined
from zo_sweeps_bench import shares

pytestmark = [pytest.mark.multiprocess, pytest.mark.chaos]


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with joined(monkeypatch) as made:
        yield made


@pytest.mark.parametrize("sweeps", [[(0, 40), (0, 40), (0, 80)], [(0, 80), (0, 80), (15, 40)]], ids=["same", "later"])
def test_three_sweeps_share_two_slots(nodes: Cluster, tmp_path: Path, sweeps: list[tuple[float, int]]) -> None:
    nodes.add("board", cpus=2)
    distance, detail = shares.off_equal(shares.run(tmp_path, nodes, sweeps), 2)
    print(f"\n  {distance:.1f} % off an equal share: {detail}")
    assert distance < shares.MUST

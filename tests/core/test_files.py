"""Files that appear whole or not at all, and JSON lines with a torn end."""

from __future__ import annotations

from pathlib import Path

import pytest

from zo_sweeps.core.files import line_number, read_objects, replace_text, replacing

pytestmark = pytest.mark.unit


def test_a_failed_replacement_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    replace_text(path, "old")

    def fail_half_way() -> None:
        with replacing(path) as part:
            part.write_text("half")
            assert path.read_text() == "old"
            assert [each.name for each in tmp_path.glob("*.json")] == ["a.json"]
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]
    assert path.read_text() == "old"
    replace_text(path, "new ∀")
    assert path.read_text(encoding="utf-8") == "new ∀"


def test_whole_lines_come_with_their_ends_and_a_torn_one_does_not(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    assert read_objects(path) == []
    path.write_bytes(b'{"a": 1}\n[2]\n\xff\n{"b": 2}\n{"c"')
    assert read_objects(path) == [({"a": 1}, 9), (None, 13), (None, 15), ({"b": 2}, 24)]
    assert read_objects(path, 15) == [({"b": 2}, 24)]
    assert [line_number(path, end) for _, end in read_objects(path)] == [1, 2, 3, 4]

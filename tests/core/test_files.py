"""Files that appear whole or not at all, and JSON lines with a torn end."""

from __future__ import annotations

from pathlib import Path

import pytest

from zo_sweeps.core.files import line_number, new_folder, read_objects, replace_text, replacing

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


def test_what_killed_processes_have_left_of_a_folder_goes_with_the_next_that_makes_it_alone(tmp_path: Path) -> None:
    """With its lock held; without one, another process may be at work on what looks like it."""
    left, other = tmp_path / "codes.1.part", tmp_path / "codes2.1.part"
    for folder in (left, other):
        folder.mkdir()
        (folder / "weights").write_text("half")
    with new_folder(tmp_path / "codes") as part:
        (part / "weights").write_text("whole")
    assert left.exists()
    (tmp_path / "codes" / "weights").unlink()
    with new_folder(tmp_path / "codes", alone=True) as part:
        (part / "weights").write_text("whole")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["codes", "codes2.1.part"]


def test_whole_lines_come_with_their_ends_and_a_torn_one_does_not(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    assert read_objects(path) == []
    path.write_bytes(b'{"a": 1}\n[2]\n\xff\n{"b": 2}\n{"c"')
    assert read_objects(path) == [({"a": 1}, 9), (None, 13), (None, 15), ({"b": 2}, 24)]
    assert read_objects(path, 15) == [({"b": 2}, 24)]
    assert [line_number(path, end) for _, end in read_objects(path)] == [1, 2, 3, 4]

"""Bundles: what is written is read; everything that does not fit together or was changed is refused in one line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

import toy
from zo_sweeps.core.errors import UserError
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps_edge import bundle
from zo_sweeps_edge.bundle import Bundle, SplitRows, Training
from zo_sweeps_edge.program import Calls

PROGRAM = b"a program"


def contents(**changes: object) -> toy.Parts:
    return toy.parts(Calls(2, Mode.BOTH), **changes)


@pytest.fixture
def written(tmp_path: Path) -> Bundle:
    return toy.store(tmp_path / "bundle", PROGRAM, contents())


def test_a_bundle_is_read_as_it_was_written(written: Bundle) -> None:
    settings, splits, training = contents()
    assert written.manifest.settings == settings
    assert written.manifest.config == {"method": "prge"}
    assert (written.folder / bundle.PROGRAM).read_bytes() == PROGRAM
    for split, rows in splits.items():
        for field in fields(SplitRows):
            assert np.array_equal(getattr(written.splits[split], field.name), np.float32(getattr(rows, field.name)))
    for field in fields(Training):
        assert np.allclose(getattr(written.training, field.name), getattr(training, field.name), rtol=0, atol=0)
    assert not written.log.exists()


def test_the_clients_settings_are_the_manifests(written: Bundle) -> None:
    lines = [line.split(" ") for line in (written.folder / "settings.txt").read_text().splitlines()]
    single = {words[0]: words[1] for words in lines if len(words) == 2}
    assert single["format"] == str(bundle.FORMAT)
    for name in ("trial_id", "seed", "steps", "queries", "points", "directions", "batch", "eps", "clip"):
        value = getattr(written.manifest.settings, name)
        assert type(value)(single[name]) == value
    files = {name: (int(size), digest) for key, name, size, digest in (w for w in lines if w[0] == "file")}
    for name, (size, digest) in files.items():
        data = (written.folder / name).read_bytes()
        assert (size, digest) == (len(data), hashlib.sha256(data).hexdigest())
    assert {*files, "settings.txt", "manifest.json", "README.md"} == {path.name for path in written.folder.iterdir()}
    assert [w[1:] for w in lines if w[0] == "parameter"] == [
        ["layers.0.B", "64"],
        ["layers.1.B", "1030"],
        ["layers.1.gain", "1"],
    ]


def wrong_order(parts: toy.Parts) -> None:
    parts[2].order[3, 1] = 11


def first_is_missing(parts: toy.Parts) -> None:
    parts[2].order[3, 0] = 10


def wrong_gold(parts: toy.Parts) -> None:
    parts[2].gold[0] = 2


def long_row(parts: toy.Parts) -> None:
    parts[1]["test"].lengths[1] = 17


def column_after_the_row(parts: toy.Parts) -> None:
    parts[1]["dev"].columns[0, 1] = parts[1]["dev"].lengths[0]


def no_test(parts: toy.Parts) -> None:
    del parts[1]["test"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (wrong_order, "order names an example that train does not have"),
        (first_is_missing, "order names an example that train does not have"),
        (wrong_gold, "gold names a slot that no example has"),
        (long_row, "the lengths of test are not from 1 to 16"),
        (column_after_the_row, "a column of dev is not in its row"),
        (no_test, "the splits are"),
    ],
)
def test_arrays_that_do_not_fit_together_are_not_written(
    tmp_path: Path, change: Callable[[toy.Parts], None], message: str
) -> None:
    parts = contents()
    change(parts)
    with pytest.raises(ValueError, match=message):
        toy.store(tmp_path / "bundle", PROGRAM, parts)
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"eps": 0.0}, "out of range"),
        ({"clip": float("inf")}, "out of range"),
        ({"steps": 0}, "out of range"),
        ({"points": 3}, "cannot be divided"),
        ({"parameters": (("a b", (3,)),)}, "has a space"),
        ({"trial_id": "a;reboot"}, "has other characters"),
        ({"batch": 4}, r"order has shape \[12, 3\] instead of \[12, 4\]"),
    ],
)
def test_settings_that_do_not_fit_are_not_written(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    settings, splits, training = contents()
    with pytest.raises(ValueError, match=message):
        toy.store(tmp_path / "bundle", PROGRAM, (replace(settings, **changes), splits, training))


def test_every_changed_file_is_refused(written: Bundle) -> None:
    for name in written.manifest.files:
        path = written.folder / name
        whole = path.read_bytes()
        for changed in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:-1], whole + b"\0"):
            path.write_bytes(changed)
            with pytest.raises(UserError, match=f"{name} is not the file that was written"):
                bundle.read(written.folder)
        path.write_bytes(whole)
    assert bundle.read(written.folder).manifest == written.manifest


def test_a_malformed_manifest_is_refused(written: Bundle) -> None:
    path = written.folder / "manifest.json"
    whole = json.loads(path.read_text())

    def refused(**changes: object) -> str:
        path.write_text(json.dumps({**whole, **changes}))
        with pytest.raises(UserError) as error:
            bundle.read(written.folder)
        return str(error.value)

    settings, files = whole["settings"], whole["files"]
    assert "format 2 is not 1" in refused(format=2)
    assert "settings.steps is no int: '12'" in refused(settings={**settings, "steps": "12"})
    assert "settings.steps is no int: True" in refused(settings={**settings, "steps": True})
    assert "cannot be read" in refused(settings={**settings, "speed": 1})
    assert "cannot be read" in refused(settings=None)
    assert "has no 'test'" in refused(splits={"train": [10, 16], "dev": [17, 16]})
    assert "../order.bin is not the file" in refused(files={**files, "../order.bin": files["order.bin"]})
    assert "order.bin has -1 bytes" in refused(
        files={name: file for name, file in files.items() if name != "order.bin"}
    )
    assert "instead of those of" in refused(splits={**whole["splits"], "dev": [10**9, 16]})
    assert "instead of those of" in refused(splits={**whole["splits"], "dev": [-17, -16]})
    path.write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        bundle.read(written.folder)
    path.unlink()
    with pytest.raises(UserError, match="no bundle: No such file"):
        bundle.read(written.folder)

"""Kept compositions: those of the same files and options, and none after any edit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zo_sweeps.config import composer
from zo_sweeps.config.composer import Composer
from zo_sweeps.config.compositions import Compositions

pytestmark = pytest.mark.unit
MEMBERS = {"space": {"lora": {"name": "lora", "rank": 16}}}
CHOICES = (("method", "prge"),)


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ZO_SWEEPS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "rte.yaml").write_text("shots: 1\n")
    made = Compositions.kept(tmp_path, MEMBERS)
    assert not made.composed
    assert not made.alone
    made.composed[CHOICES], made.chosen[CHOICES] = {"train": {"lr": 1e-3, "batch": None}}, {"space": "lora"}
    made.alone |= {("task", "rte"): {"shots": 1}, ("task", "sst2"): {"labels": {0: "bad"}}}
    made.keep()
    return tmp_path


def test_a_later_process_has_what_was_kept_as_it_was(conf: Path) -> None:
    kept = Compositions.kept(conf, MEMBERS)
    assert kept.composed == {CHOICES: {"train": {"lr": 1e-3, "batch": None}}}
    assert kept.chosen == {CHOICES: {"space": "lora"}}
    assert kept.alone == {("task", "rte"): {"shots": 1}}, "a number as a key would come back as a text"


def test_nothing_kept_is_used_after_an_edit(conf: Path) -> None:
    file = conf / "task" / "rte.yaml"
    stat = file.stat()
    file.write_text("shots: 2\n")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # of the same size and time
    assert not Compositions.kept(conf, MEMBERS).alone
    file.write_text("shots: 1\n")
    assert Compositions.kept(conf, MEMBERS).alone
    assert not Compositions.kept(conf, {"space": {"lora": {"name": "lora", "rank": 8}}}).alone
    (conf / "task" / "new.yaml").write_text("")
    assert not Compositions.kept(conf, MEMBERS).alone


@pytest.mark.parametrize("damage", ["", "[]", '{"key": 1}', None])
def test_a_damaged_file_counts_as_none(damage: str | None, conf: Path) -> None:
    file = conf / "cache" / "compositions.json"
    text = file.read_text()
    file.write_text(text.replace('"alone": [[', '"alone": [[0, ') if damage is None else damage)
    kept = Compositions.kept(conf, MEMBERS)
    assert (kept.composed, kept.chosen, kept.alone) == ({}, {}, {})


def test_a_process_composes_only_what_was_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZO_SWEEPS_CACHE", str(tmp_path))
    composed, parts = [], []
    compose = Composer._compose
    monkeypatch.setattr(Composer, "_compose", lambda self, words: composed.append(words) or compose(self, words))
    for count in (3, 1):  # the second as in another process
        kept = Compositions.kept(composer.conf_dir(), {})
        monkeypatch.setattr(composer, "_packaged", lambda kept=kept: kept)
        composed.clear()
        one = Composer(["+grid=quickstart"])
        parts.append([one.trial_part({"method": "prge", "task": "rte"}), one.locate({"method": "prge"})("space.rank")])
        assert len(composed) == count, composed
    assert parts[0] == parts[1]

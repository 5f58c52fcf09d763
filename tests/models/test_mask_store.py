"""The store of masks: found once, and found again when its file says something else."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest
import torch

from zo_sweeps.models import mask_store


def _ask(folder: str, log: str) -> None:
    def find() -> mask_store.StoredMask:
        with open(log, "a") as file:
            file.write(f"{os.getpid()}\n")
        return mask_store.StoredMask({"a": torch.arange(1000)}, {"a": torch.zeros(1000)})

    assert len(mask_store.get({"k": 1}, find, Path(folder)).masks["a"]) == 1000


@pytest.mark.multiprocess
def test_processes_that_ask_at_once_find_the_mask_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    log = tmp_path / "log"
    processes = [context.Process(target=_ask, args=(str(tmp_path / "store"), str(log))) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    assert len(log.read_text().splitlines()) == 1


@pytest.mark.parametrize("text", ["[]", "{}", '{"fingerprint": "x"}', "{", '"x"'])
def test_a_sidecar_that_does_not_fit_the_mask_has_it_found_again(tmp_path: Path, text: str) -> None:
    found = []

    def find() -> mask_store.StoredMask:
        found.append(1)
        return mask_store.StoredMask({"a": torch.arange(3)}, {"a": torch.zeros(3)})

    first = mask_store.get({"k": 1}, find, tmp_path)
    (sidecar,) = tmp_path.glob("*.json")
    good = sidecar.read_text()
    sidecar.write_text(text)
    second = mask_store.get({"k": 1}, find, tmp_path)
    assert second.fingerprint == first.fingerprint
    assert len(found) == 2
    assert sidecar.read_text() == good
    mask_store.get({"k": 1}, find, tmp_path)
    assert len(found) == 2

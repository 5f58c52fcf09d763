"""The store of masks, asked by several processes."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest
import torch

from zo_sweeps.engine import masks
from zo_sweeps.models import mask_store

pytestmark = pytest.mark.multiprocess


def _ask(folder: str, log: str) -> None:
    def find() -> masks.Masks:
        with open(log, "a") as file:
            file.write(f"{os.getpid()}\n")
        return {"a": torch.arange(1000)}

    found, _ = mask_store.get({"k": 1}, find, Path(folder))
    assert len(found["a"]) == 1000


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

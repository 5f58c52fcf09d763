"""A precision is one that this machine has if a kernel ran; a library that imports is not enough."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from zo_sweeps.devices import doctor, kernels
from zo_sweeps.engine.precisions.int8 import INT8
from zo_sweeps.engine.updates.adam_8bit import Adam8bit

TRIED = {"adam_8bit", "fp4", "int4", "int8", "nf4", "squeezellm", "w4a8"}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine where nothing was tried yet; Python files in it are imported in place of installed ones."""
    monkeypatch.setenv("ZO_SWEEPS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    kernels.troubles.cache_clear()
    yield tmp_path
    kernels.troubles.cache_clear()


@pytest.mark.multiprocess
def test_what_ran_once_is_not_tried_again(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels.troubles() == dict.fromkeys(sorted(TRIED), "")
    kernels.troubles.cache_clear()
    monkeypatch.setattr(kernels, "_tried", lambda: pytest.fail("tried again"))
    assert set(kernels.troubles()) == TRIED
    kernels.troubles.cache_clear()
    monkeypatch.setattr(kernels, "_conditions", lambda: {"torch": "another"})
    monkeypatch.setattr(kernels, "_tried", lambda: {"nf4": "RuntimeError: no"})
    assert kernels.troubles() == {"nf4": "RuntimeError: no"}


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("library", "why"),
    [
        ("raise OSError('libcudart.so: cannot open\\nand more')", "OSError: libcudart.so: cannot open"),
        ("import os; os.abort()", "trying it ended with SIGABRT"),
    ],
)
def test_a_library_that_fails_or_crashes_is_told_and_tried_again(
    machine: Path, library: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (machine / "bitsandbytes.py").write_text(library)
    found = kernels.troubles()
    assert (found["nf4"], found["fp4"], found["adam_8bit"]) == (why, why, why)
    assert found["int8"] in ("", why), "needs no library; not tried if an earlier one crashed"
    check = {one.name: one for one in doctor.codes()}["nf4"]
    assert (check.status, check.detail) == ("warn", why)
    assert "bitsandbytes" in check.fix
    kernels.troubles.cache_clear()
    monkeypatch.setattr(kernels, "_tried", lambda: dict.fromkeys(TRIED, ""))
    assert not any(kernels.troubles().values()), "asked again: it may be mended by now"


@pytest.mark.unit
def test_a_product_that_is_wrong_is_trouble() -> None:
    torch.manual_seed(0)  # the sums of some weights are so small that three times as much is no trouble

    @dataclass(frozen=True)
    class Wrong(INT8):
        def encode(self, weight: Any) -> Any:
            return super().encode(weight * 3)

    assert kernels.trouble(INT8(), "cpu") == ""
    assert "a product of 64 numbers is" in kernels.trouble(Wrong(), "cpu")
    assert kernels.trouble(INT8(), "nosuch").startswith("RuntimeError")


@pytest.mark.unit
def test_a_step_that_goes_elsewhere_is_trouble() -> None:
    @dataclass(frozen=True)
    class Wrong(Adam8bit):
        def optimizer(self, groups: Any) -> Any:
            return Adam8bit(lr=3 * self.lr).optimizer(groups)

    assert kernels.trouble(Adam8bit(), "cpu") == ""
    assert kernels.trouble(Wrong(), "cpu") == "two steps under a constant gradient went 3.00 of their way"
    assert kernels.trouble(Adam8bit(), "nosuch").startswith("RuntimeError")

"""What tests of several areas share: where the repository and the folder of real data are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from zo_sweeps.methods import registry

REPO = Path(__file__).resolve().parents[1]


def shared_folder() -> Path | None:
    folder = Path(os.environ.get("ZO_SHARED") or REPO.parent / "shared")
    return folder.resolve() if folder.is_dir() else None


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with `data` and `models`; a test that needs it is skipped without it."""
    folder = shared_folder()
    if folder is None:
        pytest.skip("no folder of real data: set ZO_SHARED or put it beside the repository as ../shared")
    return folder


@pytest.fixture(scope="session", autouse=True)
def _no_hub() -> None:
    """No test asks the Hugging Face hub: a plan would wait seconds for it where there is no network."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(autouse=True)
def _folders_of_one_test() -> Iterator[None]:
    """Members in the folders of a test (--config-dir) are not found by the next one."""
    before = registry.folders()
    yield
    if registry.folders() != before:
        registry._folders[:] = before
        registry.names.cache_clear()
        registry._load.cache_clear()

"""Paths that tests of several areas share; their fixtures are in the conftest.py above."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]


def of_all_workers(factory: pytest.TempPathFactory, name: str) -> Path:
    """Return the path of a folder that all processes of the tests share."""
    base = factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name

"""Small random checkpoints on disk, written by transformers itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.common import random_model
from zo_sweeps.models.identity import DEMO
from zo_sweeps.models.load import load


@pytest.fixture
def checkpoint(tmp_path: Path) -> Callable[..., Path]:
    """Writes a random model of a family, with the demo tokenizer, as a Hugging Face folder."""

    def write(family: str = "llama", name: str = "model", **save: Any) -> Path:
        model = load(random_model(family), torch.float32, "cpu")
        folder = tmp_path / name
        module: Any = model.module
        module.save_pretrained(folder, **save)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(DEMO / file, folder / file)
        return folder

    return write

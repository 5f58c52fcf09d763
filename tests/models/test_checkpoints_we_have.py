"""The same facts on checkpoints that were trained elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.models.common import local
from zo_sweeps.models.identity import status
from zo_sweeps.models.load import load

pytestmark = [pytest.mark.unit, pytest.mark.realdata]


@pytest.mark.parametrize(("name", "parameters"), [("imdb-llama-6m", 5_868_800), ("stories260K", 260_032)])
def test_a_trained_checkpoint_is_what_it_says_and_writes_english(name: str, parameters: int, shared: Path) -> None:
    folder = shared / "models" / name
    if not folder.is_dir():
        pytest.skip(f"no {folder} (ZO_SHARED)")
    model = local(folder)
    assert status(model).parameters == parameters
    loaded = load(model, torch.float32, "cpu")
    prompt = [*loaded.front, *loaded.tokenizer.encode("Once upon a time there was", add_special_tokens=False)]
    (text,) = loaded.generate([prompt], 16)
    assert len(text.split()) >= 4
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        loss = torch.nn.functional.cross_entropy(loaded.head(loaded.hidden(ids)[0, :-1]), ids[0, 1:])
    assert loss < 6

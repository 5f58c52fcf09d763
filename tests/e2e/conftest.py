"""A small grid for all end-to-end runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plan.common import write_grid

FIXED = {
    "model": "demo",
    "prompt": "mezo",
    "space": {"targets": ["q", "v"]},
    "split": {"train": 64, "dev": 24, "test": 40},
    "train": {"batch": 4, "eval_every": 8},
}
TINY = {  # nothing has to be learned where only the cells are compared
    "model": "random_llama",
    "model.arch.hidden_size": 64,
    "model.arch.intermediate_size": 96,
    "model.arch.num_hidden_layers": 2,
}
SMALL = {
    "name": "small",
    "fixed": {**FIXED, **TINY},
    "axes": {"task": ["demo_remarks"]},
    "seeds": [0, 1],
    "blocks": {
        "zero_shot": {"label": "Zero-shot", "fixed": {"method": "zero_shot"}},
        "fo": {
            "label": "FO",
            "fixed": {"method": "fo_lora_fa", "update": {"lr": 3e-3}, "train": {"steps": 10}},
        },
        "zo": {
            "label": "ZO",
            "fixed": {"method": "prge", "estimator": {"q": 2}, "train": {"steps": 24}},
            "axes": {"update": {"lr": [0.03, 0.1]}},
        },
    },
    "tables": {
        "accuracy": {"layout": "accuracy", "rows": {"zero_shot": "Zero-shot", "fo": "FO", "zo": "ZO"}},
        "time": {"layout": "step_time", "rows": {"fo": "FO", "zo": "ZO"}},
    },
}
TRIALS = 7  # one zero-shot, two FO, four ZO


@pytest.fixture(scope="session")
def conf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_grid(tmp_path_factory.mktemp("conf"), SMALL, "small")

"""One finished sweep for all: a trial of each form of trained weights, and trials that have none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas
import pytest

import zo_sweeps
from tests.cli.common import NOWHERE
from tests.plan.common import write_grid
from zo_sweeps.session import session


def trained(method: str, lr: float, steps: int = 4, **space: Any) -> dict[str, Any]:
    train = {"steps": steps, "eval_every": 1}
    return {"fixed": {"method": method, "update": {"lr": lr}, "train": train, **({"space": space} if space else {})}}


GRID: dict[str, Any] = {
    "name": "forms",
    "fixed": {
        "model": "demo",
        "prompt": "mezo",
        "space": {"targets": ["q", "v"]},
        "train": {"batch": 4},
        "split": {"train": 8, "dev": 8, "test": 8},
    },
    "axes": {"task": ["demo_remarks"]},
    "seeds": [0],
    "blocks": {
        "zero_shot": {"fixed": {"method": "zero_shot"}},
        "fo": trained("fo_lora_fa", 1e-3),
        "lora_fa": trained("prge", 0.5, steps=12),
        "dora": trained("dora", 1e-2),
        "vera": trained("vera", 1e-3, rank=64),
        "prefix": trained("prefix", 0.3),
        "random_subset": trained("random_subset", 1e-3),
        "sensitive": trained("sensitive_task", 1e-3, samples=4, refresh=2),
        "full": trained("mezo", 1e-5),
        "qzo": {"fixed": {**trained("qzo", 1e-2)["fixed"], "precision": {"name": "nf4", "compute": "fp32"}}},
        "diverged": trained("prge", 1e300),
    },
    "tables": {"accuracy": {"layout": "accuracy", "rows": {"lora_fa": "LoRA-FA"}}},
}


@dataclass(frozen=True)
class Swept:
    """A state folder, and what `zo_sweeps.run` returned."""

    state: Path
    conf: Path
    frame: pandas.DataFrame

    def id(self, block: str) -> str:
        (found,) = self.frame.loc[self.frame["block"] == block, "trial_id"]
        return str(found)

    def line(self, block: str) -> dict[str, Any]:
        (found,) = self.frame[self.frame["block"] == block].to_dict("records")
        return {str(key): value for key, value in found.items()}


@pytest.fixture(scope="session")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Swept:
    folder = tmp_path_factory.mktemp("api")
    conf = write_grid(folder / "conf", GRID, "forms")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "STORE_SECONDS", 0.1)
        frame = zo_sweeps.run("forms", ["executor=inline", NOWHERE], folder / "state", [conf])
    return Swept(folder / "state", conf, frame)

"""A folder that is said to hold a model is it, beside published numbers, if it has the shape; else it is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.plan.common import changed, configs, write_grid
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.methods.parts import ModelSource
from zo_sweeps.models.identity import DEMO
from zo_sweeps.plan.as_written import altered
from zo_sweeps.plan.build import Plan, build

ARCH = {
    key: value for key, value in json.loads((DEMO / "config.json").read_text()).items() if key != "transformers_version"
}


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """A grid of a hub's model whose shape is the demo model's."""
    folder = write_grid(
        tmp_path / "conf", changed(fixed={"model": "six_m", "prompt": "mezo", "space": {"targets": ["q"]}})
    )
    hub = {"name": "six_m", "display": "Six-6M", "source": "hub", "path": "somebody/six-6m", "revision": "main"}
    own = {**hub, "family": "llama", "precision": "bf16", "arch": ARCH}
    (folder / "model").mkdir()
    (folder / "model" / "six_m.yaml").write_text(json.dumps(own))
    return folder


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return shutil.copytree(DEMO, tmp_path / "copy")


def planned(conf: Path, *overrides: str) -> tuple[Plan, Composer]:
    composer = Composer(["+grid=tiny", *overrides], [str(conf)])
    return build(composer), composer


def test_a_folder_of_the_shape_is_that_model(conf: Path, copy: Path) -> None:
    plan, composer = planned(conf, "model=six_m", f"model.path={copy}")
    assert plan.trials
    assert {config.model.source for config in configs(plan)} == {ModelSource.LOCAL}
    assert altered(plan, composer) == frozenset(), "published numbers stand beside it"
    assert f"Six-6M is {copy}: compared by shape and vocabulary, and not by its weights" in plan.caveats
    as_local, composer = planned(conf, "model=local", f"model.path={copy}", "precision=bf16")
    assert {*as_local.every} == {*plan.every}, "the weights are the identity, whatever they are called"
    assert altered(as_local, composer) == {("zo", "demo_remarks")}, "a folder that nobody claims to be the model"


def test_a_folder_of_another_shape_is_refused_in_a_line_that_says_where(conf: Path, copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "num_attention_heads": 8, "head_dim": 32}))
    with pytest.raises(UserError) as caught:
        planned(conf, "model=six_m", f"model.path={copy}")
    assert str(caught.value).splitlines()[0] == str(caught.value).rstrip()
    assert "the folder does not hold six_m: heads 8, not 4, head_width 32, not 64 in model.path" in str(caught.value)
    assert f"model=local model.path={copy}" in str(caught.value)


def test_a_shape_that_the_command_line_gives_is_not_the_model_s(conf: Path, copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 256}))
    plan, composer = planned(conf, "model=six_m", f"model.path={copy}", "model.arch.max_position_embeddings=256")
    assert altered(plan, composer) == {("zo", "demo_remarks")}


def test_a_folder_that_is_not_there_is_a_reason_and_no_traceback(conf: Path, tmp_path: Path) -> None:
    plan, _ = planned(conf, "model=six_m", f"model.path={tmp_path / 'absent'}")
    assert not plan.trials
    assert all("no such folder" in reason for reason in plan.missing.values())

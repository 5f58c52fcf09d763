"""What makes two trials the same trial: everything that changes the result, and nothing else."""

from __future__ import annotations

import copy
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.plan.common import changed, named, planned
from zo_sweeps.core.fingerprint import canonical_json, fingerprint
from zo_sweeps.models.identity import DEMO
from zo_sweeps.plan.build import identity

pytestmark = pytest.mark.unit


def config_of(block: str, *overrides: str) -> dict[str, Any]:
    plan = named("quickstart", *overrides)
    trial = next(plan.every[c.trial_id] for c in plan.cells if c.block == block)
    assert fingerprint(identity(trial.config)) == trial.trial_id
    return copy.deepcopy(dict(trial.config))


def put(config: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    config = copy.deepcopy(config)
    *parents, leaf = path.split(".")
    node = config
    for key in parents:
        node = node[key]
    node[leaf] = value
    return config


# Every key of a ZO trial's configuration, with another value for it.
CHANGES: dict[str, Any] = {
    "model.fingerprint": "local:other",
    "task.fingerprint": "sha256:other",
    "task.fields": ["text"],
    "task.label_field": "answer",
    "task.metric": "f1",
    "task.dialects.mezo.template": "{{ sentence }} All in all it was",
    "task.dialects.mezo.loss": "tokens",
    "precision.name": "bf16",
    "estimator.name": "other",
    "estimator.q": 2,
    "estimator.eps": 3e-3,
    "perturbation.name": "rademacher",
    "space.name": "lora",
    "space.rank": 8,
    "space.alpha": 32.0,
    "space.targets": ["q"],
    "update.name": "other",
    "update.lr": 0.7,
    "update.schedule": "linear",
    "update.weight_decay": 0.1,
    "evaluation.mode": "outer",
    "train.steps": 151,
    "train.batch": 3,
    "train.eval_every": 49,
    "train.max_length": 77,
    "split.train": 10,
    "split.dev": 11,
    "split.test": 12,
    "split.seed": 13,
    "seed": 14,
    "device.name": "jetson-orin-nano",
}
SAME: dict[str, Any] = {
    "model.name": "mine",
    "model.display": "Mine",
    "model.path": "/elsewhere",
    "model.source": "local",
    "task.name": "renamed",
    "task.display": "Renamed",
    "task.local": "elsewhere",
    "task.dialects.prge.template": "another dialect than the one in use",
    "method.name": "under_another_name",
    "data.dir": "/elsewhere",
    "device.memory_gb": 8,
    "train.effective_batch": 99,
}


@pytest.mark.parametrize("key", CHANGES)
def test_what_changes_the_result_changes_the_id(key: str) -> None:
    config = config_of("zo_lora_fa_q1")
    assert fingerprint(identity(put(config, key, CHANGES[key]))) != fingerprint(identity(config))


@pytest.mark.parametrize("key", SAME)
def test_names_and_places_do_not(key: str) -> None:
    config = config_of("zo_lora_fa_q1")
    assert fingerprint(identity(put(config, key, SAME[key]))) == fingerprint(identity(config))


def test_a_first_order_trial_has_no_estimator_and_a_zero_shot_one_no_optimiser() -> None:
    fo, zero = config_of("fo_lora_fa"), config_of("zero_shot")
    for key in ("estimator.q", "estimator.eps", "evaluation.mode", "perturbation.name"):
        assert fingerprint(identity(put(fo, key, CHANGES[key]))) == fingerprint(identity(fo))
    for key in ("estimator.q", "update.lr", "space.name", "seed", "train.batch", "train.eval_every"):
        assert fingerprint(identity(put(zero, key, CHANGES[key]))) == fingerprint(identity(zero))
    for key in ("task.dialects.mezo.template", "split.test", "precision.name", "model.fingerprint"):
        assert fingerprint(identity(put(zero, key, CHANGES[key]))) != fingerprint(identity(zero))


def test_of_a_data_set_on_the_hub_the_parts_that_are_used_count() -> None:
    hub = {"path": "org/set", "name": None, "train": "train", "test": "validation"}
    config = put(put(config_of("zo_lora_fa_q1"), "task.fingerprint", "hf:org/set"), "task.hub", hub)
    other = put(config, "task.hub", {**hub, "test": "test"})
    assert fingerprint(identity(config)) != fingerprint(identity(other))


def test_two_configurations_share_an_id_only_if_their_identities_are_equal() -> None:
    rng = random.Random(5)
    base = config_of("zo_lora_fa_q1")
    pool = {**CHANGES, **SAME}
    seen: dict[str, str] = {}
    for _ in range(600):
        config = copy.deepcopy(base)
        for key in rng.sample(sorted(pool), rng.randint(0, 4)):
            config = put(config, key, pool[key])
        config["update"]["lr"] = rng.choice([1e-3, 0.001, 1e-2])
        identified = canonical_json(identity(config))
        assert seen.setdefault(fingerprint(identity(config)), identified) == identified
    assert len(seen) > 100


def test_the_order_of_keys_and_the_spelling_of_numbers_do_not_matter() -> None:
    config = config_of("zo_lora_fa_q1")
    shuffled = json.loads(json.dumps(config, sort_keys=True))
    shuffled["space"]["alpha"] = int(config["space"]["alpha"])
    assert fingerprint(identity(shuffled)) == fingerprint(identity(config))


def test_a_model_copied_elsewhere_is_the_same_model_and_a_changed_one_is_not(tmp_path: Path) -> None:
    copied = shutil.copytree(DEMO, tmp_path / "under another name")
    here = planned(tmp_path / "conf", changed())
    there = planned(tmp_path / "conf", changed(), "model=local", f"model.path='{copied}'")
    assert list(there.every) == list(here.every)
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-3}))
    other = planned(tmp_path / "conf", changed(), "model=local", f"model.path='{copied}'")
    assert not set(other.every) & set(here.every)


def test_data_copied_elsewhere_is_the_same_data_and_a_changed_row_is_not(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "sst2").mkdir(parents=True)
        for split in ("train", "validation", "test"):
            rows = [{"sentence": f"{split} film {i}", "label": i % 2} for i in range(8)]
            (tmp_path / name / "sst2" / f"{split}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))

    def ids(name: str) -> list[str]:
        return list(planned(tmp_path / "conf", changed(), "task=sst2", f"data.dir={tmp_path / name}").every)

    assert ids("a") == ids("b")
    before = ids("a")
    path = tmp_path / "b" / "sst2" / "test.jsonl"
    path.write_text(path.read_text().replace("film 3", "film three"))
    assert not set(ids("b")) & set(before)

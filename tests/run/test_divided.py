"""A model divided over GPUs: the same numbers as whole, and no operation on tensors of two devices."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import accelerate.big_modeling
import accelerate.hooks
import pytest
import torch

from tests.models.common import random_model
from tests.run.common import make, measured, run
from tests.run.two_devices import placed
from zo_sweeps.core.events import ScoredTest, Steps
from zo_sweeps.core.place import Place
from zo_sweeps.core.trial import TrialState
from zo_sweeps.devices.peak_memory import MemoryMeter
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.models.causal import CausalModel
from zo_sweeps.models.load import device_map, load
from zo_sweeps.run import workbench
from zo_sweeps.run.training import Backpropagation

CPUS = [torch.device("cpu"), torch.device("cpu", 0)]  # two places for accelerate, one for torch
GPUS = [torch.device("cuda", i) for i in range(3)]
DEEP = [
    "model=random_llama",
    *(f"model.arch.{size}" for size in ("hidden_size=32", "intermediate_size=1024", "num_hidden_layers=4")),
]
FULL = ["method=fo_full", "update.lr=1e-3", "train.steps=4", *DEEP]


@pytest.fixture(autouse=True)
def _nothing_is_warm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(accelerate.big_modeling, "check_cuda_p2p_ib_support", lambda: True)  # it runs nvidia-smi
    if not request.node.get_closest_marker("gpu"):
        monkeypatch.setattr(accelerate.hooks, "set_module_tensor_to_device", placed)
    workbench.warm = None
    yield
    workbench.warm = None


@pytest.mark.unit
@pytest.mark.parametrize(
    "options",
    [
        (),
        ("method.gradient_checkpointing=true",),
        ("method.mixed_precision=true",),
        ("method.weights=bf16", "update=adam_8bit", "update.lr=1e-3", "model.arch.tie_word_embeddings=true"),
    ],
    ids=["plain", "checkpointed", "mixed", "tied, bf16, 8 bits"],
)
def test_a_divided_model_trains_to_the_same_bits(options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    trial = make(*FULL, *options, "device=cpu")
    outcome, whole = run(trial)
    assert outcome.state is TrialState.SUCCEEDED, outcome.traceback
    base_model = workbench.base_model

    def in_two_places(config: TrialConfig, key: str, _: Any) -> CausalModel:
        model = base_model(config, key, CPUS)
        for block in model.blocks:  # what is inside a layer is on its GPU already; for torch, nothing is on CPU 0
            for part in block.children():
                accelerate.hooks.remove_hook_from_module(part, recurse=True)
        return model

    monkeypatch.setattr(workbench, "base_model", in_two_places)
    again, divided = run(trial)
    assert again.state is TrialState.SUCCEEDED, again.traceback
    assert workbench.warm is not None
    assert {*workbench.warm.model.module.hf_device_map.values()} == {*CPUS}
    assert measured(again, divided) == measured(outcome, whole)
    weights = [event.weights for event in (*whole, *divided) if isinstance(event, ScoredTest)]
    assert len(weights) == 2
    assert weights[0] == weights[1] != ""
    assert again.metrics["memory/trainable_bytes"] == outcome.metrics["memory/trainable_bytes"] > 0


@pytest.mark.unit
def test_a_whole_model_is_not_taken_for_a_divided_one() -> None:
    config = TrialConfig.of(make(*FULL).config)
    whole = workbench.base_model(config, "key", CPUS[:1])
    assert workbench.base_model(config, "key", CPUS[:1]) is whole
    assert not hasattr(whole.module, "hf_device_map")
    assert workbench.base_model(config, "key", CPUS) is not whole


@pytest.mark.unit
@pytest.mark.parametrize("family", ["llama", "opt"])
def test_each_gpu_has_its_share_of_the_weights_and_all_but_layers_is_on_the_first(family: str) -> None:
    model = load(random_model(family, num_hidden_layers=9, hidden_size=64), torch.float32, "cpu")
    placed, held = device_map(model, GPUS), dict.fromkeys(GPUS, 0)
    parameters = dict(model.module.named_parameters())
    for name, param in parameters.items():
        (owner,) = [placed[part] for part in placed if name.startswith(f"{part}.")]
        held[owner] += param.numel()
        assert f"{model.arch.blocks}." in name or owner == GPUS[0]
    layer, total = sum(p.numel() for p in model.blocks[0].parameters()), sum(p.numel() for p in parameters.values())
    assert sum(held.values()) == total
    outside = total - 9 * layer
    assert max(held.values()) <= max(outside, total / 3 + layer), "what the plan counts with"
    order = [placed[f"{model.arch.blocks}.{i}"].index for i in range(9)]
    assert order == sorted(order), "hidden states move once from each GPU to the next"


@pytest.mark.multiprocess
@pytest.mark.long
def test_what_a_layer_reads_is_moved_to_its_gpu() -> None:
    """A forward alone: there is no backward pass on devices that do not exist."""
    done = subprocess.run([sys.executable, "-m", "tests.run.two_devices"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 6
    for *places, error in (lines[:3], lines[3:]):
        assert places == ["twin:0 twin:0"] * 2
        assert "found at least two devices" in error


@pytest.mark.unit
def test_the_costs_of_a_divided_trial_are_of_all_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda gpu: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda gpu: 1)
    monkeypatch.setattr(
        torch.cuda, "max_memory_allocated", lambda gpu: {"cuda:0": 10, "cuda:1": 200, "cuda:2": 3000}[gpu]
    )
    meter = MemoryMeter(*GPUS)
    meter.start()
    assert (meter.stop(), meter.above_baseline) == (3210, 3207)
    assert meter.definition.endswith("summed over 3 GPUs")
    bench: Any = SimpleNamespace(devices=GPUS, device=GPUS[0], config=TrialConfig.of(make(*FULL).config), recorder=None)
    runner = Backpropagation(bench, meter, lambda: False, None)
    assert "divided over several GPUs" in runner.energy_meter().reason
    place = Place.of(runner.device())
    assert "divided over 3 GPUs" in place.text()
    bench.devices = GPUS[:1]
    assert "divided" not in Place.of(runner.device()).text()


@pytest.mark.unit
@pytest.mark.gpu
def test_two_gpus_train_as_one() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    trial = make(*FULL, "device=cuda")
    losses = {}
    for gpus in (1, 2):
        outcome, journal = run(replace(trial, needs=replace(trial.needs, gpus=gpus)))
        assert outcome.state is TrialState.SUCCEEDED, outcome.traceback
        assert outcome.device.get("divided", 1) == gpus
        losses[gpus] = [loss for event in journal if isinstance(event, Steps) for loss in event.losses]
    assert torch.cuda.max_memory_allocated(1) > 0
    assert losses[2] == pytest.approx(losses[1], rel=1e-4)  # the embedding's gradient is summed in any order

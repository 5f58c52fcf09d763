"""Squared gradients in little memory: the same bits, wherever they are summed and whatever is computed again."""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.models.common import TINY, make, random_model
from tests.run.common import make as make_trial
from tests.run.common import measured, run
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import ComputedMask
from zo_sweeps.core.trial import TrialState
from zo_sweeps.devices.estimate import finding_memory
from zo_sweeps.engine import losses, masks
from zo_sweeps.engine.batch import collate
from zo_sweeps.engine.first_order import checkpointed
from zo_sweeps.engine.objectives.tokens import Tokens
from zo_sweeps.models.causal import CausalModel
from zo_sweeps.models.load import load
from zo_sweeps.run import packages
from zo_sweeps.tasks.encode import EncodedCandidate, EncodedExample

pytestmark = pytest.mark.unit
CPU = torch.device("cpu")
GPT2 = {"model_type": "gpt2", "vocab_size": 4096, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}


def target_weights(model: CausalModel) -> dict[str, Any]:
    return {name: layer.weight for name, layer in model.target_modules(["all"]).items()}


def text_losses(model: CausalModel, tokens: int, count: int = 3) -> Iterator[Callable[[], torch.Tensor]]:
    draw = torch.Generator().manual_seed(0)
    for _ in range(count):
        ids = tuple(torch.randint(3, model.arch.vocabulary, (tokens,), generator=draw).tolist())
        batch = collate(
            [EncodedExample((EncodedCandidate(ids, tokens - 1),), 0, (), (), "")], model.pad_id, gold_only=True
        )
        yield lambda batch=batch: Tokens().loss(losses.token_logprobs(model, batch), batch)[0]


@pytest.mark.parametrize("score", ["fisher", "mean_gradient"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", [*TINY, "gpt2"])
def test_scores_are_those_of_plain_backpropagation_to_the_bit(
    family: str, dtype: torch.dtype, score: masks.Score, tmp_path: Path
) -> None:
    """The reference keeps every activation, and a gradient and a sum of every layer at once."""
    model = load(make(source="random", arch=GPT2) if family == "gpt2" else random_model(family), dtype, "cpu")
    weights = target_weights(model)
    total = {name: torch.zeros(weight.shape) for name, weight in weights.items()}
    for weight in weights.values():
        weight.requires_grad_(True)
    for loss in text_losses(model, 24):
        with sdpa_kernel(SDPBackend.MATH):
            found = torch.autograd.grad(loss(), list(weights.values()))
        for name, gradient in zip(weights, found, strict=True):
            total[name] += gradient.float().square() if score == "fisher" else gradient.float()
    for weight in weights.values():
        weight.requires_grad_(False)
    with checkpointed(model.blocks):
        mapped = lambda shapes: packages.Mapped(shapes, tmp_path)
        ours = masks.squared_gradients(weights, text_losses(model, 24), score, mapped)
    assert all("forward" not in vars(block) for block in model.blocks)
    assert list(ours) == list(total)
    for name, value in total.items():
        assert value.any(), "a test that can fail"
        assert torch.equal(ours[name], value if score == "fisher" else value.square()), name
        assert ours[name].device == weights[name].device


class Alive(TorchDispatchMode):
    """Bytes of the storages that operations have made, and that something still holds."""

    def __init__(self, apart: list[torch.Tensor]) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen = {one.untyped_storage()._cdata: 0 for one in apart}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for one in tree_leaves(result):
            if isinstance(one, torch.Tensor) and (key := (storage := one.untyped_storage())._cdata) not in self._seen:
                self._seen[key] = storage.nbytes()
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self._gone, key)
        return result

    def _gone(self, key: int) -> None:
        self.now -= self._seen.pop(key)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("tokens", "vocabulary"), [(128, 8192), (512, 4096)])
def test_the_peak_is_the_estimate_beyond_the_weights(tokens: int, vocabulary: int, dtype: torch.dtype) -> None:
    """Everything is on one device here; the sums, which a GPU does not hold, are told apart by their storage."""
    arch = {"vocab_size": vocabulary, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 8}
    arch |= {"max_position_embeddings": 512, "num_key_value_heads": 4}
    model = load(random_model("llama", **arch), dtype, "cpu")
    weights = target_weights(model)
    peaks = []
    for blocks in (checkpointed(model.blocks), nullcontext()):
        sums = {name: torch.zeros(weight.shape) for name, weight in weights.items()}
        alive = Alive([*model.module.parameters(), *model.module.buffers(), *sums.values()])
        with blocks, alive:
            masks.squared_gradients(weights, text_losses(model, tokens, 1), "fisher", lambda shapes, sums=sums: sums)
        assert all(value.any() for value in sums.values())
        peaks.append(alive.peak)
    value_bytes = dtype.itemsize
    estimate = finding_memory(model.arch, value_bytes, tokens, tokens, 0) - model.arch.parameters * value_bytes
    assert 0.9 < estimate / peaks[0] < 2.5
    assert peaks[1] > 1.5 * peaks[0], "a test that can fail"


def shapes(count: int = 4, entries: int = 1 << 22) -> Mapping[str, torch.Size]:
    return {f"layer {i}": torch.Size((entries // 1024, 1024)) for i in range(count)}


def test_sums_in_a_file_keep_their_values_one_layer_resident(tmp_path: Path) -> None:
    def resident() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssFile"))

    sums, before = packages.Mapped(shapes(), tmp_path), resident()
    assert not list(tmp_path.iterdir()), "the file has no name"
    for added in (1.0, 2.5):
        for i, name in enumerate(sums):
            assert sums[name].dtype == torch.float32
            sums[name].add_(added * (i + 1))
            assert resident() - before < 1.5 * 4 * (1 << 22)
    assert [float(sums[name].min()) for name in sums] == [float(sums[name].max()) for name in sums]
    assert [float(sums[name].mean()) for name in sums] == [3.5, 7.0, 10.5, 14.0]


def test_sums_are_in_memory_that_is_reserved_or_that_a_gpu_leaves_free(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ZO_SWEEPS_CACHE", str(tmp_path / "cache"))
    small, large = shapes(1, 1 << 10), shapes(1, 1 << 12)
    monkeypatch.setattr(packages, "SCORES_BYTES", 1 << 12)
    assert isinstance(packages.zeros(small, CPU), dict)
    assert isinstance(packages.zeros(large, CPU), packages.Mapped)
    free = psutil.virtual_memory()
    for available, kind in ((1 << 15, dict), ((1 << 15) - 2, packages.Mapped)):
        now = free._replace(available=available)
        monkeypatch.setattr(psutil, "virtual_memory", lambda now=now: now)
        assert isinstance(packages.zeros(large, torch.device("cuda")), kind)
    monkeypatch.setattr(packages, "board", lambda: "NVIDIA Jetson Orin Nano Developer Kit")
    assert isinstance(packages.zeros(large, torch.device("cuda")), packages.Mapped)


def test_a_full_disk_is_an_error_that_says_what_to_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(UserError, match=r"cannot store 0\.1 GB of squared gradients") as raised:
        packages.Mapped(shapes(), tmp_path)
    assert "set ZO_SWEEPS_CACHE" in str(raised.value)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot store"):
        packages.Mapped(shapes(), tmp_path / "file" / "below")


def test_a_trial_is_the_same_with_its_sums_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also where the mask is found again during training, with the space installed."""
    trial = make_trial("method=sensitive_task", "space.samples=6", "space.refresh=2", "train.steps=4", "update.lr=1e-3")
    results = []
    for number, most in enumerate((1 << 30, 0)):
        monkeypatch.setenv("ZO_SWEEPS_CACHE", str(tmp_path / str(number)))
        monkeypatch.setattr(packages, "SCORES_BYTES", most)
        outcome, journal = run(trial)
        assert outcome.state is TrialState.SUCCEEDED, outcome.error
        results.append((measured(outcome, journal), [e.fingerprint for e in journal if isinstance(e, ComputedMask)]))
    assert results[0] == results[1]

"""A population in one generation: what a member writes must not depend on the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from tests.models.common import make, random_model
from zo_sweeps.core.memory_parts import Part
from zo_sweeps.devices.estimate import Batches, ForwardRows, GeneratedRows, direction_numbers, memory_by_part
from zo_sweeps.devices.tensors import Tensors
from zo_sweeps.engine.evaluate import evaluate
from zo_sweeps.engine.noise import Sampler
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.perturbations.low_rank import LowRank
from zo_sweeps.engine.precisions.fp32 import FP32
from zo_sweeps.engine.spaces.full import Full
from zo_sweeps.engine.spaces.lora_fa import LoRAFA
from zo_sweeps.engine.updates.sgd import SGD
from zo_sweeps.methods import registry
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.kinds.zo import ZerothOrder
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import NoiseKey, Point, rows_of_points
from zo_sweeps.methods.space import InstalledSpace
from zo_sweeps.models import causal
from zo_sweeps.models.causal import CausalModel
from zo_sweeps.models.load import load

pytestmark = pytest.mark.unit

TEXTS = (
    "This movie is",
    "I",
    "The plot of the film is bad and the actors are",
    "A film",
    "It was",
    "What a great film",
)
POINTS = [Point(NoiseKey(3, 1, query), scale) for query in range(2) for scale in (1.0, -1.0)]
NEW = 12
SCALES = {"lora_fa": 0.03, "dora": 0.1, "vera": 1.0, "prefix": 2.0, "random_subset": 2.0}


@pytest.fixture(scope="module")
def demo() -> CausalModel:
    return load(make(source="demo"), torch.float32, "cpu")


@contextmanager
def installed(model: CausalModel, name: str) -> Iterator[tuple[InstalledSpace, Perturbation, float]]:
    """Yield a space, directions for it, and a scale at which most members write texts of their own."""
    if name == "full":
        yield Full().install(model.module, [], 0), LowRank(1), 0.03
        return
    member: Any = registry.member("space", name)
    space = member().install(model.module, list(model.target_modules(["all"])), 0)
    try:
        yield space, Gaussian(), SCALES[name]
    finally:
        space.uninstall()


def written(
    model: CausalModel, name: str, points: list[Point], mode: Mode, stops: list[int], seen: list[list[str]]
) -> None:
    """Append to `seen` the texts of each point, in order."""
    prompts = [model.prompt(text) for text in TEXTS]

    def f(count: int) -> torch.Tensor:
        texts = model.generate(prompts, NEW, stops, points=count)
        seen.extend(texts[start : start + len(prompts)] for start in range(0, len(texts), len(prompts)))
        return torch.zeros(count)

    with installed(model, name) as (space, noise, scale):
        scaled = [Point(point.key, scale * point.scale) for point in points]
        evaluate(f, model.module, space, noise, scaled, mode)


@pytest.mark.parametrize(
    ("name", "filled"),
    [
        *((name, 64) for name in ("full", "lora_fa", "prefix", "random_subset")),
        ("lora_fa", 1),
        *(pytest.param(name, 64, marks=pytest.mark.long) for name in ("dora", "vera")),
    ],
)
def test_a_member_writes_in_a_population_what_it_writes_alone(
    demo: CausalModel, name: str, filled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(causal, "FILLED", filled)  # batches of several lengths, and of one
    stops = [*demo.stop_ids, *(demo.tokenizer.encode(text, add_special_tokens=False)[0] for text in (".", ","))]
    sizes: list[tuple[int, ...] | None] = []
    head = demo.head
    monkeypatch.setattr(demo, "head", lambda hidden: (sizes.append(rows_of_points.get()), head(hidden))[1])
    together: list[list[str]] = []
    written(demo, name, POINTS, Mode.BOTH, stops, together)
    assert any(len({*own}) > 1 for own in sizes if own), "rows have left: the points have other numbers of them"
    assert len(together) == len(POINTS)
    assert len({tuple(texts) for texts in together}) == len(POINTS), "the points write other texts"
    alone: list[list[str]] = []
    written(demo, name, POINTS, Mode.SEQUENTIAL, stops, alone)
    assert together == alone
    assert rows_of_points.get() is None


def test_a_finished_row_is_forwarded_no_more(demo: CausalModel, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, head = [], demo.head
    monkeypatch.setattr(demo, "head", lambda hidden: (rows.append(len(hidden)), head(hidden))[1])
    prompts = [demo.prompt(text) for text in TEXTS]
    whole = demo._continued(prompts, NEW)
    stop = whole[0][2]
    rows.clear()
    until = demo._continued(prompts, NEW, [stop])
    assert until == [[*row, stop][: [*row, stop].index(stop)] for row in whole]
    forwards = [min(len(row) + 1, NEW) for row in until]
    assert rows == [sum(n > step for n in forwards) for step in range(max(forwards))]
    assert rows[-1] < rows[0] == len(TEXTS)


@pytest.mark.parametrize(("prompt", "new"), [(48, 4), (8, 24)], ids=["the prompts", "the answers"])
@pytest.mark.parametrize("name", ["full", "lora_fa", "lora_fa sampled"])
def test_the_keys_and_values_of_all_members_are_planned(name: str, prompt: int, new: int) -> None:
    model = load(random_model("llama", num_hidden_layers=6), torch.float32, "cpu")
    arch, count, prompts = model.arch, 8, [[3 + i] * prompt for i in range(4)]
    definition, choose = (Full() if name == "full" else LoRAFA()), Sampler(0, 1, 1.0) if "sampled" in name else None
    space = definition.install(model.module, list(model.target_modules(["all"])), 0)
    trainable = sum(param.numel() for param in space.params.values())
    points = [Point(NoiseKey(0, 1, query), 0.01) for query in range(count)]
    tensors = Tensors(torch.device("cpu"))
    for part, tensor in space.tensors():
        tensors.claim(tensor, part)
    for tensor in model.stored():
        tensors.claim(tensor, Part.WEIGHTS)
    noise = LowRank(1) if name == "full" else Gaussian()

    def f(points: int) -> torch.Tensor:
        model.generate(prompts, new, [], points=points, choose=choose)
        return torch.zeros(points)

    with tensors:
        evaluate(f, model.module, space, noise, points, Mode.BOTH)
    drawn = count * direction_numbers(arch, 1) if name == "full" else 0
    drawn += len(prompts) * arch.vocabulary if choose else 0
    generated = GeneratedRows(count * len(prompts), prompt, new, drawn)
    batches = Batches(prompt + new, ForwardRows(1, 1), points=count, generated=generated)
    planned = memory_by_part(arch, batches, ZerothOrder(), FP32(), definition, SGD(), trainable=trainable)
    measured = tensors.at_peak()
    for own in (measured, planned):  # those are planned as for any step
        del own[Part.WEIGHTS], own[Part.TRAINABLE]
    assert 1 <= sum(planned.values()) / sum(measured.values()) < 1.1
    for part, most in measured.items():
        assert planned.get(part, 0) >= most

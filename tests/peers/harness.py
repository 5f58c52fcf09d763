"""Step functions of the authors' releases, cut out of clones that the user has, and our members, over two small layers.

`zo_sweeps_bench.releases` cuts them out. What they draw is kept, for ours to be handed.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from tests.conftest import REPO
from tests.engine import contract
from zo_sweeps.engine import noise
from zo_sweeps.engine.step import Method, step
from zo_sweeps.methods.points import NoiseKey
from zo_sweeps.methods.space import FullModel
from zo_sweeps_bench import releases

STEPS = 7
Addresses = dict[tuple[int, str], Tensor]  # (query, address of ours) -> what a release drew there in a step
Draws = list[list[Tensor]]  # of a step, from one seeding to the next


@dataclass(frozen=True)
class Step:
    """What was drawn in a step, the points and losses that f saw, theta before and after."""

    passes: Draws
    points: list[Tensor]
    losses: list[float]
    before: Tensor
    after: Tensor


class Flat(nn.Linear):
    """A Linear that returns its own numbers."""

    def forward(self) -> Tensor:
        return torch.cat([self.weight.flatten(), self.bias])


class Model(nn.Module):
    """f = 1000 (g . t + .05 |t|^2), t = theta - theta_0, computed in double precision; it notes the points it sees."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(3)
        self.one, self.two = Flat(24, 32), Flat(24, 32)
        for param in self.parameters():
            param.data = 0.1 * torch.randn(param.shape, generator=draw)
        self.points: list[Tensor] = []
        self.losses: list[float] = []
        self.shift: Tensor | float = 0.0
        self.start = self.theta
        self.slopes = torch.randn(self.start.shape, generator=draw, dtype=torch.double)

    @property
    def theta(self) -> Tensor:
        return torch.cat([self.one(), self.two()]).detach().double()

    def forward(self) -> Tensor:
        theta = self.theta + self.shift
        t = theta - self.start
        self.points.append(theta)
        self.losses.append(1000 * float(self.slopes @ t + 0.05 * t @ t))
        return torch.tensor(self.losses[-1], dtype=torch.double)

    def taking(self, take: Callable[[], Any], tape: Tape) -> Step:
        """Take a step and return what was seen of it."""
        before, self.points, self.losses, tape.passes = self.theta, [], [], []
        take()
        return Step(tape.passes, self.points, self.losses, before, self.theta)


SHAPES = {name: param.shape for name, param in Model().named_parameters()}
ENDS = np.cumsum([shape.numel() for shape in SHAPES.values()])
PARTS = {name: slice(end - shape.numel(), end) for (name, shape), end in zip(SHAPES.items(), ENDS, strict=True)}


class Tape:
    """torch for a release: keeps what is drawn between two seedings, and knows no GPU."""

    def __init__(self) -> None:
        self.passes: list[list[Tensor]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def manual_seed(self, seed: int) -> None:
        self.passes.append([])
        torch.manual_seed(seed)

    def tensor(self, values: Sequence[float], device: object = None) -> Tensor:
        return torch.tensor(values)

    def _kept(self, draw: Callable[..., Tensor], *args: Any, **options: Any) -> Tensor:
        self.passes[-1].append(draw(*args, **options))
        return self.passes[-1][-1].clone()

    def randn(self, *args: Any, **options: Any) -> Tensor:
        return self._kept(torch.randn, *args, **options)

    def randn_like(self, *args: Any, **options: Any) -> Tensor:
        return self._kept(torch.randn_like, *args, **options)

    def normal(self, *args: Any, **options: Any) -> Tensor:
        return self._kept(torch.normal, *args, **options)


class Trainer(releases.Trainer):
    """The small model's, which also goes by an engine's names."""

    def __init__(self, model: Model, options: Mapping[str, Any]) -> None:
        super().__init__(model, options)
        self.model_runner, self.random = SimpleNamespace(model=model), np.random.RandomState(2)


def cut(clone: releases.Clone, names: Mapping[str, Any]) -> Any:
    """Return the class of a release's trainer, on ours. Skips without the clone."""
    if (trainer := clone.trainer(names, Trainer)) is None:
        where, name = f"github.com/{clone.repository}", clone.repository.rpartition("/")[2]
        pytest.skip(f"needs a clone of {where} with commit {clone.commit}, {name} in the folder ZO_PEERS")
    return trainer


@dataclass(frozen=True)
class Release:
    """A release and how its steps compare with those of our members.

    Args:
        clone: where its functions are.
        options: what it is run with, `learning_rate` and the like.
        take: takes a step.
        numbers: (step, its draws) -> the draws by our addresses.
        ours: axis -> options of our members that fit the small layers, in place of the preset's.
        evaluated, our_evaluated: of a step, the direction that its points say; ours if its points come otherwise.
        plain: options with which its update is proportional to the estimate.
        slips: (step, parameter) -> whether the update leaves the direction that was evaluated.
        prepare: before the first step, under a seed; draws LOREN's a or nothing.
    """

    clone: releases.Clone
    options: Mapping[str, Any]
    take: Callable[[Any], Any]
    numbers: Callable[[int, Draws], Addresses]
    evaluated: Callable[[Step], Tensor]
    our_evaluated: Callable[[Step], Tensor] | None = None
    ours: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    plain: Mapping[str, Any] = field(default_factory=dict)
    slips: Callable[[int, str], bool] = lambda number, name: True
    prepare: Callable[[Any], Any] = lambda trainer: None

    def run(self, **options: Any) -> tuple[list[Step], list[Addresses]]:
        """Run the release's steps; return them, and what they drew, from step 0 on. Skips without the clone."""
        tape, model = Tape(), Model()
        names = {"torch": tape, "np": SimpleNamespace(random=np.random.RandomState(1), mean=np.mean)}
        names |= {"random": random.Random(), "math": math, "time": time, "F": nn.functional}
        released = cut(self.clone, names)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            trainer: Any = released(model, {**self.options, **options})
            first = model.taking(lambda: tape.manual_seed(0) or self.prepare(trainer), tape)
            steps = [model.taking(lambda: self.take(trainer), tape) for _ in range(STEPS)]
        drawn = named(0, first.passes[0], "/loren/a", of_a_vector="/loren/a") if first.passes[0] else {}
        return steps, [drawn, *(self.numbers(number, one.passes) for number, one in enumerate(steps, 1))]


def named(query: int, draws: Sequence[Tensor], *of_a_matrix: str, of_a_vector: str = "") -> Addresses:
    """Return all draws of a pass by our addresses: those `of_a_matrix` for each matrix, one for each vector."""
    parts = {2: of_a_matrix, 1: (of_a_vector,)}
    places = [(query, name + part) for name, shape in SHAPES.items() for part in parts[len(shape)]]
    return dict(zip(places, draws, strict=True))


def by_query(passes: Draws, *of_a_matrix: str, first: int = 0) -> Addresses:
    """Return the draws of one pass for each query, from the `first` query on."""
    each = (named(query, draws, *of_a_matrix) for query, draws in enumerate(passes, first))
    return {at: drawn for of_query in each for at, drawn in of_query.items()}


def preset(name: str, changed: Mapping[str, Mapping[str, Any]]) -> Method:
    """Return the members of a file of conf/method, with some options changed."""
    told: Any = OmegaConf.to_container(OmegaConf.load(REPO / f"conf/method/{name}.yaml"))
    chosen = {key.partition("/")[2]: member for line in told["defaults"] for key, member in line.items()}
    made = {
        axis: contract.member(axis, chosen[axis], **{**told.get(axis, {}), **changed.get(axis, {})})
        for axis in ("estimator", "perturbation", "update")
    }
    return Method(**made)


def run_ours(method: Method, weights_left_off: bool = False) -> list[Step]:
    """Run our members' steps. `weights_left_off`: with ZO-MOPI's displacement of the weights after query 0."""
    model = Model()
    space = FullModel(model)
    bound = method.bind(space.params)
    state = bound.init(space.params)

    def take(number: int) -> None:
        nonlocal state
        off: Tensor | float = 0.0
        if weights_left_off:
            of_query_0 = NoiseKey(7, number, 0), torch.device("cpu")
            z, other = (
                torch.cat([one.sample(of_query_0[0], *item, of_query_0[1]).flatten() for item in SHAPES.items()])
                for one in (bound.perturbation, bound.perturbation.stepped())
            )
            off = bound.estimator.reach * (z - other).double()

        def f(P: int) -> Tensor:
            model.shift = off if len(model.points) > 1 else 0.0
            return model().reshape(1)

        _, state = step(bound, model, space, f, state, seed=7, step=number, lr=bound.update.lr)
        model.shift = 0.0
        if isinstance(off, Tensor):
            for name, part in PARTS.items():
                space.params[name].add_(off[part].view(SHAPES[name]).float())

    with torch.no_grad():
        return [model.taking(lambda number=number: take(number), Tape()) for number in range(1, STEPS + 1)]


def handing_out(numbers: Sequence[Addresses]) -> Callable[..., Tensor]:
    """Return an `engine.noise.combine` that has a release's numbers where ours would be drawn."""
    draw = noise.combine

    def combine(
        terms: noise.Terms, name: str, shape: torch.Size, device: object = "cpu", *,
        base: Tensor | None = None, out: Tensor | None = None, start: int = 0,
    ) -> Tensor:  # fmt: skip
        total = torch.zeros(shape) if base is None else base.clone()
        for key, scale in terms:
            drawn = numbers[key.step].get((key.query, name))  # a smaller parameter may have a beginning of them
            z = draw([(key, 1.0)], name, shape) if drawn is None else drawn.flatten()[: shape.numel()].view(shape)
            total += scale * z
        return total if out is None else out.copy_(total)

    return combine


def compared(which: slice = slice(None), with_the_first: bool = False) -> Callable[[Step], Tensor]:
    """Return step -> - sum_i (f_i - mean) (theta_i - mean) over some of its points, or with the first for the mean."""

    def direction(one: Step) -> Tensor:
        points, losses = torch.stack(one.points[which]), torch.tensor(one.losses[which]).double()
        middle, mean = (points[0], losses[0]) if with_the_first else (points.mean(0), losses.mean())
        return -(losses - mean) @ (points - middle)

    return direction

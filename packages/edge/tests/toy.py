"""A small program with the methods and arguments of edge/program.py, which exports in two seconds.

theta has L parameters whose elements are all alike; z is word 0 of its address as a fraction, or PeZO's. Scores are
sines of a sum over theta times a feature of the row, so that losses depend on every argument.
"""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from zo_sweeps.methods.evaluation import Mode
from zo_sweeps_edge import bundle
from zo_sweeps_edge.bundle import Bundle, Settings, SplitRows, Training
from zo_sweeps_edge.noise import Noise
from zo_sweeps_edge.program import Calls

STEPS, BATCH, PLACES, WIDTH, GROUP, START = 12, 3, 2, 16, 1024, 0.5
PARAMETERS = (("layers.0.B", (32, 2)), ("layers.1.B", (1030,)), ("layers.1.gain", (1,)))  # in 1, 2 and 1 groups
OWNER = [0, 1, 1, 2]  # parameter of each group of 1,024 elements


class Theta(nn.Module):
    def __init__(self, calls: Calls, noise: Noise | None) -> None:
        super().__init__()
        self.calls, self.noise = calls, noise
        self.register_buffer("owner", torch.tensor(OWNER))
        self.register_buffer("value", torch.zeros(len(OWNER) * GROUP))

    def z(self, words: Tensor) -> Tensor:
        if self.noise is not None:
            return self.noise(words.unsqueeze(0))[0]
        of_group = words.index_select(0, self.owner)[:, :1].to(torch.float32) * 2.0**-31
        return of_group.expand(-1, GROUP).flatten()

    def update(self, theta: Tensor, past: Tensor, grads: Tensor, lr: Tensor) -> Tensor:
        coefficients = (-lr * (grads / self.calls.q)).to(torch.float32)
        for i in range(self.calls.q):
            theta = theta + self.z(past[i]) * coefficients[i]
        self.value.copy_(theta)
        return theta


class Forward(nn.Module):
    def __init__(self, theta: Theta, scored: tuple[int, int, int]) -> None:
        super().__init__()
        self.theta, self.scored = theta, scored

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        ids, columns, tokens, weights, bias, share, gold, words, eps, past, grads, lr = inputs
        theta, calls = self.theta.update(self.theta.value, past, grads, lr), self.theta.calls
        points = []
        for i in range(calls.directions):
            z = self.theta.z(words[i])
            points += [theta + z * eps, theta + z * -eps] if calls.both_signs else [theta + z * eps]
        places = torch.stack(points)[:, ::GROUP].sum(1)
        of_row = ids.to(torch.float32).sum(1) + columns.to(torch.float32).sum(1)
        features = ((tokens.to(torch.float32) * weights).sum(1) + of_row.unsqueeze(1)).view(self.scored) * 0.01
        scores = torch.sin(places.view(-1, 1, 1) * features) + bias.view(self.scored)
        terms = (scores - scores.gather(2, gold.unsqueeze(2)) * 2).pow(2).gather(2, gold.unsqueeze(2)).squeeze(2)
        return (terms * share).sum(1), scores


class Apply(nn.Module):
    def __init__(self, theta: Theta) -> None:
        super().__init__()
        self.theta = theta

    def forward(self, past: Tensor, grads: Tensor, lr: Tensor, fresh: Tensor) -> Tensor:
        before = torch.where(fresh > 0, torch.full_like(self.theta.value, START), self.theta.value)
        return self.theta.update(before, past, grads, lr).clone()


@cache
def export(calls: Calls, rows_per_example: int, slots: int, noise: Noise | None = None) -> bytes:
    from executorch.exir import ExecutorchBackendConfig, to_edge
    from executorch.exir.passes import MemoryPlanningPass

    theta, long = Theta(calls, noise), torch.int64
    P, q, N = calls.points, calls.q, calls.points * BATCH * rows_per_example
    W = len(PARAMETERS) if noise is None else noise.addresses
    inputs = (
        *(torch.zeros(shape, dtype=long) for shape in ((N, WIDTH), (N, PLACES), (N, PLACES, slots))),
        *(torch.zeros(shape) for shape in ((N, PLACES, slots), (N, slots), (P, BATCH))),
        torch.zeros(P, BATCH, dtype=long),
        torch.zeros(calls.directions, W, 2, dtype=torch.int32),
        torch.zeros(1),
        torch.zeros(q, W, 2, dtype=torch.int32),
        torch.zeros(q, dtype=torch.float64),
        torch.zeros(1, dtype=torch.float64),
    )
    dynamic = ({1: 8 * torch.export.Dim("T", min=1, max=WIDTH // 8)}, *[None] * (len(inputs) - 1))
    forward = Forward(theta, (P, BATCH, rows_per_example * slots))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        methods = {
            "forward": torch.export.export(forward, inputs, dynamic_shapes=(dynamic,), strict=False),
            "apply": torch.export.export(Apply(theta), (*inputs[-3:], torch.zeros(1, dtype=long)), strict=False),
        }
        planning = MemoryPlanningPass(share_mutable_buffers=True)
        config = ExecutorchBackendConfig(memory_planning_pass=planning, emit_mutable_buffer_names=True)
        return bytes(to_edge(methods).to_executorch(config).buffer)


def rows(count: int, slots: int, random: np.random.Generator) -> SplitRows:
    lengths = random.integers(1, WIDTH + 1, count)
    ids = random.integers(1, 9, (count, WIDTH)) * (np.arange(WIDTH) < lengths[:, None])
    columns = random.integers(0, lengths[:, None], (count, PLACES))
    tokens = random.integers(1, 9, (count, PLACES, slots))
    return SplitRows(ids, lengths, columns, tokens, random.random((count, PLACES, slots)), np.zeros((count, slots)))


def settings(calls: Calls, rows_per_example: int, slots: int, **changes: object) -> Settings:
    facts = {
        "trial_id": "0123abcd",
        "seed": 7,
        "steps": STEPS,
        "queries": calls.q,
        "points": calls.points,
        "directions": calls.directions,
        "batch": BATCH,
        "rows_per_example": rows_per_example,
        "places": PLACES,
        "slots": slots,
        "multiple": 8,
        "eps": 1e-2,
        "clip": 0.0,
        "parameters": PARAMETERS,
        "evaluations": (5, STEPS),
    }
    return Settings(**{**facts, **changes})


Parts = tuple[Settings, dict[str, SplitRows], Training]


def parts(
    calls: Calls,
    rows_per_example: int = 1,
    slots: int = 2,
    rates: NDArray[np.float64] | None = None,
    **changes: object,
) -> Parts:
    """Return the contents of a bundle of 12 steps, or as `changes` of the settings say."""
    random, examples = np.random.default_rng(0), 10
    facts = settings(calls, rows_per_example, slots, **changes)
    counts = {"train": examples * rows_per_example, "dev": 17, "test": 3}
    splits = {name: rows(count, slots, random) for name, count in counts.items()}
    splits["dev"].bias[2, -1] = -np.inf
    gold, mass = random.integers(0, rows_per_example * slots, examples), random.integers(1, 4, examples)
    order = random.integers(0, examples, (facts.steps, BATCH))
    order[1, 1:] = examples  # none: a batch that is too small
    rates = np.linspace(0.3, 0.03, facts.steps) if rates is None else rates
    return facts, splits, Training(gold, mass, order, rates)


def store(folder: Path, program: bytes, contents: Parts) -> Bundle:
    """Write a bundle, and read it."""
    file = folder.with_suffix(".pte")
    file.write_bytes(program)
    bundle.write(folder, file, *contents, config={"method": "prge"}, fingerprints={"model": "toy"})
    return bundle.read(folder)


def write(
    folder: Path,
    mode: Mode = Mode.BOTH,
    q: int = 2,
    rows_per_example: int = 1,
    slots: int = 2,
    noise: Noise | None = None,
    **changes: Any,
) -> Bundle:
    """Export the program and write a bundle; `changes` as for `parts`."""
    calls = Calls(q, mode)
    program = export(calls, rows_per_example, slots, noise)
    if noise is not None and noise.cycles is not None:
        changes["cycles"] = (noise.cycles.stride, *noise.cycles.lengths)
    return store(folder, program, parts(calls, rows_per_example, slots, **changes))


def script(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path

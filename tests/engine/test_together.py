"""Forwards of several trials together: equal to those of each alone up to rounding, whatever their shapes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engine.conftest import TinyModel, make_examples, targets, tiny_model
from zo_sweeps.engine import losses
from zo_sweeps.engine.batch import Batch, collate
from zo_sweeps.engine.estimators.rge import RGE
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.schedules.linear import Linear
from zo_sweeps.engine.spaces.dora import DoRA
from zo_sweeps.engine.spaces.lora import LoRA
from zo_sweeps.engine.spaces.lora_fa import LoRAFA
from zo_sweeps.engine.step import Method
from zo_sweeps.engine.together import ROUNDS, Pace, Seat, Table
from zo_sweeps.engine.train import Scores, StepDone, train
from zo_sweeps.engine.types import DivergedError
from zo_sweeps.engine.updates.sgd import SGD
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.space import LayerSpace

pytestmark = pytest.mark.unit
EXAMPLES = make_examples(40)
STEPS = 4


@dataclass(frozen=True)
class Model(TinyModel):
    """A tiny model that can host others' rows; limits: the most rows of decoder and head, as if memory ended there."""

    limit: int = 1000
    limit_of_head: int = 1000
    pad_id: int = 0

    def packs(self, length: int) -> bool:
        return True

    def hidden(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        if len(input_ids) > self.limit:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")
        return super().hidden(input_ids, attention_mask, positions)

    def head(self, hidden: Tensor) -> Tensor:
        if len(hidden) > self.limit_of_head:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")
        return super().head(hidden)


@dataclass
class Trial:
    """One trial: a seed of its own draws its space, its batches and its directions."""

    seed: int
    space: LayerSpace
    steps: int = STEPS
    rows: int = 3
    packed: bool = True
    mode: Mode = Mode.BOTH
    q: int = 2
    lr: float = 0.05
    poisoned: int = 0  # the step at which its loss is infinite

    def batch(self, step: int) -> Batch:
        start = (7 * self.seed + 3 * step) % 30
        return collate(EXAMPLES[start : start + self.rows], 0, packed=self.packed)

    def loss(self, step: int, logprobs: Tensor, batch: Batch) -> Tensor:
        return losses.candidates(logprobs, batch) * (float("inf") if step == self.poisoned else 1.0)

    def run(self, base: TinyModel, seat_at: Table | None = None) -> list[StepDone]:
        model = Model(deepcopy(base.module))
        installed: Any = self.space.install(model.module, targets(model), self.seed)
        forwards = model if seat_at is None else Seat(seat_at, model, installed)
        method = Method(RGE(q=self.q, eps=1e-2), Gaussian(), SGD(), self.mode)
        score = lambda: Scores(float(losses.token_logprobs(forwards, self.batch(0)).mean()), 0.0, {})
        objective = lambda step, points: self.loss(
            step, losses.token_logprobs(forwards, self.batch(step), points), self.batch(step)
        )
        rates = Linear().over(self.lr, self.steps)
        done = []
        with torch.inference_mode():
            events = train(
                method,
                forwards,
                installed,
                self.batch,
                losses.candidates,
                rates,
                score,
                seed=self.seed,
                steps=self.steps,
                eval_every=2,
                objective=objective,
            )
            for event in events:
                if isinstance(event, StepDone):
                    done.append(event)
        return done


def together(trials: list[Trial], host: Model | None = None) -> tuple[list[list[StepDone] | Exception], Table]:
    """Run each trial in a thread, at one table; also that one thread runs at a time."""
    base, table = tiny_model(), Table(len(trials))
    host = host or Model(deepcopy(base.module))
    table.host = host, trials[0].space.install(host.module, targets(host), 99)
    results: dict[int, list[StepDone] | Exception] = {}

    def run(i: int) -> None:
        with table.turn():
            try:
                results[i] = trials[i].run(base, table)
            except Exception as error:
                results[i] = error

    threads = [threading.Thread(target=partial(run, i), daemon=True) for i in range(len(trials))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return [results[i] for i in range(len(trials))], table


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """All forwards that fit in one batch are computed together; the number of trials in each."""
    monkeypatch.setattr(Pace, "next_together", property(lambda self: True))
    counts: list[int] = []
    stacked = Table._stacked
    monkeypatch.setattr(Table, "_stacked", lambda self, calls: counts.append(len(calls)) or stacked(self, calls))
    return counts


def agrees(theirs: list[StepDone], trial: Trial) -> None:
    """Compare with the trial alone: losses to fp32's rounding, gradients to that of differences over 2 eps."""
    ours = trial.run(tiny_model())
    assert [event.step for event in theirs] == [event.step for event in ours]
    for a, b in zip(theirs, ours, strict=True):
        assert a.loss == pytest.approx(b.loss, abs=2e-5)
        assert a.coefs == pytest.approx(b.coefs, abs=2e-3)


@pytest.mark.parametrize("space", [LoRAFA(rank=4, alpha=8), LoRA(rank=4, alpha=8), DoRA(rank=4, alpha=8)])
@pytest.mark.parametrize("packed", [True, False])
def test_each_trial_has_the_losses_that_it_has_alone(space: LayerSpace, packed: bool, always: list[int]) -> None:
    trials = [
        Trial(seed, space, packed=packed, mode=mode)
        for seed, mode in enumerate((Mode.BOTH, Mode.OUTER, Mode.SEQUENTIAL))
    ]
    results, _ = together(trials)
    for result, trial in zip(results, trials, strict=True):
        assert isinstance(result, list)
        agrees(result, trial)
    assert max(always) == 3
    assert always.count(3) > STEPS


def test_values_of_one_trial_do_not_reach_another(always: list[int]) -> None:
    """Beside a trial whose batches are the same and whose weights are not, every bit is the same."""
    space = LoRAFA(rank=4, alpha=8)
    (first, other), _ = together([Trial(1, space), Trial(2, space)])
    (second, moved), _ = together([Trial(1, space), Trial(2, space, lr=5.0)])
    for one, two, alike in ((first, second, True), (other, moved, False)):
        assert isinstance(one, list)
        assert isinstance(two, list)
        assert ([(e.loss, e.coefs) for e in one] == [(e.loss, e.coefs) for e in two]) is alike


def test_trials_end_apart_and_a_diverged_one_leaves_the_others_alone(always: list[int]) -> None:
    space = LoRAFA(rank=4, alpha=8)
    trials = [Trial(0, space, steps=2), Trial(1, space, poisoned=3), Trial(2, space, steps=6, rows=1)]
    (short, diverged, long), _ = together(trials)
    assert isinstance(diverged, DivergedError)
    assert "at step 3" in str(diverged)
    assert isinstance(short, list)
    assert isinstance(long, list)
    agrees(short, trials[0])
    agrees(long, trials[2])


def test_where_the_head_of_all_does_not_fit_each_has_its_own(always: list[int]) -> None:
    trials = [Trial(seed, LoRAFA(rank=4, alpha=8)) for seed in range(3)]
    results, _ = together(trials, Model(deepcopy(tiny_model().module), limit_of_head=12))
    for result, trial in zip(results, trials, strict=True):
        assert isinstance(result, list)
        agrees(result, trial)
    assert always.count(3) >= STEPS


def test_where_memory_is_too_small_for_all_each_is_computed_apart() -> None:
    trials = [Trial(seed, LoRAFA(rank=4, alpha=8)) for seed in range(3)]
    results, table = together(trials, Model(deepcopy(tiny_model().module), limit=12))
    for result, trial in zip(results, trials, strict=True):
        assert isinstance(result, list)
        ours = trial.run(tiny_model())
        assert [(e.loss, e.coefs) for e in result] == [(e.loss, e.coefs) for e in ours]  # the forwards are its own
    assert table.gain == 1


def test_the_faster_way_is_chosen_when_both_are_known() -> None:
    pace, chosen = Pace(), []
    for number in range(2 * ROUNDS + 4):
        chosen.append(pace.next_together)
        if not pace.is_known:
            (pace.together if chosen[-1] else pace.apart).append((1.0 if chosen[-1] else 1.5) / (1 + number))
    assert chosen[: 2 * ROUNDS + 2] == [True, False] * (ROUNDS + 1)
    assert pace.is_known
    assert all(chosen[2 * ROUNDS + 2 :])
    assert pace.gain == pytest.approx(min(pace.apart[1:]) / min(pace.together[1:]))
    slower = Pace([9.0, *[2.0] * ROUNDS], [0.5, *[1.0] * ROUNDS])
    assert slower.is_known
    assert slower.gain == 1
    assert not slower.next_together

"""Objectives as members: what each computes, what it needs, and which tasks it fits."""

from __future__ import annotations

import pytest
import torch

from tests.engine.conftest import TinyModel
from tests.engine.test_losses import mixed
from tests.tasks.common import load_task, typed
from zo_sweeps.engine import losses
from zo_sweeps.engine.batch import collate
from zo_sweeps.engine.losses import token_logprobs
from zo_sweeps.methods.objective import Objective
from zo_sweeps.methods.registry import members

pytestmark = pytest.mark.unit

MEMBERS: dict[str, Objective] = {name: cls() for name, cls in members("objective").items()}
FITS = {  # the shipped tasks of each kind
    "sst2": {"tokens", "candidates", "label_words", "accuracy"},
    "copa": {"tokens", "candidates", "accuracy"},
    "squad": {"tokens", "f1"},
}


def test_every_objective_has_its_row_here() -> None:
    assert set(MEMBERS) == set().union(*FITS.values()), "add the new objective to FITS, for each kind that it fits"


@pytest.mark.parametrize("task", FITS)
def test_an_objective_fits_the_tasks_it_can_be_computed_of(task: str) -> None:
    assert {name for name, one in MEMBERS.items() if not one.fits(typed(load_task(task)))} == FITS[task]


@pytest.mark.parametrize("name", [name for name, one in MEMBERS.items() if not one.generates])
def test_an_objective_is_its_function_at_every_point_bit_for_bit(name: str, model: TinyModel) -> None:
    batch = collate(mixed(), pad_id=0, gold_only=MEMBERS[name].gold_only)
    logprobs = token_logprobs(model, batch, copies=3)
    got = MEMBERS[name].loss(logprobs, batch)
    assert got.shape == (3,)
    assert torch.equal(got, getattr(losses, name)(logprobs, batch))


@pytest.mark.parametrize("name", [name for name, one in MEMBERS.items() if not one.generates])
def test_a_differentiable_objective_has_a_gradient_and_another_has_none(name: str, model: TinyModel) -> None:
    batch = collate(mixed(), pad_id=0)
    logprobs = token_logprobs(model, batch).detach().requires_grad_(True)
    assert MEMBERS[name].loss(logprobs, batch).requires_grad == MEMBERS[name].differentiable


def test_f1_of_generated_answers_is_minus_the_mean_of_squad_f1() -> None:
    f1 = MEMBERS["f1"].of_texts(["the red cat", "dog", "x"], [["cat"], ["a dog", "cat"], ["y"]])
    assert f1.tolist() == pytest.approx([-(2 / 3 + 1 + 0) / 3])

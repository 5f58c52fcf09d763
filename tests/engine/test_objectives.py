"""Objectives as members: what each computes, what it needs, and which tasks it fits."""

from __future__ import annotations

import pytest

from tests.engine.conftest import TinyModel
from tests.engine.test_losses import mixed
from tests.tasks.common import load_task, typed
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


@pytest.mark.parametrize("task", FITS)
def test_an_objective_fits_the_tasks_it_can_be_computed_of(task: str) -> None:
    fitting = {name for name, one in MEMBERS.items() if not one.fits(typed(load_task(task)))}
    assert fitting & set().union(*FITS.values()) == FITS[task]


@pytest.mark.parametrize("name", [name for name, one in MEMBERS.items() if not one.generates])
def test_a_differentiable_objective_has_a_gradient_and_another_has_none(name: str, model: TinyModel) -> None:
    batch = collate(mixed(), pad_id=0)
    logprobs = token_logprobs(model, batch).detach().requires_grad_(True)
    assert MEMBERS[name].loss(logprobs, batch).requires_grad == MEMBERS[name].differentiable

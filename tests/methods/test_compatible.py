"""Pairs of members that a plan refuses, or gives another id, by the facts of their definitions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.engine import contract
from zo_sweeps.config.composer import Composer
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.models.families import describe
from zo_sweeps.plan.compatible import incompatible, is_corrected
from zo_sweeps_league.perturbations.small_weights import SmallWeights

pytestmark = pytest.mark.unit


def config_of(method: str, train: dict[str, Any] | None = None, **chosen: str) -> TrialConfig:
    tree = Composer().trial_part({"method": method, **chosen})
    tree["precision"] = {"name": "fp32"}
    tree["train"] = {**tree["train"], "batch": 4, **(train or {})}
    return TrialConfig.read(tree)


@pytest.mark.parametrize("examples", [None, 1000])
def test_examples_give_the_steps_of_no_estimator_whose_points_are_as_many_as_parameters(examples: int | None) -> None:
    config = config_of("mezo", {"examples": examples}, estimator="cge", perturbation="coordinate")
    assert not config.estimator.at_theta
    assert config.evaluation.points_per_forward(config.estimator) == 1
    refused = "estimator=cge has two points per parameter, of which train.examples knows no number: give train.steps"
    assert incompatible(config) == ([refused] if examples else [])


def test_an_estimator_through_the_coordinates_is_refused_with_directions_that_read_data() -> None:
    config = config_of("mezo", estimator="cge", perturbation="agzo")
    assert config.forwards(10) == 2 * 10 + 1
    assert any("goes with" in why for why in incompatible(config))


@pytest.mark.parametrize("name", contract.REAL_PERTURBATIONS)
def test_momentum_in_factors_is_of_directions_that_keep_one_of_n01(name: str) -> None:
    config = config_of("lozo_m", perturbation=name)
    why = [one for one in incompatible(config) if "low_rank_momentum" in one]
    refused = "update=low_rank_momentum is of one direction in factors: perturbation=low_rank or tezo, estimator.q=1"
    assert why == ([] if config.perturbation.keeps_factor else [refused])


@pytest.mark.parametrize("name", ["rge", "rloo", "es_one_sided"])
def test_no_update_divides_by_a_mean_that_is_0(name: str) -> None:
    config = replace(config_of("meazo"), estimator=contract.estimator(name))
    why = [one for one in incompatible(config) if "update=meazo" in one]
    what = f"update=meazo divides by the mean of a step's coefficients, and those of estimator={name} add up to 0"
    assert why == ([f"{what}; use update=sgd"] if config.estimator.centred else [])


@pytest.mark.parametrize(
    ("update", "q", "refused"), [("mezo_compat", 3, True), ("mezo_compat", 1, False), ("sgd", 3, False)]
)
def test_no_update_moves_weights_between_directions_that_read_them(update: str, q: int, refused: bool) -> None:
    config = config_of("sparse_mezo", update=update)
    config = replace(config, estimator=replace(config.estimator, q=q))
    why = "update=mezo_compat moves the weights that perturbation=small_weights reads between its 3 directions"
    assert incompatible(config) == ([f"{why}; use update=sgd"] if refused else [])


@pytest.mark.parametrize(
    ("space", "noise", "refused"),
    [
        ("lora_fa", SmallWeights(), True),
        ("lora_fa", SmallWeights(sparsity=0.0), False),
        ("lora_fa", SmallWeights(threshold="current"), False),
        ("full", SmallWeights(), False),
    ],
)
def test_no_mask_is_of_the_first_size_of_entries_that_begin_at_0(
    space: str, noise: SmallWeights, refused: bool
) -> None:
    config = replace(config_of("sparse_mezo", space=space), perturbation=noise)
    why = "matrices of space=lora_fa begin at 0, and perturbation=small_weights moves what is small before step 1"
    assert incompatible(config) == ([f"{why}; use perturbation.threshold=current"] if refused else [])


@pytest.mark.parametrize(
    ("method", "update", "corrected"),
    [
        ("meazo", "meazo", False),
        ("hizoo", "sgd", False),
        ("hizoo", "adam", False),
        ("hizoo", "meazo", True),
        ("hizoo", "conservative", True),
        ("mezo_gv", "meazo", True),
        ("mezo_gv", "conservative", True),
    ],
)
def test_a_trial_whose_update_took_other_numbers_for_coefficients_has_another_id(
    method: str, update: str, corrected: bool
) -> None:
    config = config_of(method, update=update, model="random_llama")
    assert is_corrected(config, describe(config.model.arch)) is corrected


@pytest.mark.parametrize(
    ("method", "update", "decay", "corrected"),
    [
        ("sparse_mezo", "sgd", 0.1, True),
        ("sparse_mezo", "sgd", 0.0, False),
        ("sparse_mezo", "momentum", 0.1, False),
        ("mezo", "sgd", 0.1, False),
    ],
)
def test_a_trial_whose_masks_were_of_decayed_weights_has_another_id(
    method: str, update: str, decay: float, corrected: bool
) -> None:
    config = config_of(method, update=update, model="random_llama")
    config = replace(config, update=replace(config.update, weight_decay=decay))
    assert is_corrected(config, describe(config.model.arch)) is corrected

"""Our members beside the authors' released code: as released they move the weights alike, as published along what they
evaluated, where the release does not. Needs clones of the releases: see CONTRIBUTING.md."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.peers.harness import (
    PARTS,
    SHAPES,
    Addresses,
    Draws,
    Release,
    Step,
    by_query,
    compared,
    cut,
    handing_out,
    named,
    preset,
    run_ours,
)
from zo_sweeps.engine import noise
from zo_sweeps.engine.estimators.es import zscores
from zo_sweeps.engine.updates.sgd import SGD
from zo_sweeps.methods.parts import Model, ModelSource
from zo_sweeps.models.load import load
from zo_sweeps_bench import engine_parts, gpu, releases
from zo_sweeps_bench.releases import Clone
from zo_sweeps_league.updates.mopi import START

pytestmark = pytest.mark.multiprocess  # git reads the clones
LOWDIM = ("_sample_orthogonal_P", "lowdim_zo_perturb_parameters", "lowdim_zo_step", "lowdim_zo_update")
RATES = {"learning_rate": 1e-6, "zo_eps": 1e-3}
PAIR, ONE_SIDED = compared(slice(0, 2)), compared(with_the_first=True)


def is_matrix(name: str) -> bool:
    return len(SHAPES[name]) == 2


def refreshes(number: int) -> bool:
    return number % 3 == 1


def lozo(number: int, passes: Draws) -> Addresses:
    if not refreshes(number):
        return named(0, passes[0], "/U")
    return named(0, passes[0], "/V", "/U") | named(0, passes[3], "/slip", of_a_vector="/slip")


def zo_mopi(number: int, passes: Draws) -> Addresses:
    of_query_0 = named(0, passes[0], "/P", "/u") | named(0, passes[1], "/slip", of_a_vector="/slip")
    return of_query_0 | by_query(passes[2::2], "/u", first=1)


def mezo_gv(number: int, passes: Draws) -> Addresses:
    return named(1, passes[0], "") | named(2, passes[2], "") if number == 1 else named(2, passes[0], "")


def es_step(worker: Any) -> None:
    rewards, seeds = [], [int(seed) for seed in worker.random.randint(1000000000, size=30)]
    for seed in seeds:
        worker.perturb_self_weights(seed, 1e-3)
        rewards.append(-float(worker.model()))
        worker.restore_self_weights(seed, 1e-3)
    worker.update_weights_from_seeds(seeds, zscores(rewards), 5e-4, 30)


def start_of_mopi(n: int, k: int, device: object) -> Tensor:
    """The start of our subspace iteration, for the release, which draws one."""
    return torch.linalg.qr(noise.gaussian(START, "mopi", torch.Size((n, k)))).Q


RELEASES = {
    "lozo": Release(
        releases.LOZO,
        {**RATES, "step_interval": 3, "rank_r": 2},
        lambda trainer: (trainer.lowrank_zo_step(trainer.model, None), trainer.lowrank_zo_update()),
        lozo, PAIR, ours={"perturbation": {"interval": 3}}, slips=lambda number, name: refreshes(number),
    ),
    "zo_muon": Release(
        Clone("OPTML-Group/ZO-Muon", "166a8f3", {"llm/LowDimTrainer.py": [*LOWDIM, "zeropower_via_newtonschulz5"]}),
        {"learning_rate": 1e-2, "zo_eps": 1e-3, "step_interval": 3, "rank_r": 4, "num_samples": 4,
         "multiple_sample": True, "zo_optimizer": "muon"},
        lambda trainer: (trainer.lowdim_zo_step(trainer.model, None), trainer.lowdim_zo_update()),
        lambda number, passes: by_query(passes[::2], *(("/P", "/u") if refreshes(number) else ("/u",))), ONE_SIDED,
        ours={"perturbation": {"interval": 3, "rank": 4}},
        plain={"zo_optimizer": "sgd", "learning_rate": 1e-6},
        slips=lambda number, name: refreshes(number) and is_matrix(name),
    ),
    "zo_mopi": Release(
        Clone("MOFA-LAB/ZO-MOPI", "2ba4f71",
              {"ZOMuonTrainer.py": [
                  *LOWDIM, "_maybe_reset_v_state", "_prepare_v_state", "_zeropower_via_streaming_pi",
                  "_get_scaled_matrix_learning_rate",
              ]}),
        {"learning_rate": 1e-2, "zo_eps": 1e-3, "step_interval": 1, "rank_r": 4, "num_samples": 8,
         "multiple_sample": True, "zo_optimizer": "sgd", "phase2_steps": 100, "k_current": 2, "zo_muon_beta": 0,
         "one_d_lr": 1e-7, "_init_zomuon_state": lambda: None, "_random_orthonormal_basis": start_of_mopi},
        lambda trainer: (trainer.lowdim_zo_step(trainer.model, None), trainer.lowdim_zo_update()),
        zo_mopi, ONE_SIDED, ours={"perturbation": {"rank": 4}, "update": {"components": 2}},
        plain={"phase2_steps": 0, "learning_rate": 1e-6},
        prepare=lambda trainer: vars(trainer).update(V_matrices={}, u_momentum={}),
    ),
    "loren": Release(
        Clone("hseung88/loren", "b80a32b",
              {"model/glue_transformer_loren.py": [
                  "configure_params", "perturb_parameters", "lnes_zo_update", "training_step"
               ], "common/alg_utils.py": ["sgd_with_wdecay"]}),
        {"zero_order_eps": 1e-3, "num_queries": 6, "damping": 0.1, "d_sqrt": 0.1**0.5, "lr_cov": 1e-3, "beta1": 0.9},
        lambda trainer: trainer.training_step(trainer.model, {"input_ids": torch.zeros(1)}, log={}),
        lambda number, passes: by_query(passes[:12:2], ""), compared(),
        slips=lambda number, name: is_matrix(name),  # the first queries count more; later also by its momentum
        prepare=lambda trainer: (
            vars(trainer).update(evec_a={}, momentum={}, param_info={}), trainer.configure_params()
        ),
    ),
    "hizoo": Release(
        Clone("Yanjun-Zhao/HiZOO", "4f99055",
              {"trainer.py": ["efficient_Hessian_perturb_parameters", "zo_Hessian_step_update"]}),
        {**RATES, "alpha": 0.0},
        lambda trainer: trainer.zo_Hessian_step_update(trainer.model, None, 1e-6, trainer.alpha),
        lambda number, passes: named(0, passes[0], ""), compared(slice(1, 3)), plain={"alpha": 1e-5},
        prepare=lambda trainer: vars(trainer).update(
            Hessian_matrix={name: torch.ones(shape) for name, shape in SHAPES.items()}
        ),
    ),
    "mezo_gv": Release(
        Clone("stan-anony/MeZO-GV", "70a2551",
              {"large_models/trainer.py": [
                  "zo_perturb_parameters", "zo_update", "zo_perturb_parameters_mgfwa",
                  "_compute_guided_vector_with_history", "zo_step",
              ]}),
        {"learning_rate": 2e-7, "zo_eps": 1e-3},
        lambda trainer: (trainer.zo_step(trainer.model, None), trainer.zo_update(trainer.model)),
        mezo_gv, PAIR, compared(slice(2, 4)), slips=lambda number, name: name != "one.weight",
    ),
    "es_at_scale": Release(
        Clone("VsonicV/es-at-scale", "574a9d1",
              {"es_at_scale/utils/worker_extension.py": [
                  "_set_seed", "perturb_self_weights", "restore_self_weights", "update_weights_from_seeds"
              ]}),
        {}, es_step,
        lambda number, passes: {(query, ""): drawn[0] for query, drawn in enumerate(passes[::2])}, compared(),
        slips=lambda number, name: False,
    ),
}  # fmt: skip


def moved(one: Step, name: str) -> Tensor:
    return (one.after - one.before)[PARTS[name]]


def cosine(one: Tensor, other: Tensor) -> float:
    return float(torch.cosine_similarity(one, other, dim=0))


@pytest.mark.parametrize("name", RELEASES)
def test_as_released_the_weights_move_as_the_release_moves_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    release = RELEASES[name]
    theirs, numbers = release.run()
    monkeypatch.setattr(noise, "combine", handing_out(numbers))
    ours = run_ours(preset(f"{name}_released", release.ours), weights_left_off=name == "zo_mopi")
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True), 1):
        for part in PARTS.values():
            way, apart = (other.after - theirs[0].before)[part].norm(), (one.after - other.after)[part].norm()
            # Losses of weights that have moved to and fro in fp32 have errors of 1e-5 of their differences.
            assert apart < 1e-4 * way, number


@pytest.mark.parametrize("name", RELEASES)
def test_as_published_every_step_is_along_what_was_evaluated_and_the_releases_is_not(name: str) -> None:
    release = RELEASES[name]
    theirs, _ = release.run(**release.plain)
    method = preset(name, release.ours)
    ours = run_ours(method if isinstance(method.update, SGD) else replace(method, update=SGD(lr=1e-6)))
    our_evaluated = release.our_evaluated or release.evaluated
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True), 1):
        for place, part in PARTS.items():
            assert abs(cosine(moved(one, place), our_evaluated(one)[part])) == pytest.approx(1, abs=1e-5)
            found = abs(cosine(moved(other, place), release.evaluated(other)[part]))
            assert found < 0.999 if release.slips(number, place) else found == pytest.approx(1, abs=1e-5), number


def test_es_at_scale_moves_matrices_of_one_shape_alike_and_ours_as_published_does_not() -> None:
    theirs, _ = RELEASES["es_at_scale"].run()
    for one, other in zip(run_ours(preset("es_at_scale", {})), theirs, strict=True):
        assert cosine(moved(other, "one.weight"), moved(other, "two.weight")) == pytest.approx(1, abs=1e-5)
        assert abs(cosine(moved(one, "one.weight"), moved(one, "two.weight"))) < 5 / 768**0.5


def test_the_benchmark_takes_the_steps_of_the_clones_and_its_own_of_mezo_is_as_theirs() -> None:
    for clone in (releases.MEZO, releases.LOZO):
        cut(clone, {})
    arch = {**engine_parts.LLAMA_58M, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    theirs, ours = (load(Model(source=ModelSource.RANDOM, arch=arch), torch.float32, "cpu") for _ in range(2))
    data = engine_parts.examples([8] * 2, 1)
    loops, source = gpu.released(theirs, data)
    assert source == {"MeZO": "princeton-nlp/MeZO@552cb1b", "LOZO": "optsuite/LOZO@5d1ade5"}
    for _ in range(2):
        np.random.seed(5)
        loops["MeZO"]()
        np.random.seed(5)
        engine_parts.mezo_step(ours, data, seed=np.random.randint(10**9))
    weights = [*zip(theirs.module.parameters(), ours.module.parameters(), strict=True)]
    for a, b in weights:
        torch.testing.assert_close(a, b, rtol=0, atol=1e-8)  # the release rounds its coefficient to fp32
    for _ in range(2):  # the second step keeps V
        loops["LOZO"]()
        assert not any(torch.equal(a, b) or a.requires_grad for a, b in weights)

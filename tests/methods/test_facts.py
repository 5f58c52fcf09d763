"""The facts that a plan takes from definitions, against what the engine does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.engine import contract
from tests.engine.conftest import make_examples, targets, tiny_model
from tests.engine.spaces_common import LINEAR, MEMBERS, arch_of, definition, digest, install, nudge
from zo_sweeps.engine import losses
from zo_sweeps.engine.batch import collate
from zo_sweeps.engine.estimators.rge import RGE
from zo_sweeps.engine.estimators.rge_one_sided import RGEOneSided
from zo_sweeps.engine.evaluate import evaluate
from zo_sweeps.engine.losses import token_logprobs
from zo_sweeps.engine.perturbations.coordinate import Coordinate
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.step import Method, step
from zo_sweeps.engine.updates.sgd import SGD
from zo_sweeps.methods.estimator import SCOUTS, Estimator
from zo_sweeps.methods.evaluation import Evaluation, Mode
from zo_sweeps.methods.points import Layout
from zo_sweeps.methods.space import FullModel
from zo_sweeps.methods.update import Update

pytestmark = pytest.mark.unit
ROLES = {
    "q": "q_proj",
    "k": "k_proj",
    "v": "v_proj",
    "o": "o_proj",
    "gate": "gate_proj",
    "up": "up_proj",
    "down": "down_proj",
}


class Parts(nn.Module):
    """A quadratic of a matrix and a vector that counts its forwards."""

    def __init__(self) -> None:
        super().__init__()
        self.W, self.b = nn.Parameter(torch.ones(3, 4)), nn.Parameter(torch.ones(5))
        self.forwards = 0

    def forward(self) -> Tensor:
        self.forwards += 1
        return (self.W.double().square().sum() + self.b.double().square().sum()).reshape(1)


D = 17


# Estimators and updates: how often f is evaluated


@pytest.mark.parametrize("update", contract.REAL_UPDATES)
@pytest.mark.parametrize("estimator", contract.names("estimator"))
def test_a_step_evaluates_f_as_often_as_planned(estimator: str, update: str) -> None:
    module, planned = Parts(), contract.estimator(estimator)
    space = FullModel(module)
    method = Method(planned, Gaussian(), contract.member("update", update)).bind(space.params)
    state = method.init(space.params)
    step(method, module, space, lambda P: module(), state, seed=0, step=1, lr=1e-3)
    assert module.forwards == planned.evaluations(D) + method.update.evaluations == method.evaluations


@pytest.mark.parametrize("name", contract.names("estimator"))
def test_an_estimator_has_as_many_points_and_directions_as_planned(name: str) -> None:
    planned = contract.estimator(name)
    bound = planned.bind(D)
    points = bound.points(5, 3)
    scouts = planned.gives == SCOUTS  # their queries follow the directions'
    moved = {point.key for point in points if point.scale and not (scouts and point.key.query >= bound.budget)}
    assert len(points) == planned.evaluations(D) == bound.evaluations(D)
    assert len(moved) == planned.directions(D) == bound.directions(D) == bound.budget
    assert {(key.seed, key.step) for key in moved} == {(5, 3)}
    assert len(bound.combine(points, [1.0] * len(points)).coefs) == planned.directions(D) * (1 + bool(planned.gives))
    if contract.known("estimator", name, {"q": 7}):
        assert contract.member("estimator", name, q=7).budget == 7


def at_coordinates(name: str) -> bool:
    return bool(contract.kind("estimator", name).coordinates)


@pytest.mark.parametrize("name", contract.names("estimator"))
def test_an_estimator_through_the_coordinates_has_a_perturbation_that_goes_with_it(name: str) -> None:
    if at_coordinates(name):
        assert [one for one in contract.names("perturbation") if contract.kind("perturbation", one).coordinates]
        assert contract.estimator(name).directions(D) == D


@pytest.mark.parametrize("name", contract.zeroth_order_updates())
def test_an_updates_state_is_as_large_as_planned(name: str) -> None:
    update = contract.member("update", name)
    params = dict(Parts().half().named_parameters())
    state = update.init(params)
    tensors = held(state)
    assert update.keeps_state == bool(state)
    assert all(tensor.is_floating_point() for tensor in tensors)
    assert sum(tensor.nbytes for tensor in tensors) == update.state_copies * update.state_bits / 8 * D


def held(state: object) -> list[Tensor]:
    if isinstance(state, Tensor):
        return [state]
    return [tensor for value in state.values() for tensor in held(value)] if isinstance(state, dict) else []


@pytest.mark.parametrize("name", contract.names("update"))
def test_an_update_has_an_optimizer_exactly_where_it_says_so(name: str) -> None:
    update, params = contract.member("update", name, lr=0.25), list(Parts().parameters())
    groups = [{"params": params, "weight_decay": 0.5}]
    if not update.backpropagates:
        with pytest.raises(NotImplementedError):
            update.optimizer(groups)
        return
    (group,) = update.optimizer(groups).param_groups
    assert (group["lr"], group["weight_decay"], group["params"]) == (0.25, 0.5, params)


# Modes


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("q", [1, 2, 5])
def test_a_modes_forwards_are_those_that_evaluate_makes(q: int, mode: Mode) -> None:
    groups, sizes = mode.groups(RGE(q).points(0, 1)), seen_sizes(RGE(q), mode)
    assert [len(group) for group in groups] == sizes
    assert sorted(i for group in groups for i in group) == list(range(2 * q))
    assert max(sizes) == mode.points_per_forward(q)
    assert len(sizes) == (mode.forwards or len(sizes))
    if q > 1:
        assert mode.batched == any(size > 1 for size in sizes)
        keys = [{RGE(q).points(0, 1)[i].key for i in group} for group in groups]
        assert mode.mixes_queries == any(len(group) > 1 for group in keys)
        assert (mode.forwards is None) == (len(sizes) != len(seen_sizes(RGE(q + 1), mode)))


@pytest.mark.parametrize("mode", Mode)
def test_a_mode_groups_one_sided_points_as_evaluate_does(mode: Mode) -> None:
    groups = mode.groups(RGEOneSided(4).points(0, 1))
    assert [len(group) for group in groups] == seen_sizes(RGEOneSided(4), mode)
    assert max(map(len, groups)) <= mode.points_per_forward(4)


@pytest.mark.parametrize(("q", "most", "update"), [(1, None, "conservative"), (4, None, "sgd"), (4, 3, "sgd")])
@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("name", [name for name in contract.names("estimator") if not at_coordinates(name)])
def test_the_most_points_of_a_steps_forwards_are_those_that_are_planned(
    name: str, mode: Mode, q: int, most: int | None, update: str
) -> None:
    estimator = contract.member("estimator", name, **contract.queries(name, q))
    mover = contract.member("update", "sgd" if estimator.owns_rows else update)
    planned = Evaluation(mode, most).points_per_forward(estimator, mover.evaluations)
    assert max(seen_sizes(estimator, mode, mover, most)) == planned


def seen_sizes(estimator: Estimator, mode: Mode, update: Update | None = None, most: int | None = None) -> list[int]:
    """Points in each forward of a step."""
    model, sizes = tiny_model(), []
    space = install("lora_fa", model)

    def objective(points: int) -> Tensor:
        sizes.append(points)
        return torch.arange(1.0, points + 1)

    method = Method(estimator, Gaussian(), update or SGD(), mode, most=most).bind(space.params)
    of_step = [objective] * method.estimator.budget if estimator.owns_rows else objective
    step(method, model.module, space, of_step, method.init(space.params), seed=0, step=1, lr=1e-3)
    return sizes


# Spaces


@pytest.mark.parametrize("layers", [("all",), ("q", "v"), ("down",)])
@pytest.mark.parametrize("name", MEMBERS)
def test_a_space_moves_as_many_parameters_as_planned(name: str, layers: tuple[str, ...]) -> None:
    model = tiny_model()
    arch = arch_of(model)
    changes: list[dict[str, Any]] = [
        {},
        {"rank": 3, "density": 0.013, "length": 7},
        {"density": 1e-6},
        {"scope": "global", "density": 0.013},
    ]
    for change in changes:
        given = contract.known("space", name, {"targets": layers, **change})
        space = definition(name, **given)
        installed = install(name, model, layers=[f"{role}_proj" for role in arch.roles(space.layers)], **given)
        assert sum(param.numel() for param in installed.params.values()) == space.trainable(arch), given
        installed.uninstall()


@pytest.mark.parametrize("name", MEMBERS)
def test_several_points_fit_one_forward_exactly_where_a_space_says_so(name: str) -> None:
    model, kind = tiny_model(), contract.kind("space", name)
    space = install(name, model)
    assert space.batched == kind.batched
    batch = collate(make_examples(2), pad_id=0)

    def losses_in(mode: Mode) -> list[float]:
        objective = lambda P: losses.candidates(token_logprobs(model, batch, P), batch)
        return evaluate(objective, model.module, space, Gaussian(), RGE(2).points(0, 1), mode)

    expected = losses_in(Mode.SEQUENTIAL)
    for mode in (mode for mode in Mode if mode.batched):
        if kind.batched:
            assert losses_in(mode) == pytest.approx(expected, abs=1e-5)
        else:
            with pytest.raises(ValueError, match="use mode 'sequential'"):
                losses_in(mode)


@pytest.mark.parametrize("name", MEMBERS)
def test_the_models_own_weights_have_moved_exactly_where_a_space_says_so(name: str) -> None:
    model = tiny_model()
    before = digest(model.module.parameters())
    space = install(name, model)
    zeros = [key for key, param in space.params.items() if param.dim() == 2 and not param.any()]
    assert contract.kind("space", name).has_zeros == bool(zeros)
    nudge(space)
    space.uninstall()
    assert (digest(model.module.parameters()) != before) == contract.kind("space", name).moves_base


@pytest.mark.parametrize("name", MEMBERS)
def test_a_space_that_needs_gradients_is_not_installed_without_them(name: str) -> None:
    model, space = tiny_model(), definition(name)
    if space.needs_gradients:
        with pytest.raises(AssertionError, match="compute the mask before"):
            space.install(model.module, targets(model, LINEAR), 0)
    else:
        space.install(model.module, targets(model, LINEAR), 0)


@pytest.mark.parametrize("name", MEMBERS)
def test_a_spaces_parameters_change_at_the_steps_that_it_says(name: str) -> None:
    space = definition(name)
    installed = install(name, tiny_model())
    assert space.renewed_every == 0
    assert not any(installed.changes_at(number) for number in range(1, 12))
    if contract.known("space", name, {"refresh": 3}):
        assert definition(name, refresh=3).renewed_every == 3
        installed = install(name, tiny_model(), refresh=3)
        assert [number for number in range(1, 12) if installed.changes_at(number)] == [4, 7, 10]


@pytest.mark.parametrize("name", MEMBERS)
def test_a_space_that_takes_positions_says_how_many(name: str) -> None:
    space = definition(name)
    if space.positions:
        assert {param.shape[-2] for param in install(name, tiny_model()).params.values()} == {space.positions}


# Precisions


@pytest.mark.parametrize("name", contract.names("precision"))
def test_a_format_has_the_bytes_of_its_dtype(name: str) -> None:
    precision = contract.member("precision", name)
    assert precision.format.bytes == precision.dtype.itemsize


@pytest.mark.parametrize("name", contract.names("precision"))
def test_a_model_takes_the_bytes_that_a_precision_says(name: str) -> None:
    from tests.models.common import TINY, make
    from zo_sweeps.models.load import load

    precision = contract.member("precision", name)
    model = load(
        make(source="random", arch=TINY["llama"]), precision.dtype, "cpu", precision if precision.coded else None
    )
    assert model.weight_bytes == precision.weight_bytes(model.arch)


# Perturbations


@pytest.mark.parametrize("name", contract.names("perturbation"))
def test_binding_leaves_a_perturbation_as_it_was(name: str) -> None:
    made = contract.member("perturbation", name)
    before = dict(vars(made))
    made.bind(contract.LAYOUT).bind(contract.LAYOUT)
    assert vars(made) == before


def test_a_method_is_bound_to_the_space_that_it_is_given() -> None:
    params = dict(Parts().named_parameters())
    for name in contract.names("estimator"):
        planned = contract.estimator(name)
        bound = Method(planned, Coordinate(), SGD()).bind(params)
        assert bound.d == D
        assert isinstance(bound.perturbation, Coordinate)
        shapes, dtypes = {name: p.shape for name, p in params.items()}, {name: p.dtype for name, p in params.items()}
        farthest = max(abs(point.scale) for step in range(1, 301) for point in planned.bind(D).points(0, step))
        reach = bound.estimator.reach
        assert farthest <= reach
        assert farthest == pytest.approx(reach, rel=0.02), "distances may be drawn for each direction, up to `reach`"
        assert bound.perturbation.layout == Layout(shapes, planned.directions(D), dtypes, reach)
        assert bound.bind(params).evaluations == bound.evaluations

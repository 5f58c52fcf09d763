"""The optimizer for any loop: the engine's bits, torch's schedules, its log, its state, and what it refuses."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler
from transformers import LlamaForCausalLM

import zo_sweeps
from tests.engine.conftest import tiny_model
from zo_sweeps import Optimizer, engine
from zo_sweeps.core.errors import UserError
from zo_sweeps.engine.estimators.es import ES
from zo_sweeps.engine.estimators.es_one_sided import ESOneSided
from zo_sweeps.engine.perturbations.low_rank import LowRank
from zo_sweeps.engine.perturbations.pezo_pool import PeZOPool
from zo_sweeps.engine.perturbations.rademacher import Rademacher
from zo_sweeps.engine.types import DivergedError
from zo_sweeps.engine.updates.momentum import Momentum
from zo_sweeps_league.estimators.fzoo import FZOO
from zo_sweeps_league.estimators.kerzoo import KerZOO
from zo_sweeps_league.estimators.rge_curved import RGECurved
from zo_sweeps_league.estimators.rloo import RLOO
from zo_sweeps_league.perturbations.curvature import Curvature
from zo_sweeps_league.perturbations.loren import LOREN
from zo_sweeps_league.perturbations.small_weights import SmallWeights
from zo_sweeps_league.updates.low_rank_momentum import LowRankMomentum

pytestmark = pytest.mark.unit
RGE, SGD, Gaussian, Method, Mode = engine.RGE, engine.SGD, engine.Gaussian, engine.Method, engine.Mode
X = torch.randn(24, 8, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 4, (24,), generator=torch.Generator().manual_seed(1))


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 4))


def minibatches() -> Iterator[tuple[Tensor, Tensor]]:
    for first in range(0, 10**6, 6):
        rows = torch.arange(first, first + 6) % len(X)
        yield X[rows], Y[rows]


def loss(model: nn.Module, x: Tensor, y: Tensor, points: int) -> Tensor:
    """Losses of the minibatch at the points that the model holds, [P]."""
    logits = model(x.repeat(points, 1))
    return F.cross_entropy(logits, y.repeat(points), reduction="none").view(points, -1).mean(1)


def train(opt: Optimizer, model: nn.Module, steps: int, schedule: LRScheduler | None = None) -> None:
    for x, y in islice(minibatches(), len(opt.log), len(opt.log) + steps):
        opt.step(partial(loss, model, x, y))
        if schedule is not None:
            schedule.step()


def bits(opt: Optimizer, model: nn.Module) -> list[bytes]:
    """The bytes of the weights, and of trained values beside them."""
    every = [*model.state_dict().values(), *opt.space.params.values()]
    return [value.detach().contiguous().view(torch.uint8).numpy().tobytes() for value in every]


FULL: Callable[[], Any] = engine.Full
BY_HAND: dict[str, tuple[Any, Any, dict[str, Any]]] = {  # named method -> its members, space, and options to move fast
    "mezo": (Method(RGE(q=1, eps=1e-3), Gaussian(), SGD()), FULL(), {}),
    "lozo": (Method(RGE(q=1, eps=1e-3), LowRank(scale="released"), SGD()), FULL(), {}),
    "lozo_m": (
        Method(RGE(q=1, eps=1e-3), LowRank(scale="released"), LowRankMomentum(momentum=0.9)),
        FULL(),
        {"momentum": 0.9},
    ),
    "prge": (Method(RGE(q=4, eps=1e-2), Gaussian(), SGD(), Mode.BOTH), engine.LoRAFA(), {}),
    "fzoo": (Method(FZOO(q=8, eps=1e-4), Rademacher(), SGD()), FULL(), {}),
    "sparse_mezo": (
        Method(RGE(q=1, eps=1e-3), SmallWeights(sparsity=0.75, threshold="initial"), SGD()),
        FULL(),
        {},
    ),
    "loren": (
        Method(RLOO(q=6, eps=1e-3), LOREN(damping=0.1, lr_cov=1e-3), Momentum(momentum=0.9)),
        FULL(),
        {},
    ),
    "hizoo": (Method(RGECurved(q=1, eps=1e-3), Curvature(alpha=1e-8), SGD()), FULL(), {}),
    "kerzoo": (Method(KerZOO(q=2, eps=1e-3), Gaussian(), SGD()), FULL(), {"q": 2}),
    "es_at_scale": (Method(ESOneSided(q=3, eps=1e-3), Gaussian(), SGD()), FULL(), {"q": 3}),
    "eggroll": (
        Method(ES(q=8, eps=1e-3, shape="zscore"), LowRank(rank=1, interval=1, sum="product"), SGD(), Mode.BOTH),
        FULL(),
        {},
    ),
    "pezo_pool": (Method(RGE(q=1, eps=1e-3), PeZOPool(), SGD()), FULL(), {}),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_a_step_has_the_bits_of_the_engines_own(name: str) -> None:
    method, space, given = BY_HAND[name]
    ours, theirs = network(), network()
    opt = Optimizer(ours, name, seed=3, lr=1e-2, **given)
    installed = space.install(theirs, ["0", "3"], 3)
    method = method.bind(installed.params)
    state, log = method.init(installed.params), []
    for number, (x, y) in enumerate(islice(minibatches(), 5), start=1):
        f = partial(loss, theirs, x, y)
        estimate, state = engine.step(method, theirs, installed, f, state, seed=3, step=number, lr=1e-2)
        log.append((1e-2, estimate.loss, estimate.coefs))
    start = bits(opt, ours)
    train(opt, ours, 5)
    assert opt.log == log
    assert opt.estimate == estimate
    assert len(opt.losses) == method.evaluations
    assert bits(opt, ours) == [
        value.detach().contiguous().view(torch.uint8).numpy().tobytes()
        for value in (*theirs.state_dict().values(), *installed.params.values())
    ]
    assert bits(opt, ours) != start


@pytest.mark.parametrize("name", ["mezo", "lozo_m", "prge", "loren", "hizoo", "adamezo", "mezo_gv", "outliers"])
def test_a_saved_log_replays_and_a_state_goes_on_with_the_same_bits(name: str, tmp_path: Path) -> None:
    model = network()
    opt = Optimizer(model, name, lr=1e-2)
    train(opt, model, 3)
    torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, tmp_path / "state.pt")
    train(opt, model, 3)
    opt.save(tmp_path / "run.jsonl")

    replayed = zo_sweeps.replay(again := network(), tmp_path / "run.jsonl")
    assert bits(replayed, again) == bits(opt, model)
    assert replayed.log == opt.log

    resumed = network()
    if name not in ("prge", "outliers"):  # with adapters, the state of the model has their names, and begins with them
        resumed.load_state_dict(torch.load(tmp_path / "state.pt")["model"])
    other = Optimizer(resumed, name, lr=5.0)
    kept = torch.load(tmp_path / "state.pt")
    resumed.load_state_dict(kept["model"])
    other.load_state_dict(kept["opt"])
    train(other, resumed, 3)
    assert bits(other, resumed) == bits(opt, model)
    other.save(tmp_path / "resumed.jsonl")
    assert (tmp_path / "resumed.jsonl").read_text() == (tmp_path / "run.jsonl").read_text()

    for one, weights in ((opt, model), (replayed, again), (other, resumed)):
        train(one, weights, 1)
    assert bits(opt, model) == bits(replayed, again) == bits(other, resumed), "both go on as the run does"


SCHEDULES: dict[str, Callable[[Optimizer], LRScheduler]] = {
    "linear": lambda opt: LinearLR(opt, start_factor=1.0, end_factor=0.1, total_iters=4),
    "cosine": lambda opt: CosineAnnealingLR(opt, T_max=5),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_of_torch_set_the_rate_and_a_replay_needs_none(name: str, tmp_path: Path) -> None:
    model, plain = network(), nn.Parameter(torch.zeros(1))
    opt, sgd = Optimizer(model, "mezo", lr=1e-2), torch.optim.SGD([plain], lr=1e-2)
    train(opt, model, 5, SCHEDULES[name](opt))
    expected, reference = [], SCHEDULES[name](sgd)  # type: ignore[arg-type]  # the same schedule of torch's own SGD
    for _ in range(5):
        expected.append(sgd.param_groups[0]["lr"])
        sgd.step()
        reference.step()
    assert [line.lr for line in opt.log] == expected
    assert len({*expected}) == 5
    opt.save(tmp_path / "run.jsonl")
    assert bits(zo_sweeps.replay(again := network(), tmp_path / "run.jsonl"), again) == bits(opt, model)


@pytest.mark.parametrize("name", ["prge", "eggroll"])
def test_points_in_one_forward_are_those_of_one_after_the_other(name: str) -> None:
    def losses(closure: Callable[..., Tensor], model: nn.Module, **options: Any) -> list[float]:
        opt = Optimizer(model, name, lr=0.0, **options)
        opt.step(closure)
        return list(opt.losses)

    forwards: list[int] = []
    x, y = next(minibatches())
    batched, single = network(), network()

    def counted(points: int) -> Tensor:
        forwards.append(points)
        return loss(batched, x, y, points)

    together = losses(counted, batched)
    assert forwards == [1, 1] * (name == "eggroll") + [len(together)], "where each weight is read is asked before"
    apart = losses(lambda: F.cross_entropy(single(x), y), single, mode="sequential")
    assert together == pytest.approx(apart, rel=1e-5)
    assert len({*apart}) > 1


def test_a_transformers_models_roles_are_targets_and_its_loss_falls() -> None:
    model = tiny_model().module
    assert isinstance(model, LlamaForCausalLM)
    ids = torch.randint(1, 97, (4, 10), generator=torch.Generator().manual_seed(0))
    opt = Optimizer(model, "prge", targets=("q", "v_proj"), lr=0.3, mode="sequential", **{"space.rank": 4})
    assert [*opt.space.params] == [f"model.layers.{i}.self_attn.{one}_proj.B" for i in (0, 1) for one in ("q", "v")]
    assert {param.shape[1] for param in opt.space.params.values()} == {4}
    losses = [opt.step(lambda: model(input_ids=ids, labels=ids).loss) for _ in range(30)]
    assert losses[-1] < losses[0] - 0.05
    last = Optimizer(tiny_model().module, "prge", targets=("q",), blocks=1)
    assert [*last.space.params] == ["model.layers.1.self_attn.q_proj.B"]


def test_of_a_peft_model_the_adapter_is_trained() -> None:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(tiny_model().module, LoraConfig(r=2, target_modules=["q_proj"]))
    ids = torch.randint(1, 97, (4, 10), generator=torch.Generator().manual_seed(0))
    before = {name: param.clone() for name, param in model.named_parameters()}
    opt = Optimizer(model.eval(), "mezo", lr=1e-2)
    opt.step(lambda: model(input_ids=ids, labels=ids).loss)
    moved = {name for name, param in model.named_parameters() if not param.equal(before[name])}
    assert moved == {*opt.space.params} == {name for name in before if "lora_" in name}
    with pytest.raises(
        UserError,
        match=r"q_proj of a llama is no layer of this PeftModel in targets; train a peft model's adapter with ",
    ):
        Optimizer(model, "prge", targets=("q",))


def test_minibatches_are_averaged_in_the_closure() -> None:
    (x, y), (u, v) = islice(minibatches(), 2)
    one, two = network(), network()
    whole, parts = Optimizer(one, "mezo", lr=1e-2), Optimizer(two, "mezo", lr=1e-2)
    whole.step(lambda: F.cross_entropy(one(torch.cat([x, u])), torch.cat([y, v])))
    parts.step(lambda: (F.cross_entropy(two(x), y) + F.cross_entropy(two(u), v)) / 2)
    assert whole.losses == pytest.approx(parts.losses, rel=1e-6)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("mezo", {"restore": "in_place"}),
        ("mezo", {"estimator": "rge_one_sided"}),
        ("lozo", {"rank": 2}),
        ("lozo", {"rank": 2, "restore": "in_place"}),
        ("loren", {}),
        ("prge", {"targets": ("all",)}),
        ("eggroll", {"rank": 2}),
    ],
)
def test_mixed_precision_computes_each_point_with_its_own_weights_and_no_update(
    method: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """An autocast around the whole loop can keep half-precision copies of weights, and round a direction's product."""
    x, y = next(minibatches())
    inside, around, again = network(), network(), network()
    one, two = (Optimizer(model, method, lr=0.3, eps=0.1, **options) for model in (inside, around))

    def cast(points: int) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return loss(inside, x, y, points)

    for _ in range(3):
        one.step(cast)
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(3):
            two.step(partial(loss, around, x, y))
    assert one.log == two.log
    assert len({*two.losses}) == len(two.losses) > 1
    assert bits(one, inside) == bits(two, around)
    two.save(tmp_path / "run.jsonl")
    assert bits(zo_sweeps.replay(again, tmp_path / "run.jsonl"), again) == bits(two, around)


def test_weights_in_half_precision_are_rounded_at_random_and_replayed(tmp_path: Path) -> None:
    x, y = next(minibatches())
    model, nearest = network().bfloat16(), network().bfloat16()
    opt, lost = Optimizer(model, "mezo", lr=1e-4, rounding="stochastic"), Optimizer(nearest, "mezo", lr=1e-4)
    for one, weights in ((opt, model), (lost, nearest)):
        for _ in range(3):
            one.step(lambda weights=weights: F.cross_entropy(weights(x.bfloat16()).float(), y))
    assert bits(opt, model) != bits(lost, nearest)
    opt.save(tmp_path / "run.jsonl")
    assert bits(zo_sweeps.replay(again := network().bfloat16(), tmp_path / "run.jsonl"), again) == bits(opt, model)
    with pytest.raises(UserError, match=r"'mezo': update.rounding=stochastic rounds weights that are trained in half"):
        Optimizer(network(), "mezo", rounding="stochastic")


def test_a_loss_that_is_not_finite_leaves_run_and_weights_as_they_were() -> None:
    model = network()
    opt = Optimizer(model, "loren", lr=1e-2)
    train(opt, model, 2)
    before = bits(opt, model)
    with pytest.raises(DivergedError, match="step 3, seed 0"):
        opt.step(lambda: torch.tensor(torch.nan))
    assert bits(opt, model) == before
    assert len(opt.log) == 2


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no such method": ({"method": "mezzo"}, r"unknown method 'mezzo'; choose from: .*; did you mean 'mezo'\?"),
    "backpropagation": ({"method": "fo_full"}, "method 'fo_full' takes no zeroth-order steps; torch.optim has"),
    "no training": ({"method": "zero_shot"}, "takes no zeroth-order steps"),
    "rows of parts": ({"parts": 2}, "evaluation.parts is of rows; average minibatches in the closure"),
    "rows of clients": ({"method": "decomfl"}, "'decomfl' has rows of several clients; run it as a sweep"),
    "rows of directions": ({"method": "grzo"}, "'grzo': estimator 'rge_per_row' has a minibatch for each direction"),
    "codes": ({"method": "quzo"}, "method 'quzo': space 'codes' trains integer codes; run it as a sweep$"),
    "masks": (
        {"method": "sensitive_task"},
        "method 'sensitive_task': space 'sensitive' takes its masks from gradients",
    ),
    "new masks": ({"method": "random_subset", "refresh": 5}, "replaces its parameters; leave out refresh"),
    "a schedule": ({"schedule": "linear"}, "method 'mezo': wrap the optimizer in a torch.optim.lr_scheduler"),
    "a prefix": ({"method": "prefix"}, "space 'prefix' needs a language model of transformers, not a Sequential"),
    "no such option": ({"epz": 1e-3}, r"unknown option 'epz' in method 'mezo'; choose from: .*; did you mean 'eps'\?"),
    "no such key": ({"estimator.epz": 1}, "unknown option 'estimator.epz' .*; did you mean 'estimator.eps'"),
    "another's option": ({"rank": 4}, "unknown option 'rank' in method 'mezo'"),
    "of two": (
        {"method": "eggroll", "space": "lora_fa", "rank": 4},
        r"rank is an option of perturbation and of space in method 'eggroll'; "
        r"write \*\*\{'perturbation.rank': 4\}, or 'space.rank'$",
    ),
    "no such member": ({"update": "adamm"}, r"unknown update 'adamm'; choose from: .*; did you mean 'adam'\?"),
    "a range": ({"q": 0}, "estimator.q of rge must be at least 1, not 0"),
    "a type": ({"q": "two"}, "estimator.q='two' has the wrong type; it must be an integer"),
    "points of all weights": (
        {"mode": "both"},
        "'mezo': evaluation.mode=both cannot hold several points of space 'full'",
    ),
    "blocks of no language model": ({"method": "prge", "blocks": 1}, "blocks are counted in language models of transf"),
    "no such layer": ({"method": "prge", "targets": ("1",)}, r"unknown target '1' in targets; choose from: 0, 3, all$"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_closure_is_not_enough_for_is_refused_in_a_line(case: str) -> None:
    given, said = REFUSED[case]
    with pytest.raises(UserError, match=said) as refused:
        Optimizer(network(), **{"method": "mezo", **given})
    assert "\n" not in str(refused.value)


def test_closures_and_models_that_do_not_fit_are_refused() -> None:
    model = network()
    with pytest.raises(
        UserError, match="'prge' has several points in a forward, and the closure takes no number; write"
    ):
        Optimizer(model, "prge").step(lambda: torch.zeros(()))
    with pytest.raises(UserError, match=r"losses of shape \[8, 2\]; return a loss for each of 8 points: \[8\]"):
        Optimizer(network(), "prge").step(lambda points: torch.zeros(points, 2))
    with pytest.raises(
        UserError, match=r"the loss is in bf16, where the points .*; compute it in fp32, as of logits.float"
    ):
        Optimizer(network()).step(lambda: torch.zeros((), dtype=torch.bfloat16))
    for dropped in (nn.Dropout(0.1), Functional()):
        dropping = nn.Sequential(network(), dropped)
        opt = Optimizer(dropping)
        with pytest.raises(UserError, match=r"draws random numbers, others at each point of a step.*; call model.eval"):
            opt.step(lambda: dropping(X).sum())  # noqa: B023  # called at once
        dropping.eval()
        opt.step(lambda rows=X: dropping(rows).sum())  # noqa: B023
    with pytest.raises(UserError, match="no parameter of the model requires grad; call requires_grad_"):
        Optimizer(network().requires_grad_(False))
    with pytest.raises(UserError, match=r"the model is a generator, not a module of torch; write Optimizer\(model"):
        Optimizer(network().parameters())  # type: ignore[arg-type]
    with pytest.raises(UserError, match="the closure returned nothing; return the minibatch's loss"):
        Optimizer(network()).step(lambda: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(UserError, match=r"a group cannot be added: .*; call requires_grad_"):
        Optimizer(network()).add_param_group({"params": [nn.Parameter(torch.zeros(1))]})


class Functional(nn.Module):
    """Dropout as some families of transformers have it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, 0.1, self.training)


class Energy(nn.Module):
    """A parameter that a method reads, and not forward."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def of(self, x: torch.Tensor) -> torch.Tensor:
        return (self.scale * x).square().sum()


@pytest.mark.parametrize("trained", ["out_proj", "in_proj", "linear1", "norm2", ""])
def test_torch_s_attention_is_computed_at_the_points(trained: str) -> None:
    """It reads the weights of its last projection, and in one kernel those of a whole layer, and calls neither."""
    torch.manual_seed(1)
    layer, x = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), torch.randn(4, 5, 8)
    coefs = []
    for restore in ("exact", "in_place"):
        model = deepcopy(layer)
        for name, param in model.named_parameters():
            param.requires_grad_(trained in name)
        opt = Optimizer(model, "mezo", lr=1e-3, restore=restore)
        opt.step(lambda: (model(x) - torch.arange(8.0)).square().mean())  # noqa: B023
        assert opt.estimate is not None
        coefs += opt.estimate.coefs
    assert coefs[0] == pytest.approx(coefs[1], rel=1e-2)
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_parameter_that_is_read_where_its_module_is_not_called_is_refused() -> None:
    model = Energy()
    opt = Optimizer(model, "mezo", lr=1e-3)
    with pytest.raises(UserError, match=r"scale is read while its own module is not called.*; restore='in_place'"):
        opt.step(lambda: model.of(X))
    assert (model.scale.item(), opt.log) == (1.0, [])
    losses = iter([model.of(X)])
    with pytest.raises(StopIteration):
        opt.step(lambda: next(losses))
    assert model.scale.item() == 1.0, "also where the closure fails meanwhile"
    assert Optimizer(model, "mezo", lr=1e-3, restore="in_place").step(lambda: model.of(X)) > 0
    comparing = Optimizer(model, "mezo", lr=1e-3, restore="in_place", update="conservative")
    with pytest.raises(UserError, match="is not called, and would not be perturbed; another update, or call"):
        comparing.step(lambda: model.of(X))
    unused = nn.ModuleList([network(), network()])
    assert Optimizer(unused, "mezo").step(lambda: unused[0](X).square().sum()) > 0, "an expert that no row went to"


class Tied(nn.Module):
    """Its head reads the weight of an embedding, which is called too."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.fc = nn.Embedding(20, 8), nn.Linear(8, 8)

    def forward(self, ids: Tensor) -> Tensor:
        return torch.tanh(self.fc(input=self.wte(ids))) @ self.wte.weight.T


IDS = torch.arange(24).view(4, 6) % 20
READS: dict[str, Callable[[], tuple[nn.Module, Tensor, str]]] = {
    "tied": lambda: (Tied(), IDS, "wte.weight"),
    "weight_norm": lambda: (nn.utils.weight_norm(nn.Linear(6, 3)), torch.randn(4, 6), "weight_g or weight_v"),
    "spectral_norm": lambda: (nn.utils.spectral_norm(nn.Linear(6, 3)), torch.randn(4, 6), "weight_orig"),
}


@pytest.mark.filterwarnings("ignore")  # torch has newer norms
@pytest.mark.parametrize("method", ["mezo", "lozo"])
@pytest.mark.parametrize("name", READS)
def test_a_parameter_that_is_also_read_elsewhere_is_refused_with_the_weights_as_they_were(
    name: str, method: str
) -> None:
    torch.manual_seed(1)
    model, x, read = READS[name]()
    before = deepcopy(model.eval().state_dict())
    with pytest.raises(UserError, match=f"{read} is read while its own module is not called"):
        Optimizer(model, method).step(lambda: model(x).square().mean())
    assert all(map(torch.equal, before.values(), model.state_dict().values()))
    assert Optimizer(model, method, restore="in_place").step(lambda: model(x).square().mean()) > 0


def test_modules_that_read_their_own_parameters_are_served() -> None:
    torch.manual_seed(1)
    x = torch.randn(4, 6, 8)
    weighted = nn.utils.parametrizations.weight_norm(nn.Linear(8, 3))
    for layer in (nn.LSTM(8, 4, batch_first=True), nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), weighted):
        for param in [*layer.parameters()][-1:]:
            nn.init.zeros_(param)
        seen = Optimizer(layer, "mezo", lr=1e-3).step(lambda: torch.as_tensor(layer(x)[0]).square().mean())  # noqa: B023
        assert seen > 0


def test_the_last_projection_of_torch_s_attention_is_no_target() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    with pytest.raises(UserError, match="unknown target 'out_proj'"):
        Optimizer(layer, "random_subset", targets=("out_proj",))
    assert [*Optimizer(layer, "random_subset", targets=("all",)).space.params] == ["linear1.weight", "linear2.weight"]


def test_a_step_that_failed_leaves_a_sparse_space_where_it_was() -> None:
    model, (x, y) = network(), next(minibatches())
    opt, calls = Optimizer(model, "random_subset", targets=("all",), lr=1e-2, eps=0.1), iter([1.0, 1.0, 1.0, math.nan])
    for _ in range(2):
        before = deepcopy(model.state_dict())
        with suppress(DivergedError):
            opt.step(lambda: F.cross_entropy(model(x), y) * next(calls))
    assert len(opt.log) == 1
    assert all(map(torch.equal, before.values(), model.state_dict().values()))


def test_a_compiled_model_s_optimizer_is_that_of_the_model() -> None:
    model, (x, y) = network(), next(minibatches())
    compiled: Any = torch.compile(model, backend="eager")
    assert [*Optimizer(compiled, "mezo").space.params] == [*Optimizer(model, "mezo").space.params]
    assert Optimizer(compiled, "mezo", lr=1e-3).step(lambda: F.cross_entropy(compiled(x), y)) > 0


def test_weights_that_are_not_stored_row_by_row_are_refused() -> None:
    images: Any = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
    with pytest.raises(UserError, match="weight is not stored row by row"):
        Optimizer(images, "mezo")


def test_a_layer_whose_forwards_change_it_is_refused() -> None:
    """Its running statistics would be of the points of all steps, and a replayed model's of none."""
    normed = nn.Sequential(network(), nn.BatchNorm1d(network()(X).shape[1]))
    opt = Optimizer(normed)
    with pytest.raises(UserError, match=r"BatchNorm1d keeps statistics of .*; call model.eval\(\), or set"):
        opt.step(lambda: normed(X).square().sum())
    normed[1].momentum = 0.0
    before = {name: buffer.clone() for name, buffer in normed.named_buffers() if "running" in name}
    opt.step(lambda: normed(X).square().sum())
    assert all(torch.equal(buffer, before[name]) for name, buffer in normed.named_buffers() if name in before)
    normed[1].momentum = 0.1
    normed.eval()
    opt.step(lambda: normed(X).square().sum())


@pytest.mark.parametrize("method", ["prge", "mezo_lora", "vera", "dora", "mezo"])
def test_a_log_is_refused_over_another_base_also_where_an_adapter_begins_alike(method: str, tmp_path: Path) -> None:
    base, other, file = network(), network(), tmp_path / "run.jsonl"
    with torch.no_grad():
        other[0].weight.add_(1e-3)
    targets = {} if method == "mezo" else {"targets": ("all",)}
    opt = Optimizer(base, method, lr=1e-2, **targets)
    train(opt, base, 2)
    opt.save(file)
    with pytest.raises(UserError, match="does not have the weights where the run began"):
        zo_sweeps.replay(other, file)
    assert bits(zo_sweeps.replay(again := network(), file), again) == bits(opt, base)


def test_a_log_is_refused_where_its_run_did_not_begin(tmp_path: Path) -> None:
    model, file = network(), tmp_path / "run.jsonl"
    opt = Optimizer(model, "mezo", lr=1e-2)
    train(opt, model, 2)
    opt.save(file)
    with pytest.raises(
        UserError, match=r"the model does not have the weights where the run began in .*run.jsonl; load"
    ):
        zo_sweeps.replay(model, file)
    with pytest.raises(
        UserError, match=r"another shape: 0.weight is \[16, 8\] there and \[16, 9\] here in .*run.jsonl$"
    ):
        zo_sweeps.replay(nn.Sequential(nn.Linear(9, 16)), file)
    with pytest.raises(UserError, match=r"another shape: 1.weight is .16. there and absent here"):
        zo_sweeps.replay(nn.Sequential(nn.Linear(8, 16)), file)
    header, *steps = file.read_text().splitlines()
    older = {**json.loads(header), "numerics": 1, "zo_sweeps": "0.0.9"}
    file.write_text("\n".join([json.dumps(older), *steps]))
    with pytest.raises(
        UserError, match=r"of zo_sweeps 0.0.9, whose steps had other bits .*; pip install zo-sweeps==0.0.9"
    ):
        zo_sweeps.replay(network(), file)
    for text in ("", "[]", f"{header}\nnonsense"):
        file.write_text(text)
        with pytest.raises(UserError, match=r"not the log of a run in .*; Optimizer.save writes one"):
            zo_sweeps.replay(network(), file)
    with pytest.raises(UserError, match=r"none.jsonl"):
        zo_sweeps.replay(network(), tmp_path / "none.jsonl")
    with pytest.raises(UserError, match=r"of another configuration: .*estimator.q=1, not 2 in the state$"):
        Optimizer(network(), "mezo", q=2).load_state_dict(opt.state_dict())


def test_a_model_is_left_as_it_was_by_a_log_that_is_refused(tmp_path: Path) -> None:
    model = network()
    Optimizer(model, "prge", seed=1).save(tmp_path / "run.jsonl")
    header = json.loads((tmp_path / "run.jsonl").read_text())
    (tmp_path / "run.jsonl").write_text(json.dumps({**header, "start": "other"}))
    again = network()
    with pytest.raises(UserError, match="does not have the weights"):
        zo_sweeps.replay(again, tmp_path / "run.jsonl")
    assert [*again.state_dict()] == [*network().state_dict()]


def test_directions_of_activations_are_trained_with_and_their_log_is_refused(tmp_path: Path) -> None:
    model = network()
    opt = Optimizer(model, "agzo", lr=1e-2)
    train(opt, model, 2)
    opt.save(tmp_path / "run.jsonl")
    with pytest.raises(UserError, match="of agzo depend on the minibatch at its step, and are in no log"):
        zo_sweeps.replay(network(), tmp_path / "run.jsonl")


def test_a_method_of_ones_own_is_trained_with_and_replayed(tmp_path: Path) -> None:
    (tmp_path / "method").mkdir()
    (tmp_path / "update").mkdir()
    (tmp_path / "method" / "mine.yaml").write_text(
        "# @package _global_\ndefaults: [mezo, {override /update: half}]\nmethod: {name: mine}\n"
    )
    (tmp_path / "update" / "half.py").write_text(
        "from dataclasses import dataclass\nfrom zo_sweeps.engine.updates.sgd import SGD as Whole\n\n\n"
        "@dataclass(frozen=True)\nclass Half(Whole):\n    def apply(self, params, estimate, noise, state, lr):\n"
        "        return super().apply(params, estimate, noise, state, lr / 2)\n"
    )
    model, plain = network(), network()
    opt = Optimizer(model, "mine", lr=2e-2, config_dirs=[tmp_path])
    train(opt, model, 2)
    opt.save(tmp_path / "run.jsonl")
    half = Optimizer(plain, "mezo", lr=1e-2)
    train(half, plain, 2)
    assert bits(opt, model) == bits(half, plain)
    assert bits(zo_sweeps.replay(again := network(), tmp_path / "run.jsonl"), again) == bits(opt, model)

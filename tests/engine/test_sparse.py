"""Masks and the spaces over them: the right entries are found, kept, and alone moved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.engine import contract
from tests.engine.conftest import Candidate as _Candidate
from tests.engine.conftest import Example as _Example
from tests.engine.conftest import make_examples, tiny_model
from tests.engine.spaces_common import SPARSE, digest, example_losses, install, logits, nudge, weights_of
from tests.engine.test_peft_contract import run
from zo_sweeps.core.errors import UserError
from zo_sweeps.engine import linear, losses, masks
from zo_sweeps.engine.batch import collate
from zo_sweeps.engine.layers.sparse import Sparse
from zo_sweeps.engine.losses import token_logprobs
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.points import NoiseKey
from zo_sweeps.models import mask_store

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("name", "refresh"), [(n, r) for n in SPARSE for r in (0, 3) if (n, r) != ("outliers", 3)])
def test_training_moves_the_support_and_no_other_bit(name: str, refresh: int) -> None:
    fresh = dict(tiny_model().module.named_parameters())
    space, model, _ = run(name, 8, refresh=refresh)
    space.write()
    seen = {layer: part.place.touched for layer, part in space.layers.items()}
    moved = 0
    for key, weight in model.module.named_parameters():
        allowed = torch.zeros(weight.numel(), dtype=torch.bool)
        if (layer := key.removesuffix(".weight")) in seen:
            allowed[seen[layer]] = True
        differs = (weight != fresh[key]).flatten()
        assert not (differs & ~allowed).any(), key
        moved += int(differs.sum())
    assert moved > 0.9 * sum(p.numel() for p in space.params.values())


@pytest.mark.parametrize("name", ["sensitive", "random_subset"])
def test_a_mask_that_is_found_again_is_another_and_uninstalling_still_restores(name: str) -> None:
    base = digest(tiny_model().module.parameters())
    space, model, _ = run(name, 8, refresh=3)
    first, _, _ = run(name, 2, refresh=3)
    assert mask_store.StoredMask(space.masks, {}).fingerprint != mask_store.StoredMask(first.masks, {}).fingerprint
    assert digest(model.module.parameters()) != base
    space.uninstall()
    assert digest(model.module.parameters()) == base


def test_what_leaves_the_mask_keeps_its_value_and_what_stays_its_fp32_one() -> None:
    model = tiny_model()
    model.module.to(torch.bfloat16)
    space = install("random_subset", model, density=0.3, refresh=1)
    nudge(space, 0.01)
    old = {n: (layer.index, layer.param.detach().clone()) for n, layer in space.layers.items()}
    space.begin(2)
    stayed = 0
    for name, (index, values) in old.items():
        layer = space.layers[name]
        kept, mine = torch.isin(index, layer.index), torch.isin(layer.index, index)
        assert torch.equal(layer.param[mine], values[kept])
        assert torch.equal(layer.place.read(index[~kept]), values[~kept].bfloat16())
        stayed += int(kept.sum())
    assert stayed


@pytest.mark.parametrize("scope", ["per_layer", "global"])
@pytest.mark.parametrize("score", ["fisher", "mean_gradient"])
def test_sensitive_entries_are_those_of_autograd(scope: str, score: str) -> None:
    model = tiny_model()
    weights = weights_of(model)
    found = masks.sensitive(weights, example_losses(model), 0.01, scope, score)
    assert not any(weight.requires_grad or weight.grad is not None for weight in weights.values())
    total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for loss in example_losses(model):
        for weight in weights.values():
            weight.requires_grad_(True)
        for name, grad in zip(weights, torch.autograd.grad(loss(), list(weights.values())), strict=True):
            total[name] += grad**2 if score == "fisher" else grad
    scores = {name: value.flatten() ** (1 if score == "fisher" else 2) for name, value in total.items()}
    if scope == "per_layer":
        expected = {n: set(s.argsort(descending=True)[: round(0.01 * len(s))].tolist()) for n, s in scores.items()}
    else:
        flat = torch.cat(list(scores.values()))
        chosen = flat.argsort(descending=True)[: round(0.01 * len(flat))]
        expected, start = {}, 0
        for name, s in scores.items():
            mine = chosen[(chosen >= start) & (chosen < start + len(s))] - start
            start += len(s)
            if len(mine):
                expected[name] = set(mine.tolist())
    assert {name: set(index.tolist()) for name, index in found.items()} == expected
    assert all(torch.equal(index, index.sort().values) for index in found.values())


def test_a_sensitive_mask_changes_the_loss_more_than_a_random_one_of_its_size() -> None:
    """Guo et al., eqs. 5 and 6: the mean squared difference of the two losses is 4 eps^2 |m * grad|^2."""
    from zo_sweeps.engine.estimators.rge import RGE
    from zo_sweeps.engine.evaluate import evaluate
    from zo_sweeps.engine.perturbations.gaussian import Gaussian

    found = {}
    for name in ("sensitive", "random_subset"):
        model = tiny_model()
        space = install(name, model)
        batch = collate(make_examples(4, 3), 0)
        objective = lambda P, model=model, batch=batch: losses.candidates(token_logprobs(model, batch, P), batch)
        values = evaluate(objective, model.module, space, Gaussian(), RGE(16, 1e-3).points(0, 1), Mode.BOTH)
        found[name] = sum((a - b) ** 2 for a, b in zip(values[::2], values[1::2], strict=True))
    assert found["sensitive"] > 5 * found["random_subset"]


def test_ties_go_to_the_first_entries_and_every_layer_has_its_share() -> None:
    scores = {"a": torch.tensor([1.0, 2.0, 2.0, 2.0]), "b": torch.zeros(2, 5)}
    assert {n: i.tolist() for n, i in masks.top(scores, 0.5).items()} == {"a": [1, 2], "b": [0, 1, 2, 3, 4][:5]}
    assert {n: i.tolist() for n, i in masks.top(scores, 0.3, "global").items()} == {"a": [0, 1, 2, 3]}
    with pytest.raises(ValueError, match="density must be above 0"):
        masks.top(scores, 0.0)
    with pytest.raises(ValueError, match="scope must be per_layer or global"):
        masks.top(scores, 0.1, "model")


def test_random_entries_are_uniform_distinct_and_those_of_their_address() -> None:
    weights = {"layer": torch.zeros(100, 100)}
    found = [masks.random(weights, 0.1, NoiseKey(seed, -1, 0))["layer"] for seed in range(20)]
    assert all(len(set(index.tolist())) == 1000 for index in found)
    assert torch.equal(found[3], masks.random(weights, 0.1, NoiseKey(3, -1, 0))["layer"])
    counts = torch.bincount(torch.cat(found), minlength=10000).view(10, 1000).sum(1).float()
    assert (counts - 2000).abs().max() < 5 * (10000 * 20 * 0.1 * 0.9 / 10) ** 0.5


def test_outliers_are_the_largest_magnitudes() -> None:
    model = tiny_model()
    space = install("outliers", model, density=0.05)
    for name, layer in space.layers.items():
        weight = layer.weight.detach().view(-1)
        rest = torch.ones(weight.numel(), dtype=torch.bool)
        rest[layer.index] = False
        assert weight[layer.index].abs().min() >= weight[rest].abs().max(), name


def test_a_gradient_that_is_not_finite_is_an_error() -> None:
    model = tiny_model()
    with torch.no_grad():
        model.module.model.layers[0].self_attn.q_proj.weight.fill_(float("nan"))
    with pytest.raises(ArithmeticError, match="is not finite"):
        masks.sensitive(weights_of(model), example_losses(model), 0.01)


def test_theta_is_in_the_model_for_every_forward() -> None:
    model = tiny_model()
    before = logits(model)
    space = install("outliers", model, density=0.05)
    assert torch.equal(logits(model), before)
    nudge(space)
    after = logits(model)
    assert not torch.equal(after, before)
    space.write()
    assert torch.equal(logits(model), after)


# products


def projection(shape: tuple[int, int], kind: str, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """A projection of known weights, as a Linear or as codes."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = torch.nn.Linear(shape[1], shape[0], dtype=dtype).requires_grad_(False)
    if kind == "plain":
        return layer
    compute = {torch.float32: "fp32", torch.bfloat16: "bf16"}[dtype]
    return contract.member("precision", kind, compute=compute).stored(layer, layer.weight)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("points", [1, 3])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.02)])
@pytest.mark.parametrize("kind", ["plain", "int8", "nf4"])
def test_either_product_is_the_dense_product_with_the_values_in_the_weight(
    kind: str, dtype: torch.dtype, tolerance: float, points: int, apart: bool
) -> None:
    layer = projection((48, 80), kind, dtype)
    dense = linear.dense(layer).double()
    index = masks.random({"layer": dense}, 0.05, NoiseKey(0, -1, 0))["layer"]
    space = Sparse(torch.nn.ModuleDict({"layer": layer}), {"layer": index}, apart=apart)
    draw = torch.Generator().manual_seed(1)
    values = torch.randn(points, len(index), generator=draw)
    x = torch.randn(points * 4, 80, generator=draw).to(dtype)
    space.hold({"layer.weight": values})
    with torch.inference_mode():
        found = layer(x)
    for p in range(points):
        moved = dense.flatten().index_copy(0, index, values[p].to(dtype).double()).view(48, 80)
        expected = torch.nn.functional.linear(x[4 * p : 4 * p + 4].double(), moved, layer.bias.double())
        torch.testing.assert_close(found[4 * p : 4 * p + 4].double(), expected, rtol=tolerance, atol=4 * tolerance)
        assert (expected - x[4 * p : 4 * p + 4].double() @ dense.t()).abs().max() > 1, "a test that can fail"


class Touched(TorchDispatchMode):
    """The elements that operations read and write, without those of some tensors and of dense products."""

    def __init__(self, *apart: torch.Tensor) -> None:
        super().__init__()
        self.elements, self._apart = 0, {one.untyped_storage().data_ptr() for one in apart}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ not in ("mm", "addmm", "linear", "bmm"):
            for one in tree_leaves((args, kwargs, result)):
                if isinstance(one, torch.Tensor) and one.layout is torch.strided:
                    held = one.untyped_storage().data_ptr() in self._apart
                    self.elements += 0 if held else one.numel()
        return result


@pytest.mark.parametrize("apart", [False, True])
def test_perturbing_k_values_costs_k_however_many_the_weight_has(apart: bool) -> None:
    """Noise, both points and the writes of a step, for the same k in weights of 2^9 to 2^15 entries."""
    from zo_sweeps.engine.estimators.rge import RGE
    from zo_sweeps.engine.evaluate import evaluate
    from zo_sweeps.engine.perturbations.gaussian import Gaussian

    def elements(into: int, k: int) -> int:
        layer = projection((8, into), "plain")
        x = torch.ones(2, into)
        index = torch.arange(k) * (8 * into // k)
        space = Sparse(torch.nn.ModuleDict({"layer": layer}), {"layer": index}, apart=apart)
        objective = lambda points: layer(x).sum()[None]
        points = RGE(1, 1e-3).points(0, 1)
        for _ in range(2):  # the sparse matrix's pattern is made once
            with torch.inference_mode(), Touched(layer.weight, x) as touched:
                evaluate(objective, torch.nn.ModuleDict({"layer": layer}), space, Gaussian(), points, Mode.SEQUENTIAL)
        return touched.elements

    small, large = elements(1 << 6, 64), elements(1 << 12, 64)
    assert small == large
    assert small < elements(1 << 12, 512) < 8 * small


# the store


def test_a_mask_is_found_once_and_read_afterwards(tmp_path: Path) -> None:
    made = []

    def find() -> mask_store.StoredMask:
        made.append(1)
        return mask_store.StoredMask(
            {"model.layers.0.q": torch.tensor([3, 5, 2**31 - 2]), "b": torch.tensor([0])},
            {"model.layers.0.q": torch.tensor([0.1, -2.0, 3.0]).half(), "b": torch.tensor([1e-8])},
        )

    first, second = (mask_store.get({"density": 0.1}, find, tmp_path) for _ in range(2))
    assert len(made) == 1
    assert first.fingerprint == second.fingerprint
    assert {*first.masks} == {*second.masks} == {*second.values}
    for name, index in first.masks.items():
        assert torch.equal(index, second.masks[name])
        assert second.masks[name].dtype == torch.int64
        assert torch.equal(first.values[name], second.values[name])
        assert first.values[name].dtype == second.values[name].dtype
    mask_store.get({"density": 0.2}, find, tmp_path)
    assert len(made) == 2
    (sidecar, _) = sorted(tmp_path.glob("*.json"))
    described = json.loads(sidecar.read_text())
    assert described["entries"] == 4
    assert described["fingerprint"] == first.fingerprint
    assert not list(tmp_path.glob("*.part"))


def test_a_broken_mask_file_is_found_again(tmp_path: Path) -> None:
    find = lambda: mask_store.StoredMask({"a": torch.tensor([1, 2])}, {"a": torch.tensor([0.5, 0.25])})
    mask_store.get({"k": 1}, find, tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-3])
    assert mask_store.get({"k": 1}, find, tmp_path).masks["a"].tolist() == [1, 2]
    other = {"a": torch.tensor([1, 9]), "a.values": torch.tensor([0.5, 0.25])}
    from safetensors.torch import save_file

    save_file(other, str(file))  # whole, but not what the sidecar says
    assert mask_store.get({"k": 1}, find, tmp_path).masks["a"].tolist() == [1, 2]
    save_file({"a": torch.tensor([1, 2])}, str(file))  # as written before entries were stored with a mask
    assert mask_store.get({"k": 1}, find, tmp_path).values["a"].tolist() == [0.5, 0.25]


def test_a_store_that_cannot_be_written_says_what_to_set(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="set ZO_SWEEPS_CACHE"):
        mask_store.get({}, lambda: mask_store.StoredMask({}, {}), tmp_path / "file" / "masks")


def test_weights_are_put_back_when_a_forward_raises() -> None:
    model = tiny_model()
    before = digest(model.module.parameters())
    space = install("outliers", model)
    nudge(space)
    for param in space.params.values():
        param.requires_grad_(True)
    linear = model.module.get_submodule("model.layers.0.mlp.down_proj")
    with pytest.raises(RuntimeError):
        linear(torch.zeros(2, 7))  # not its width
    assert isinstance(linear.weight, torch.nn.Parameter)
    space.uninstall()
    assert digest(model.module.parameters()) == before


# real text


@pytest.mark.realdata
def test_a_mask_found_on_c4_holds_much_of_a_tasks_gradient(shared: Path) -> None:
    """Guo et al., Figure 5 and assumption 4: c >> k / d, also when the mask is found on text and used on a task."""
    from zo_sweeps.methods.parts import Model
    from zo_sweeps.models.load import load
    from zo_sweeps.run.packages import text_samples

    rows = shared / "data" / "sst2_sent" / "train.jsonl"
    if not rows.is_file() or not (shared / "data" / "text" / "c4_sample.jsonl").is_file():
        pytest.skip(f"no C4 sample and SST-2 under {shared} (ZO_SHARED)")
    model = load(Model(), torch.float32, "cpu")
    weights = {n: m.weight for n, m in model.target_modules(("q", "k", "v", "o", "gate", "up", "down")).items()}

    def gradients(examples):
        def each():
            for example in examples:
                batch = collate([example], model.pad_id, gold_only=True)
                yield lambda batch=batch: losses.tokens(token_logprobs(model, batch), batch)[0]

        return masks.squared_gradients(weights, each())

    found = masks.top(gradients(text_samples("text/c4_sample.jsonl", 12, 96, str(shared / "data"), model)), 0.01)
    task = []
    for line in rows.read_text().splitlines()[:12]:
        row = json.loads(line)
        answer = model.tokenizer(" great" if row["label"] == 1 else " terrible", add_special_tokens=False)["input_ids"]
        text = model.tokenizer(f"{row['sentence']} It was", add_special_tokens=False)["input_ids"]
        task.append(_Example((_Candidate((*model.front, *text, *answer), len(answer)),), 0))
    scores = gradients(task)

    def held(of: masks.Masks) -> float:
        return sum(float(scores[n].flatten()[index].sum()) for n, index in of.items())

    assert held(found) > 5 * held(masks.random(weights, 0.01, NoiseKey(0, -1, 0)))
    assert held(masks.top(scores, 0.01)) > held(found)  # the task's own mask holds most: definition 3

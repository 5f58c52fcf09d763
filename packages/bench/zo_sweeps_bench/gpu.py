"""GPU benchmarks: perturbation passes, products with codes, steps at the papers' shapes, memory, populations.

Needs torch, transformers, triton and what the engine needs. In order:

- theta + eps z and its bits, products with codes and sparse products (`perturbation`, `codes`, `sparse`);
- MeZO, LOZO and P-RGE at OPT-1.3B, 6.7B, 13B and Llama-2-7B, fp16, of random weights, against the released loops of
  MeZO and LOZO and bare forwards of the same rows; Llama-2-7B also in INT8 and NF4 (`steps`);
- P-RGE's inner loop against its two forwards one after the other, and the stored weights: Figure 5, Table 9 (`loops`);
- the memory of a step over SqueezeLLM's codes and 0.1 % of the entries (`coded_step`);
- generation by 64 and 1,024 members of rank 1 (`population`).

The released loops are written out (`mezo_step`), or those of the clones MeZO and LOZO in $ZO_PEERS
(`releases`). A part that the memory of the card does not hold is left out, and a line on stderr says so.

Time on an H200 with two rounds: the steps of a shape 9 to 15 s, the loops in fp16 19 s, the step over codes 5 s. That
of products, of loops over codes and of populations is not known. In all it may take 25 minutes.
"""

from __future__ import annotations

import copy
import gc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import conf_dir
from zo_sweeps.core.host import interleaved
from zo_sweeps.devices.peak_memory import MemoryMeter, is_out_of_memory
from zo_sweeps.engine import first_order, losses, noise
from zo_sweeps.engine.batch import collate
from zo_sweeps.engine.layers.weight_only import WeightCodes
from zo_sweeps.engine.perturbations.low_rank import LowRank
from zo_sweeps.engine.precisions.squeezellm import SqueezeLLM
from zo_sweeps.engine.spaces.random_subset import RandomSubset
from zo_sweeps.engine.train import Scores
from zo_sweeps.engine.updates.adam import Adam
from zo_sweeps.methods.arch import ALL
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.points import NoiseKey
from zo_sweeps.methods.precision import WeightOnlyPrecision
from zo_sweeps.methods.space import FullModel, InstalledSpace, share
from zo_sweeps.models import families
from zo_sweeps.models.causal import CausalModel
from zo_sweeps.models.identity import DEMO
from zo_sweeps.models.load_codes import encode
from zo_sweeps.tasks.encode import EncodedExample
from zo_sweeps_bench import codes, population, releases, sparse
from zo_sweeps_bench.codes import awaited
from zo_sweeps_bench.engine_parts import BenchSteps, examples, lozo_directions, mezo_loss, mezo_step, with_lora_fa
from zo_sweeps_bench.measure import RatioRow

BATCH, Q = 16, 4  # effective batch of every step, and directions of P-RGE's
RANK = 16
EPS, LR = 1e-3, 1e-6
COMPARED = 1 << 20  # elements whose bits are compared with the CPU's
MIB = 1 << 20
LLAMA = "Llama-2-7B"
# P-RGE of Llama2-7B: the largest speed-up in Figure 5 (that of NF4 without its setting), GiB of weights in Table 9.
PUBLISHED = {"fp16": (1.79, 12.56), "int8": (None, 6.52), "nf4": (1.97, 3.5)}
WHOLE_RUN = {("LOZO", "OPT-13B"): "; published for a whole fine-tuning: 8.13x (arXiv:2605.28760)"}


def arch(name: str) -> Mapping[str, Any]:
    """Return the shape that conf/model/{name}.yaml has."""
    text = (conf_dir() / "model" / f"{name}.yaml").read_text(encoding="utf-8")
    shape: Mapping[str, Any] = yaml.safe_load(text)["arch"]
    return shape


def _shapes() -> dict[str, Mapping[str, Any]]:
    opt = {
        f"OPT-{size}": arch(f"random_opt_{name}") for size, name in (("1.3B", "1b3"), ("6.7B", "6b7"), ("13B", "13b"))
    }
    return {**opt, LLAMA: arch("random_llama2_7b")}


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    Args:
        elements: of a perturbation pass. layers: (out, in) of products.
        shapes: models; LLAMA is among them.
        tokens: of a row of a step. memory_tokens: where its memory must stay below 8 GiB.
        settings: (tokens, rows) of the inner loop. The first is the row's own.
        members: of populations, whose generations have `rows` rows of `new` tokens.
    """

    elements: int = 1 << 28
    layers: Sequence[tuple[int, int]] = codes.LARGE
    shapes: Mapping[str, Mapping[str, Any]] = field(default_factory=_shapes)
    tokens: int = 64
    memory_tokens: int = 512
    settings: Sequence[tuple[int, int]] = tuple((tokens, batch) for tokens in (64, 128, 256) for batch in (1, 8, 16))
    members: Sequence[int] = (64, 1024)
    rows: int = 1024
    new: int = 32


def rows(rounds: int, device: torch.device | None = None, sizes: Sizes | None = None) -> Iterator[RatioRow]:
    """Measure all GPU rows. Raises UserError without a GPU, unless another device is given."""
    if device is None and not torch.cuda.is_available():
        raise UserError("torch sees no CUDA GPU here", where="bench gpu", fix="run it on a GPU node")
    device, sizes = device or torch.device("cuda"), sizes or Sizes()
    for dtype in (torch.float16, torch.float32):
        yield perturbation(device, dtype, sizes.elements, rounds)
    for shape in sizes.layers:
        yield from codes.products(device, shape, "fp16", rounds)
        for kind in ("fp16", "int8", "nf4"):
            yield sparse.products(device, shape, kind, "fp16", rounds)
    for name in sizes.shapes:
        yield from fitting(f"{name} shape, fp16", steps(device, name, "fp16", None, rounds, sizes))
    schemes = codes.schemes("fp16")
    for kind, scheme in {"fp16": None, "int8": schemes["int8"], "nf4": schemes["nf4"]}.items():
        if scheme is not None:
            yield from fitting(f"{LLAMA} shape, {kind}", steps(device, LLAMA, kind, scheme, rounds, sizes))
        yield from fitting(f"loops, {kind}", loops(device, kind, scheme, rounds, sizes))
    yield from fitting("a step over SqueezeLLM's codes", coded_step(device, sizes))
    for members in sizes.members:
        yield from fitting(f"a population of {members}", generation(device, members, rounds, sizes))


def fitting(what: str, part: Iterator[RatioRow]) -> Iterator[RatioRow]:
    """Yield a part's rows; if memory runs out, those before, and say so in a line on stderr."""
    try:
        yield from part
    except Exception as error:  # torch and its libraries say in several types that memory ran out
        if not is_out_of_memory(error):
            raise
        print(f"{what}: left out, the memory of this device does not hold it", file=sys.stderr)
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()


def perturbation(device: torch.device, dtype: torch.dtype, elements: int, rounds: int) -> RatioRow:
    """Time theta + eps z, written to another tensor, against a copy: both read and write every element once.

    An update is the same pass, in place. A sum of two directions moves the same bytes: where it takes longer,
    arithmetic is the limit, not bandwidth.
    """
    theta = torch.randn(elements, device=device).to(dtype)
    out, terms = torch.empty_like(theta), [(NoiseKey(0, 1, query), 1e-3) for query in range(2)]
    functions = {
        "copy": lambda: out.copy_(theta),
        "perturbation": lambda: noise.combine(terms[:1], "w", theta.shape, device, base=theta, out=out),
        "sum of two directions": lambda: noise.combine(terms, "w", theta.shape, device, base=theta, out=out),
    }
    seconds = interleaved({name: awaited(function, device) for name, function in functions.items()}, rounds)
    moved = 2 * elements * theta.element_size()
    part = min(elements, COMPARED)
    there = noise.combine(terms[:1], "w", torch.Size([part]), base=theta[:part].cpu())
    detail = {
        **{f"{name}, GB/s": moved / value / 1e9 for name, value in seconds.items()},
        "triton": device.type == "cuda" and noise._triton(torch.device("cuda", 0), dtype, True) is not None,
        "bits of the CPU": torch.equal(functions["perturbation"]()[:part].cpu(), there),
    }
    name = f"perturbation pass, {dtype}, {elements / 2**20:.4g} Mi elements, against a copy".replace("torch.", "")
    return RatioRow(name, seconds["copy"] / seconds["perturbation"], "x", 0.8, 0.95, "1x: copy bandwidth", detail)


def drawn(options: Mapping[str, Any], device: torch.device, scheme: WeightOnlyPrecision | None) -> CausalModel:
    """Return a model of random fp16 weights, or of their codes, drawn on the device.

    A trial draws them on the CPU (`models.load`), which takes minutes for 7 G weights.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    with torch.device(device):
        module = AutoModelForCausalLM.from_config(AutoConfig.for_model(**options), dtype=torch.float16)
    if scheme is not None:
        projections = {*families.describe(options).names([ALL])}
        for name, _ in [*module.named_modules()]:
            encode(scheme, projections, module, name)
    return CausalModel(module, AutoTokenizer.from_pretrained(str(DEMO), local_files_only=True))


def sharing(model: CausalModel) -> CausalModel:
    """Return a model of the same tensors, whose layers a space can replace."""
    held: dict[int, Any] = {id(own): own for own in (*model.module.parameters(), *model.module.buffers())}
    return CausalModel(copy.deepcopy(model.module, held), model.tokenizer)


def steps(
    device: torch.device, name: str, kind: str, scheme: WeightOnlyPrecision | None, rounds: int, sizes: Sizes
) -> Iterator[RatioRow]:
    """Time steps of an effective batch of BATCH rows against two bare forwards of it, and measure their peaks.

    MeZO and P-RGE move LoRA-FA; MeZO and LOZO all weights, unless they are codes, also against their released loops.
    FO-Adam is in the detail.
    """
    bare = drawn(sizes.shapes[name], device, scheme)
    adapted = sharing(bare)
    space, full, vocabulary = with_lora_fa(adapted, RANK, RANK), FullModel(bare.module), bare.arch.vocabulary
    whole, shared = (examples([sizes.tokens] * batch, 1, vocabulary) for batch in (BATCH, BATCH // Q))
    forward = BenchSteps(bare, full, whole).bare(1)

    def prge(mode: Mode) -> Callable[[], object]:
        return BenchSteps(adapted, space, shared, q=Q, mode=mode, lr=1e-4).one()

    functions: dict[str, Callable[[], Any]] = {
        "MeZO, LoRA-FA": BenchSteps(adapted, space, whole, lr=1e-4).one(),
        "P-RGE, outer loop": prge(Mode.OUTER),
        "P-RGE, inner loop": prge(Mode.INNER),
        "P-RGE, both loops": prge(Mode.BOTH),
    }
    of_bare: dict[str, Callable[[], Any]] = {"two forwards": lambda: (forward(), forward())}
    loops: dict[str, Callable[[], Any]] = {}
    if scheme is None:
        low_rank = LowRank(2, 50, scale="released")
        all_weights = {
            "MeZO, all weights": BenchSteps(bare, full, whole).one(),
            "LOZO, all weights": BenchSteps(bare, full, whole, mode=Mode.BOTH, noise=low_rank).one(),
        }
        loops, source = released(bare, whole)
        functions = all_weights | functions
        of_bare |= all_weights | {f"{method}, released": taken for method, taken in loops.items()}
    others = {**of_bare, "FO-Adam": _backpropagation(adapted, space, whole)}
    awaiting = {key: awaited(function, device) for key, function in (functions | others).items()}
    seconds = interleaved(awaiting, rounds)
    what = f"{name} shape, {kind}, E={BATCH} T={sizes.tokens}"
    for key in functions:
        ratio = seconds[key] / seconds["two forwards"]
        yield RatioRow(f"{key}, {what}, a step against two bare forwards", ratio, "of", 1.25, 1.05, "1.00", seconds)
    for method in loops:
        ratio, most = (
            seconds[f"{method}, released"] / seconds[key] for key in (f"{method}, all weights", "two forwards")
        )
        limit = f"{most:.1f}x: two forwards{WHOLE_RUN.get((method, name), '')}"
        detail = {**seconds, "released code": source[method]}
        yield RatioRow(f"{method}, {what}, the released step against ours", ratio, "x", 1.5, 2.5, limit, detail)

    held = dict.fromkeys(awaiting, adapted.weight_bytes) | dict.fromkeys(of_bare, bare.weight_bytes)
    held["FO-Adam"] += 2 * sum(param.nbytes for param in space.params.values())
    peaks = {key: (held[key] + _peak(function, device)) / MIB for key, function in awaiting.items()}
    inference = peaks.pop("two forwards")
    detail = {f"{key}, MiB": value for key, value in {"inference": inference, **peaks}.items()}
    for key in functions:
        ratio = peaks[key] / inference
        yield RatioRow(f"{key}, {what}, peak memory against inference", ratio, "of", 1.1, 1.02, "1.00", detail)
    if scheme is None:
        yield step(bare, examples([sizes.tokens], 1, vocabulary), f"{name} shape, {kind}", rounds)


class ReleasedTrainer(releases.Trainer):
    """A trainer for cut step functions, with the loss of the loops that are written out."""

    causal: CausalModel

    def zo_forward(self, model: Any, inputs: Any = None) -> Tensor:
        return mezo_loss(self.causal, inputs)


def released(
    model: CausalModel, data: Sequence[EncodedExample]
) -> tuple[dict[str, Callable[[], object]], dict[str, str]]:
    """Return steps of the released loops over all weights, and for each whether it is a clone's or written out."""
    numbers, draw = count(1), lozo_directions(model)
    loops: dict[str, Callable[[], object]] = {
        "MeZO": lambda: mezo_step(model, data, next(numbers), EPS, LR),
        "LOZO": lambda: mezo_step(model, data, next(numbers), EPS, LR, draw),
    }
    source = dict.fromkeys(loops, "written out")
    options = {"zo_eps": EPS, "learning_rate": LR, "step_interval": 50, "rank_r": 2}

    def taken(trainer: Any, take: Callable[[Any], object]) -> Callable[[], object]:
        def one() -> None:
            module = model.module.requires_grad_(True)  # it moves what has gradients
            with torch.no_grad():
                take(trainer)
            module.requires_grad_(False)

        return one

    takes: dict[str, tuple[releases.Clone, Callable[[Any], object]]] = {
        "MeZO": (releases.MEZO, lambda its: (its.zo_step(its.model, data), its.zo_update(its.model))),
        "LOZO": (releases.LOZO, lambda its: (its.lowrank_zo_step(its.model, data), its.lowrank_zo_update())),
    }
    for name, (clone, take) in takes.items():
        if (cut := clone.trainer({"torch": torch, "np": np}, ReleasedTrainer)) is not None:
            trainer = cut(model.module, options)
            trainer.causal = model
            loops[name], source[name] = taken(trainer, take), f"{clone.repository}@{clone.commit}"
    return loops, source


def loops(
    device: torch.device, kind: str, scheme: WeightOnlyPrecision | None, rounds: int, sizes: Sizes
) -> Iterator[RatioRow]:
    """Time P-RGE's inner loop (q=1) against its two forwards one after the other; measure the stored weights."""
    bare = drawn(sizes.shapes[LLAMA], device, scheme)
    adapted = sharing(bare)
    space, full = with_lora_fa(adapted, RANK, RANK), FullModel(bare.module)
    detail: dict[str, float] = {}
    for tokens, batch in sizes.settings:
        data = examples([tokens] * batch, 1, bare.arch.vocabulary)
        forward = BenchSteps(bare, full, data).bare
        functions: dict[str, Callable[[], Any]] = {
            "sequential": BenchSteps(adapted, space, data, lr=1e-4).one(),
            "inner loop": BenchSteps(adapted, space, data, mode=Mode.INNER, lr=1e-4).one(),
            "forward": forward(1),
            "forward of both": forward(2),
        }
        seconds = interleaved({key: awaited(function, device) for key, function in functions.items()}, rounds)
        at = f"T={tokens} B={batch}"
        detail |= {f"{at}, {key}, s": value for key, value in seconds.items()}
        detail[f"{at}, speed-up"] = seconds["sequential"] / seconds["inner loop"]
        detail[f"{at}, limit"] = 2 * seconds["forward"] / seconds["forward of both"]
    tokens, batch = sizes.settings[0]
    at, (largest, weights) = f"T={tokens} B={batch}", PUBLISHED[kind]
    told = f"; published: {largest}x" if largest else ""
    limit = f"{detail[f'{at}, limit']:.2f}x: two bare forwards against one of both points{told}"
    name = f"P-RGE's inner loop, {LLAMA} shape, {kind}, q=1 {at}, against its forwards in sequence"
    yield RatioRow(name, detail[f"{at}, speed-up"], "x", 1.5, largest or 1.79, limit, detail)
    name, ours = f"stored weights, {LLAMA} shape, {kind}, against P-RGE's Table 9", bare.weight_bytes / 2**30
    limit = f"1.00: {weights} GiB, published, which leaves out scales"
    yield RatioRow(name, ours / weights, "of", 1.15, 1.0, limit, {"GiB": ours, "published, GiB": weights})


@dataclass(frozen=True)
class RandomCodes(SqueezeLLM):
    """SqueezeLLM's codes, drawn at random: memory depends on shapes alone, and k-means would take minutes."""

    def encode(self, weight: Tensor) -> WeightCodes:
        (out, into), device = weight.shape, weight.device
        kept = torch.arange(share(weight.numel(), self.kept), device=device) * int(1 / self.kept)
        buffers = {
            "values": torch.randint(256, (out, -(-into // 2)), dtype=torch.uint8, device=device),
            "table": weight[:, :16].sort(dim=1).values.to(self.dtype),
            "kept": kept.int(),
            "kept_values": weight.view(-1)[kept].to(self.dtype),
        }
        return super().encode(weight[:1]).holding((out, into), buffers)


def coded_step(device: torch.device, sizes: Sizes) -> Iterator[RatioRow]:
    """Measure the peak of all memory in a MeZO step over random codes of SqueezeLLM and 0.1 % of the entries.

    The entries are a random subset: only their number matters. The model is drawn in fp16 and encoded before.
    """
    model = drawn(sizes.shapes[LLAMA], device, RandomCodes(compute="fp16", sensitivity="none"))
    chosen, data = RandomSubset(), examples([sizes.memory_tokens] * BATCH, 1, model.arch.vocabulary)
    inference = _all_memory(BenchSteps(model, FullModel(model.module), data).bare(1), device)
    space = chosen.install(model.module, model.layers_of(chosen), 0)
    peak = _all_memory(BenchSteps(model, space, data).one(), device)
    weights = model.weight_bytes / MIB
    detail = {"weights, MiB": weights, "inference, MiB": inference, "entries": sum(map(len, space.params.values()))}
    name = f"step over random SqueezeLLM codes and {chosen.density:.1%} of the entries, {LLAMA} shape, E={BATCH}"
    name = f"{name} T={sizes.memory_tokens}, all memory"
    limit = f"{inference:.0f} MiB: inference; published without a measurement: below 8 GiB"
    yield RatioRow(name, peak, "MiB", 8 * 1024, 6 * 1024, limit, detail)


def generation(device: torch.device, members: int, rounds: int, sizes: Sizes) -> Iterator[RatioRow]:
    """Time the generation of a population of rank 1 over all weights against one of as many plain rows."""
    model = drawn(sizes.shapes[LLAMA], device, None)
    prompts = [population.PROMPTS[0]] * max(1, sizes.rows // members)  # of one length: one generation
    name = f"{LLAMA} shape, fp16, {sizes.new} tokens each"
    row = population.throughput(model, [], name, rounds, members, prompts, sizes.new)
    yield replace(row, limit=f"{row.limit}; published: up to 0.91 (EGGROLL, arXiv:2511.16652)")


def _backpropagation(model: CausalModel, space: InstalledSpace, data: list[EncodedExample]) -> Callable[[], object]:
    """Return a function whose every call takes the next step of FO-Adam."""
    device = next(model.module.parameters()).device
    taken = first_order.train(
        model,
        space,
        lambda _: collate(data, 0, gold_only=True).to(device),
        losses.tokens,
        Adam(lr=1e-6),
        lambda: Scores(0.0, 0.0, {}),
        steps=1 << 20,
        eval_every=1 << 20,
        seed=0,
    )
    return lambda: next(taken)


def _peak(function: Callable[[], object], device: torch.device) -> int:
    """Return the bytes allocated at the peak beyond those before the call."""
    meter = MemoryMeter(device)
    meter.start()
    function()
    meter.stop()
    return meter.above_baseline


def _all_memory(function: Callable[[], object], device: torch.device) -> float:
    """Return the MiB allocated at the peak of the second call, whatever holds them."""
    meter = MemoryMeter(device)
    function()
    meter.start()
    function()
    return meter.stop() / MIB


def step(model: CausalModel, data: list[EncodedExample], what: str, rounds: int) -> RatioRow:
    """Time a full-parameter MeZO step (q=1) against two forwards and two passes that read and write every weight."""
    steps = BenchSteps(model, FullModel(model.module), data)
    device = steps.device

    def forwards() -> None:
        with torch.inference_mode():
            steps.forward(1)
            steps.forward(1)

    @torch.no_grad()
    def passes() -> None:
        for _ in range(2):
            for param in steps.space.params.values():
                param.mul_(1.0)

    functions: dict[str, Callable[[], Any]] = {"ours": steps.one(), "two forwards": forwards, "two passes": passes}
    seconds = interleaved({name: awaited(function, device) for name, function in functions.items()}, rounds)
    limit = seconds["two forwards"] + seconds["two passes"]
    tokens = len(data[0].candidates[0].ids) - 1
    name = f"full-parameter step, {what}, B={len(data)} T={tokens}, against two forwards and two weight passes"
    return RatioRow(name, seconds["ours"] / limit, "of", 1.25, 1.0, "1.00", seconds)

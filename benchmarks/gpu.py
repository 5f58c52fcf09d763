"""GPU benchmarks: the perturbation pass against memory bandwidth, products with codes, steps of a 7B model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from benchmarks import codes, sparse
from benchmarks.codes import awaited
from zo_sweeps.bench.engine_parts import LLAMA_58M, BenchSteps, examples, with_lora_fa
from zo_sweeps.bench.measure import RatioRow
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.host import interleaved
from zo_sweeps.devices.peak_memory import MemoryMeter
from zo_sweeps.engine import first_order, losses, noise
from zo_sweeps.engine.batch import collate
from zo_sweeps.engine.train import Scores
from zo_sweeps.engine.updates.adam import Adam
from zo_sweeps.methods.arch import ALL
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.points import NoiseKey
from zo_sweeps.methods.precision import WeightOnlyPrecision
from zo_sweeps.methods.space import FullModel, InstalledSpace
from zo_sweeps.models import families
from zo_sweeps.models.causal import CausalModel
from zo_sweeps.models.identity import DEMO
from zo_sweeps.models.load_codes import encode
from zo_sweeps.tasks.encode import EncodedExample

ELEMENTS = 1 << 28
TOKENS = 64
BATCH, Q = 16, 4  # effective batch of every step, and directions of P-RGE's
RANK = 16
MIB = 1 << 20
LLAMA_2_7B = {  # 6.74 G parameters
    **LLAMA_58M,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 4096,
}


def rows(rounds: int) -> Iterator[RatioRow]:
    """Measure all GPU rows. Raises UserError without a GPU."""
    if not torch.cuda.is_available():
        raise UserError("torch sees no CUDA GPU here", where="benchmarks gpu", fix="run it on a GPU node")
    device = torch.device("cuda")
    for dtype in (torch.float16, torch.float32):
        yield perturbation(device, dtype, ELEMENTS, rounds)
    for shape in codes.LARGE:
        yield from codes.products(device, shape, "fp16", rounds)
        for kind in ("fp16", "int8", "nf4"):
            yield sparse.products(device, shape, kind, "fp16", rounds)
    schemes = codes.schemes("fp16")
    for kind, scheme in {"fp16": None, "int8": schemes["int8"], "nf4": schemes["nf4"]}.items():
        yield from steps(device, LLAMA_2_7B, f"Llama-2-7B shape, {kind}", scheme, rounds)


def perturbation(device: torch.device, dtype: torch.dtype, elements: int, rounds: int) -> RatioRow:
    """Time theta + eps z, written to another tensor, against a copy: both read and write every element once.

    A sum of two directions moves the same bytes: where it takes longer, arithmetic is the limit, not bandwidth.
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
    kernel = device.type == "cuda" and noise._triton(torch.device("cuda", 0), dtype, True) is not None
    detail = {**{f"{name}, GB/s": moved / value / 1e9 for name, value in seconds.items()}, "triton": kernel}
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


def steps(
    device: torch.device,
    arch: Mapping[str, Any],
    kind: str,
    scheme: WeightOnlyPrecision | None,
    rounds: int,
    tokens: int = TOKENS,
) -> Iterator[RatioRow]:
    """Time steps of an effective batch of BATCH rows against two bare forwards of it, and measure their peaks.

    All move LoRA-FA; MeZO also moves all weights, unless they are codes. FO-Adam is in the detail.
    """
    bare, adapted = drawn(arch, device, scheme), drawn(arch, device, scheme)
    space, full = with_lora_fa(adapted, RANK, RANK), FullModel(bare.module)
    whole, shared = examples([tokens] * BATCH, 1), examples([tokens] * (BATCH // Q), 1)
    forward = BenchSteps(bare, full, whole).forward

    @torch.inference_mode()
    def two_forwards() -> None:
        forward(1)
        forward(1)

    functions: dict[str, Callable[[], Any]] = {
        "MeZO, LoRA-FA": BenchSteps(adapted, space, whole, lr=1e-4).one(),
        "P-RGE, outer loop": BenchSteps(adapted, space, shared, q=Q, mode=Mode.OUTER, lr=1e-4).one(),
        "P-RGE, inner loop": BenchSteps(adapted, space, shared, q=Q, mode=Mode.INNER, lr=1e-4).one(),
        "P-RGE, both loops": BenchSteps(adapted, space, shared, q=Q, mode=Mode.BOTH, lr=1e-4).one(),
    }
    if scheme is None:
        functions = {"MeZO, all weights": BenchSteps(bare, full, whole).one(), **functions}
    others: dict[str, Callable[[], Any]] = {
        "two forwards": two_forwards,
        "FO-Adam": _backpropagation(adapted, space, whole),
    }
    awaiting = {name: awaited(function, device) for name, function in (functions | others).items()}
    seconds = interleaved(awaiting, rounds)
    what = f"{kind}, E={BATCH} T={tokens}"
    for name in functions:
        ratio = seconds[name] / seconds["two forwards"]
        yield RatioRow(f"{name}, {what}, a step against two bare forwards", ratio, "of", 1.25, 1.05, "1.00", seconds)

    held = dict.fromkeys(awaiting, adapted.weight_bytes) | dict.fromkeys(
        ("two forwards", "MeZO, all weights"), bare.weight_bytes
    )
    held["FO-Adam"] += 2 * sum(param.nbytes for param in space.params.values())
    peaks = {name: (held[name] + _peak(function, device)) / MIB for name, function in awaiting.items()}
    inference = peaks.pop("two forwards")
    detail = {f"{name}, MiB": value for name, value in {"inference": inference, **peaks}.items()}
    for name in functions:
        ratio = peaks[name] / inference
        yield RatioRow(f"{name}, {what}, peak memory against inference", ratio, "of", 1.1, 1.02, "1.00", detail)
    if scheme is None:
        yield step(bare, examples([tokens], 1), kind, rounds)


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
    name = f"full-parameter step, {what}, B={len(data)} T={TOKENS}, against two forwards and two weight passes"
    return RatioRow(name, seconds["ours"] / limit, "of", 1.25, 1.0, "1.00", seconds)

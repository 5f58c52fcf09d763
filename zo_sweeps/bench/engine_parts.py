"""What `bench noise|step|memory|replay` measure of the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

import torch

from zo_sweeps.bench.measure import RatioRow
from zo_sweeps.bench.workload import BenchSteps, demo, examples, llama_58m, mezo_step, with_lora_fa
from zo_sweeps.core.host import interleaved
from zo_sweeps.devices.peak_memory import MemoryMeter
from zo_sweeps.engine import noise
from zo_sweeps.engine.perturbations.low_rank import LowRank
from zo_sweeps.engine.replay import replay
from zo_sweeps.engine.schedules.constant import Constant
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.points import NoiseKey
from zo_sweeps.methods.space import FullModel
from zo_sweeps.models.causal import CausalModel

ELEMENTS = 1 << 22
LAYER = (4, 4096, 4096)  # the projections of an attention layer of Llama2-7B: PeZO, section 2.3
TOKENS = 64
SENTENCES = (18, 27, 36, 53)  # tokens of four SST-2 prompts, with the spread of a typical batch
MIB = 1 << 20
REPLAYED, Q = 1000, 4  # steps, and directions of each


def noise_rows(rounds: int) -> Iterator[RatioRow]:
    """Measure nanoseconds per element of both implementations against `normal_`, and an attention layer's direction."""
    out, key = torch.empty(ELEMENTS), NoiseKey(0, 1, 0)
    here = torch.get_num_threads()
    seconds: dict[str, float] = {}
    compiled = noise.is_compiled()

    def compiled_fill() -> None:
        noise.combine([(key, 1.0)], "w", out.shape, out=out)

    try:
        for threads in dict.fromkeys((1, here)):
            torch.set_num_threads(threads)
            functions: dict[str, Callable[[], Any]] = {
                "normal_": out.normal_,
                "expression": partial(noise.expression, out, key, "w"),
            }
            if compiled:
                functions["compiled"] = compiled_fill
            for name, value in interleaved(functions, rounds).items():
                seconds[f"{name}/{threads}"] = value
    finally:
        torch.set_num_threads(here)
    detail = {f"{name} threads, ns": round(value / ELEMENTS * 1e9, 3) for name, value in seconds.items()}
    limit = "memory bandwidth"
    normal = seconds[f"normal_/{here}"]
    yield RatioRow("noise, torch expression", normal / seconds[f"expression/{here}"], "x", 1, 1, limit, detail)
    if compiled:
        yield RatioRow("noise, compiled", normal / seconds[f"compiled/{here}"], "x", 2, 4, limit, detail)
        if here > 1:
            scaling = seconds["compiled/1"] / seconds[f"compiled/{here}"]
            yield RatioRow(f"noise, compiled, {here} threads against 1", scaling, "x", 1, here, str(here), detail)
    yield _layer(rounds)


def _layer(rounds: int) -> RatioRow:
    """Time a direction for an attention layer, against the products of its projections with a token."""
    weights, token = torch.empty(LAYER), torch.ones(LAYER[-1])
    drawn = interleaved({"numbers": weights.normal_, "products": lambda: weights @ token}, rounds)
    detail = {f"{name}, ms": round(seconds * 1e3, 3) for name, seconds in drawn.items()}
    name = "Gaussian numbers of an attention layer, against its products"
    limit = "5900 in PeZO 2.3, whose products are an FPGA's"
    return RatioRow(name, drawn["numbers"] / drawn["products"], "of", 5900, 1, limit, detail)


def step_rows(rounds: int) -> Iterator[RatioRow]:
    """Measure full-space steps against plain MeZO's, and LoRA-FA against bare forwards of the same texts."""
    model = llama_58m()
    yield _full(model, 1, 1, (2.5, 5.0), rounds)
    yield _full(model, 16, 2, (3.0, 4.5), rounds)
    for q, batch in ((1, 1), (4, 1), (4, 4)):
        yield from _rank_one(model, q, batch, rounds)
    yield _lora_fa(model, rounds)
    yield _sentences(rounds)


def _full(model: CausalModel, batch: int, options: int, goals: tuple[float, float], rounds: int) -> RatioRow:
    data = examples([TOKENS] * batch, options)
    steps = BenchSteps(model, FullModel(model.module), data)
    numbers = count(1)

    def two_forwards() -> None:
        with torch.inference_mode():
            steps.forward(1)
            steps.forward(1)

    plain = lambda: mezo_step(model, data, next(numbers))
    seconds = interleaved({"mezo": plain, "ours": steps.one(), "two forwards": two_forwards}, rounds)
    return RatioRow(
        f"full-parameter step, 58 M, B={batch} T={TOKENS}, {options} option(s), against plain MeZO",
        seconds["mezo"] / seconds["ours"],
        "x",
        *goals,
        f"two forwards: {seconds['mezo'] / seconds['two forwards']:.1f}x",
        seconds,
    )


def _rank_one(model: CausalModel, q: int, batch: int, rounds: int) -> Iterator[RatioRow]:
    data, z = examples([TOKENS] * batch, 1), LowRank(1, 1, sum="product")
    ours = BenchSteps(model, FullModel(model.module), data, q=q, mode=Mode.BOTH, noise=z)
    numbers, weights = count(1), list(model.module.parameters())

    def one_pass() -> None:
        with torch.no_grad():
            for weight in weights:
                weight.add_(0.0)

    compared: dict[str, Callable[[], object]] = {
        "bare forward": torch.inference_mode()(partial(ours.forward, 2 * q)),
        "ours": ours.one(),
        "pass over the weights": one_pass,
    }
    if q == batch == 1:
        compared["mezo"] = lambda: mezo_step(model, data, next(numbers))
    seconds = interleaved(compared, rounds)
    bare = seconds["bare forward"]
    least = bare + seconds["pass over the weights"]
    name = f"full-parameter step of rank 1, 58 M, all points in one forward, q={q} B={batch} T={TOKENS}"
    limit = "the forward, and one pass over the weights"
    yield RatioRow(
        f"{name}, against a bare forward of its rows",
        seconds["ours"] / bare,
        "of",
        1.5,
        1.1,
        f"{least / bare:.2f}: {limit}",
        seconds,
    )
    if q == batch == 1:
        ratio, most = seconds["mezo"] / seconds["ours"], seconds["mezo"] / least
        yield RatioRow(f"{name}, against plain MeZO", ratio, "x", 10.0, 25.0, f"{most:.1f}x: {limit}", seconds)


def _lora_fa(model: CausalModel, rounds: int) -> RatioRow:
    q, batch, rank = Q, 2, 16
    bare = BenchSteps(model, FullModel(model.module), examples([TOKENS] * batch, 2))
    adapted = llama_58m()
    ours = BenchSteps(adapted, with_lora_fa(adapted, rank, rank), bare.examples, q=q, mode=Mode.BOTH, lr=1e-4)
    forward = torch.inference_mode()(partial(bare.forward, 2 * q))
    with_adapters = torch.inference_mode()(partial(ours.forward, 2 * q))
    seconds = interleaved({"bare forward": forward, "with adapters": with_adapters, "ours": ours.one()}, rounds)
    return RatioRow(
        f"LoRA-FA step, both loops, q={q} B={batch} T={TOKENS} r={rank}, against a bare forward of its rows",
        seconds["ours"] / seconds["bare forward"],
        "of",
        1.15,
        1.05,
        "1.00",
        seconds,
    )


def _sentences(rounds: int, q: int = 4, rank: int = 16) -> RatioRow:
    """Time the demo model on sentences against a plain loop's forward of its rows, padded to the longest."""
    bare, adapted = demo(), demo()
    texts = examples(SENTENCES, 2, bare.arch.vocabulary)
    ours = BenchSteps(adapted, with_lora_fa(adapted, rank, 2 * rank), texts, q=q, mode=Mode.BOTH, lr=1e-4)
    padded = torch.randint(1, bare.arch.vocabulary, (2 * q * len(SENTENCES), max(SENTENCES)))
    seconds = interleaved({"padded": torch.inference_mode()(partial(bare.hidden, padded)), "ours": ours.one()}, rounds)
    return RatioRow(
        f"LoRA-FA step, demo model, q={q} B={len(SENTENCES)} T={SENTENCES} r={rank}, against a padded bare forward",
        seconds["ours"] / seconds["padded"],
        "of",
        1.0,
        0.7,
        f"{sum(SENTENCES) / len(SENTENCES) / max(SENTENCES):.2f}: its tokens",
        seconds,
    )


def memory_rows(rounds: int) -> Iterator[RatioRow]:
    """Measure the peak of full-space steps (q = 1, q = 4) beyond the peak of inference on the same batch."""
    model = llama_58m()
    data = examples([64] * 16, 2)
    space = FullModel(model.module)
    inference = _peak(torch.inference_mode()(lambda: BenchSteps(model, space, data).forward(1)), rounds)
    causal: Any = model.module
    layer = sum(param.numel() for param in causal.model.layers[0].parameters()) * 4 / MIB
    logits = len(data) * model.arch.vocabulary * 4 / MIB
    for q in (1, 4):
        peak = _peak(BenchSteps(model, space, data, q=q).one(), rounds)
        detail = {"inference, MiB": inference, "step, MiB": peak, "one layer, MiB": layer, "logits rows, MiB": logits}
        name = f"peak memory of a full-space step above inference, B=16 T=64, q={q}"
        yield RatioRow(name, peak - inference, "MiB", layer + logits, 0, "0", detail)


def _peak(function: Callable[[], object], rounds: int) -> float:
    """Return the peak in MiB beyond the baseline, the minimum over the rounds after one warm-up."""
    peaks = []
    for _ in range(rounds + 1):
        meter = MemoryMeter("cpu")
        meter.start()
        function()
        meter.stop()
        peaks.append(meter.above_baseline / MIB)
    return min(peaks[1:])


def replay_rows(rounds: int) -> Iterator[RatioRow]:
    """Measure 1,000 LoRA-FA steps from their log, against running them."""
    model = llama_58m()
    space = with_lora_fa(model, 16, 16)
    steps = BenchSteps(model, space, examples([64] * 2, 2), q=Q, mode=Mode.BOTH, lr=1e-6)
    log = [[0.1] * Q] * REPLAYED
    functions = {
        "one step": steps.one(),
        "replay": lambda: replay(steps.method, space.params, log, Constant().over(1e-6, REPLAYED), seed=0),
    }
    seconds = interleaved(functions, rounds)
    detail = {**seconds, "steps": REPLAYED, "running them": "one step, minimum, times the number of steps"}
    yield RatioRow(
        f"replay of {REPLAYED} LoRA-FA steps (q={Q}) against running them",
        seconds["one step"] * REPLAYED / seconds["replay"],
        "x",
        20,
        100,
        "noise alone",
        detail,
    )

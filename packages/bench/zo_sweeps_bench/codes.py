"""Products with weights that are stored as codes, against the bare GEMM of the same rows, and a step over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zo_sweeps.core.host import interleaved
from zo_sweeps.engine.codes import four_bit
from zo_sweeps.engine.layers.weight_only import WeightOnly
from zo_sweeps.engine.precisions.int8 import INT8
from zo_sweeps.engine.precisions.nf4 import NF4
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.parts import Model, ModelSource
from zo_sweeps.methods.precision import WeightOnlyPrecision
from zo_sweeps.models.load import load
from zo_sweeps_bench.engine_parts import LLAMA_58M, BenchSteps, examples, with_lora_fa
from zo_sweeps_bench.measure import RatioRow

SMALL = (1376, 512)  # (out, in) of a projection of LLAMA_58M
LARGE = ((4096, 4096), (11008, 4096), (4096, 11008))  # the projections of Llama-2-7B: q, k, v, o; gate, up; down
ROWS = (1, 16, 128, 1024)
Compute = Literal["fp32", "bf16", "fp16"]
FORMATS: Mapping[Compute, torch.dtype] = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp16": torch.float16}
CPU_FORMATS: tuple[Compute, ...] = ("bf16", "fp32")
# The most that a product of 1024 rows, and a step, may cost, of the GEMM's time.
MUST = {"int8": 1.2, "nf4": 1.3, "nf4 + double quantization": 1.3}


def rows(rounds: int) -> Iterator[RatioRow]:
    """Measure all rows."""
    for shape in (SMALL, *LARGE):
        for compute in CPU_FORMATS:
            yield from products(torch.device("cpu"), shape, compute, rounds)
    yield from _steps(rounds)


def schemes(compute: Compute) -> dict[str, WeightOnlyPrecision]:
    """Return the measured ways to store a weight, by name."""
    return {
        "int8": INT8(compute=compute),
        "nf4": NF4(compute=compute),
        "nf4 + double quantization": NF4(compute=compute, double_quantization=True),
    }


def projection(device: torch.device, shape: tuple[int, int], compute: Compute) -> nn.Linear:
    """Return a projection of random weights, frozen."""
    torch.manual_seed(0)
    layer = nn.Linear(shape[1], shape[0], bias=False, device=device, dtype=FORMATS[compute])
    return layer.requires_grad_(False)


def bitsandbytes_projection(scheme: str, dense: nn.Linear) -> nn.Module | None:
    """Return Linear8bitLt (for "int8") or Linear4bit of bitsandbytes over a weight; None where its forward fails.

    Neither is the product with the decoded weight: LLM.int8 quantizes activations too (threshold 6, as in
    transformers), so that a row depends on its batch; Linear4bit multiplies in bf16 on a CPU with AVX512-BF16, whatever
    was asked for, and fails there for inputs that its blocks do not divide.
    """
    four_bit.library()  # so that it is imported quietly
    import bitsandbytes

    out, into = dense.weight.shape
    weight, device = dense.weight.detach().cpu().clone(), dense.weight.device
    modules: Any = bitsandbytes.nn
    if scheme == "int8":
        layer = modules.Linear8bitLt(into, out, bias=False, has_fp16_weights=False, threshold=6.0)
        layer.weight = modules.Int8Params(weight, requires_grad=False, has_fp16_weights=False)
    else:
        double = scheme != "nf4"
        layer = modules.Linear4bit(into, out, False, weight.dtype, compress_statistics=double, quant_type="nf4")
        layer.weight = modules.Params4bit(weight, False, quant_type="nf4", compress_statistics=double)
    module: nn.Module = layer.to(device).eval()
    try:
        with torch.inference_mode():
            module(torch.zeros(1, into, device=device, dtype=weight.dtype))
    except (RuntimeError, ValueError, AssertionError):
        return None
    return module


def products(device: torch.device, shape: tuple[int, int], compute: Compute, rounds: int) -> Iterator[RatioRow]:
    """Time y = x W^T of every scheme, of bitsandbytes' modules and of the bare GEMM, interleaved, for each of ROWS.

    The ratio is that of 1024 rows; the detail has the others. `error` is |y - y'| / |y'|, with y' the product with the
    decoded weight in fp32.
    """
    (out, into), dense = shape, projection(device, shape, compute)
    ours = {name: scheme.stored(dense, dense.weight) for name, scheme in schemes(compute).items()}
    theirs = {name: module for name in ours if (module := bitsandbytes_projection(name, dense)) is not None}
    detail: dict[str, dict[str, float]] = {name: {} for name in ours}
    for count in ROWS:
        x = torch.randn(count, into, device=device, dtype=FORMATS[compute])
        functions: dict[str, Callable[[], Any]] = {"gemm": partial(F.linear, x, dense.weight)}
        functions |= {name: partial(layer, x) for name, layer in ours.items()}
        functions |= {f"decode {name}": partial(_decode, layer) for name, layer in ours.items()}
        functions |= {f"bitsandbytes {name}": partial(layer, x) for name, layer in theirs.items()}
        seconds = _timed(functions, device, rounds)
        gemm = seconds["gemm"]
        for name, values in detail.items():
            values[f"{count} rows"] = seconds[name] / gemm
            values[f"{count} rows, GEMM, s"] = gemm
            values[f"{count} rows, decoding alone"] = seconds[f"decode {name}"] / gemm
            if name in theirs:
                values[f"{count} rows, bitsandbytes"] = seconds[f"bitsandbytes {name}"] / gemm
    for name, layer in ours.items():
        assert isinstance(layer, WeightOnly)
        values = detail[name]
        exact = F.linear(x.float(), layer.dense().float())
        values["error"] = _error(layer, x, exact)
        if name in theirs:
            values["error, bitsandbytes"] = _error(theirs[name], x, exact)
        decode = values[f"{ROWS[-1]} rows, decoding alone"]
        share = schemes(compute)[name].code_bytes(out, into) / dense.weight.nbytes
        yield RatioRow(
            f"{name}, {out} x {into}, {ROWS[-1]} rows, against the {compute} GEMM",
            values[f"{ROWS[-1]} rows"],
            "of",
            MUST[name],
            1.05,
            f"{1 + decode:.2f}: the GEMM and its decoding; {share:.2f}: the bytes, for few rows",
            values,
        )


def _steps(rounds: int, batch: int = 16, tokens: int = 64) -> Iterator[RatioRow]:
    """Time P-RGE's inner loop (LoRA-FA, both signs of a direction in one forward) over weights of every scheme."""
    steps: dict[str, Callable[[], Any]] = {}
    stored: dict[str, float] = {}
    for name, codes in {"bf16": None, **schemes("bf16")}.items():
        model = load(Model(source=ModelSource.RANDOM, arch=LLAMA_58M), torch.bfloat16, "cpu", codes)
        ours = BenchSteps(model, with_lora_fa(model, 16, 16), examples([tokens] * batch, 1), mode=Mode.INNER, lr=1e-4)
        steps[name], stored[name] = ours.one(), model.weight_bytes / 2**20
        if name == "bf16":
            steps["bare forward"] = torch.inference_mode()(partial(ours.forward, 2))
    seconds = interleaved(steps, rounds)
    for name in schemes("bf16"):
        detail = {f"{key}, s": value for key, value in seconds.items()}
        detail |= {f"weights of {key}, MiB": value for key, value in stored.items()}
        yield RatioRow(
            f"LoRA-FA step, inner loop, {name}, 58 M, B={batch} T={tokens}, against bf16",
            seconds[name] / seconds["bf16"],
            "of",
            MUST[name],
            1.05,
            f"{seconds['bare forward'] / seconds['bf16']:.2f}: a bare bf16 forward of its rows",
            detail,
        )


def _timed(functions: Mapping[str, Callable[[], Any]], device: torch.device, rounds: int) -> dict[str, float]:
    with torch.inference_mode():
        return interleaved({name: awaited(function, device) for name, function in functions.items()}, rounds)


def _decode(layer: nn.Module) -> None:
    assert isinstance(layer, WeightOnly)
    for _ in layer.parts():
        pass


def _error(layer: nn.Module, x: Tensor, exact: Tensor) -> float:
    with torch.inference_mode():
        return float((layer(x).float() - exact).norm() / exact.norm())


def awaited(function: Callable[[], Any], device: torch.device) -> Callable[[], None]:
    """Return the function followed by a synchronization of its device."""

    def run() -> None:
        function()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return run

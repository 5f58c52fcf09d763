"""The Triton kernel against the torch expression: interpreted and as compiled code anywhere, and run on a GPU."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys

import pytest
import torch

from tests.conftest import REPO
from zo_sweeps.engine import noise
from zo_sweeps.methods.points import NoiseKey

HALVES = (torch.bfloat16, torch.float16)
TERMS = [(NoiseKey(3, 17, 0), 1e-3), (NoiseKey(3, 17, 1), -0.7)]
WITH_TRITON = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(not WITH_TRITON, reason="triton is not installed (it comes with torch's CUDA builds)")

COMPILE = """
import re, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from zo_sweeps.engine.kernels import triton as ours

types = dict(out=sys.argv[1], base=sys.argv[1], k0="i32", k1="i32", scale="fp32", table="*i32", more="i32")
types |= dict(start="i32", count="i32", HAS_BASE="constexpr", STEP="constexpr")
aligned = {(number,): [["tt.divisibility", 16]] for number in (0, 1)}
source = ASTSource(ours._combine, types, {"HAS_BASE": True, "STEP": int(sys.argv[2])}, aligned)
print(triton.compile(source, target=GPUTarget("cuda", 90, 32), options=ours.OPTIONS).asm["ptx"])
"""


def run(*arguments: str, **variables: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(REPO), **variables}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=REPO, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.multiprocess
@needs_triton
def test_interpreted_it_has_the_bits_of_the_expression() -> None:
    assert run("-m", "tests.engine.interpreted", TRITON_INTERPRET="1").split("\n") == ["done", ""]


@pytest.mark.multiprocess
@needs_triton
@pytest.mark.parametrize("step", ["1", "8"])
@pytest.mark.parametrize(("dtype", "stored"), [("*fp32", ""), ("*bf16", "cvt.rn.bf16"), ("*fp16", "cvt.rn.f16")])
def test_compiled_for_a_gpu_it_rounds_every_operation_by_itself_and_to_nearest(
    dtype: str, stored: str, step: str
) -> None:
    code = run("-c", COMPILE, dtype, step)
    assert bool(re.search(r"st\.global\.v4", code)) == (step == "8"), "16 bytes at a time"
    assert len(re.findall(r"\b(?:add|mul)\.rn\.f32", code)) > 100
    assert not re.search(r"\bfma\.|\.approx|\.ftz|\b(?:add|sub|mul)\.f32", code)
    assert "sqrt.rn.f32" in code
    assert stored in code


@pytest.mark.unit
@pytest.mark.skipif(WITH_TRITON, reason="triton is installed")
def test_without_triton_the_expression_is_used() -> None:
    assert noise._triton(torch.device("cpu"), torch.float32, True) is None


@pytest.mark.unit
@pytest.mark.parametrize("out_dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("base_dtype", [None, torch.float32, *HALVES])
@pytest.mark.parametrize(("start", "count"), [(0, 1), (1000, 5001)])
@pytest.mark.parametrize("compiled", [True, False])
def test_sums_of_any_dtype_are_made_in_fp32_and_rounded_once(
    out_dtype: torch.dtype,
    base_dtype: torch.dtype | None,
    start: int,
    count: int,
    compiled: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if compiled and not noise.is_compiled():
        pytest.skip("no C compiler here")
    if not compiled:
        monkeypatch.setattr(noise, "_native", lambda: None)
    exact = torch.zeros(count)
    for i, (key, scale) in enumerate(TERMS):
        z = noise.gaussian(key, "w", torch.Size([start + count]))[start:]
        exact = z * torch.tensor(scale) if i == 0 else exact + z * torch.tensor(scale)
    base = None if base_dtype is None else torch.linspace(-3, 3, count).to(base_dtype)
    expected = (exact if base is None else base.float() + exact).to(out_dtype)
    shape, out = torch.Size([count]), torch.full((count,), 7.0, dtype=out_dtype)
    assert noise.combine(TERMS, "w", shape, base=base, out=out, start=start) is out
    assert torch.equal(out, expected)
    if base is not None and out_dtype == base_dtype:
        assert torch.equal(noise.combine(TERMS, "w", shape, base=base, start=start), expected)
        noise.combine(TERMS, "w", shape, base=base, out=base, start=start)
        assert torch.equal(base, expected)


@pytest.mark.unit
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
class TestOnAGpu:
    @pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
    @pytest.mark.parametrize("add", [True, False])
    def test_the_kernel_is_taken(self, dtype: torch.dtype, add: bool) -> None:
        assert noise._triton(torch.device("cuda", 0), dtype, add) is not None

    @pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
    @pytest.mark.parametrize("add", [True, False])
    @pytest.mark.parametrize(("start", "count"), [(0, 1), (511, 2), (1000, 70_001), (1 << 30, 3_000_001)])
    def test_it_has_the_bits_of_the_cpu(self, dtype: torch.dtype, add: bool, start: int, count: int) -> None:
        base = torch.linspace(-1, 1, count).to(dtype) if add else None
        shape, ours = torch.Size([count]), torch.empty(count, dtype=dtype)
        noise.combine(TERMS, "w", shape, base=base, out=ours, start=start)
        theirs = torch.empty(count, dtype=dtype, device="cuda")
        there = None if base is None else base.cuda()
        noise.combine(TERMS, "w", shape, "cuda", base=there, out=theirs, start=start)
        assert torch.equal(theirs.cpu(), ours)

    def test_the_expression_on_it_has_the_bits_of_the_cpu(self) -> None:
        there = noise.expression(torch.empty(1_000_003, device="cuda"), TERMS[0][0], "w")
        assert torch.equal(there.cpu(), noise.expression(torch.empty(1_000_003), TERMS[0][0], "w"))

    @pytest.mark.parametrize("shape", [(1,), (512, 2), (70_001,)])
    def test_many_directions_in_one_launch(self, shape: tuple[int, ...]) -> None:
        addresses = [(NoiseKey(1, 2, i), f"w/{i % 2}") for i in range(70)]
        ours, theirs = (noise.each(addresses, torch.Size(shape), device) for device in ("cpu", "cuda"))
        assert torch.equal(theirs.cpu(), ours)

    @pytest.mark.parametrize("terms", [1, 2, 7])
    def test_any_number_of_terms(self, terms: int) -> None:
        chosen, shape = [(NoiseKey(1, 2, i), 0.1 * i - 0.3) for i in range(terms)], torch.Size([5000])
        assert torch.equal(noise.combine(chosen, "w", shape, "cuda").cpu(), noise.combine(chosen, "w", shape))

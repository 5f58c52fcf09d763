"""Run by test_triton.py with TRITON_INTERPRET=1: prints a line for each case in which the kernel has other bits."""

from __future__ import annotations

import torch

from zo_sweeps.engine import direction, noise
from zo_sweeps.engine.kernels import triton
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.methods.points import NoiseKey

SPANS = [
    (0, 1),
    (0, 1024),
    (511, 2),
    (512, 512),
    (1023, 2),
    (1000, 5001),
    ((1 << 31) + 77, 3000),
    ((1 << 34) + 64, 3000),
]
SCALES = [1.0, 1e-3, -0.7]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)


def rounded(total: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """As the interpreter rounds: to bf16 by cutting off, unlike the compiled kernel (test_triton.py looks at that)."""
    if dtype == torch.bfloat16:
        return (total.view(torch.int32) >> 16).to(torch.int16).view(torch.bfloat16)
    return total.to(dtype)


def main() -> None:
    words = [noise.words_of(NoiseKey(3, 17, query), "w") for query in range(len(SCALES))]
    for start, count in SPANS:
        for terms in (1, len(SCALES)):
            total = torch.empty(count)
            noise._expression(total, None, start, words[:terms], SCALES[:terms])
            for base_dtype in (None, torch.float32, torch.bfloat16, torch.float16):
                base = None if base_dtype is None else torch.linspace(-1, 1, count).to(base_dtype)
                wanted = total if base is None else base + total
                for dtype in (torch.float32, torch.bfloat16, torch.float16):
                    out = torch.full((count,), 7.0, dtype=dtype)
                    triton.combine(out, base, start, words[:terms], SCALES[:terms])
                    if not torch.equal(bits(out), bits(rounded(wanted, dtype))):
                        print("other bits:", start, count, terms, base_dtype, dtype)
    base = torch.linspace(-1, 1, 3000)
    expected = base.clone()
    noise._expression(expected, base.clone(), 5, words, SCALES)
    triton.combine(base, base, 5, words, SCALES)
    if not torch.equal(bits(base), bits(expected)):
        print("other bits in place")
    triton.combine(torch.empty(0), None, 5, words, SCALES)
    for shape in ((1,), (511,), (600, 2), (5001,), (0,)):
        out, expected = torch.empty(len(words), *shape), torch.empty(len(words), *shape)
        triton.each(out, words)
        for row, address in zip(expected, words, strict=True):
            noise._expression(row.view(-1), None, 0, [address], [1.0])
        if not torch.equal(bits(out), bits(expected)):
            print("other bits of several in one launch:", shape)
    # Weights in half precision are read and written by the kernel itself.
    noise._runner = lambda out, base, of_signs: triton.combine
    for dtype in (torch.bfloat16, torch.float16):
        param, total = torch.linspace(-1, 1, 3000).to(dtype), torch.empty(3000)
        noise._expression(total, param.float(), 0, words, SCALES)
        terms = [(NoiseKey(3, 17, query), scale) for query, scale in enumerate(SCALES)]
        if not torch.equal(bits(direction.combine(Gaussian(), terms, "w", param)), bits(rounded(total, dtype))):
            print("other bits of weights in", dtype)
    # The way in: the kernel is taken where it passes noise.py's own check, and not where it does not.
    cpu = torch.device("cpu")
    if noise._triton(cpu, torch.float32, True) is not triton.combine:
        print("not taken")
    right = triton.combine
    triton.combine = lambda out, base, start, words, scales: right(out, base, start + 1, words, scales)
    noise._triton.cache_clear()
    if noise._triton(cpu, torch.float32, True) is not None:
        print("taken with other bits")


if __name__ == "__main__":
    main()
    print("done")

"""The probe of this machine: how fast it multiplies, moves, draws and runs a layer, in about ten seconds.

It runs in a process of its own, `python -m zo_sweeps.run.rating THREADS`, so that its threads and its memory are those
of a trial's process. Every rate is the best of a few short rounds, and by CPU time where there is one thread: that of
the machine with little else running.
"""

from __future__ import annotations

import gc
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.work import Pass, Rates, Work, terms
from zo_sweeps.devices import rates as kept
from zo_sweeps.devices.probe import probe
from zo_sweeps.methods.parts import Model
from zo_sweeps.methods.points import NoiseKey
from zo_sweeps.plan.work import layer_values, products

if TYPE_CHECKING:
    import torch

    from zo_sweeps.methods.arch import Arch

SECONDS = 120.0  # for a slow board
WIDTH, INNER = 1024, 2048  # of the matrix that is multiplied
TOKENS = (1, 8, 64, 512, 2048)  # rows of the products
TEXT, BATCHES = 32, (4, 32, 256)  # tokens of a text, and texts of the forwards that elementwise operations are from
LARGE = 1 << 26  # numbers, of which 256 MB are copied within main memory
LEAST = 0.05  # share of a forward that elementwise operations take at least
DRAWN = 1 << 20  # numbers of a direction
ROUNDS = 3
ENOUGH = 0.2  # seconds of a call that is not repeated
PATIENCE = 0.05  # seconds that a product of one size may take; a slower dtype is not measured at larger sizes


def measure(threads: int) -> Rates:
    """Probe this machine, keep its rates in the cache folder, and return them. Cost: about ten seconds.

    Raises UserError if the probe cannot run.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", __spec__.name, str(threads)]
    try:
        run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=True)
        rates = Rates.from_json(json.loads(run.stdout.splitlines()[-1]))
    except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
        lines = str(getattr(error, "stderr", "") or error).strip().splitlines()
        raise UserError(f"the probe of this machine failed: {lines[-1] if lines else error}") from None
    kept.keep(rates)
    return rates


def _probe(threads: int, began: float) -> Rates:
    """Measure everything in this process, which has just begun."""
    import torch

    from zo_sweeps.models.load import load

    torch.set_num_threads(threads)
    host, busy = probe(), os.getloadavg()[0]
    device = torch.device("cuda" if host["gpus"] else "cpu")
    model = load(Model(), torch.float32, device)
    ids = torch.arange(max(BATCHES) * TEXT, device=device).remainder(model.arch.vocabulary).view(-1, TEXT)
    forward = torch.inference_mode()(model.hidden)
    forward(ids[:1])
    start = time.process_time() if device.type == "cpu" else time.perf_counter() - began
    multiplied = {name: _products(getattr(torch, name), device) for name in ("float32", "bfloat16", "float16")}
    with torch.inference_mode():
        layer = _best(lambda: forward(ids[:1, :1]), device) / model.arch.layers
        memory = _memory(device)
        whole = {texts * TEXT: _best(partial(forward, ids[:texts]), device) for texts in BATCHES}
    numbers, tensor = _noise(device)
    rates = Rates(
        device=host["name"],
        threads=threads,
        products={name: by_rows for name, by_rows in multiplied.items() if by_rows},
        memory_bytes=memory,
        layer_bytes={1: math.inf},
        numbers=numbers,
        layer=layer,
        tensor=tensor,
        trial=_best(gc.collect, device),
        start=start,
        load=busy / host["cores"],
    )
    return with_elements(rates, model.arch, whole)


def with_elements(rates: Rates, arch: Arch, whole: Mapping[int, float]) -> Rates:
    """Return the rates with those of elementwise operations: what forwards take beside their products.

    Args:
        whole: tokens -> seconds of a forward of texts of TEXT tokens.
    """
    by_tokens = {}
    for tokens, taken in whole.items():
        product = Pass("steps", 1, tokens, products(arch, tokens, TEXT, 0))
        rest = taken - terms(Work("", passes=(product,), layers=arch.layers), rates)["steps"]
        by_tokens[tokens] = 4 * arch.layers * layer_values(arch) * tokens / max(rest, LEAST * taken)
    return replace(rates, layer_bytes=by_tokens)


def _products(dtype: torch.dtype, device: torch.device) -> dict[int, float]:
    """Return rows -> floating-point operations per second of products in a dtype; {} where it has none."""
    import torch

    rates: dict[int, float] = {}
    try:
        weight = torch.ones((INNER, WIDTH), dtype=dtype, device=device)
        for rows in TOKENS:
            values = torch.ones((rows, WIDTH), dtype=dtype, device=device)
            with torch.inference_mode():
                seconds = _best(partial(torch.nn.functional.linear, values, weight), device)
            rates[rows] = 2 * rows * INNER * WIDTH / seconds
            if seconds > PATIENCE:
                break
    except RuntimeError:  # a dtype without kernels here
        return rates
    return rates


def _memory(device: torch.device) -> float:
    """Return the bytes per second that a copy within main memory reads and writes."""
    import torch

    large = torch.zeros(LARGE, device=device)
    copy = torch.empty_like(large)
    return 2 * large.nbytes / _best(lambda: copy.copy_(large), device)


def _noise(device: torch.device) -> tuple[float, float]:
    """Return (numbers of Gaussian noise per second, seconds to draw a tensor of one)."""
    import torch

    from zo_sweeps.engine import noise

    many, one = torch.Size((DRAWN,)), torch.Size((1,))
    tensor = _best(lambda: noise.gaussian(NoiseKey(0, 1, 0), "one", one, device), device)
    seconds = _best(lambda: noise.gaussian(NoiseKey(0, 1, 0), "many", many, device), device)
    return DRAWN / max(seconds - tensor, 1e-9), tensor


def _best(work: Callable[[], Any], device: torch.device) -> float:
    """Return the seconds of a call: the minimum over rounds, after one that does not count, each of several calls."""
    import torch

    own = device.type == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if own else time.perf_counter

    def once(calls: int) -> float:
        began = clock()
        for _ in range(calls):
            work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (clock() - began) / calls

    first = min(once(1), once(1))
    if first > ENOUGH:
        return first
    calls = max(1, min(200, int(0.05 / max(first, 1e-7))))
    return min(once(calls) for _ in range(ROUNDS))


if __name__ == "__main__":
    print(json.dumps(_probe(int(sys.argv[1]), time.perf_counter()).to_json()))

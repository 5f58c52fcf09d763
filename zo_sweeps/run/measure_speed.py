"""The probe of this machine: how fast it computes a forward, in a few seconds.

It runs in a process of its own, `python -m zo_sweeps.run.measure_speed THREADS`, so that its threads and its memory are
those of a trial's process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from zo_sweeps.core.errors import UserError
from zo_sweeps.devices.probe import probe
from zo_sweeps.devices.speed import Speed, keep
from zo_sweeps.methods.arch import ALL
from zo_sweeps.methods.parts import Model

PATIENCE = 120.0  # seconds, for a slow board
ROWS, TOKENS = 4, 32  # of the demo model's forward: a small batch
ROUNDS, CALLS = 5, 20


def measure(threads: int) -> None:
    """Probe this machine, and keep its speed in the cache folder. Cost: about five seconds.

    Raises UserError if the probe cannot run.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", __spec__.name, str(threads)]
    try:
        subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        lines = str(getattr(error, "stderr", "") or error).strip().splitlines()
        raise UserError(f"the probe of this machine failed: {lines[-1] if lines else error}") from None


def _probe(threads: int, began: float) -> Speed:
    """Measure in this process, which has just begun; with one thread on a CPU, by CPU time."""
    import torch

    from zo_sweeps.models.load import load

    torch.set_num_threads(threads)
    host, busy = probe(), os.getloadavg()[0]
    device = torch.device("cuda" if host["gpus"] else "cpu")
    own = device.type == "cpu" and threads == 1
    clock = time.process_time if own else time.perf_counter
    model = load(Model(), torch.float32, device)
    ids = torch.arange(ROWS * TOKENS, device=device).remainder(model.arch.vocabulary).view(ROWS, TOKENS)

    def seconds(calls: int) -> float:
        began = clock()
        with torch.inference_mode():
            for _ in range(calls):
                model.hidden(ids)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (clock() - began) / calls

    seconds(1)
    start = time.process_time() if own else time.perf_counter() - began
    taken = min(seconds(CALLS) for _ in range(ROUNDS))
    operations = 2 * ids.numel() * model.arch.entries([ALL]) / taken
    return Speed(host["name"], threads, operations, start, busy / host["cores"])


if __name__ == "__main__":
    keep(_probe(int(sys.argv[1]), time.perf_counter()))

"""Replay benchmark: 1,000 LoRA-FA steps from their log, against running them."""

from __future__ import annotations

from collections.abc import Iterator

from zo_sweeps.bench.measure import Row
from zo_sweeps.bench.ours import Steps, with_lora_fa
from zo_sweeps.bench.shapes import examples, llama_58m
from zo_sweeps.core.timing import interleaved
from zo_sweeps.engine.replay import replay
from zo_sweeps.engine.schedules.constant import Constant
from zo_sweeps.methods.evaluation import Mode

STEPS, Q = 1000, 4


def rows(rounds: int) -> Iterator[Row]:
    """Measure a replay against one step times the number of steps."""
    model = llama_58m()
    space = with_lora_fa(model, 16, 16)
    steps = Steps(model, space, examples([64] * 2, 2), q=Q, mode=Mode.BOTH, lr=1e-6)
    log = [[0.1] * Q] * STEPS
    functions = {
        "one step": steps.one(),
        "replay": lambda: replay(steps.method, space.params, log, Constant().over(1e-6, STEPS), seed=0),
    }
    seconds = interleaved(functions, rounds)
    detail = {**seconds, "steps": STEPS, "running them": "one step, minimum, times the number of steps"}
    yield Row(
        f"replay of {STEPS} LoRA-FA steps (q={Q}) against running them",
        seconds["one step"] * STEPS / seconds["replay"],
        "x",
        20,
        100,
        "noise alone",
        detail,
    )

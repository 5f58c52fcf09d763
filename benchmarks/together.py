"""Steps of trials that share forwards, against each trial's steps alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
from typing import cast

import torch

from zo_sweeps.bench.measure import Row
from zo_sweeps.bench.workload import LLAMA_58M, Steps, demo, examples, llama_58m, with_lora_fa
from zo_sweeps.core.timing import interleaved
from zo_sweeps.engine.precisions.nf4 import NF4
from zo_sweeps.engine.step import step
from zo_sweeps.engine.together import Seat, Shareable, Table
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.parts import Model, ModelSource
from zo_sweeps.models.causal import LanguageModel
from zo_sweeps.models.load import load

TRIALS, TOKENS, RANK = 8, 64, 16
SENTENCES = (18, 53, 27, 36, 22, 45, 31, 60)  # tokens of one prompt of each trial


def rows(rounds: int) -> Iterator[Row]:
    """Measure all rows."""
    alike = [TOKENS] * TRIALS
    nf4 = load(Model(source=ModelSource.RANDOM, arch=LLAMA_58M), torch.float32, "cpu", NF4(compute="fp32"))
    yield _trials("demo model, T=64", demo(), alike, (0.0, 1.9), rounds)
    yield _trials("demo model, sentences", demo(), SENTENCES, (0.0, 1.9), rounds)
    yield _trials("58 M, T=64", llama_58m(), alike, (1.0, 1.2), rounds)
    yield _trials("58 M in NF4, T=64", nf4, alike, (1.0, 1.2), rounds)


def _trials(name: str, model: LanguageModel, lengths: Sequence[int], goals: tuple[float, float], rounds: int) -> Row:
    """Time eight steps. Where sharing does not pay, trials do not share: nothing is required."""
    host = model.apart()
    values = cast(Shareable, with_lora_fa(host, RANK, RANK))
    steps = []
    for length in lengths:
        own = model.apart()
        text = examples([length], 1, model.arch.vocabulary)
        steps.append(Steps(own, with_lora_fa(own, RANK, RANK), text, mode=Mode.BOTH))
    alone, numbers = [each.one() for each in steps], count(1)

    def apart() -> None:
        for one in alone:
            one()

    def together() -> None:
        table, number = Table(len(steps)), next(numbers)
        table.host = host, values

        def run(each: Steps) -> None:
            seat = Seat(table, each.model, cast(Shareable, each.space))
            seated = Steps(seat, each.space, each.examples, mode=each.mode)
            with table.turn():
                step(each.method, each.model.module, each.space, seated.forward, {}, seed=0, step=number, lr=each.lr)

        threads = [threading.Thread(target=run, args=(each,)) for each in steps]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    ids = torch.ones(2 * len(lengths), max(lengths), dtype=torch.long)
    bare = torch.inference_mode()(partial(model.hidden, ids))
    seconds = interleaved({"apart": apart, "together": together, "bare forward": bare}, rounds)
    return Row(
        f"LoRA-FA steps of {len(lengths)} trials, {name}, q=1 B=1 r={RANK}, in shared forwards, against one by one",
        seconds["apart"] / seconds["together"],
        "x",
        *goals,
        f"{seconds['apart'] / seconds['bare forward']:.2f}x: one bare forward of all rows, without the head",
        seconds,
    )

"""Step benchmarks: full space against the plain MeZO loop, LoRA-FA against bare forwards of the same texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

import torch

from zo_sweeps.bench import mezo
from zo_sweeps.bench.measure import Row
from zo_sweeps.bench.ours import Steps, with_lora_fa
from zo_sweeps.bench.shapes import demo, examples, llama_58m
from zo_sweeps.core.timing import interleaved
from zo_sweeps.engine.layers.full import FullModel
from zo_sweeps.engine.perturbations.low_rank import LowRank
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.models.causal import LanguageModel

TOKENS = 64
SENTENCES = (18, 27, 36, 53)  # tokens of four SST-2 prompts, with the spread of a typical batch


def rows(rounds: int) -> Iterator[Row]:
    """Measure all rows."""
    model = llama_58m()
    yield _full(model, 1, 1, (2.5, 5.0), rounds)
    yield _full(model, 16, 2, (3.0, 4.5), rounds)
    for q, batch in ((1, 1), (4, 1), (4, 4)):
        yield from _rank_one(model, q, batch, rounds)
    yield _lora_fa(model, rounds)
    yield _sentences(rounds)


def _full(model: LanguageModel, batch: int, options: int, goals: tuple[float, float], rounds: int) -> Row:
    data = examples([TOKENS] * batch, options)
    steps = Steps(model, FullModel(model.module), data)
    numbers = count(1)

    def two_forwards() -> None:
        with torch.inference_mode():
            steps.forward(1)
            steps.forward(1)

    plain = lambda: mezo.step(model, data, next(numbers))
    seconds = interleaved({"mezo": plain, "ours": steps.one(), "two forwards": two_forwards}, rounds)
    return Row(
        f"full-parameter step, 58 M, B={batch} T={TOKENS}, {options} option(s), against plain MeZO",
        seconds["mezo"] / seconds["ours"],
        "x",
        *goals,
        f"two forwards: {seconds['mezo'] / seconds['two forwards']:.1f}x",
        seconds,
    )


def _rank_one(model: LanguageModel, q: int, batch: int, rounds: int) -> Iterator[Row]:
    ours = Steps(
        model,
        FullModel(model.module),
        examples([TOKENS] * batch, 1),
        q=q,
        mode=Mode.BOTH,
        noise=LowRank(1, 1, sum="product"),
    )
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
        compared["mezo"] = lambda: mezo.step(model, ours.examples, next(numbers))
    seconds = interleaved(compared, rounds)
    bare = seconds["bare forward"]
    least = bare + seconds["pass over the weights"]
    name = f"full-parameter step of rank 1, 58 M, all points in one forward, q={q} B={batch} T={TOKENS}"
    limit = "the forward, and one pass over the weights"
    yield Row(
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
        yield Row(f"{name}, against plain MeZO", ratio, "x", 10.0, 25.0, f"{most:.1f}x: {limit}", seconds)


def _lora_fa(model: LanguageModel, rounds: int, q: int = 4, batch: int = 2, rank: int = 16) -> Row:
    bare = Steps(model, FullModel(model.module), examples([TOKENS] * batch, 2))
    adapted = llama_58m()
    ours = Steps(adapted, with_lora_fa(adapted, rank, rank), bare.examples, q=q, mode=Mode.BOTH, lr=1e-4)
    forward = torch.inference_mode()(partial(bare.forward, 2 * q))
    with_adapters = torch.inference_mode()(partial(ours.forward, 2 * q))
    seconds = interleaved({"bare forward": forward, "with adapters": with_adapters, "ours": ours.one()}, rounds)
    return Row(
        f"LoRA-FA step, both loops, q={q} B={batch} T={TOKENS} r={rank}, against a bare forward of its rows",
        seconds["ours"] / seconds["bare forward"],
        "of",
        1.15,
        1.05,
        "1.00",
        seconds,
    )


def _sentences(rounds: int, q: int = 4, rank: int = 16) -> Row:
    """Time the demo model on sentences against a plain loop's forward of its rows, padded to the longest."""
    bare, adapted = demo(), demo()
    texts = examples(SENTENCES, 2, bare.arch.vocabulary)
    ours = Steps(adapted, with_lora_fa(adapted, rank, 2 * rank), texts, q=q, mode=Mode.BOTH, lr=1e-4)
    padded = torch.randint(1, bare.arch.vocabulary, (2 * q * len(SENTENCES), max(SENTENCES)))
    seconds = interleaved({"padded": torch.inference_mode()(partial(bare.hidden, padded)), "ours": ours.one()}, rounds)
    return Row(
        f"LoRA-FA step, demo model, q={q} B={len(SENTENCES)} T={SENTENCES} r={rank}, against a padded bare forward",
        seconds["ours"] / seconds["padded"],
        "of",
        1.0,
        0.7,
        f"{sum(SENTENCES) / len(SENTENCES) / max(SENTENCES):.2f}: its tokens",
        seconds,
    )

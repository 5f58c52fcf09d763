"""A population in one generation: tokens per second of its members, and whether each writes what it writes alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from zo_sweeps.core.host import interleaved
from zo_sweeps.engine.factored import factored
from zo_sweeps.engine.perturbations.low_rank import LowRank
from zo_sweeps.methods.parts import Model
from zo_sweeps.methods.points import NoiseKey, Point
from zo_sweeps.methods.space import FullModel
from zo_sweeps.models.causal import CausalModel
from zo_sweeps.models.load import load
from zo_sweeps_bench.measure import RatioRow

MEMBERS, NEW = 64, 8
EPS = 0.01  # at which about one text in seven differs from the unperturbed model's
PROMPTS = [
    f"{text} {more}"
    for text in ("This movie is", "I think the film", "The plot is bad and", "What a")
    for more in ("a", "so", "very", "not the")
]


def rows(rounds: int) -> Iterator[RatioRow]:
    """Measure all rows."""
    for stops, name in (([], f"{NEW} tokens each"), (None, "to a stop")):
        yield throughput(demo(torch.float32), stops, name, rounds)
    for dtype, must in ((torch.float32, 1.0), (torch.bfloat16, 0.0)):
        yield identical(demo(dtype), must)


def demo(dtype: torch.dtype) -> CausalModel:
    """Load the demo model on the CPU."""
    return load(Model(), dtype, torch.device("cpu"))


class Population:
    """Members of rank 1 over all weights of a model: both signs of each of MEMBERS / 2 directions."""

    def __init__(self, model: CausalModel, members: int = MEMBERS, prompts: Sequence[str] = PROMPTS) -> None:
        self.model, self.space, self.noise = model, FullModel(model.module), LowRank(1, 1)
        self.points = [Point(NoiseKey(0, 1, query), sign * EPS) for query in range(members // 2) for sign in (1, -1)]
        self.prompts = [model.prompt(text) for text in prompts]
        self.drawn = 0  # tokens since it was last read
        self._head = model.head
        model.head = self._counted  # type: ignore[method-assign]

    def _counted(self, hidden: Tensor) -> Tensor:
        self.drawn += len(hidden)
        return self._head(hidden)

    def write(self, points: list[Point], new: int = NEW, stops: list[int] | None = None) -> list[str]:
        """Return the texts of the members at these points, in one generation per length of prompts."""
        self.drawn = 0
        with torch.inference_mode(), self._held(points):
            return self.model.generate(self.prompts, new, stops, batch_size=len(self.prompts), points=len(points))

    def plain(self, new: int = NEW, stops: list[int] | None = None) -> list[str]:
        """Return the texts of as many rows of the unperturbed model."""
        self.drawn = 0
        rows = [prompt for _ in self.points for prompt in self.prompts]
        return self.model.generate(rows, new, stops, batch_size=len(rows))

    def _held(self, points: list[Point]) -> AbstractContextManager[None]:
        return factored(self.model.module, self.space, self.noise, points)


def throughput(
    model: CausalModel,
    stops: list[int] | None,
    name: str,
    rounds: int,
    members: int = MEMBERS,
    prompts: Sequence[str] = PROMPTS,
    new: int = NEW,
) -> RatioRow:
    """Time the population's generation against plain batched generation of as many rows with one weight.

    Limit, in operations: a row's products with the factors beside those with the weights, sum m n / sum (m n + m + n).
    In bytes, where each output of a product stands in memory: it is read and written once more.
    """
    population = Population(model, members, prompts)
    drawn: dict[str, int] = {}

    def counted(key: str, write: Any) -> Any:
        def run() -> None:
            write()
            drawn[key] = population.drawn

        return run

    together = lambda: population.write(population.points, new, stops)
    plain = lambda: population.plain(new, stops)
    functions = {"plain": counted("plain", plain), "population": counted("population", together)}
    seconds = interleaved(functions, rounds)
    rates = {f"{key}, tokens/s": drawn[key] / seconds[key] for key in functions}
    matrices = [param.shape for param in model.module.parameters() if param.dim() == 2]
    texts = f"{len(prompts)} prompt{'s'[: len(prompts) - 1]}"
    dense, thin = (sum(map(of, matrices)) for of in (lambda s: s[0] * s[1], sum))
    return RatioRow(
        f"tokens/s of {members} members of rank 1 x {texts}, {name}, against plain rows",
        rates["population, tokens/s"] / rates["plain, tokens/s"],
        "x",
        0.7,
        0.9,
        f"{dense / (dense + thin):.2f}: the operations; every product's output is read and written once more",
        {**rates, **{f"{key}, tokens": count for key, count in drawn.items()}},
    )


def identical(model: CausalModel, must: float, members: int = MEMBERS) -> RatioRow:
    """Return the share of the members' texts that are those of the member alone, in a generation of its own."""
    population = Population(model, members)
    together = population.write(population.points)
    alone = [text for point in population.points for text in population.write([point])]
    same = sum(a == b for a, b in zip(together, alone, strict=True))
    dtype = str(next(model.module.parameters()).dtype).removeprefix("torch.")
    detail = {"texts": len(alone), "same": same, "distinct": len({*alone})}
    name = f"share of {members} members' texts in one generation that each writes alone too, {dtype}"
    return RatioRow(name, same / len(alone), "x", must, 1.0, "1, but for ties within rounding", detail)

"""The work of a trial in units that a machine has a price for, and that price in seconds. Standard library only.

A `Work` says how much there is to do, from a trial's configuration alone; `Rates` say how fast a machine does it, from
a probe; `terms` multiplies the two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from typing import Any

CACHED_BYTES = 16 * 2**20  # weights up to this size stay in a processor's cache from one forward to the next
LOADED = 4  # bytes of main memory that are moved to read a byte of weights from a file


@dataclass(frozen=True)
class Pass:
    """Forwards of one size. A forward with its backward pass counts as several.

    Args:
        part: what they are for: "steps", "scoring" or "measurement".
        count: how many; may be a mean.
        tokens: of one forward.
        products: floating-point operations of its matrix products.
    """

    part: str
    count: float
    tokens: float
    products: float


@dataclass(frozen=True)
class Work:
    """What a trial does.

    Args:
        kind: a name; the times of trials of one kind are off by the same factor.
        dtype: in which matrices are multiplied.
        layers: of the model: each has a fixed cost per forward.
        layer_bytes: read and written per token by everything but matrix products, over all layers.
        weight_bytes: read per forward.
        decoded_bytes: of weights that are decoded from codes in every forward.
        tensors, numbers: of noise drawn in the whole trial.
        moved_bytes: of trained values read and written by points and updates in the whole trial.
        reloads: whether the trial begins by loading the weights, whatever ran before it.
    """

    kind: str
    dtype: str = "float32"
    passes: tuple[Pass, ...] = ()
    layers: int = 0
    layer_bytes: float = 0.0
    weight_bytes: float = 0.0
    decoded_bytes: float = 0.0
    tensors: float = 0.0
    numbers: float = 0.0
    moved_bytes: float = 0.0
    reloads: bool = False


@dataclass(frozen=True)
class Rates:
    """What a machine does per second in one process, on its GPU or on `threads` threads, with nothing else running.

    Args:
        device: name of the processor or the GPU.
        threads: of torch.
        products: dtype -> tokens -> floating-point operations per second of matrix products with that many rows.
        memory_bytes: per second, from and to main memory.
        layer_bytes: tokens -> bytes per second, in a layer's elementwise operations.
        numbers: of Gaussian noise per second.
        layer: seconds of a layer's forward of a single token.
        tensor: seconds to draw a tensor of one number.
        trial: seconds that every trial takes beside its forwards.
        start: seconds of the first trial of a process: imports, the first model and the rows.
        load: the machine's load average when it was probed, per core.
    """

    device: str
    threads: int
    products: Mapping[str, Mapping[int, float]]
    memory_bytes: float
    layer_bytes: Mapping[int, float]
    numbers: float
    layer: float
    tensor: float
    trial: float
    start: float
    load: float = field(default=0.0, compare=False)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Rates:
        """Read `to_json`'s answer. Raises ValueError for anything else."""
        try:
            products = {str(dtype): _rates(by_rows) for dtype, by_rows in data["products"].items()}
            layer_bytes, whole = _rates(data["layer_bytes"]), int(data["threads"])
            others = {one.name: float(data[one.name]) for one in fields(cls) if one.type == "float"}
            if not products or min(others[name] for name in ("memory_bytes", "numbers")) <= 0:
                raise ValueError("a rate is missing")
            return cls(str(data["device"]), whole, products, layer_bytes=layer_bytes, **others)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"no rates of a machine: {error!r}") from error

    def of_products(self, dtype: str, tokens: float) -> float:
        """Return the floating-point operations per second of products with `tokens` rows.

        A dtype that was not measured has the rates of the first that was.
        """
        return _between(self.products.get(dtype) or next(iter(self.products.values())), tokens)

    def of_layers(self, tokens: float) -> float:
        """Return the bytes per second of a layer's elementwise operations."""
        return _between(self.layer_bytes, tokens)


def _rates(data: Mapping[Any, Any]) -> dict[int, float]:
    """Read number -> rate. Raises ValueError if there is none, or one that is not positive and finite."""
    rates = {int(number): float(rate) for number, rate in data.items()}
    if not rates or not all(0 < rate < math.inf for rate in rates.values()):
        raise ValueError("a rate is missing, or not positive")
    return dict(sorted(rates.items()))


def _between(rates: Mapping[int, float], number: float) -> float:
    """Return the rate for a number: its logarithm is linear in the number's between the measured ones."""
    points = [*rates.items()]
    for (low, slow), (high, fast) in pairwise(points):
        if low <= number <= high:
            share = math.log(number / low) / math.log(high / low)
            return float(slow ** (1 - share) * fast**share)
    return points[0][1] if number < points[0][0] else points[-1][1]


def terms(work: Work, rates: Rates) -> dict[str, float]:
    """Return the seconds of a trial in a process that has its model loaded: part of the work -> seconds.

    With N tokens and F operations per forward, a forward takes

        layers * layer + max(F / products(N), weight_bytes / memory_bytes)
        + (N * layer_bytes + decoded_bytes) / rates.layer_bytes(N)

    where weights that stay in the cache are not read from main memory.
    """
    streamed = work.weight_bytes / rates.memory_bytes if work.weight_bytes > CACHED_BYTES else 0.0
    spent = {"trial": rates.trial, "noise": work.tensors * rates.tensor + work.numbers / rates.numbers}
    spent["values"] = work.moved_bytes / rates.memory_bytes
    if work.reloads:
        spent["loading"] = LOADED * work.weight_bytes / rates.memory_bytes
    for one in work.passes:
        product = max(one.products / rates.of_products(work.dtype, one.tokens), streamed)
        other = (one.tokens * work.layer_bytes + work.decoded_bytes) / rates.of_layers(one.tokens)
        spent[one.part] = spent.get(one.part, 0.0) + one.count * (work.layers * rates.layer + product + other)
    return spent


def seconds(work: Work, rates: Rates) -> float:
    """Return the sum of `terms`."""
    return sum(terms(work, rates).values())


def median(values: Sequence[float]) -> float:
    """Return the median of positive numbers; of two middle ones their geometric mean."""
    ordered = sorted(values)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return math.sqrt(low * high)

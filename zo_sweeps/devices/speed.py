"""What was measured once of this machine and is kept in the cache folder: its speed, and its fastest format."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import date
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import cache_folder, replace_text
from zo_sweeps.core.fingerprint import fingerprint
from zo_sweeps.core.host import interleaved, processor, version_of
from zo_sweeps.methods import registry
from zo_sweeps.methods.precision import Precision

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Speed:
    """What a machine does in one process, on its GPU or on `threads` threads, with nothing else running."""

    device: str  # name of the processor or the GPU
    threads: int  # of torch
    operations: float  # floating-point operations per second of a forward of the demo model
    start: float  # seconds of the first trial of a process: imports, the first model
    load: float = field(default=0.0, compare=False)  # the machine's load average when it was probed, per core


def known(device: str, threads: int) -> Speed | None:
    """Return the speed of a device of this machine; None if it was not probed with this number of threads.

    Raises UserError for a file that does not hold one.
    """
    path = _path(device, threads)
    try:
        speed = Speed(**json.loads(path.read_text(encoding="utf-8")))
        if not (0 < speed.operations < math.inf and 0 <= speed.start < math.inf):
            raise ValueError("a number is missing, or not positive")
        return speed
    except FileNotFoundError:
        return None
    except (OSError, TypeError, ValueError) as error:
        raise UserError(f"cannot read this machine's speed: {error}", where=str(path), fix="plan --probe") from None


def keep(speed: Speed) -> None:
    """Write a speed to the cache folder; where that cannot be written, the machine is probed again the next time."""
    path = _path(speed.device, speed.threads)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, json.dumps(asdict(speed), indent=1) + "\n")


def _path(device: str, threads: int) -> Path:
    return cache_folder() / "speed" / f"{fingerprint([device, threads, version_of('torch')])}.json"


ROWS = (1, 8)  # of a forward: waits for memory, and for multiplications
WIDTH, INNER, HEADS, TOKENS = 512, 1376, 8, 64  # of the measured layer: one of `bench`'s Llama of 58 M parameters
ROUNDS = 3
EQUAL = 1.05  # a format whose time is within this factor of the shortest is as fast


@dataclass(frozen=True)
class FormatTimes:
    """The time of one layer's forward in each format."""

    seconds: Mapping[str, Sequence[float]]  # precision -> seconds for each of ROWS
    rounding: Mapping[str, float]  # precision -> relative distance of its numbers
    measured: str  # the day, as YYYY-MM-DD

    @property
    def exact(self) -> str:
        """The precision that rounds the finest, which the others are compared with."""
        return min(self.rounding, key=lambda name: self.rounding[name])

    def gain(self, name: str) -> list[float]:
        """Return how many times as fast as `exact` a precision is, for each of ROWS."""
        return [full / own for full, own in zip(self.seconds[self.exact], self.seconds[name], strict=True)]

    def line(self, eps: float | None = None) -> str:
        """Return the choice for trials with this eps and the measurement behind it, for people."""
        each = []
        for name in self.seconds:
            gains = (
                f"{gain:.2g}x ({rows} row{'s' * (rows > 1)})" for gain, rows in zip(self.gain(name), ROWS, strict=True)
            )
            each += [f"{name} {', '.join(gains)}"] if name != self.exact else []
        own, any_eps = self.fastest(eps), self.fastest()
        coarse = "" if own == any_eps else f" ({any_eps} is faster, and rounds too coarsely for estimator.eps={eps:g})"
        hides = "half precision can hide the loss differences of a small estimator.eps, of which a run warns"
        warning = "" if own == self.exact else f"; {hides}"
        return f"{own} here{coarse}: against {self.exact}, {'; '.join(each)}, measured on {self.measured}{warning}"

    def fastest(self, eps: float | None = None) -> str:
        """Return the precision with the shortest time over ROWS; of those as fast, the one that rounds the finest.

        Args:
            eps: of the trial's loss differences, for which only precisions that round to `eps` or finer are taken (and
                `exact`): with others, projected gradients were noise (docs/SPEED.md); None: it takes none.
        """
        fine = [name for name in self.seconds if eps is None or name == self.exact or self.rounding[name] <= eps]
        total = {name: sum(1 / gain for gain in self.gain(name)) for name in fine}
        close = [name for name in total if total[name] <= EQUAL * min(total.values())]
        return min(close, key=lambda name: self.rounding[name])


def plain_precisions() -> dict[str, Precision]:
    """Return the precisions that store weights as floating-point numbers, by name."""
    members = registry.members("precision")
    return {name: one() for name, one in members.items() if issubclass(one, Precision) and not one.coded}


def format_times(device: str) -> FormatTimes:
    """Return the times of a torch device ("cpu", "cuda") on this machine: those kept, or else measured now and kept.

    They are measured again for another processor, GPU or torch. Raises UserError if the cache cannot be written. Cost:
    once per process a file; once per machine, importing torch and about 2 seconds.
    """
    return _format_times(device, cache_folder())


@cache
def _format_times(device: str, folder: Path) -> FormatTimes:
    import torch

    name = processor() if device == "cpu" else torch.cuda.get_device_name(device)
    file = folder / "formats" / f"{fingerprint([device, name, version_of('torch')])}.json"
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        return FormatTimes(kept["seconds"], kept["rounding"], kept["measured"])
    except (OSError, ValueError, TypeError, LookupError):
        pass  # absent or damaged
    rounding = {name: torch.finfo(one.dtype).eps for name, one in plain_precisions().items()}
    times = FormatTimes(measure(device), rounding, date.today().isoformat())
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_text(file, json.dumps({"device": name, **asdict(times)}, indent=2) + "\n")
    except OSError as error:
        raise UserError(f"cannot write {file} ({error.strerror})", fix="set ZO_SWEEPS_CACHE to a folder") from None
    return times


def measure(device: str) -> dict[str, list[float]]:
    """Time a forward of one layer in each of `plain_precisions`, for each of ROWS, on one thread of a CPU.

    The formats take turns; the first round is discarded, and the minimum of ROUNDS is returned.
    """
    seconds: dict[str, list[float]] = {}
    with torch_threads(1):
        for rows in ROWS:
            layers = {name: _layer(one.dtype, rows, device) for name, one in plain_precisions().items()}
            for name, value in interleaved(layers, ROUNDS).items():
                seconds.setdefault(name, []).append(value)
    return seconds


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Give torch this many threads until the block ends; 0: leave it alone."""
    if not count:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _layer(dtype: torch.dtype, rows: int, device: str) -> Callable[[], Tensor]:
    """Return a function that computes a Llama's layer: attention, and a gated MLP; it returns when it is done."""
    import torch
    import torch.nn.functional as F

    def random(*shape: int) -> Tensor:
        return (torch.randn(shape, generator=generator) * 0.02).to(device, dtype)

    generator = torch.Generator().manual_seed(0)
    q, k, v, o = (random(WIDTH, WIDTH) for _ in range(4))
    gate, up, down = random(INNER, WIDTH), random(INNER, WIDTH), random(WIDTH, INNER)
    x = random(rows, TOKENS, WIDTH)

    @torch.inference_mode()
    def layer() -> Tensor:
        a, b, c = (F.linear(x, one).view(rows, TOKENS, HEADS, -1).transpose(1, 2) for one in (q, k, v))
        mixed = F.scaled_dot_product_attention(a, b, c, is_causal=True).transpose(1, 2).reshape(x.shape)
        y = x + F.linear(mixed, o)
        y = y + F.linear(F.silu(F.linear(y, gate)) * F.linear(y, up), down)
        if y.is_cuda:
            torch.cuda.synchronize(device)
        return y

    return layer

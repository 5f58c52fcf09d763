"""Known answers: a board computes noise and a tiny model's losses, and the head compares them with its own.

A log of scalars is a training run only where noise has the same bits, and losses the same values up to rounding. Both
sides call `answer` of the same challenge; `compare` needs no torch.

    python -m zo_sweeps_agent.known_answers COUNT      prints COUNT challenges with this machine's answers, one per line
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zo_sweeps.core.document import Shape, item
from zo_sweeps.methods import registry
from zo_sweeps.methods.arch import ALL
from zo_sweeps.methods.parts import Model, ModelSource
from zo_sweeps.methods.points import NoiseKey
from zo_sweeps.methods.precision import Precision, WeightOnlyPrecision
from zo_sweeps.schedule.placement import NOISE

if TYPE_CHECKING:
    from zo_sweeps.models.causal import CausalModel

VOCABULARY = 4096
ARCH: Mapping[str, Any] = {
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
ROWS, TOKENS = 8, 32
DEVIATION = 0.2  # of the weights: large enough that every layer changes the losses
# Losses may differ by TOLERATED units of rounding an activation (`Precision.unit`), times the loss. In fp16 and bf16
# they differ from fp32's by at most 0.8 units (48 rows); the order of summation, which differs between machines, moves
# them less.
TOLERATED = 8.0


@dataclass(frozen=True)
class NoiseQuestion(Shape):
    """The elements `first` to `first` + `count` of one parameter's noise."""

    seed: int
    step: int
    query: int
    name: str
    first: int
    count: int = item(most=100_000)


@dataclass(frozen=True)
class ModelQuestion(Shape):
    """The losses of a tiny model: the seed of its weights, and rows of token ids."""

    seed: int
    rows: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Challenge(Shape):
    """What a board has to compute.

    Args:
        precisions: in which the model's losses are asked.
        nonce: under which the head expects the answers; "" where nobody waits for them.
    """

    noise: tuple[NoiseQuestion, ...]
    model: ModelQuestion
    precisions: tuple[str, ...]
    nonce: str = ""


@dataclass(frozen=True)
class MachineAnswers(Shape):
    """What a machine computed.

    Args:
        noise: SHA-256 of each vector's bits, fp32 little-endian.
        losses: precision -> mean negative log-likelihood of each row.
        failed: precision -> why it does not work there.
    """

    noise: tuple[str, ...] = ()
    losses: Mapping[str, tuple[float, ...]] = item(dict)
    failed: Mapping[str, str] = item(dict, most=10_000)


def challenge(seed: int) -> Challenge:
    """Return questions drawn from a seed."""
    drawn = random.Random(seed)
    noise = tuple(
        NoiseQuestion(
            seed=drawn.randrange(2**31),
            step=drawn.randrange(1, 2**20),
            query=drawn.randrange(64),
            name=f"model.layers.{drawn.randrange(32)}.self_attn.q_proj.weight",
            first=first,
            count=5000 + drawn.randrange(1000),
        )
        for first in (0, drawn.randrange(1, 2**20), drawn.randrange(2**20, 2**30))
    )
    rows = tuple(tuple(drawn.randrange(VOCABULARY) for _ in range(TOKENS)) for _ in range(ROWS))
    return Challenge(noise, ModelQuestion(drawn.randrange(2**31), rows), tuple(sorted(offered())))


def answer(asked: Challenge) -> MachineAnswers:
    """Compute the answers here, on the GPU where torch sees one. Cost: seconds, most of them imports."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    losses: dict[str, tuple[float, ...]] = {}
    failed: dict[str, str] = {}
    every = offered()
    for name in asked.precisions:
        try:
            losses[name] = _losses(asked.model, every[name], device)
        except Exception as error:  # a library that does not fit the device can raise anything
            failed[name] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return MachineAnswers(tuple(_noise(one, device) for one in asked.noise), losses, failed)


def compare(expected: MachineAnswers, got: MachineAnswers) -> dict[str, str]:
    """Return what is not lent ("noise", or a precision) -> why, from the answers of the head and of a board.

    A precision that the head itself cannot compute is not compared.
    """
    refused: dict[str, str] = {}
    if got.noise != expected.noise:
        refused[NOISE] = "its noise has other bits than the head's" if got.noise else "it computed no noise"
    every = offered()
    for name, wanted in expected.losses.items():
        theirs = got.losses.get(name, ())
        if len(theirs) != len(wanted):
            refused[name] = got.failed.get(name, "it computed no losses")[:300]
            continue
        unit = every[name].unit
        for row, (ours, one) in enumerate(zip(wanted, theirs, strict=True)):
            if not abs(one - ours) <= TOLERATED * unit * abs(ours):
                refused[name] = f"the loss of row {row} is {one}, and {ours} on the head"
                break
    return refused


def offered() -> dict[str, Precision]:
    """Return the precisions that need no preparation, by name."""
    made = {name: one() for name, one in registry.members("precision").items()}
    coded = {name for name, one in made.items() if isinstance(one, WeightOnlyPrecision) and one.prepared}
    return {name: one for name, one in made.items() if isinstance(one, Precision) and name not in coded}


def _noise(one: NoiseQuestion, device: str) -> str:
    import torch

    from zo_sweeps.engine.noise import combine

    key = NoiseKey(one.seed, one.step, one.query)
    z = combine([(key, 1.0)], one.name, torch.Size([one.count]), device, start=one.first)
    return hashlib.sha256(z.cpu().numpy().astype("<f4").tobytes()).hexdigest()


def _losses(asked: ModelQuestion, precision: Precision, device: str) -> tuple[float, ...]:
    import torch

    built = model(ARCH, asked.seed, precision, device)
    ids = torch.tensor(asked.rows, device=device)
    with torch.no_grad():
        hidden = built.hidden(ids)[:, :-1]
        logits = built.head(hidden.flatten(0, 1)).float().view(*hidden.shape[:2], -1)
        chosen = torch.log_softmax(logits, dim=-1).gather(2, ids[:, 1:, None])
        return tuple(float(loss) for loss in -chosen.squeeze(2).double().mean(dim=1).cpu())


def model(arch: Mapping[str, Any], seed: int, precision: Precision, device: str) -> CausalModel:
    """Return the model: its weights are noise, which is the same everywhere, where torch's own draw is not."""
    import torch

    from zo_sweeps.engine.noise import combine
    from zo_sweeps.models.load import load

    built = load(Model(source=ModelSource.RANDOM, arch=arch, seed=0), torch.float32, "cpu")
    for name, parameter in built.module.named_parameters():
        base = torch.ones_like(parameter) if parameter.dim() == 1 else torch.zeros_like(parameter)
        combine([(NoiseKey(seed, 0, 0), DEVIATION)], name, parameter.shape, base=base, out=parameter.data)
    built.module.to(device=device, dtype=precision.dtype)
    if isinstance(precision, WeightOnlyPrecision):
        for name, layer in built.target_modules([ALL]).items():
            parent, _, child = name.rpartition(".")
            weight = layer.get_parameter("weight").detach()
            setattr(built.module.get_submodule(parent), child, precision.stored(layer, weight))
    return built


def main(count: int) -> None:
    """Print challenges with answers."""
    for _ in range(count):
        asked = challenge(random.SystemRandom().randrange(2**31))
        print(json.dumps([asked.to_json(), answer(asked).to_json()]), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))

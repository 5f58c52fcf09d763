"""The memory that a program's step and its export are planned with."""

from __future__ import annotations

from collections.abc import Mapping

from zo_sweeps.core.memory_parts import Part
from zo_sweeps.devices.estimate import FP32
from zo_sweeps.methods.arch import Arch

EXPORT_BYTES = 130 * 2**20  # graphs and caches of an export, beyond the copies of the weights


def program_memory(
    parts: Mapping[Part, float],
    arch: Arch,
    value_bytes: float,
    *,
    weights: int,
    points: int,
    queries: int,
    d: int,
    dual: bool,
) -> tuple[dict[Part, float], int]:
    """Estimate the peak of a step of an exported program by part, and the peak bytes of exporting it.

    With W = weights, b = value_bytes, V words of width D, and the program's P = W (+ b V D if tied: the head is apart):

        step    `parts` + P + 4 d (6 + k (points + queries)), k = 2 in the form dual, else 1
                P: the weights as XNNPACK packs them, and the embedding, beside PyTorch's
                d: theta or its copies, temporaries of the noise, directions and points, as the runtime plans them
        export  W + 2 P + EXPORT_BYTES      (the weights in the graph and in the file)

    Opening a program takes less than exporting it: the file and the packed weights, at most W + 2 P.

    Estimate over growth of the process on a CPU (LoRA-FA on Llamas of W = 22 to 260 MiB, fp32 and fp16, both forms): of
    the step 0.95 to 1.05, of the export 0.93 to 1.20. Not measured on a phone.

    Args:
        parts: of the same step in PyTorch; see `memory_by_part`.
        value_bytes: bytes per activation.
        weights: bytes of the weights as they are stored.
        points: points per call; queries: q.
        dual: whether the program keeps both copies of each direction.
        d: number of trained parameters.
    """
    program = weights + arch.tied * arch.vocabulary * arch.width * value_bytes
    held = {**parts, Part.WEIGHTS: parts[Part.WEIGHTS] + program}
    held[Part.TRAINABLE] += FP32 * d * (6 + (2 if dual else 1) * (points + queries))
    return held, int(weights + 2 * program + EXPORT_BYTES)

"""The parts of a trial's memory, and the marks by which code names the part that its new tensors belong to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum


class Part(str, Enum):
    """A part of the memory of a trial; together they are all tensors that are alive."""

    WEIGHTS = "weights"
    SCALES = "scales"
    SPARSE = "sparse"
    TRAINABLE = "trainable"
    ACTIVATIONS = "activations"
    LOGITS = "logits"
    WORKSPACE = "workspace"

    @property
    def metric(self) -> str:
        """The name of its bytes among the metrics of an outcome."""
        return f"{MEMORY}{self.value}_bytes"


MEANINGS: Mapping[Part, str] = {
    Part.WEIGHTS: "the model's own weights: numbers or codes",
    Part.SCALES: "what decodes the codes: scales, tables",
    Part.SPARSE: "of a sparse space: indices, kept values, sparse matrices",
    Part.TRAINABLE: "trained values, the points and gradients of them, the update's state, an adapter's frozen factors",
    Part.ACTIVATIONS: "hidden states, and the gradients of them",
    Part.LOGITS: "from the model's head to the loss, and the gradients of it",
    Part.WORKSPACE: "all else: decoded or perturbed rows of weights, temporaries of an update, the batch",
}

MEMORY = "memory/"  # how the metrics by part begin
TOTAL, SCORING = f"{MEMORY}total_bytes", f"{MEMORY}scoring_bytes"

_current = Part.WORKSPACE


def current() -> Part:
    """Return the part that new tensors belong to."""
    return _current


def continue_as(part: Part) -> None:
    """Count the tensors made from here to the end of the enclosing `counted_as` as `part`."""
    global _current
    _current = part


@contextmanager
def counted_as(part: Part) -> Iterator[None]:
    """Count the tensors made within the block as `part`, if `zo_sweeps.devices.tensors` follows them."""
    before = _current
    continue_as(part)
    try:
        yield
    finally:
        continue_as(before)

"""First-order training: backpropagation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from zo_sweeps.core.errors import UserError
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.kind import Kind
from zo_sweeps.methods.precision import Precision


@dataclass(frozen=True)
class FirstOrder(Kind):
    """Training by backpropagation through the same space, batches and loss: the papers' FO rows.

    Raises UserError for both `gradient_checkpointing` and `layerwise`, which computes layers again already.
    """

    runner: ClassVar[str] = "zo_sweeps.run.training:Backpropagation"
    trains: ClassVar[bool] = True
    backpropagates: ClassVar[bool] = True
    parts: ClassVar[tuple[str, ...]] = ("space", "update", "train", "gradients", "seed")

    # Not fp16: its gradients underflow. Products in fp16 with a scaled loss, over fp32 weights, are `mixed_precision`.
    weights: Literal["fp32", "bf16"] = option(
        "fp32", "format in which space=full trains the model's own weights; bf16 halves them and loses small updates",
        added=True,
    )  # fmt: skip
    gradient_checkpointing: bool = option(
        False, "keep the input of each layer only, and compute the layer again in the backward pass", added=True
    )
    layerwise: bool = option(
        False,
        "checkpointing at the memory of a forward: an eighth of the rows and logits at a time, and each layer's "
        "parameters move, and their gradients go, before the layer below is computed again",
        added=True,
    )
    mixed_precision: bool = option(
        False, "a step's products in fp16 with a scaled loss, over weights and a state in fp32", added=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layerwise and self.gradient_checkpointing:
            what = "method.layerwise computes layers again already"
            raise UserError(what, fix="leave method.gradient_checkpointing out")

    @property
    def trained_in(self) -> Precision:
        return Precision.read(self.weights)

    @property
    def multiplied_in(self) -> Precision | None:
        return Precision.read("fp16") if self.mixed_precision else None

    @property
    def recomputes(self) -> bool:
        return self.gradient_checkpointing or self.layerwise

    @property
    def is_layerwise(self) -> bool:
        return self.layerwise

"""The axis `precision`: how frozen weights are stored and multiplied."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, ClassVar, Literal

from zo_sweeps.methods.arch import ALL, Arch
from zo_sweeps.methods.definition import Definition, option
from zo_sweeps.methods.points import Theta

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import Tensor, nn

OWN = "auto"  # chosen in place of a member: the model's own precision
FASTEST = "fastest"  # the floating-point precision that was measured as the fastest on the machine that plans


# Largest relative error of rounding a number to a format.
UNITS = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
CODES_UNIT = 2.0**-8  # where activations are rounded to 8 bits: a difference in the last bit may move one by a code


@dataclass(frozen=True)
class Format:
    """A floating-point format.

    Args:
        torch_name: name in torch of its dtype.
        bytes: per value.
        backpropagates_on_cpu: whether torch can backpropagate through it on a CPU.
    """

    torch_name: str
    bytes: int
    backpropagates_on_cpu: bool = True


@dataclass(frozen=True)
class Precision(Definition):
    """A way to store frozen weights, and the format in which they are multiplied."""

    axis: ClassVar[str] = "precision"
    largest_error: ClassVar[float] = inf  # |decoded w - w| over the largest |w| that shares a scale with it, of codes
    scale_rounding: ClassVar[float] = 0.0  # largest relative error of a stored scale
    coded: ClassVar[bool] = False  # the projections of the blocks are stored as codes: see `WeightOnlyPrecision`
    stores: ClassVar[frozenset[Theta]] = frozenset({Theta.FLOATS})  # that can be trained; CODES: on a uniform grid
    rounds_activations: ClassVar[bool] = False  # before every product with codes: no gradient passes it

    @property
    def of_text(self) -> str:
        """The file under data.dir whose gradients its codes depend on; "" if none."""
        return ""

    @property
    def format(self) -> Format:
        """The format of activations, and of all weights that are not stored as codes."""
        raise NotImplementedError

    @property
    def unit(self) -> float:
        """Largest relative error of rounding an activation."""
        return max(UNITS[self.format.torch_name], CODES_UNIT if self.rounds_activations else 0.0)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of `format`."""
        import torch

        dtype: torch.dtype = getattr(torch, self.format.torch_name)
        return dtype

    def weight_bytes(self, arch: Arch) -> int:
        """Return the bytes of a model's weights as they are stored, with what decodes them."""
        return arch.parameters * self.format.bytes

    def decoding_bytes(self, arch: Arch) -> int:
        """Return the bytes of what decodes them, of these."""
        return 0

    def outside_bytes(self, arch: Arch) -> int:
        """Return the bytes of entries that are kept outside the codes, of these, with their indices."""
        return 0


@dataclass(frozen=True)
class WeightOnlyPrecision(Precision):
    """Codes for the weights of the blocks' projections, decoded for every product; the others are stored in `compute`.

    Weights are encoded from their values in `compute`. Activations are not quantized, and a forward equals that of the
    decoded weights, unless a member `rounds_activations`. Embeddings, head, norms and biases stay in `compute`, as with
    bitsandbytes in transformers.
    """

    coded: ClassVar[bool] = True
    stores: ClassVar[frozenset[Theta]] = frozenset({Theta.SCALES})
    prepared: ClassVar[bool] = False  # its codes take long, or other weights' gradients: computed once per machine

    # fp16, not bf16: a finite difference divides the rounding of a loss by eps, and fp16 rounds 8 times finer.
    compute: Literal["fp32", "bf16", "fp16"] = option(
        "fp16", "format of activations, and of the weights that are not stored as codes", kw_only=True
    )

    @property
    def format(self) -> Format:
        return Precision.read(self.compute).format

    def code_bytes(self, out: int, into: int) -> int:
        """Return the bytes of a weight [out, into]: of its codes, and of what decodes them."""
        raise NotImplementedError

    def scale_bytes(self, out: int, into: int) -> int:
        """Return the bytes of what decodes them, of these."""
        raise NotImplementedError

    def kept_bytes(self, out: int, into: int) -> int:
        """Return the bytes of the entries that are kept outside the codes, of these, with their indices."""
        return 0

    def scales(self, out: int, into: int) -> int:
        """Count the scales of a weight [out, into]; 0 if codes are decoded without any."""
        raise NotImplementedError

    def unpacked_bytes(self, out: int, into: int) -> int:
        """Return the bytes that the codes of a weight [out, into] take beyond `code_bytes` while they are trained."""
        return 0

    def weight_bytes(self, arch: Arch) -> int:
        others = (arch.parameters - arch.entries([ALL])) * self.format.bytes
        return others + arch.layers * sum(self.code_bytes(*shape) for shape in arch.linears.values())

    def decoding_bytes(self, arch: Arch) -> int:
        return arch.layers * sum(self.scale_bytes(*shape) for shape in arch.linears.values())

    def outside_bytes(self, arch: Arch) -> int:
        return arch.layers * sum(self.kept_bytes(*shape) for shape in arch.linears.values())

    def stored(self, layer: nn.Module, weight: Tensor, sensitivity: Tensor | None = None) -> nn.Module:
        """Return a module in place of a projection, with its bias and the codes of `weight`, on its device.

        Deterministic: the codes depend on the arguments alone.

        Args:
            layer: the projection; its own weight may be on the `meta` device.
            weight: as the projection stores it ([out, in]; [in, out] for a Conv1D), in any floating-point dtype.
            sensitivity: of each entry of `weight`, at least 0, for a precision that is `prepared`; None: all alike.
        """
        raise NotImplementedError

    def restored(self, layer: nn.Module, shape: tuple[int, int], buffers: Mapping[str, Tensor]) -> nn.Module:
        """Return the module that `stored` returned, from its buffers and the weight's (out, in).

        Args:
            buffers: the `state_dict` of its codes; of a trained model, with trained scales (fp32) and sparse entries.

        Raises ValueError for buffers of another precision.
        """
        raise NotImplementedError

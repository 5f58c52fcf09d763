"""The axis `space`: which d parameters are trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.memory_parts import Part
from zo_sweeps.methods.arch import Arch
from zo_sweeps.methods.definition import Definition, option
from zo_sweeps.methods.points import Theta
from zo_sweeps.methods.precision import Precision

if TYPE_CHECKING:
    from torch import Tensor, nn

PREFIX_LENGTH = "prefix_length"  # attribute of a module with an installed prefix: its tokens before every text


def share(entries: int, density: float) -> int:
    """Return the number of entries that a density selects out of `entries`: at least one."""
    return max(1, round(density * entries))


def chosen(arch: Arch, targets: Iterable[str], density: float, scope: str = "per_layer") -> int:
    """Count the entries that a sparse space trains: a share of each target layer, or of all together (`global`)."""
    if scope == "global":
        return share(arch.entries(targets), density)
    sizes = [out * into for out, into in (arch.linears[role] for role in arch.roles(targets))]
    return arch.layers * sum(share(size, density) for size in sizes)


class InstalledSpace(Protocol):
    """The d trained parameters, installed in a model; its definition is a `Space`.

    `batched` says whether one forward can hold several points of it (the P-RGE loops).
    """

    batched: bool
    params: dict[str, nn.Parameter]

    def untouched(self, blocks: Sequence[str]) -> int:
        """Count the blocks, by qualified name in the model's order, below every parameter; 0 if one is in no block.

        A step's points share the forward of these.
        """
        inside = [f"{block}." for block in blocks]
        if not all(name.startswith(tuple(inside)) for name in self.params):
            return 0
        return next((i for i, start in enumerate(inside) if any(name.startswith(start) for name in self.params)), 0)

    def changes_at(self, step: int) -> bool:
        """Tell whether `begin(step)` replaces the parameters."""
        return False

    def begin(self, step: int) -> None:
        """Prepare a step at which the space changes, as when its mask is recomputed: `params` are replaced."""
        return None

    def hold(self, values: Mapping[str, Tensor]) -> None:
        """Hold P points, of a `batched` space: `values` maps parameter names to [P, *shape]. Empty: theta itself."""
        assert not values, "one forward holds one point of this space"

    def tensors(self) -> Iterator[tuple[Part, Tensor]]:
        """Yield every tensor that the space added to the model, and the part of the memory that it counts as."""
        yield from ((Part.TRAINABLE, param) for param in self.params.values())

    def uninstall(self) -> None:
        """Remove the space's own modules, leaving the base model as it was."""


class FullModel(InstalledSpace):
    """A model with all its parameters trained: tied ones once, in the model's own dtype. One point per forward."""

    batched = False

    def __init__(self, module: nn.Module) -> None:
        self.params = dict(module.named_parameters())

    def tensors(self) -> Iterator[tuple[Part, Tensor]]:
        yield from ()

    def uninstall(self) -> None:
        """Do nothing: no module was added. The weights have changed, so the caller must reload the base model."""


@dataclass(frozen=True)
class Found:
    """A mask computed before training, and the function that computes later ones.

    Args:
        masks: layer -> flat indices into its weight.
        values: layer -> the entries of the weights that the mask was computed from.
        find: step -> the masks from that step on, computed from the weights as they are at the call.
    """

    masks: Any
    values: Any
    find: Callable[[int], Any] | None = None


@dataclass(frozen=True)
class AdapterFormat:
    """The format in which the peft library stores a space.

    Args:
        kind: its `peft_type`.
        parts: attribute of an installed layer -> its name in peft's file.
        shared: attribute of the installed space, a tensor that all layers share -> its name in peft's file.
        prefix: whether the space is keys and values of a cache, stored as one tensor.
    """

    kind: str
    parts: Mapping[str, str] = field(default_factory=dict)
    shared: Mapping[str, str] = field(default_factory=dict)
    prefix: bool = False


@dataclass(frozen=True)
class Space(Definition):
    """The d trained parameters, as options and facts; `install` puts them into a model."""

    axis: ClassVar[str] = "space"
    batched: ClassVar[bool] = True  # one forward can hold several points (the P-RGE loops)
    moves_base: ClassVar[bool] = False  # trains the model's own weights, which are reloaded after the trial
    needs_gradients: ClassVar[bool] = False  # its mask is computed by backpropagation before training
    sparse: ClassVar[bool] = False  # trains chosen entries of the target weights
    theta: ClassVar[Theta] = Theta.FLOATS  # others: that part of weights that are stored as codes
    adapter: ClassVar[AdapterFormat | None] = None  # peft's format for it, if there is one
    starts_at_model: ClassVar[bool] = True  # installed, it changes no output before the first step
    has_zeros: ClassVar[bool] = False  # matrices whose entries are all 0 before the first step
    starts_computed: ClassVar[bool] = False  # at sums over the weights, whose last bits differ between kinds of CPU
    multiplies_others: ClassVar[bool] = False  # multiplies the frozen weights by more than the rows of the batch

    def adapter_options(self) -> dict[str, Any]:
        """Return its options under peft's names."""
        return {}

    @property
    def layers(self) -> tuple[str, ...]:
        """Roles of the layers that it changes; () if it does not work on single layers."""
        return ()

    def untouched(self, arch: Arch) -> int:
        """Count the model's first blocks that it leaves as they are: a step's points share their forward.

        Raises UserError if the model has fewer blocks than it would change.
        """
        return 0

    def moved(self, arch: Arch) -> Arch:
        """Return the shape of the model with those blocks alone that it changes."""
        return replace(arch, layers=arch.layers - self.untouched(arch))

    @property
    def positions(self) -> int:
        """Positions before the text that it takes in a causal model's cache: the text has so many fewer."""
        return 0

    @property
    def of_text(self) -> str:
        """The file under data.dir whose gradients choose its mask; "" if no text does."""
        return ""

    @property
    def found_from(self) -> Mapping[str, Any]:
        """The settings that a mask found by backpropagation depends on, beside model, layers and text or task."""
        return {}

    @property
    def renewed_every(self) -> int:
        """Steps between replacements of its parameters; 0: never."""
        return 0

    def bind(self, precision: Precision) -> Space:
        """Return the space over weights that are stored this way; itself, if that does not matter to d."""
        return self

    def trainable(self, arch: Arch) -> int:
        """Count d, from the shape `moved` alone (and from the precision that a space of codes is bound to)."""
        raise NotImplementedError

    def added_bytes(self, arch: Arch, precision: Precision) -> int:
        """Count the bytes by which weights of the shape `moved`, stored this way, grow when it is installed."""
        return 0

    def frozen_values(self, arch: Arch) -> int:
        """Count the values of frozen factors that all layers share."""
        return 0

    def install(self, module: nn.Module, layers: Sequence[str], seed: int, mask: Found | None = None) -> InstalledSpace:
        """Put the space into a model.

        Args:
            layers: qualified names of the target layers.
            seed: address of random initial values.
            mask: the mask computed by backpropagation, for a space with `needs_gradients`.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class LayerSpace(Space):
    """A space that changes target layers. Raises UserError if it names none."""

    targets: tuple[str, ...] = option(
        ("all",), "roles of the layers (q, k, v, o, gate, up, down), or all", kw_only=True
    )

    blocks: int | None = option(
        None, "train the last so many of the model's blocks; null: all of them", least=1, added=True, kw_only=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.targets:
            raise UserError(f"space {self.name!r} names no layers", fix="set space.targets")

    @property
    def layers(self) -> tuple[str, ...]:
        return self.targets

    def untouched(self, arch: Arch) -> int:
        moved = arch.layers if self.blocks is None else self.blocks
        if moved > arch.layers:
            what = f"the last {moved} blocks of a model that has {arch.layers}"
            raise UserError(what, where="space.blocks", fix="leave it out to train all of them")
        return arch.layers - moved


@dataclass(frozen=True)
class LowRankSpace(LayerSpace):
    """Factors A [r, in] and B [out, r] per target layer, whose product is multiplied by alpha / r."""

    has_zeros: ClassVar[bool] = True
    adapter: ClassVar[AdapterFormat | None] = AdapterFormat("LORA", {"A": "lora_A.weight", "B": "lora_B.weight"})

    rank: int = option(16, "r of the factors", least=1)
    alpha: float = option(16.0, "the low-rank term is multiplied by alpha / r")
    init: Literal["kaiming", "gaussian"] = option(
        "kaiming", "A at the start: kaiming, U(±1/√in); gaussian, N(0, 1/r²), as peft's of that name", added=True
    )

    def adapter_options(self) -> dict[str, Any]:
        return {"r": self.rank, "lora_alpha": self.alpha, "lora_dropout": 0.0, "use_dora": False}


@dataclass(frozen=True)
class SparseSpace(LayerSpace):
    """A space of chosen entries of the target weights."""

    sparse: ClassVar[bool] = True

    density: float = option(1e-3, "share of the target layers' entries", least=1e-9, most=1)
    product: Literal["add", "addmm"] = option(
        "add",
        "how the entries enter a forward: add writes them into the weight (SparseAdd), addmm multiplies them apart "
        "(SparseAddMM)",
        added=True,
        kw_only=True,
    )

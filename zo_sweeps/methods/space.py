"""The axis `space`: which d parameters move."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from zo_sweeps.core.errors import UserError
from zo_sweeps.methods.arch import Arch
from zo_sweeps.methods.definition import Definition, option

if TYPE_CHECKING:
    from torch import nn


def share(entries: int, density: float) -> int:
    """Return how many of these entries a density means: at least one."""
    return max(1, round(density * entries))


def chosen(arch: Arch, targets: Iterable[str], density: float, scope: str = "per_layer") -> int:
    """Count the entries that a sparse space moves: its share of each target layer, or of all together (`global`)."""
    if scope == "global":
        return share(arch.entries(targets), density)
    sizes = [out * into for out, into in (arch.linears[role] for role in arch.roles(targets))]
    return arch.layers * sum(share(size, density) for size in sizes)


class InstalledSpace(Protocol):
    """The d parameters that move, installed in a model; its definition is `Space`.

    `batched` says whether one forward can hold several points of it (the P-RGE loops).
    """

    batched: bool
    params: dict[str, nn.Parameter]

    def changes_at(self, step: int) -> bool:
        """Whether `begin(step)` changes which parameters there are."""
        return False

    def begin(self, step: int) -> None:
        """Called before a step at which the space changes: `params` are then others (a mask that is found again)."""
        return None

    def uninstall(self) -> None:
        """Takes the space's own modules out again, leaving the base model as it was."""
        ...


@dataclass(frozen=True)
class Found:
    """A mask that was found before training, and how to find the next one.

    Args:
        masks: layer -> flat indices into its weight.
        find: step -> the masks that hold from it on, from the weights as they are then.
    """

    masks: Any
    find: Callable[[int], Any] | None = None


@dataclass(frozen=True)
class AdapterFormat:
    """How the peft library stores a space.

    Args:
        kind: its `peft_type`.
        parts: a layer's part -> its name in peft's file.
        shared: a tensor that all layers share, an attribute of the installed space -> its name in peft's file.
        prefix: the keys and values of a cache, as one tensor.
    """

    kind: str
    parts: Mapping[str, str] = field(default_factory=dict)
    shared: Mapping[str, str] = field(default_factory=dict)
    prefix: bool = False


@dataclass(frozen=True)
class Space(Definition):
    """The d parameters that move. `install` puts it into a model; until then it is options and facts."""

    axis: ClassVar[str] = "space"
    batched: ClassVar[bool] = True  # one forward can hold several points (the P-RGE loops)
    moves_base: ClassVar[bool] = False  # the model's own weights move, and are loaded again after the trial
    needs_gradients: ClassVar[bool] = False  # its mask is found by backpropagation before training
    sparse: ClassVar[bool] = False  # chosen entries of the target weights
    adapter: ClassVar[AdapterFormat | None] = None  # how peft stores it, where peft can
    takes_positions: ClassVar[bool] = False  # puts tokens before the text: a causal model's cache

    def adapter_options(self) -> dict[str, Any]:
        """Return its options under peft's names."""
        return {}

    @property
    def layers(self) -> tuple[str, ...]:
        """Roles of the layers that it changes; () where it changes no single layers."""
        return ()

    @property
    def positions(self) -> int:
        """Positions of the text that it takes for itself."""
        return 0

    @property
    def of_text(self) -> str:
        """The text whose gradients choose its mask, under data.dir; "" where it is none."""
        return ""

    @property
    def renewed_every(self) -> int:
        """Steps after which its parameters become others; 0: never."""
        return 0

    def trainable(self, arch: Arch) -> int:
        """Count d, from the model's shape alone."""
        raise NotImplementedError

    def install(
        self, module: nn.Module, layers: Sequence[str], seed: int, found: Found | None = None
    ) -> InstalledSpace:
        """Put the space into a model.

        Args:
            layers: qualified names of the target layers.
            seed: address of random initial values.
            found: what was found by backpropagation, where `needs_gradients`.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class LayerSpace(Space):
    """A space that changes target layers. Raises UserError for one that names none."""

    targets: tuple[str, ...] = option(
        ("all",), "roles of the layers (q, k, v, o, gate, up, down), or all", kw_only=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.targets:
            raise UserError(f"space {self.name!r} names no layers", fix="set space.targets")

    @property
    def layers(self) -> tuple[str, ...]:
        return self.targets


@dataclass(frozen=True)
class SparseSpace(LayerSpace):
    """A space of chosen entries of the target weights."""

    sparse: ClassVar[bool] = True

    density: float = option(1e-3, "share of the target layers' entries", least=1e-9, most=1)

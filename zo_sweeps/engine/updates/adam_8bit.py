"""AdamW with 8-bit states, for backpropagation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from zo_sweeps.engine.later import torch
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.update import Update


@dataclass(frozen=True)
class Adam8bit(Update):
    """The rule of `adam` on backpropagated gradients, with m and v stored in 8 bits by bitsandbytes.

    m = table[c] * s_block, with s_block the largest |m| of 256 values and c the nearest of a table's 256 entries: off
    by at most 0.0071 s_block (v: 0.0036), and five times less in each decade below s_block / 10. A step decodes both,
    computes in fp32, rounds the weights to the nearest number of their format, and encodes again. On a CPU the library
    (0.50) is up to 2^-16 s_block further off: runs there differ from a GPU's. Tensors of fewer than 4,096 values keep
    fp32 states. `paged` (a GPU's states move to the host for a long batch) changes nothing on a CPU.

    State: 2.03 bytes per trainable value (`adam`: 8). Source: Dettmers et al., 8-bit Optimizers via Block-wise
    Quantization, 2022; paged: QLoRA, 2023. Not for zeroth-order estimates: a run is to be replayed to the bit.
    """

    state_copies: ClassVar[int] = 2
    state_bits: ClassVar[float] = 8 + 32 / 256
    zeroth_order: ClassVar[bool] = False
    backpropagates: ClassVar[bool] = True
    trains_halves: ClassVar[bool] = True
    has_kernels: ClassVar[bool] = True

    weight_decay: float = option(0.0, "decoupled, of parameters of two or more dimensions", least=0)
    beta1: float = option(0.9, "decay of the mean of gradients", least=0, below=1)
    beta2: float = option(0.999, "decay of the mean of their squares", least=0, below=1)
    eps: float = option(1e-8, "added to the root", above=0)
    paged: bool = option(False, "states move to the host's memory while a GPU's is short", identity=False)
    lr: float = option(1e-4, "learning rate of step 1", least=0, kw_only=True)

    def optimizer(self, groups: Sequence[Mapping[str, Any]]) -> torch.optim.Optimizer:
        """Return bitsandbytes' AdamW8bit. Raises what its import raises where it has no build for the device."""
        import logging

        logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it warns of a kernel that is not used here
        from bitsandbytes import optim

        library: Any = optim  # it has no types
        made = [dict(group) for group in groups]
        paged = self.paged and all(param.is_cuda for group in made for param in group["params"])
        stepper: torch.optim.Optimizer = library.AdamW8bit(
            made, lr=self.lr, betas=(self.beta1, self.beta2), eps=self.eps, is_paged=paged
        )
        return stepper

"""The model's operations as XNNPACK takes them, for the time of an export.

XNNPACK takes only some forms of an operation, and every other form ends a partition. Each rewrite here has the same
value, up to rounding, and applies to whatever module calls the operation, so that any causal model profits:

    scaled_dot_product_attention    two products, the causal mask added to the scores, softmax
    mean over the last dimension    a product with ones
    baddbmm                         bmm, with alpha multiplied into the smaller factor
    to(the same dtype)              nothing
    rotate_half (RoPE)              a product with a matrix of 0, 1 and -1
    gelu(approximate="tanh")        written out: the delegate leaves the argument out, and computes the exact one

An operation in another form (a mask that is not causal, a mean over other dimensions) stays as it is, and runs on
ExecuTorch's own kernels.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

HIDDEN = -1e30  # added to the score of a later token; exp(HIDDEN - maximum) is 0


class Lowered(TorchFunctionMode):
    """Replace operations by forms that XNNPACK takes."""

    def __init__(self) -> None:
        super().__init__()
        self._masks: dict[int, Tensor] = {}
        self._rewrites: dict[Any, Callable[..., Any]] = {
            F.scaled_dot_product_attention: self._attention,
            Tensor.mean: _mean,
            Tensor.to: _to,
            Tensor.float: lambda x: _to(x, torch.float32),
            Tensor.baddbmm_: _baddbmm,
            torch.baddbmm: _baddbmm,
            F.gelu: _gelu,
        }

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        rewrite = self._rewrites.get(func)
        result = NotImplemented if rewrite is None else rewrite(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if result is NotImplemented else result

    def _attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        if attn_mask is not None or dropout_p or not is_causal or q.dim() != 4 or q.shape[2] != k.shape[2]:
            return NotImplemented
        (N, H, T, E), K = q.shape, k.shape[1]  # H / K query heads share one of the K heads of keys and values
        scaled = q * (1 / math.sqrt(E) if scale is None else scale)
        scores = torch.bmm(scaled.reshape(N * K, -1, E), k.transpose(2, 3).reshape(N * K, E, -1))
        weights = (scores + self._causal(T, H // K).to(q.dtype)).softmax(-1)
        return torch.bmm(weights, v.reshape(N * K, -1, v.shape[3])).reshape(N, H, -1, v.shape[3])

    def _causal(self, T: int, groups: int) -> Tensor:
        """Return 0 where a token may attend and HIDDEN elsewhere, [groups * T, T]; once per length and forward."""
        if groups not in self._masks or self._masks[groups].shape[1] != T:
            at = torch.arange(T)
            mask = (at.unsqueeze(0) > at.unsqueeze(1)).float() * HIDDEN
            self._masks[groups] = torch.cat([mask] * groups)
        return self._masks[groups]


def _mean(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    if dim not in (-1, x.dim() - 1, (-1,), [-1]) or not keepdim or dtype or x.dtype != torch.float32:
        return NotImplemented
    return F.linear(x, _constant(lambda: torch.ones(1, x.shape[-1]))) * (1 / x.shape[-1])


def _to(x: Tensor, *args: Any, **kwargs: Any) -> Any:
    return x if (args == (x.dtype,) and not kwargs) or (kwargs == {"dtype": x.dtype} and not args) else NotImplemented


def _baddbmm(y: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    return NotImplemented if beta != 1 else y + torch.bmm(a if alpha == 1 else a * alpha, b)


def _gelu(x: Tensor, *, approximate: str = "none") -> Any:
    """Return x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 for the approximate one."""
    if approximate != "tanh":
        return NotImplemented
    inner = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
    return x * 0.5 * (torch.tanh(inner) + 1)


def _rotate_half(x: Tensor) -> Tensor:
    size = x.shape[-1]

    def matrix() -> Tensor:
        eye = torch.eye(size, dtype=x.dtype)
        return torch.cat([-eye[size // 2 :], eye[: size // 2]])

    return F.linear(x, _constant(matrix))


def _constant(make: Callable[[], Tensor]) -> Tensor:
    """Return a tensor that is made now, not by the traced program."""
    with _disable_current_modes():
        return make()


@contextmanager
def lowered(module: nn.Module, longest: int) -> Iterator[None]:
    """Rewrite the operations of `module` while it is traced.

    Args:
        longest: the most tokens of a row.
    """
    from transformers import masking_utils

    implied = masking_utils._ignore_causal_mask_sdpa

    def causal(
        padding: Tensor | None, queries: int, keys: int, begin: Any, end: Any, window: int | None = None
    ) -> bool:
        """Tell whether a mask would say no more than `is_causal`."""
        if padding is None and queries == keys and (window is None or longest < window):
            return True
        return bool(implied(padding, queries, keys, begin, end, window))

    probe = torch.arange(1.0, 9.0).view(1, 1, 1, 8)
    with ExitStack() as stack:
        # While it is traced, transformers writes every mask out, and looks for several texts in a row.
        stack.enter_context(patch.object(masking_utils, "_ignore_causal_mask_sdpa", causal))
        stack.enter_context(patch.object(masking_utils, "find_packed_sequence_indices", lambda positions: None))
        for name in {type(part).__module__ for part in module.modules()}:
            rotate = getattr(sys.modules[name], "rotate_half", None)
            if rotate is not None and torch.equal(rotate(probe), _rotate_half(probe)):
                stack.enter_context(patch.object(sys.modules[name], "rotate_half", _rotate_half))
        stack.enter_context(Lowered())
        yield

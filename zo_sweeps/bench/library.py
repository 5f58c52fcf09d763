"""bitsandbytes' own projections, to compare with. Used by the benchmark only."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from zo_sweeps.engine.codes import four_bit


def projection(scheme: str, dense: nn.Linear) -> nn.Module | None:
    """Return Linear8bitLt (for "int8") or Linear4bit over the weight of a projection; None where its forward fails.

    Neither is the product with the decoded weight: LLM.int8 quantizes activations too (threshold 6, as in
    transformers), so that a row depends on its batch; Linear4bit multiplies in bf16 on a CPU with AVX512-BF16, whatever
    was asked for, and fails there for inputs that its blocks do not divide.
    """
    four_bit.library()  # so that it is imported quietly
    import bitsandbytes

    out, into = dense.weight.shape
    weight, device = dense.weight.detach().cpu().clone(), dense.weight.device
    modules: Any = bitsandbytes.nn
    if scheme == "int8":
        layer = modules.Linear8bitLt(into, out, bias=False, has_fp16_weights=False, threshold=6.0)
        layer.weight = modules.Int8Params(weight, requires_grad=False, has_fp16_weights=False)
    else:
        double = scheme != "nf4"
        layer = modules.Linear4bit(into, out, False, weight.dtype, compress_statistics=double, quant_type="nf4")
        layer.weight = modules.Params4bit(weight, False, quant_type="nf4", compress_statistics=double)
    module: nn.Module = layer.to(device).eval()
    try:
        with torch.inference_mode():
            module(torch.zeros(1, into, device=device, dtype=weight.dtype))
    except (RuntimeError, ValueError, AssertionError):
        return None
    return module

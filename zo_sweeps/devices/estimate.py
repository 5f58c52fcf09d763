"""Estimated peak memory of a trial, from shapes alone. No torch."""

from __future__ import annotations

from zo_sweeps.methods.arch import Arch

RUNTIME_BYTES = 500 * 2**20  # a process with torch imported (CPU), or a CUDA context: not in `peak_memory`
FP32 = 4
POINTS = {"sequential": lambda q: 1, "outer": lambda q: q, "inner": lambda q: 2, "both": lambda q: 2 * q}


def peak_memory(
    model_parameters: int,
    arch: Arch,
    precision_bytes: float,
    kind: str,
    space: str,
    q: int,
    mode: str,
    batch: int,
    tokens: int,
    vocab: int,
    trainable: int,
    *,
    answer_tokens: int = 1,
    moments: int | None = None,
) -> int:
    """Peak bytes of a trial above those of an empty process with torch imported (RUNTIME_BYTES more in all).

    With W = model_parameters * precision_bytes, b = precision_bytes, N = batch * points rows of T tokens, and points =
    1, q, 2, 2q in a forward for the modes sequential, outer, inner, both:

        zero_shot   W + F
        zo          W + F + S,   PEFT: S = 4 * trainable * (2 + moments + points)  (state, copies, one z)
                                 full: S = 4 * moments * trainable + largest * (8 + b) (the layer at hand is made anew)
        fo          PEFT: W + 4 * trainable * (2 + moments) + B;  full: 4 * model_parameters * (2 + moments) + B, b = 4
        F = 1.5 N T b * (2D + max(2Q + 4K + D, 3I))  (one layer's tensors; 1.5: what an allocator holds besides)
            + N * answer_tokens * vocab * (b + 8)  (logits, and their log-probabilities in fp32)
        B = N T (L b (6D + 2Q + 4K + 4I) + 8D L)  (kept for the backward pass: the norms' inputs in fp32)
            + 2 N answer_tokens vocab (b + 8)

    where D = hidden size, I = feed-forward size, Q, K = widths of queries and keys, L = layers, largest = the largest
    matrix's elements. Attention is SDPA without a mask: it makes no T x T matrix. The cache of generated answers is not
    in it. Meant to be within a factor of 2 of what is measured, either way.

    Estimate over measured peak (a 56 M Llama on a CPU, T = 128; fp32, bf16): zero-shot of 64 rows 0.71 in fp32; LoRA-FA
    with 4 points of 4 rows in a forward 0.84, 0.83; full space, 4 rows 0.99, 0.95; FO-Adam full 0.81 in fp32;
    backpropagation through frozen weights, 16 rows, 1.07, 0.97. On a GPU it was not measured.

    Args:
        precision_bytes: bytes of a stored frozen parameter.
        kind: zero_shot, zo or fo.
        space: full, or any other (a small trainable state in fp32).
        batch: sequences of one point in a forward (for a loss over candidates: examples times distinct rows).
        tokens: length to which they are padded.
        trainable: parameters that move.
        answer_tokens: positions a row whose logits are needed.
        moments: fp32 copies of the trainable state that the update keeps; default 2 (Adam) for fo, else 0.

    Raises ValueError for an unknown kind or mode.
    """
    if kind not in ("zero_shot", "zo", "fo"):
        raise ValueError(f"unknown kind {kind!r}")
    if mode not in POINTS:
        raise ValueError(f"unknown mode {mode!r}")
    full = space == "full"
    kept = (2 if kind == "fo" else 0) if moments is None else moments
    points = POINTS[mode](q) if kind == "zo" else 1
    width, inner, layers = arch.width, arch.inner, arch.layers
    queries, keys = arch.heads * arch.head_width, arch.kv_heads * arch.head_width

    b = FP32 if kind == "fo" and full else precision_bytes
    rows = batch * points
    logits = rows * answer_tokens * vocab * (b + 8)
    forward = 1.5 * rows * tokens * b * (2 * width + max(2 * queries + 4 * keys + width, 3 * inner)) + logits
    weights = model_parameters * b
    if kind == "zero_shot":
        return int(weights + forward)
    if kind == "fo":
        saved = rows * tokens * layers * (b * (6 * width + 2 * queries + 4 * keys + 4 * inner) + 8 * width)
        state = FP32 * (model_parameters * (1 + kept) if full else trainable * (2 + kept))
        return int(weights + state + saved + 2 * logits)
    if full:
        largest = max(vocab * width, inner * width)
        return int(weights + forward + FP32 * kept * trainable + largest * (8 + b))
    return int(weights + forward + FP32 * trainable * (2 + kept + points))


def finding_memory(
    model_parameters: int,
    arch: Arch,
    precision_bytes: float,
    tokens: int,
    answer_tokens: int,
    entries: int,
) -> int:
    """Peak bytes of finding a sensitive mask: what backpropagation of one sample keeps, and fp32 scores.

    `peak_memory` of FO without trainable parameters, 4 bytes for each of the `entries` that the mask may choose from,
    and 2 L H T^2 b of attention (which makes T x T matrices here, to be deterministic). Estimated, not measured.
    """
    backward = peak_memory(
        model_parameters,
        arch,
        precision_bytes,
        "fo",
        "sensitive",
        1,
        "sequential",
        1,
        tokens,
        arch.vocabulary,
        0,
        answer_tokens=answer_tokens,
    )
    return int(backward + FP32 * entries + 2 * arch.layers * arch.heads * tokens**2 * precision_bytes)

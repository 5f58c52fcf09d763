"""Addressed noise: z is a pure function of (seed, step, query, parameter name, element index).

Elements 2j and 2j+1 of a tensor share the counter j. All integers are modulo 2^32:

    x = j xor k0;  x = (x xor x>>16) * M1;  x = x xor k1;  x = (x xor x>>15) * M2;  x = x xor x>>16      (word 0)
    y = x * M3 + k0;  y = y xor y>>15                                                                  (word 1)

(k0, k1) are the two halves of BLAKE2b("seed/step/query/name"). A word w becomes the uniform u = ((w>>9) + 1/2) / 2^23,
which fp32 holds exactly and which is never 0 or 1, and a pair of them two Gaussians by Box and Muller:

    r = sqrt(-2 ln u(x));  a = 2 pi u(y);  z[2j] = r cos a;  z[2j+1] = r sin a

The integers are the same bits on every device and in every order; the four float functions are evaluated in fp32 and
may differ between devices by their rounding (at most 2e-6 against the exact map). The largest |z| is 5.8.

Only multiplication, xor, and, and floor division by powers of two are needed, which is what an exported program may use
(int32 wraps; `>>` followed by a mask is the logical shift). Cost: about 17 integer and 16 float operations a pair, in
blocks that stay in cache; nothing is kept.
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache

import torch
from torch import Tensor

from zo_sweeps.engine.types import NoiseKey

M1, M2, M3 = 0x7FEB352D, 0x846CA68B, 0x9E3779B1
BLOCK = 1 << 15  # counters a block: the dozen int32 and fp32 temporaries stay in a core's L2 cache


def _signed(word: int) -> int:
    """The int32 with the same bits as the unsigned 32-bit `word`."""
    return word - (1 << 32) if word >= 1 << 31 else word


@lru_cache(maxsize=65536)
def words_of(key: NoiseKey, name: str) -> tuple[int, int]:
    """(k0, k1): the 64-bit address of a parameter's direction, as two int32."""
    digest = hashlib.blake2b(f"{key.seed}/{key.step}/{key.query}/{name}".encode(), digest_size=8).digest()
    return _signed(int.from_bytes(digest[:4], "little")), _signed(int.from_bytes(digest[4:], "little"))


def _hash(counter: Tensor, k0: int, k1: int) -> tuple[Tensor, Tensor]:
    """Both words of each counter (int32), computed in place on a copy."""
    x = counter ^ k0
    x ^= (x >> 16).bitwise_and_(0xFFFF)
    x *= _signed(M1)
    x ^= k1
    x ^= (x >> 15).bitwise_and_(0x1FFFF)
    x *= _signed(M2)
    x ^= (x >> 16).bitwise_and_(0xFFFF)
    y = x * _signed(M3)
    y += k0
    y ^= (y >> 15).bitwise_and_(0x1FFFF)
    return x, y


def _uniform(word: Tensor) -> Tensor:
    """((w >> 9) + 1/2) / 2^23, exact in fp32."""
    return word.bitwise_right_shift_(9).bitwise_and_(0x7FFFFF).float().add_(0.5).mul_(2.0**-23)


def integers(key: NoiseKey, name: str, count: int, device: torch.device | str = "cpu") -> Tensor:
    """The raw words of elements 0..count-1, [count] int32 (word 0 and word 1 of each counter, interleaved)."""
    k0, k1 = words_of(key, name)
    counter = torch.arange((count + 1) // 2, dtype=torch.int32, device=device)
    return torch.stack(_hash(counter, k0, k1), dim=1).flatten()[:count]


def uniform(key: NoiseKey, name: str, shape: torch.Size, device: torch.device | str = "cpu") -> Tensor:
    """U(0, 1), `shape`, fp32."""
    return _uniform(integers(key, name, shape.numel(), device)).view(shape)


def gaussian(key: NoiseKey, name: str, shape: torch.Size, device: torch.device | str = "cpu") -> Tensor:
    """N(0, 1), `shape`, fp32; see the module's text for the map."""
    count = shape.numel()
    pairs = (count + 1) // 2
    k0, k1 = words_of(key, name)
    out = torch.empty(pairs, dtype=torch.complex64, device=device)
    block = BLOCK if torch.device(device).type == "cpu" else pairs
    for start in range(0, pairs, max(block, 1)):
        stop = min(start + block, pairs)
        counter = torch.arange(start, stop, dtype=torch.int32, device=device)
        x, y = _hash(counter, k0, k1)
        radius = _uniform(x).log_().mul_(-2.0).sqrt_()
        angle = _uniform(y).mul_(2 * math.pi)
        torch.polar(radius, angle, out=out[start:stop])
    return torch.view_as_real(out).flatten()[:count].view(shape)

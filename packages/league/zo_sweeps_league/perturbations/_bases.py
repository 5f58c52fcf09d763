"""Orthonormal bases that are held for a window of steps. Not a member of the axis."""

from __future__ import annotations

from zo_sweeps.engine.later import Tensor, noise, torch
from zo_sweeps.methods.points import NoiseKey

Bases = dict[tuple[NoiseKey, str, "torch.device"], "Tensor"]


def orthonormal(kept: Bases, key: NoiseKey, name: str, rows: int, rank: int, device: torch.device) -> Tensor:
    """Return [rows, rank] with orthonormal columns, uniform (Haar) over such matrices; rank is at most rows.

    The Q of a Gaussian matrix's QR factors, with the signs that make R's diagonal positive. `kept` holds it until a
    matrix of another step or seed is asked for. Cost: 2 rows rank^2 operations, once.
    """
    address = (key, name, torch.device(device))
    if address not in kept:
        for old in [old for old in kept if old[0][:2] != key[:2]]:
            del kept[old]
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # so that the last bits don't depend on their number
        try:
            with torch.inference_mode(False), torch.no_grad():
                Q, R = torch.linalg.qr(noise.gaussian(key, name, torch.Size((rows, rank)), device))
                kept[address] = Q * R.diagonal().sign()
        finally:
            torch.set_num_threads(threads)
    return kept[address]

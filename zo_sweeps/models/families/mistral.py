"""Mistral: Llama's layers; a sliding window over the keys, which has no parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zo_sweeps.methods.arch import Arch
from zo_sweeps.models.families import Family, llama, unscaled


def describe(config: Mapping[str, Any]) -> Arch:
    """Return the shape of a Mistral. Its window defaults to 4096, as in transformers."""
    positions = unscaled(config, config.get("max_position_embeddings") or 4096 * 32)
    return replace(llama.describe(config), positions=positions, window=config.get("sliding_window", 4096) or 0)


family = Family(describe)

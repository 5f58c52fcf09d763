"""Small models of every family, and the models of conf/model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from zo_sweeps.methods.definition import read
from zo_sweeps.methods.parts import Model

CONF = Path(__file__).parents[2] / "conf" / "model"
LLAMA = {
    "model_type": "llama",
    "vocab_size": 4096,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
TINY: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "mistral": {**LLAMA, "model_type": "mistral"},
    "qwen2": {**LLAMA, "model_type": "qwen2"},
    "opt": {
        "model_type": "opt",
        "vocab_size": 4096,
        "hidden_size": 32,
        "word_embed_proj_dim": 32,
        "ffn_dim": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
    },
}


def model_yaml(name: str) -> dict[str, Any]:
    model: dict[str, Any] = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    return model


def make(name: str = "", **keys: Any) -> Model:
    """The model of conf/model/<name>.yaml with some of its keys changed, or a model of keys alone."""
    return read(Model, {**(model_yaml(name) if name else {}), **keys}, "model")


def local(folder: Path) -> Model:
    return make(source="local", path=str(folder))


def random_model(family: str, **arch: Any) -> Model:
    return make(source="random", arch={**TINY[family], **arch})

"""Every space there is, installed in a tiny model with options that make its members visible."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch

from tests.engine import contract
from tests.engine.conftest import TinyModel, make_examples, targets
from zo_sweeps.engine import losses, masks
from zo_sweeps.engine.batch import collate
from zo_sweeps.engine.losses import token_logprobs
from zo_sweeps.methods.arch import Arch
from zo_sweeps.methods.points import Theta
from zo_sweeps.methods.space import Found, Space

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "out_proj", "gate_proj", "up_proj", "down_proj", "fc1", "fc2")
# A space of codes is tested over them, in test_codes.py.
MEMBERS = [name for name in contract.names("space") if contract.kind("space", name).theta is Theta.FLOATS]
SPARSE = [name for name in MEMBERS if contract.kind("space", name).sparse]
OPTIONS: dict[str, Any] = {
    "rank": 4,
    "alpha": 8.0,
    "d_initial": 0.1,
    "length": 5,
    "density": 0.02,
    "scope": "per_layer",
    "refresh": 0,
}


def weights_of(model: TinyModel, layers: Sequence[str] = LINEAR) -> dict[str, torch.nn.Parameter]:
    return {name: model.module.get_submodule(name).weight for name in targets(model, tuple(layers))}


def example_losses(model: TinyModel, n: int = 4, seed: int = 3):
    for example in make_examples(n, seed):
        batch = collate([example], 0)
        yield lambda batch=batch: losses.candidates(token_logprobs(model, batch), batch)[0]


def definition(name: str, **changed: Any) -> Space:
    """A space with those of OPTIONS that it has."""
    return contract.member("space", name, **contract.known("space", name, {**OPTIONS, **changed}))


def install(name: str, model: TinyModel, seed: int = 0, layers: Sequence[str] = LINEAR, **changed: Any):
    return installed(definition(name, **changed), model, seed, layers)


def installed(space: Space, model: TinyModel, seed: int = 0, layers: Sequence[str] = LINEAR):
    mask = None
    if space.needs_gradients:

        def find(step: int) -> masks.Masks:
            return masks.sensitive(weights_of(model, layers), example_losses(model), space.density, space.scope)

        mask = Found(
            found := find(0), {n: weights_of(model, layers)[n].detach().view(-1)[i] for n, i in found.items()}, find
        )
    return space.install(model.module, targets(model, tuple(layers)), seed, mask)


def nudge(space, scale: float = 0.1, seed: int = 5) -> None:
    """Moves a space off its initial values (B = 0 hides errors)."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for param in space.params.values():
            param += scale * torch.randn(param.shape, generator=generator).to(param)


def digest(tensors) -> str:
    return hashlib.sha256(
        b"".join(t.detach().contiguous().view(torch.uint8).numpy().tobytes() for t in tensors)
    ).hexdigest()


def logits(model: TinyModel, seed: int = 0) -> torch.Tensor:
    ids = torch.randint(1, 97, (2, 9), generator=torch.Generator().manual_seed(seed))
    with torch.inference_mode():
        return model.head(model.hidden(ids, torch.ones_like(ids)))


def arch_of(model: TinyModel) -> Arch:
    """The shape of the tests' Llama, by hand."""
    config: Any = model.module.config
    width, keys = config.hidden_size, config.num_key_value_heads * config.head_dim
    inner = config.intermediate_size
    return Arch(
        family="llama",
        layers=config.num_hidden_layers,
        width=width,
        inner=inner,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_width=config.head_dim,
        vocabulary=config.vocab_size,
        positions=config.max_position_embeddings,
        tied=config.tie_word_embeddings,
        masked=False,
        parameters=sum(param.numel() for param in model.module.parameters()),
        linears={
            "q": (width, width), "k": (keys, width), "v": (keys, width), "o": (width, width),
            "gate": (inner, width), "up": (inner, width), "down": (width, inner),
        },
    )  # fmt: skip

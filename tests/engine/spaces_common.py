"""Every space there is, installed in a tiny model with options that make its members visible."""

from __future__ import annotations

import hashlib
import pkgutil
from importlib import import_module
from typing import Any

import torch

from tests.engine.conftest import TinyModel, make_examples, targets
from zo_sweeps.engine import losses, masks
from zo_sweeps.engine import spaces as package
from zo_sweeps.engine.batch import collate
from zo_sweeps.engine.losses import token_logprobs

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "out_proj", "gate_proj", "up_proj", "down_proj", "fc1", "fc2")
MEMBERS = {
    module.name: member
    for module in pkgutil.iter_modules(package.__path__)
    if hasattr(member := import_module(f"{package.__name__}.{module.name}"), "install")
}
SPARSE = ("sensitive", "random_subset", "outliers")
OPTIONS: dict[str, Any] = {
    "rank": 4,
    "alpha": 8.0,
    "d_initial": 0.1,
    "length": 5,
    "density": 0.02,
    "scope": "per_layer",
    "refresh": 0,
}


def weights_of(model: TinyModel) -> dict[str, torch.nn.Parameter]:
    return {name: model.module.get_submodule(name).weight for name in targets(model, LINEAR)}


def example_losses(model: TinyModel, n: int = 4, seed: int = 3):
    for example in make_examples(n, seed):
        batch = collate([example], 0)
        yield lambda batch=batch: losses.candidates(token_logprobs(model, batch), batch)[0]


def install(name: str, model: TinyModel, seed: int = 0, **changed: Any):
    options = {**OPTIONS, "modules": targets(model, LINEAR), **changed}
    if name == "sensitive":

        def find(step: int) -> masks.Masks:
            return masks.sensitive(weights_of(model), example_losses(model), options["density"], options["scope"])

        options |= {"masks": find(0), "find": find}
    return MEMBERS[name].install(model.module, options, seed)


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

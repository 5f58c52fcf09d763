"""Devices that no machine has, for a model that is divided; as a program, a divided model's forward on three of them.

torch holds every operator to tensors of one device, also where they are fake and the devices are too. It makes such a
device once per process, and for all of it: so this runs in one of its own.
"""

from __future__ import annotations

from typing import Any

import accelerate.hooks
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import backend_registration

from tests.models.common import random_model
from zo_sweeps.models.load import divide, load


def placed(module: nn.Module, name: str, device: torch.device, **_: Any) -> None:
    """Move a tensor as accelerate's function does, which cannot where `to` copies a parameter that is there already."""
    parent, _, leaf = name.rpartition(".")
    owner = module.get_submodule(parent)
    if leaf in owner._parameters:
        owner._parameters[leaf] = nn.Parameter(owner.get_parameter(leaf).detach().to(device), False)
    else:
        owner._buffers[leaf] = owner.get_buffer(leaf).to(device)


def main(family: str, **sizes: int) -> None:
    """Print where a forward's results are, and what it raises without the hooks of the layers."""
    devices = [torch.device("twin", i) for i in range(3)]
    model = load(random_model(family, num_hidden_layers=6, **sizes), torch.float32, "cpu")
    with FakeTensorMode() as mode, torch.no_grad():
        for module in model.module.modules():
            for table in (module._parameters, module._buffers):
                table.update({name: mode.from_tensor(one) for name, one in table.items() if one is not None})  # type: ignore[arg-type]
        divide(model, devices)
        assert {param.device for param in model.module.parameters()} == {*devices}
        ids = torch.zeros(2, 8, dtype=torch.long, device=devices[0])
        for positions in (None, torch.arange(8, device=devices[0]).expand(2, 8)):
            hidden = model.hidden(ids, positions=positions)
            print(hidden.device, model.head(hidden[:, -1]).device)
        for block in model.blocks:
            accelerate.hooks.remove_hook_from_module(block, recurse=True)
        try:
            model.hidden(ids)
        except RuntimeError as error:
            print(error)


if __name__ == "__main__":
    backend_registration._setup_privateuseone_for_python_backend("twin")
    accelerate.hooks.set_module_tensor_to_device = placed
    main("llama", intermediate_size=1024)
    main("opt", ffn_dim=1024)

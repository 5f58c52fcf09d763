"""Packages of every family: what is read from one is what was written, and no more of it at a time than one layer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.common import local, make
from tests.models.test_coded import decoded, same
from tests.models.test_coded_memory import ARCH
from tests.models.test_families import FAMILIES
from tests.models.test_families import model_of as whole_model_of
from zo_sweeps.core.errors import UserError
from zo_sweeps.engine.precisions.int8 import INT8
from zo_sweeps.engine.precisions.nf4 import NF4
from zo_sweeps.methods.arch import ALL
from zo_sweeps.methods.precision import WeightOnlyPrecision
from zo_sweeps.models import checkpoint, package
from zo_sweeps.models.causal import CausalModel
from zo_sweeps.models.load import load

PRECISION = INT8(compute="fp32")


def written(folder: Path, model: CausalModel, precision: WeightOnlyPrecision = PRECISION) -> Path:
    layers: Any = model.target_modules([ALL])
    stored: Any = {name: precision.stored(layer, layer.weight.detach()) for name, layer in layers.items()}
    codes = ((name, one.codes.state_dict()) for name, one in stored.items())
    package.write(folder, model, codes, precision, "made", "")
    return folder


# Built of the same modules as others; test_coded.py reads every family from its shards.
ALIKE = ("qwen2", "qwen3", "gemma2", "granite", "cohere", "falcon", "xlm-roberta", "deberta")


@pytest.mark.unit
@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.long) if one in ALIKE else one for one in FAMILIES]
)
def test_a_model_from_a_package_is_that_of_the_decoded_weights(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "SHARD", 4000)
    plain = whole_model_of(name)
    model = load(local(written(tmp_path, plain)), torch.float32, "cpu", PRECISION)
    assert len(list(tmp_path.glob("codes-*.safetensors"))) > 1
    assert model.package is not None
    assert same(model, decoded(plain, PRECISION))
    assert model.weight_bytes == PRECISION.weight_bytes(model.arch)
    assert not any(path.suffix in (".bin", ".pt", ".pkl") for path in tmp_path.iterdir())


@pytest.mark.unit
def test_a_package_is_loaded_as_what_it_is_only(tmp_path: Path) -> None:
    written(tmp_path, whole_model_of(FAMILIES[0] if isinstance(FAMILIES, list) else next(iter(FAMILIES))))
    for codes, why in (
        (None, "packaged as int8 codes"),
        (NF4(compute="fp32"), "precision.name is int8 in the package, not nf4"),
        (INT8(compute="bf16"), "precision.compute is fp32 in the package, not bf16"),
    ):
        with pytest.raises(UserError, match=why):
            load(local(tmp_path), torch.float32, "cpu", codes)


@pytest.mark.multiprocess
@pytest.mark.long
def test_loading_a_package_takes_the_memory_of_the_codes_and_of_one_tensor(tmp_path: Path) -> None:
    """Of a model whose projections are 50 MiB in fp32."""
    precision = NF4(compute="bf16")
    written(tmp_path, load(make(source="random", arch=ARCH), precision.dtype, "cpu"), precision)
    program = f'''
import gc, json
import torch
from zo_sweeps.engine.layers.weight_only import WeightCodes
from zo_sweeps.engine.precisions.nf4 import NF4
from zo_sweeps.methods.definition import read
from zo_sweeps.methods.parts import Model
from zo_sweeps.models.load import load

def used():
    """Bytes of all tensors; a process's own size would count the pages of mapped files."""
    tensors = [one for one in gc.get_objects() if torch.is_tensor(one)]
    return sum({{one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}}.values())

peaks = []
holding = WeightCodes.holding

def sampled(codes, shape, buffers):
    peaks.append(used())  # with the codes that were just read
    return holding(codes, shape, buffers)

WeightCodes.holding = sampled
precision = NF4(compute="bf16")
load(Model(), precision.dtype, "cpu", precision)  # imports everything
before = used()
model = load(read(Model, {{"source": "local", "path": {str(tmp_path)!r}}}, "model"), precision.dtype, "cpu", precision)
print(json.dumps([model.weight_bytes, max(peaks) - before, used() - before]))
'''
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    stored, peak, after = json.loads(done.stdout.splitlines()[-1])
    assert stored < 16 * 2**20
    assert peak < 1.1 * stored
    assert after == pytest.approx(stored, rel=0.01)

"""The memory of loading a model stored as codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.common import make
from zo_sweeps.models.load import load

ARCH = {"model_type": "llama", "vocab_size": 4096, "hidden_size": 512, "intermediate_size": 1408}
ARCH |= {"num_hidden_layers": 4, "num_attention_heads": 8, "max_position_embeddings": 64}
SHARD = 8 * 2**20


@pytest.mark.multiprocess
@pytest.mark.long
@pytest.mark.parametrize("source", ["local", "random"])
def test_loading_takes_the_memory_of_the_codes_and_of_one_tensor(source: str, tmp_path: Path) -> None:
    """Of a model whose projections are 50 MiB in fp32, in shards of at most 8 MiB; random weights of one module."""
    if source == "local":
        plain = load(make(source="random", arch=ARCH), torch.float32, "cpu")
        module: Any = plain.module
        module.save_pretrained(tmp_path, max_shard_size=SHARD)
        plain.tokenizer.save_pretrained(tmp_path)
    chosen = {"source": source, **({"path": str(tmp_path)} if source == "local" else {"arch": ARCH})}
    program = f'''
import gc, json
from dataclasses import dataclass
import torch
from zo_sweeps.engine.precisions.nf4 import NF4
from zo_sweeps.methods.definition import read
from zo_sweeps.methods.parts import Model
from zo_sweeps.models.load import load

def used():
    """Bytes of all tensors; a process's own size would count the pages of mapped files."""
    tensors = [one for one in gc.get_objects() if torch.is_tensor(one)]
    return sum({{one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}}.values())

peaks = []

@dataclass(frozen=True)
class Sampled(NF4):
    def encode(self, weight):
        codes = super().encode(weight)
        peaks.append(used())  # with the weight that was just read
        return codes

precision = Sampled(compute="bf16")
load(Model(), precision.dtype, "cpu", precision)  # imports everything
gc.collect()
gc.freeze()  # what there is by now is listed no more: a listing took longer than a load
before = used()
peaks.clear()
model = load(read(Model, {chosen!r}, "model"), precision.dtype, "cpu", precision)
print(json.dumps([model.weight_bytes, max(peaks) - before, used() - before]))
'''
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    stored, peak, after = json.loads(done.stdout.splitlines()[-1])
    assert stored < 16 * 2**20
    assert peak < 1.1 * stored + (3 if source == "random" else 1) * 4 * 512 * 1408
    assert after == pytest.approx(stored, rel=0.01)

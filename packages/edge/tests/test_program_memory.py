"""The estimate of an exported program's memory against the growth of a process that exports and runs one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("executorch", reason="needs the extra [edge]")

from zo_sweeps.core.memory_parts import Part
from zo_sweeps.devices.estimate import Batches, ForwardRows, memory_by_part
from zo_sweeps.engine.precisions.fp32 import FP32
from zo_sweeps.engine.spaces.lora_fa import LoRAFA
from zo_sweeps.engine.updates.sgd import SGD
from zo_sweeps.methods.kinds.zo import ZerothOrder
from zo_sweeps.models.families import describe
from zo_sweeps_edge.memory import program_memory

pytestmark = [pytest.mark.multiprocess, pytest.mark.long]

ARCH = {  # most of its 77 MiB are the embedding, so that an export takes seconds
    "model_type": "llama",
    "vocab_size": 32768,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
TOKENS = 64
SCRIPT = """
import gc, json, sys
from pathlib import Path

import torch

torch.set_num_threads(1)
import executorch.backends.xnnpack.partition.xnnpack_partitioner
import executorch.exir
import executorch.runtime

from zo_sweeps.devices.peak_memory import MemoryMeter
from zo_sweeps_edge.export import export, forward_inputs
from zo_sweeps_edge.noise import GaussianNoise
from zo_sweeps_edge.program import Calls
from zo_sweeps_edge.rows import Frame
from zo_sweeps_edge.session import load as opened
from zo_sweeps.engine.spaces.lora_fa import LoRAFA
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.parts import Model, ModelSource
from zo_sweeps.models.load import load

file, arch, tokens = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
model = load(Model(source=ModelSource.RANDOM, arch=arch), torch.float32, torch.device("cpu"))
space = LoRAFA().install(model.module, list(model.target_modules(["all"])), 0)
calls, frame = Calls(1, Mode.BOTH), Frame(shared=True, slots=2, places=1, tokens=tokens)
meter = MemoryMeter("cpu")
meter.start()
if not file.exists():
    noise = GaussianNoise([param.numel() for param in space.params.values()])
    _, data = export(model, space, noise, calls, frame, 1, lambda scores, gold: -scores[:, :, 0])
    meter.stop()
    file.write_bytes(data)
else:
    forward, _ = opened(file)
    inputs = forward_inputs(calls, frame, 1, len(space.params))
    for _ in range(2):
        forward(inputs)
    meter.stop()
d = sum(param.numel() for param in space.params.values())
gc.collect()
after = MemoryMeter("cpu")
after.start()
print(json.dumps([meter.above_baseline, after.baseline - meter.baseline, d]))
"""


def test_a_session_and_an_export_take_what_is_estimated(tmp_path: Path) -> None:
    """Within a quarter: the exporter's own objects and the allocators' slack do not follow from shapes."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "program.pte"), json.dumps(ARCH), str(TOKENS)]
    run = lambda: subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    (exported, _, d), (opened, held, _) = (json.loads(run().splitlines()[-1]) for _ in range(2))

    arch = describe(ARCH)
    weights = 4 * arch.parameters
    batches = Batches(TOKENS, ForwardRows(TOKENS, 1), points=2)
    parts = memory_by_part(arch, batches, ZerothOrder(), FP32(), LoRAFA(), SGD(), trainable=d)
    step, exporting = program_memory(parts, arch, 4, weights=weights, points=2, queries=1, d=d, dual=False)
    assert parts[Part.WEIGHTS] == weights
    assert 0.8 < (exporting - weights) / exported < 1.25
    assert 0.8 < (sum(step.values()) - weights) / held < 1.25
    assert opened < exporting - weights, "opening a program takes less than exporting it"

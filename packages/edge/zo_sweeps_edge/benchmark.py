"""Steps of exported programs, against the same runtime's own forward of the same rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from zo_sweeps.core.host import interleaved
from zo_sweeps.engine.spaces.lora_fa import LoRAFA
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.parts import Model, ModelSource
from zo_sweeps.models.causal import CausalModel
from zo_sweeps.models.load import load
from zo_sweeps_bench.measure import RatioRow
from zo_sweeps_edge.export import compiled, export, forward_inputs, traced
from zo_sweeps_edge.noise import GaussianNoise
from zo_sweeps_edge.program import FORWARD, Calls, Program
from zo_sweeps_edge.rows import Frame
from zo_sweeps_edge.session import program_of

LLAMA_6M = {  # the demo model's shape
    "model_type": "llama",
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}
FRAME = Frame(shared=True, slots=2, places=1, tokens=128)  # two candidates of one token each
STEPS = ((1, 16), (4, 16), (4, 4), (1, 4))  # q, B
LENGTHS = (64, 128)
FORMS = {"seed": None, "dual": 1e-3}  # eps of the copies
MUST = 1.25  # the most that a step may cost, of the forward of its rows


class Plain(nn.Module):
    """The model alone: the logits [N A, V] at the places that predict an answer."""

    def __init__(self, model: CausalModel) -> None:
        super().__init__()
        self.module, self._model = model.module, model

    def forward(self, ids: Tensor, columns: Tensor) -> Tensor:
        hidden = self._model.hidden(ids, None, None)
        places = hidden.gather(1, columns.unsqueeze(2).expand(-1, -1, hidden.shape[2]))
        return self._model.head(places.flatten(0, 1))


def rows(rounds: int) -> Iterator[RatioRow]:
    """Measure all rows."""
    for q, batch in STEPS:
        yield from steps(LLAMA_6M, q, batch, FRAME, LENGTHS, rounds)


def steps(
    arch: dict[str, Any], q: int, batch: int, frame: Frame, lengths: Sequence[int], rounds: int
) -> Iterator[RatioRow]:
    """Time P-RGE's step (LoRA-FA, all 2q points in one call) and the plain forward of its 2qB rows, interleaved.

    Both are exported in the same way. The plain program has no low-rank factors, no noise, no update and no loss.
    """
    calls = Calls(q, Mode.BOTH)
    plain, plain_planned = _plain(arch, calls, frame, batch)
    forms = {form: _step(arch, calls, frame, batch, dual) for form, dual in FORMS.items()}
    for tokens in lengths:
        inputs = list(forward_inputs(calls, frame, batch, len(forms["seed"][0].names)))
        inputs[0] = torch.randint(arch["vocab_size"], (len(inputs[0]), tokens))
        inputs[1] = torch.full_like(inputs[1], tokens - 1)
        functions: dict[str, Callable[[], Any]] = {"forward": partial(plain.execute, inputs[:2])}
        functions |= {form: partial(step.execute, inputs) for form, (_, step) in forms.items()}
        seconds = interleaved(functions, rounds)
        for form, (program, step) in forms.items():
            yield RatioRow(
                f"Program's step, LoRA-FA, form {form}, q={q}, B={batch} T={tokens}, against the runtime's forward",
                seconds[form] / seconds["forward"],
                "of",
                MUST,
                1.1,
                "1: the forward alone",
                {
                    "step, s": seconds[form],
                    "forward, s": seconds["forward"],
                    "program, MiB": len(step.data) / 2**20,
                    "program of the forward, MiB": len(plain.data) / 2**20,
                    "planned memory, MiB": program.planned_bytes / 2**20,
                    "planned memory of the forward, MiB": plain_planned / 2**20,
                },
            )


def _step(arch: dict[str, Any], calls: Calls, frame: Frame, batch: int, dual: float | None) -> tuple[Program, Loaded]:
    """Return the program of a step."""
    model, fa = _model(arch), LoRAFA()
    space = fa.install(model.module, list(model.target_modules(fa.targets)), 0)
    noise = GaussianNoise([param.numel() for param in space.params.values()])
    program, data = export(model, space, noise, calls, frame, batch, _first, dual=dual)
    return program, Loaded(data)


def _model(arch: dict[str, Any]) -> CausalModel:
    return load(Model(source=ModelSource.RANDOM, arch=arch), torch.float32, torch.device("cpu"))


def _plain(arch: dict[str, Any], calls: Calls, frame: Frame, batch: int) -> tuple[Loaded, int]:
    """Return the program of the forward of a step's rows, and its planned memory."""
    model = _model(arch)
    inputs = forward_inputs(calls, frame, batch, 0)[:2]
    data, planned = compiled({FORWARD: traced(Plain(model), model, inputs, frame, True)}, [FORWARD])
    return Loaded(data), planned


class Loaded:
    """A program's `forward` in ExecuTorch's Python runtime, which reads the weights from `data` at every call."""

    def __init__(self, data: bytes) -> None:
        self.data, self._program = data, program_of(data)
        self.execute = self._program.load_method(FORWARD).execute


def _first(scores: Tensor, gold: Tensor) -> Tensor:
    return -scores[:, :, 0]

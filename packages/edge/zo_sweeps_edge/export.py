"""Export of a training step to an ExecuTorch program (.pte).

The model goes to XNNPACK. Of the arithmetic on theta only what has the same bits in every kernel does; the rest stays
on ExecuTorch's own kernels (see noise.py).
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from zo_sweeps.engine.types import LanguageModel
from zo_sweeps.methods.space import InstalledSpace
from zo_sweeps_edge.entries_beside import entries_beside
from zo_sweeps_edge.lowered import lowered
from zo_sweeps_edge.noise import Noise
from zo_sweeps_edge.program import APPLY, FORWARD, Apply, Calls, Dual, Forward, OfScores, Program, ThetaVector
from zo_sweeps_edge.quantized import quantized_linears
from zo_sweeps_edge.rows import MULTIPLE_OF, Frame
from zo_sweeps_edge.xnnpack import fewer_passes, partitioner, reshape_once


def export(
    model: LanguageModel,
    space: InstalledSpace,
    noise: Noise,
    calls: Calls,
    frame: Frame,
    batch: int,
    of_scores: OfScores,
    *,
    dual: float | None = None,
    delegate: bool = True,
) -> tuple[Program, bytes]:
    """Export a step over an installed space; return its sizes and the .pte file.

    Args:
        noise: the directions.
        calls: the points of a call.
        frame: the sizes of the rows.
        batch: B, examples per point.
        of_scores: the terms of f.
        dual: eps, if the program keeps both copies of each direction (`Dual`) and not theta (`ThetaVector`).
        delegate: whether XNNPACK computes the model; else ExecuTorch's portable and optimized kernels do.

    Cost: tracing the model, and packing its weights: tens of seconds for a small model.
    """
    params = space.params
    theta = ThetaVector(params, calls, noise) if dual is None else Dual(params, calls, noise, dual)
    forward = Forward(model, space, theta, frame, batch, of_scores)
    inputs = forward_inputs(calls, frame, batch, noise.addresses)
    with torch.no_grad(), _quiet():
        apply = torch.export.export(Apply(theta), (*inputs[-3:], torch.zeros(1, dtype=torch.int64)), strict=False)
    with entries_beside(model.module, space):
        methods = {FORWARD: traced(forward, model, inputs, frame, delegate), APPLY: apply}
    data, planned_bytes = compiled(methods, [FORWARD] if delegate else [])
    return Program(calls, frame, batch, theta.names, theta.shapes, noise.cycles, planned_bytes), data


def traced(
    forward: nn.Module, model: LanguageModel, inputs: tuple[Tensor, ...], frame: Frame, delegate: bool
) -> ExportedProgram:
    """Trace a module whose first input is ids [N, T], for every T of the frame.

    Args:
        model: the model that `forward` calls.
        delegate: whether XNNPACK will compute it.
    """
    tokens = MULTIPLE_OF * torch.export.Dim("T", min=1, max=frame.tokens // MULTIPLE_OF)
    dynamic = tuple({1: tokens} if i == 0 and frame.tokens > MULTIPLE_OF else None for i in range(len(inputs)))
    rewrites = lowered(model.module, frame.tokens) if delegate else nullcontext()
    with torch.no_grad(), _quiet(), quantized_linears(model.module), _contiguous(model.module), rewrites:
        program = torch.export.export(forward.eval(), inputs, dynamic_shapes=dynamic, strict=False)
    reshape_once(program.graph_module)
    return program


def compiled(methods: Mapping[str, ExportedProgram], delegated: Collection[str]) -> tuple[bytes, int]:
    """Return the .pte file, and the bytes that the runtime plans for intermediate values and buffers.

    Args:
        methods: the traced methods, which share their buffers.
        delegated: those that XNNPACK computes.
    """
    from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower
    from executorch.exir.passes import MemoryPlanningPass
    from torch.fx.passes.infra.pass_base import PassResult

    def reshaped(graph_module: torch.fx.GraphModule) -> PassResult:
        reshape_once(graph_module)
        return PassResult(graph_module, True)

    with torch.no_grad(), _quiet(), fewer_passes():
        edge = to_edge_transform_and_lower(
            dict(methods),
            transform_passes={name: [reshaped] for name in delegated} or None,
            partitioner={name: [partitioner([ThetaVector, Dual])] if name in delegated else [] for name in methods},
            # No tensor here is stored in another order of its dimensions.
            compile_config=EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True),
        )
        planned = edge.to_executorch(
            ExecutorchBackendConfig(
                memory_planning_pass=MemoryPlanningPass(share_mutable_buffers=True), emit_mutable_buffer_names=True
            )
        )
    plans = planned.executorch_program.execution_plan
    planned_bytes = sum(max(sizes) for sizes in zip(*(plan.non_const_buffer_sizes for plan in plans), strict=False))
    return bytes(planned.buffer), planned_bytes


def forward_inputs(calls: Calls, frame: Frame, batch: int, addresses: int) -> tuple[Tensor, ...]:
    """Return inputs of `forward` of the largest T, of zeros, for directions of so many addresses."""
    P, S, A = calls.points, frame.slots_per_row, frame.places
    N = P * batch * frame.rows_per_example
    long = partial(torch.zeros, dtype=torch.int64)
    words, double = partial(torch.zeros, dtype=torch.int32), partial(torch.zeros, dtype=torch.float64)
    rows = (long(N, frame.tokens), long(N, A), long(N, A, S), torch.zeros(N, A, S), torch.zeros(N, S))
    points = (torch.zeros(P, batch), long(P, batch), words(calls.directions, addresses, 2), torch.zeros(1))
    return (*rows, *points, words(calls.q, addresses, 2), double(calls.q), double(1))


@contextmanager
def _contiguous(module: nn.Module) -> Iterator[None]:
    """Store buffers that are parts of a larger one (VeRA's factors) as tensors of their own, one per distinct part."""
    parts: dict[tuple[object, ...], Tensor] = {}
    before = [(owner, name, held) for owner in module.modules() for name, held in owner.named_buffers(recurse=False)]
    before = [(owner, name, held) for owner, name, held in before if not held.is_contiguous()]
    try:
        for owner, name, held in before:
            setattr(owner, name, parts.setdefault((held.data_ptr(), held.shape, held.stride()), held.contiguous()))
        yield
    finally:
        for owner, name, held in before:
            setattr(owner, name, held)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide warnings about the exporter's own internals, and the objects of everything else from the collector.

    An export allocates so many objects that every fifth second would go to looking through those of imported packages.
    """
    gc.freeze()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        gc.unfreeze()

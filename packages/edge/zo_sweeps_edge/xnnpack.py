"""What goes to XNNPACK, and in which form."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

# XNNPACK's passes over convolutions, pooling and their like, each of which traces the whole partition again, and the
# two that look for subgraphs which no program of ours has.
UNUSED_PASSES = {
    *("FuseBatchNormPass", "DecomposeBatchNorm", "Conv1dUnsqueezePass", "PReLUReshapePass"),
    *("ChannelsLastTaggedReshapePass", "ConvertToUpsampleBilinear2d", "ConvertToSDPAPass"),
}
NEEDED_BY = ("convolution", "batch_norm", "prelu", "pool", "mean", "upsample")


def partitioner(exact: Collection[type]) -> Any:
    """Return XNNPACK's partitioner of all operations, but of modules of the `exact` kinds only `_exact` ones."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir.backend.canonical_partitioners.pattern_op_partitioner import (
        generate_grouped_partitions_from_list_of_nodes,
    )
    from executorch.exir.graph_module import get_control_flow_submodules
    from torch.export import ExportedProgram
    from torch.fx.passes.infra.partitioner import Partition

    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in exact}

    class Partitioner(XnnpackPartitioner):  # type: ignore[misc]  # ExecuTorch has no types
        def ops_to_not_decompose(self, program: ExportedProgram) -> tuple[list[Any], None]:
            """Keep every Linear: without a condition, the exporter traces the program once, instead of three times."""
            return super().ops_to_not_decompose(program)[0], None

        def get_matched_nodes_from_configs(self, program: ExportedProgram) -> list[list[torch.fx.Node]]:
            matches: list[list[torch.fx.Node]] = super().get_matched_nodes_from_configs(program)
            return [nodes for nodes in matches if all(_exact(node) or not _modules(node) & names for node in nodes)]

        def generate_partitions(self, program: ExportedProgram) -> list[Partition]:
            """Add the exact operations of loops' bodies, which the base class does not look at."""
            partitions: list[Partition] = super().generate_partitions(program)
            for name, body, _ in get_control_flow_submodules(program.graph_module):
                nodes = [[node] for node in body.graph.nodes if _exact(node)]
                for partition in generate_grouped_partitions_from_list_of_nodes(body, nodes):
                    partition.id = f"{name}.{partition.id}"  # it becomes a tag, one per partition of the whole program
                    partitions.append(partition)
            return partitions

    return Partitioner()


def _exact(node: torch.fx.Node) -> bool:
    """Return whether a node has the same bits in every kernel: an IEEE operation in fp32, rounded once.

    The logarithm is not one, and is among them for the noise alone, which rounds it to an integer.
    """
    from executorch.exir.dialects._ops import ops

    aten = ops.edge.aten
    operations = (
        aten.add.Tensor,
        aten.sub.Tensor,
        aten.mul.Tensor,
        aten.div.Tensor,
        aten.abs.default,
        aten.log.default,
    )
    if node.target not in operations:
        return False
    return all(each.meta["val"].dtype == torch.float32 for each in (node, *node.all_input_nodes))


def _modules(node: torch.fx.Node) -> set[str]:
    """Return the kinds of the modules that a node comes from."""
    kinds = [kind for _, kind in (node.meta.get("nn_module_stack") or {}).values()]
    return {kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}" for kind in kinds}


@contextmanager
def fewer_passes() -> Iterator[None]:
    """Let XNNPACK skip passes that change nothing in a causal model: half of its time."""
    from executorch.backends.xnnpack import xnnpack_preprocess

    class Manager(xnnpack_preprocess.XNNPACKPassManager):  # type: ignore[misc]  # ExecuTorch has no types
        passes: list[Any]

        def transform(self) -> Any:
            called = [str(node.target) for node in self.exported_program.graph.nodes if node.op == "call_function"]
            if not any(word in name for name in called for word in NEEDED_BY):
                self.passes = [kind for kind in self.passes if kind.__name__ not in UNUSED_PASSES]
            return super().transform()

    with patch.object(xnnpack_preprocess, "XNNPACKPassManager", Manager):
        yield


def reshape_once(graph_module: torch.fx.GraphModule) -> None:
    """Make one reshape of every chain of them, with -1 in place of a length that depends on T, which XNNPACK infers.

    Args:
        graph_module: in the exporter's dialect (ATen) or in the edge dialect; changed in place.
    """
    from executorch.exir.dialects._ops import ops

    aten, edge = torch.ops.aten, ops.edge.aten
    reshapes = {
        **dict.fromkeys((aten.reshape.default, aten.view.default, aten.unflatten.int), aten.reshape.default),
        **dict.fromkeys((aten.flatten.using_ints, aten.unsqueeze.default), aten.reshape.default),
        **dict.fromkeys((edge.view_copy.default, edge.unsqueeze_copy.default), edge.view_copy.default),
        edge.squeeze_copy.dims: edge.view_copy.default,
    }
    for node in graph_module.graph.nodes:
        if node.target not in reshapes:
            continue
        source = node.args[0]
        while source.target in reshapes:
            source = source.args[0]
        shape, before = tuple(node.meta["val"].shape), tuple(source.meta["val"].shape)
        if shape == before:
            node.replace_all_uses_with(source)
        elif sum(not isinstance(size, int) for size in shape) <= 1:
            node.target = reshapes[node.target]
            node.args, node.kwargs = (source, [size if isinstance(size, int) else -1 for size in shape]), {}
    graph_module.graph.eliminate_dead_code()
    graph_module.recompile()

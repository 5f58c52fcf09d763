"""The memory of a trial by part: the tensors that are alive during one more step, and one more scored forward.

Run when the trial has its results, so that neither its times nor its numbers know of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from zo_sweeps.core.memory_parts import Part
from zo_sweeps.devices.tensors import Tensors
from zo_sweeps.engine.layers.weight_only import Codes
from zo_sweeps.methods.space import InstalledSpace
from zo_sweeps.run.workbench import Workbench

Work = Callable[[Tensors], object]

OF_AN_ENGINE = "run in an inference engine, which does not tell a program's tensors apart"


def at_peak(bench: Workbench, space: InstalledSpace | None, work: Work) -> Mapping[Part, int]:
    """Do the work, and return the bytes by part of the tensors alive at its peak.

    Args:
        space: as installed in the model; None if none is.
        work: called with the meter, to which it can say what its own tensors are.
    """
    tensors = Tensors(bench.device)
    if space is not None:
        for part, tensor in space.tensors():
            tensors.claim(tensor, part)
    for module in bench.model.module.modules():
        if isinstance(module, Codes):
            for part, buffer in module.tensors():
                tensors.claim(buffer, part)
    for tensor in bench.model.stored():
        tensors.claim(tensor, Part.WEIGHTS)
    with tensors:
        work(tensors)
    return tensors.at_peak()

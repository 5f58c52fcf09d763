from __future__ import annotations

import json
from dataclasses import replace
from unittest.mock import MagicMock

import pytest

from tests.schedule import fakes
from zo_sweeps import __version__
from zo_sweeps.core.trial import Needs, Trial
from zo_sweeps.schedule.backend import COLD, NO_SLOT, WARM
from zo_sweeps.schedule.placement import Node, gpus_holding, gpus_needed, refusal
from zo_sweeps.schedule.sweep import TrialQueue
from zo_sweeps.schedule.this_host import _divided, _gpus, _reasons
from zo_sweeps_ray.choice import preference, reason
from zo_sweeps_ray.connection import node_of

pytestmark = pytest.mark.unit

GIB = 2**30
CPU = Node("1", "desk", "cpu", 8, 0, 16 * GIB)
GPU = Node("2", "rack", "cuda", 16, 2, 64 * GIB)
NANO = Node("3", "nano", "jetson-orin-nano", 6, 1, 7 * GIB)


@pytest.mark.parametrize(
    ("device", "fits"),
    [
        ("auto", {"desk", "rack", "nano"}),
        ("cpu", {"desk", "rack"}),  # an edge device is taken only by name
        ("cuda", {"rack", "nano"}),
        ("jetson-orin-nano", {"nano"}),
        ("jetson-tx2", set()),
    ],
)
def test_a_device_is_found_where_it_is(device, fits):
    assert {node.name for node in (CPU, GPU, NANO) if not refusal(Needs(device), node)} == fits


def test_a_model_beyond_one_gpu_takes_as_many_as_hold_it_where_it_is_divided() -> None:
    """FO-Full of 7B parameters in 32 layers: 16 bytes each, and its activations."""
    host = Node("", "this host", "cuda", 16, 2, 78 * GIB)
    full = _divided(Needs("cuda", 134 * GIB, layers=32), host)
    assert gpus_needed(full, host) == full.gpus == 2
    assert not [*_reasons(full, host, 1)]
    text = "2 GPUs of one node (about 134.0 GiB, 78.0 GiB each)"
    assert _gpus(full, host) == text
    one = replace(host, gpus=1)
    assert [*_reasons(full, one, 1)] == [f"needs {text}, and this host gives a trial 1 GPU"]
    whole = _divided(Needs("cuda", 134 * GIB), host)
    assert whole.gpus == 1
    assert [*_reasons(whole, host, 1)] == [
        "needs about 134.0 GiB of GPU memory, and a GPU here has 78.0 GiB: a model is divided over GPUs only where "
        "backpropagation trains all of it"
    ]
    small = _divided(Needs("cuda", 53 * GIB, layers=32), host)
    assert small.gpus == 1
    assert not [*_reasons(small, host, 1)]
    assert _divided(Needs("auto", 134 * GIB, layers=32), replace(CPU, memory_bytes=GIB)).gpus == 1, "of main memory"


def test_a_gpu_holds_its_share_and_a_layer() -> None:
    full = Needs("cuda", 134 * GIB, layers=32)
    assert gpus_holding(full, 71 * GIB) == 3, "67 GiB, and up to 4.2 of a layer that is not divided"
    assert gpus_holding(full, 72 * GIB) == 2
    assert gpus_holding(full, 8 * GIB) == 1, "34 would: more than layers"


def test_a_divided_trial_goes_where_one_node_gives_it_all_its_gpus() -> None:
    needs = Needs("cuda", 134 * GIB, layers=32, gpus=2)
    assert refusal(needs, GPU) == ""
    assert refusal(needs, replace(GPU, gpus=1)) == "gives a trial 1 GPU"
    assert refusal(needs, replace(GPU, slots=2)) == "gives a trial 1 GPU", "an agent's lease has one"
    assert refusal(replace(needs, device="auto"), CPU) == "lends 16.0 GiB of memory"
    assert reason(needs, [replace(GPU, gpus=1)]) == (
        "needs 2 GPUs of one node and 134.0 GiB of memory: 0 of 1 nodes offer it (rack gives a trial 1 GPU)"
    )


def test_memory_counts_where_the_trial_computes_in_it():
    big = Needs("auto", 20 * GIB)
    assert refusal(big, CPU) == "lends 16.0 GiB of memory"
    assert refusal(big, GPU) == ""
    assert refusal(big, CPU, cpus=99) == "lends 8 CPUs where executor.cpus_per_trial is 99 and lends 16.0 GiB of memory"
    assert refusal(Needs("cuda", 70 * GIB), CPU, cpus=99) == "has no CUDA GPU", "its memory is another device's"
    assert refusal(big, NANO) == "lends 7.0 GiB of memory"  # unified
    assert refusal(Needs("cpu", 70 * GIB), GPU) == "lends 64.0 GiB of memory"
    assert (gpus_needed(Needs("cpu"), GPU), gpus_needed(Needs(), GPU), gpus_needed(Needs(), CPU)) == (0, 1, 0)


def test_a_gpus_own_memory_counts_where_it_is_known() -> None:
    small, large = (replace(GPU, gpu_bytes=size * GIB) for size in (24, 80))
    big = Needs("cuda", 40 * GIB)
    assert (refusal(big, small), refusal(big, large), refusal(big, GPU)) == ("has GPUs of 24.0 GiB", "", "")
    assert refusal(Needs("cpu", 40 * GIB), small) == "", "of main memory"
    assert refusal(Needs("cuda", 40 * GIB, layers=32, gpus=2), small) == "", "each GPU holds its part"
    assert "(rack has GPUs of 24.0 GiB)" in reason(big, [small])
    order = sorted((large, small), key=lambda node: preference(Needs("cuda"), node))
    assert order == [small, large], "the large ones are for trials that fit nowhere else"
    described = {"NodeID": "1", "NodeManagerHostname": "rack", "Resources": {"GPU": 1.0, "CPU": 4.0}}
    assert node_of({**described, "Labels": {"zo.gpu_bytes": "1000"}}).gpu_bytes == 1000
    assert node_of(described).gpu_bytes == 0


def test_a_node_of_another_version_runs_nothing_and_is_told_how_to_update() -> None:
    old = replace(GPU, version="0.0.1")
    text = f"has zo-sweeps 0.0.1, and this sweep has {__version__}: pip install zo-sweeps=={__version__} there"
    assert refusal(Needs(), old).startswith(text)
    assert text in reason(Needs(), [old])
    assert refusal(Needs(), replace(GPU, version=__version__)) == refusal(Needs(), GPU) == ""
    described = {"NodeID": "1", "NodeManagerHostname": "rack", "Resources": {}, "Labels": {"zo.version": "0.0.1"}}
    assert node_of(described).version == "0.0.1"


def test_a_program_runs_on_the_cpu_of_a_node_with_executorch():
    edge = [replace(node, programs=True) for node in (CPU, GPU, NANO)]
    phone = Node("4", "desk2", "oneplus-12", 8, 0, 12 * GIB, programs=True)
    for device, fits in {
        "executorch": {"desk", "rack"},
        "auto": {"desk", "rack", "nano", "desk2"},
        "oneplus-12": {"desk2"},
    }.items():
        needs = Needs(device, programs=True)
        assert {node.name for node in (*edge, phone) if not refusal(needs, node)} == fits
        assert [gpus_needed(needs, node) for node in edge] == [0, 0, 0]
    needs = Needs("executorch", programs=True)
    assert refusal(needs, CPU) == "has no executorch: pip install 'zo-sweeps[edge]'"
    assert refusal(needs, NANO) == "is a jetson-orin-nano", "what another device lacks besides does not matter"
    assert refusal(Needs("executorch", 70 * GIB, programs=True), edge[1]) == "lends 64.0 GiB of memory"
    assert refusal(Needs("cpu"), replace(CPU, device="executorch")) == "", "a node may join under this name"


def test_a_circuit_is_made_on_the_cpu_of_a_general_purpose_node_with_its_tools_in_these_versions():
    needs = Needs("rtl", tools=("yosys 0.70", "nextpnr 0.11"))
    assert {node.name for node in (CPU, GPU, NANO) if not refusal(needs, node)} == {"desk", "rack"}, "nothing is known"
    assert gpus_needed(needs, GPU) == 0
    both, other = (replace(CPU, tools=frozenset({"nextpnr 0.11", yosys})) for yosys in ("yosys 0.70", "yosys 0.69"))
    assert refusal(needs, both) == ""
    assert refusal(needs, other) == "has no yosys 0.70: pip install yosys==0.70"
    none = replace(CPU, tools=frozenset())
    assert refusal(needs, none) == "has no yosys 0.70 and no nextpnr 0.11: pip install yosys==0.70 nextpnr==0.11"
    assert refusal(Needs("cpu"), none) == ""
    assert "has no yosys 0.70" in reason(needs, [none, other])
    assert refusal(needs, replace(NANO, tools=frozenset())) == "is a jetson-orin-nano"


def test_the_tools_of_a_trial_and_of_a_node_survive_their_way_through_json_and_ray_s_labels(tmp_path):
    trial = fakes.trial(tmp_path, "t", needs=Needs("rtl", tools=("yosys 0.70",)))
    assert Trial.from_json(json.loads(json.dumps(trial.to_json()))).needs == trial.needs
    description = {"NodeID": "1", "NodeManagerHostname": "desk", "Resources": {"CPU": 2.0}}
    labels = {"zo.programs": "true", "zo.tool.yosys": "0.70"}
    assert node_of({**description, "Labels": labels}).tools == {"yosys 0.70"}
    assert node_of({**description, "Labels": {"zo.programs": "true"}}).tools == frozenset()
    assert node_of(description).tools is None, "of a node that Ray alone started"


def test_the_reason_names_what_is_needed_and_what_each_node_has():
    text, _, nodes = reason(Needs("jetson-tx2", 2 * GIB), [CPU, NANO]).partition(" (")
    assert text == "needs device jetson-tx2 and 2.0 GiB of memory: 0 of 2 nodes offer it"
    assert nodes == "desk is a cpu; nano is a jetson-orin-nano)"
    assert reason(Needs(), [CPU, NANO]) == ""
    assert reason(Needs(), []) == "needs any device: 0 of 0 nodes offer it"
    assert "lends 8 CPUs where executor.cpus_per_trial is 9" in reason(Needs(), [CPU], cpus=9)


def ready(*trials: Trial) -> TrialQueue:
    queue = TrialQueue((), MagicMock(), {})
    for trial in trials:
        queue.put(trial)
    return queue


def names(queue: TrialQueue, fit) -> list[str]:
    taken = []
    while trial := queue.take(fit):
        taken.append(trial.trial_id)
    return taken


def test_one_slot_takes_the_trials_of_a_base_model_together_in_plan_order(tmp_path):
    queue = ready(*(fakes.trial(tmp_path, n, warm=n[0]) for n in ("a1", "b1", "a2", "b2", "a3")))
    taken = []
    while trial := queue.take(lambda t: WARM if taken and t.warm_key == taken[-1].warm_key else COLD):
        taken.append(trial)
        queue.left(trial)
    assert [trial.trial_id for trial in taken] == ["a1", "a2", "a3", "b1", "b2"]


def test_free_slots_spread_over_base_models(tmp_path):
    queue = ready(*(fakes.trial(tmp_path, n, warm=n[0]) for n in ("a1", "a2", "b1", "b2")))
    assert names(queue, lambda trial: COLD) == ["a1", "b1", "a2", "b2"]


def test_trials_for_an_absent_device_hold_nobody_up(tmp_path):
    absent = [fakes.trial(tmp_path, f"j{i}", needs=Needs("jetson-tx2")) for i in range(10_000)]
    queue = ready(*absent, *fakes.trials(tmp_path, 100))
    asked = []

    def fit(trial):
        asked.append(trial.trial_id)
        return NO_SLOT if trial.needs.device == "jetson-tx2" else COLD

    assert names(queue, fit) == [f"t{i:03d}" for i in range(100)]
    assert len(asked) <= 2 * 101  # once a group, not once a trial
    assert len(queue) == 10_000
    assert queue.heads() == [(absent[0], 10_000)]


def test_a_lost_trial_goes_in_front_and_a_failed_one_behind(tmp_path):
    a, b, c = fakes.trials(tmp_path, 3)
    queue = ready(b)
    queue.put(c)
    queue.put(a, first=True)
    assert names(queue, lambda trial: COLD) == ["t000", "t001", "t002"]


def test_a_trial_that_names_its_device_goes_before_those_that_run_anywhere(tmp_path):
    anywhere = fakes.trials(tmp_path, 2, warm="a")
    named = [fakes.trial(tmp_path, f"j{i}", warm="j", needs=Needs("jetson-orin-nano")) for i in range(2)]
    warm = lambda trial: WARM if trial.warm_key == "a" else COLD
    assert names(ready(*anywhere, *named), warm) == ["j0", "j1", "t000", "t001"]


def test_a_trial_for_any_device_leaves_the_scarce_ones_to_others():
    order = sorted((NANO, CPU, GPU), key=lambda node: preference(Needs(), node))
    assert [node.name for node in order] == ["rack", "desk", "nano"]


def test_nodes_of_one_host_are_told_apart():
    twin = Node("4", "desk", "cpu", 8, 0, 1 * GIB)
    assert reason(Needs("auto", 8 * GIB), [CPU, twin]) == reason(Needs("auto", 8 * GIB), [twin, CPU]) == ""

"""A board as an agent describes it."""

from __future__ import annotations

from zo_sweeps import __version__
from zo_sweeps.devices.probe import Host
from zo_sweeps_agent.agent_facts import Facts

GB = 10**9
HOST = Host(
    kind="jetson",
    profile="jetson-tx2",
    name="a board",
    cores=4,
    memory_bytes=8 * GB,
    memory_free_bytes=4 * GB,
    ram_bytes=8 * GB,
    ram_free_bytes=4 * GB,
    unified=True,
    gpus=("a GPU",),
    versions={"python": "3.12.1", "torch": "2.11"},
    executorch=True,
    codes={"nf4": ""},
)
FACTS = Facts(__version__, HOST, "jetson-tx2", cpus=4, gpus=1, memory_bytes=8 * GB, slots=1)

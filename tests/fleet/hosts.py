"""Two hosts in network namespaces, each with an address of its own and a wire between them."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Host:
    name: str
    address: str

    @property
    def prefix(self) -> tuple[str, ...]:
        """What a command is begun with to run there."""
        return ("ip", "netns", "exec", self.name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Skips where this machine does not allow it."""
    if not shutil.which("ip"):
        pytest.skip("no `ip` command (iproute2)")
    number = os.getpid() % 200 + 20
    hosts = [Host(f"zo{os.getpid()}{letter}", f"10.77.{number}.{i}") for i, letter in enumerate("ab", 1)]
    made: list[Host] = []
    try:
        try:
            for host in hosts:
                _ip("netns", "add", host.name)
                made.append(host)
            wires = [f"zo{os.getpid() % 100000}{letter}" for letter in "ab"]
            _ip("link", "add", wires[0], "type", "veth", "peer", "name", wires[1])
            for host, wire in zip(hosts, wires, strict=True):
                _ip("link", "set", wire, "netns", host.name)
                _ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", wire)
                for device in (wire, "lo"):
                    _ip("-n", host.name, "link", "set", device, "up")
                _ip("-n", host.name, "route", "add", "default", "dev", wire)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this machine allows no network namespaces: {error.stderr.strip()}")
        yield hosts[0], hosts[1]
    finally:
        for host in made:
            subprocess.run(["ip", "netns", "del", host.name], check=False, capture_output=True)

"""Hosts in network namespaces, with addresses of their own: two with a wire between them, or one behind a router."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

ROUTER = """
table ip nat {{
  chain out {{
    type nat hook postrouting priority 100;
    oifname "{outside}" masquerade;
  }}
}}
table ip filter {{
  chain through {{
    type filter hook forward priority 0; policy drop;
    ct state established,related accept;
    iifname "{inside}" oifname "{outside}" accept;
  }}
}}
"""


@dataclass(frozen=True)
class Host:
    name: str
    address: str

    @property
    def prefix(self) -> tuple[str, ...]:
        """What a command is begun with to run there."""
        return ("ip", "netns", "exec", self.name)


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Skips where this machine does not allow it."""
    with _hosts("ab") as (first, second):
        for host, wire in zip((first, second), _wire(first, second, ""), strict=True):
            _run("ip", "-n", host.name, "route", "add", "default", "dev", wire)
        yield first, second


@contextlib.contextmanager
def behind_a_router() -> Iterator[tuple[Host, Host, Host]]:
    """A head's host, a router and a board: the router masquerades the board, and lets no connection in.

    The head sends all that it has no other way for to the router. Skips where this machine does not allow it.
    """
    if not shutil.which("nft"):
        pytest.skip("no `nft` command (nftables)")
    with _hosts("hrb") as (head, router, board):
        _, outside = _wire(head, router, "o")
        home = Host(router.name, board.address.rpartition(".")[0] + ".254")
        inside, _ = _wire(home, board, "i")
        _run("ip", "-n", head.name, "route", "add", "default", "via", router.address)
        _run("ip", "-n", board.name, "route", "add", "default", "via", home.address)
        _run(*router.prefix, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        _run(*router.prefix, "nft", ROUTER.format(inside=inside, outside=outside))
        yield head, router, board


@contextlib.contextmanager
def _hosts(letters: str) -> Iterator[list[Host]]:
    """The last of three is in a network of its own."""
    if not shutil.which("ip"):
        pytest.skip("no `ip` command (iproute2)")
    number = os.getpid() % 200 + 20
    hosts = [Host(f"zo{os.getpid()}{x}", f"10.{77 + i // 3}.{number}.{i}") for i, x in enumerate(letters, 1)]
    made: list[Host] = []
    try:
        for host in hosts:
            _run("ip", "netns", "add", host.name)
            made.append(host)
            _run("ip", "-n", host.name, "link", "set", "lo", "up")
        yield hosts
    finally:
        for host in made:
            subprocess.run(["ip", "netns", "del", host.name], check=False, capture_output=True)


def _wire(one: Host, other: Host, name: str) -> tuple[str, str]:
    """Connect two hosts; the names of the wire's ends."""
    first, second = ends = (f"zo{os.getpid() % 100000}{name}a", f"zo{os.getpid() % 100000}{name}b")
    _run("ip", "link", "add", first, "type", "veth", "peer", "name", second)
    for host, end in zip((one, other), ends, strict=True):
        _run("ip", "link", "set", end, "netns", host.name)
        _run("ip", "-n", host.name, "addr", "add", f"{host.address}/24", "dev", end)
        _run("ip", "-n", host.name, "link", "set", end, "up")
    return ends


def _run(*words: str) -> None:
    """Skips where it fails: no namespaces here, or no rules in them."""
    try:
        subprocess.run(words, check=True, capture_output=True, text=True, timeout=20)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this machine allows no network namespaces: {error.stderr.strip()}")

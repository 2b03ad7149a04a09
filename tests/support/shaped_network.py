"""Network namespaces on one switch, each with a link of a given rate (Linux, as root); nothing else changes."""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

_SWITCH = "sw"
_NETWORK = 0x40000000
"""CLONE_NEWNET of setns(2)."""
_numbers = itertools.count(1)


class ShapedNetwork:
    """A context. `add` machines to it, and start processes behind `prefix`."""

    def __init__(self) -> None:
        self._mark = f"pm{os.getpid()}n{next(_numbers)}"
        self._spaces: list[str] = []
        self.addresses: dict[str, str] = {}

    @staticmethod
    def why_not() -> str | None:
        """Why this machine can't make one; None: it can."""
        if os.name != "posix" or os.geteuid() != 0:
            return "network namespaces need root"
        missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
        if missing:
            return f"{missing[0]} is not installed (iproute2)"
        try:
            with ShapedNetwork() as network:
                network.add("probe", 1000)
        except (subprocess.CalledProcessError, OSError) as error:
            said = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else str(error)
            return f"namespaces or shaping don't work here: {said}"
        return None

    def __enter__(self) -> ShapedNetwork:
        self._space(_SWITCH)
        self._in(_SWITCH, "ip", "link", "add", "br0", "type", "bridge")
        self._in(_SWITCH, "ip", "link", "set", "br0", "up")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for space in reversed(self._spaces):
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)

    def add(self, name: str, mbit_per_s: int | None) -> str:
        """A machine whose link carries so much in each direction; None: as much as it can. Its address."""
        number = len(self.addresses) + 1
        address, port = f"10.77.0.{number}", f"p{number}"
        space, switch = self._space(name), self._name(_SWITCH)
        _run("ip", "link", "add", "eth0", "netns", space, "type", "veth", "peer", "name", port, "netns", switch)
        self._in(_SWITCH, "ip", "link", "set", port, "master", "br0", "up")
        self._in(name, "ip", "addr", "add", f"{address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            self._in(name, "ip", "link", "set", device, "up")
        if mbit_per_s is not None:
            burst = str(max(8 << 10, mbit_per_s * 1000 // 8))
            shape = ("root", "tbf", "rate", f"{mbit_per_s}mbit", "burst", burst, "latency", "50ms")
            self._in(name, "tc", "qdisc", "replace", "dev", "eth0", *shape)
            self._in(_SWITCH, "tc", "qdisc", "replace", "dev", port, *shape)
        self.addresses[name] = address
        return address

    def prefix(self, name: str) -> tuple[str, ...]:
        """What a command begins with that is to run on that machine."""
        return ("ip", "netns", "exec", self._name(name))

    def inside(self, name: str) -> ThreadPoolExecutor:
        """A thread whose new sockets are of that machine."""

        def enter() -> None:
            libc = ctypes.CDLL(None, use_errno=True)
            descriptor = os.open(f"/run/netns/{self._name(name)}", os.O_RDONLY)
            try:
                if libc.setns(descriptor, _NETWORK) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
            finally:
                os.close(descriptor)

        return ThreadPoolExecutor(1, name, initializer=enter)

    def _name(self, name: str) -> str:
        return f"{self._mark}-{name}"

    def _space(self, name: str) -> str:
        space = self._name(name)
        _run("ip", "netns", "add", space)
        self._spaces.append(space)
        return space

    def _in(self, name: str, *command: str) -> None:
        _run(*self.prefix(name), *command)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)

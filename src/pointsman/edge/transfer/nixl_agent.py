"""NixlAgent: blocks out of another engine's memory by NIXL, where it is installed.

Its calls may block while connections are made, so all of them run in one thread of their own.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from pointsman.edge.transfer.errors import Failure, TransferError
from pointsman.edge.transfer.memory import BlockMemory
from pointsman.edge.transfer.messages import NixlOffer

STAGING_BYTES = 32 << 20
_MOST_PEERS = 64
_POLL_S = 20e-6
_IDLE_US = 1000
"""How long the thread of an agent sleeps at most between two looks at its connections; what arrives wakes it sooner."""


def nixl_installed() -> bool:
    """Whether its package is there; that it works shows when an agent is made."""
    return importlib.util.find_spec("nixl") is not None


class NixlAgent:
    """One an engine: lets others read its blocks, and reads theirs into a staging area."""

    def __init__(self, memory: BlockMemory, *, staging_bytes: int = STAGING_BYTES, backend: str = "UCX") -> None:
        """Raises TransferError (LOCAL) where NIXL does not work here."""
        self._layout = memory.layout
        self._per_read = max(1, staging_bytes // memory.layout.block_bytes)
        self._staging = np.zeros(self._per_read * memory.layout.block_bytes, np.uint8)
        self._thread = ThreadPoolExecutor(1, "nixl")
        self._peers: OrderedDict[bytes, str] = OrderedDict()
        self._broken = False
        os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")
        try:
            api = importlib.import_module("nixl._api")
            configuration = api.nixl_agent_config(backends=[backend])
            with _that_sleep(api):
                self._agent: Any = api.nixl_agent(f"pointsman-{uuid.uuid4().hex}", configuration)
            areas = [(memory.address, memory.array.nbytes), (self._staging.ctypes.data, self._staging.nbytes)]
            described = self._agent.get_reg_descs([(start, size, 0, "") for start, size in areas], "DRAM")
            self._registered = self._agent.register_memory(described)
            metadata = self._agent.get_agent_metadata()
        except Exception as error:
            self._thread.shutdown()
            raise TransferError(Failure.LOCAL, f"NIXL does not work here: {error}") from error
        self.offer = NixlOffer(metadata, memory.address)

    @property
    def blocks_a_read(self) -> int:
        """That fit into the staging area."""
        return self._per_read

    @property
    def thread(self) -> ThreadPoolExecutor:
        """In which `read` and `close` are to be called."""
        return self._thread

    def staged(self, place: int) -> memoryview:
        """The block at that place of the last read."""
        size = self._layout.block_bytes
        return self._staging.data[place * size : (place + 1) * size]

    def read(self, offer: NixlOffer, numbers: Sequence[int], timeout_s: float) -> None:
        """Blocks, `blocks_a_read` at most, into the staging area, one after the other. Raises TransferError."""
        if self._broken:
            raise TransferError(Failure.LOCAL, "an earlier NIXL transfer did not end, and may still write")
        size, agent = self._layout.block_bytes, self._agent
        mine = self._staging.ctypes.data
        local = [(mine + place * size, size, 0) for place in range(len(numbers))]
        remote = [(offer.address + number * size, size, 0) for number in numbers]
        try:
            peer = self._peer(offer.agent)
            handle = agent.initialize_xfer(
                "READ", agent.get_xfer_descs(local, "DRAM"), agent.get_xfer_descs(remote, "DRAM"), peer, b""
            )
            try:
                state = agent.transfer(handle)
                end_s = time.monotonic() + timeout_s
                while state == "PROC":
                    if time.monotonic() > end_s:
                        self._broken = True
                        raise TransferError(Failure.TIMED_OUT, f"NIXL did not end within {timeout_s:g} s")
                    time.sleep(_POLL_S)
                    state = agent.check_xfer_state(handle)
            finally:
                if not self._broken:
                    agent.release_xfer_handle(handle)
        except TransferError:
            raise
        except Exception as error:
            self._forget(offer.agent)
            raise TransferError(Failure.BROKEN, f"NIXL failed: {error}") from error
        if state != "DONE":
            self._forget(offer.agent)
            raise TransferError(Failure.BROKEN, f"NIXL ended in state {state}")

    def close(self) -> None:
        """Let go of all memory. Call it in `thread`, which is shut down after it."""
        for metadata in list(self._peers):
            self._forget(metadata)
        self._agent.deregister_memory(self._registered)

    def _peer(self, metadata: bytes) -> str:
        name = self._peers.get(metadata)
        if name is None:
            while len(self._peers) >= _MOST_PEERS:
                self._forget(next(iter(self._peers)))
            added = self._agent.add_remote_agent(metadata)
            name = added.decode() if isinstance(added, bytes) else str(added)
            self._peers[metadata] = name
        self._peers.move_to_end(metadata)
        return name

    def _forget(self, metadata: bytes) -> None:
        name = self._peers.pop(metadata, None)
        if name is not None:
            with contextlib.suppress(Exception):
                self._agent.remove_remote_agent(name)


@contextlib.contextmanager
def _that_sleep(api: Any) -> Iterator[None]:
    """Agents that are made meanwhile do. NIXL's Python interface sets a wait of 0, which takes a core's whole time."""
    bindings = getattr(api, "nixlBind", None)
    usual: Any = getattr(bindings, "nixlAgentConfig", None)
    wait: Any = getattr(usual, "pthrDelay", None)
    if bindings is None or wait is None:  # another version's business
        yield
        return
    sleeping = property(wait.fget, lambda self, us: wait.fset(self, us or _IDLE_US))
    bindings.nixlAgentConfig = type("SleepingAgentConfig", (usual,), {"pthrDelay": sleeping})
    try:
        yield
    finally:
        bindings.nixlAgentConfig = usual

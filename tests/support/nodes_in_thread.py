"""Nodes, and a front end, that run in a thread of their own, so that a verb can run in the main one."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, TypeVar

from pointsman.edge.configuration.secret import Secret
from pointsman.edge.node.server import NodeServer
from pointsman.edge.serving.frontend import Frontend
from pointsman.edge.serving.settings import FrontendSettings

T = TypeVar("T")

TOKEN = "a-token-for-tests"


class NodesInThread:
    """A context."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._open: list[NodeServer | Frontend] = []

    def __enter__(self) -> NodesInThread:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for opened in self._open:
            self.run(opened.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def node(self, kind: type[NodeServer] = NodeServer, **settings: Any) -> str:
        """The URL of another one."""
        server = kind(time.monotonic, **({"token": Secret(TOKEN)} | settings))
        self.run(server.start("127.0.0.1", 0, 0))
        self._open.append(server)
        return f"http://127.0.0.1:{server.port}"

    def front_end(self) -> Frontend:
        """Without engines."""

        async def start() -> Frontend:
            frontend = Frontend(FrontendSettings(port=0, admin_port=0))
            await frontend.start()
            return frontend

        frontend = self.run(start())
        self._open.append(frontend)
        return frontend

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """In their thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

"""Waiting for something that another task, thread or process brings about."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def eventually(holds: Callable[[], bool], limit_s: float = 30.0) -> None:
    """Turns the event loop until something holds; fails after the limit."""
    deadline = asyncio.get_running_loop().time() + limit_s
    while not holds():
        assert asyncio.get_running_loop().time() < deadline, "it never came true"
        await asyncio.sleep(0.002)

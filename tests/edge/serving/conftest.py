from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from support.scripted_fleet import Fleet


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    """A front end over engines that do what a test says."""
    async with AsyncExitStack() as stack:
        yield Fleet(stack)

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from support.scripted_fleet import Fleet
from support.sim_fleet import SimFleet


@pytest.fixture
async def sims() -> AsyncIterator[SimFleet]:
    """Simulated engines with a front end before them."""
    async with AsyncExitStack() as stack:
        yield SimFleet(stack)


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    """Engines that do what a test says."""
    async with AsyncExitStack() as stack:
        yield Fleet(stack)

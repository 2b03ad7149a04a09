"""For all tests. Property tests try the same examples in every run, so that a run means the same everywhere.

`scripts/test --hypothesis-profile=random` tries others; `--hypothesis-seed=N` beside it repeats the ones that failed.
"""

from __future__ import annotations

import logging

import pytest
from hypothesis import HealthCheck, settings

# How long it takes to make examples is up to the machine, and what else it does.
_ANY_SPEED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fixed", _ANY_SPEED, derandomize=True)
settings.register_profile("random", _ANY_SPEED, derandomize=False, print_blob=True)
settings.load_profile("fixed")


@pytest.fixture(autouse=True)
def _fresh_logger() -> None:
    """A verb that ran in this process has set up logs for good: the next test begins without handlers of its own."""
    logger = logging.getLogger("pointsman")
    logger.handlers, logger.propagate = [], True
    logger.setLevel(logging.NOTSET)

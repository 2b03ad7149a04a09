"""Log lines of ours."""

from __future__ import annotations

import pytest


def own_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Without what Python says late of what other tests of the same process have left behind."""
    return [record.getMessage() for record in caplog.records if record.name.startswith("pointsman")]

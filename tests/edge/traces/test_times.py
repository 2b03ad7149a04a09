from __future__ import annotations

import pytest

from pointsman.edge.traces.problems import RowError
from pointsman.edge.traces.times import epoch_ms


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        (1_700_000_000, 1.7e12),
        (1_700_000_000.25, 1.7e12 + 250),
        (1_700_000_000_000, 1.7e12),
        (1_700_000_000_000_000, 1.7e12),
        (1_700_000_000_000_000_000, 1.7e12),
        ("1700000000.5", 1.7e12 + 500),
        ("2023-11-14T22:13:20Z", 1.7e12),
        ("2023-11-14 22:13:20.1234567", 1.7e12 + 123.4567),
        ("2023-11-14T23:13:20+01:00", 1.7e12),
        ("2023-11-14T23:13:20,5+0100", 1.7e12 + 500),
        ("[14/Nov/2023:22:13:20 +0000]", 1.7e12),
        (0, 0.0),
    ],
)
def test_times_as_logs_write_them(value: object, ms: float) -> None:
    assert epoch_ms(value, "t") == pytest.approx(ms, abs=1e-3)


@pytest.mark.parametrize(
    "value", ["noon", "1e999", "nan", "2023-13-40T00:00:00", None, True, [], "99/Nov/2023:22:13:20 +0000"]
)
def test_what_is_no_time_is_named(value: object) -> None:
    with pytest.raises(RowError, match=r"^t: "):
        epoch_ms(value, "t")

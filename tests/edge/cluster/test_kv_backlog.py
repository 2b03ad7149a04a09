from __future__ import annotations

import pytest

from pointsman.edge.cluster.kv_backlog import KvBacklog


def test_first_in_first_out():
    backlog = KvBacklog(10_000)
    assert (len(backlog), backlog.oldest_s) == (0, None)
    backlog.add(1, b"a", 5.0)
    backlog.add(2, b"b", 6.0)
    assert (len(backlog), backlog.oldest_s) == (2, 5.0)
    assert backlog.pop() == (1, b"a", 5.0)
    assert backlog.oldest_s == 6.0
    backlog.pop()
    with pytest.raises(IndexError):
        backlog.pop()


@pytest.mark.parametrize(("size", "fit"), [(4_000, 2), (0, 30)])
def test_bytes_are_bounded_and_the_last_one_stays(size, fit):
    backlog = KvBacklog(10_000)
    while not backlog.full:
        backlog.add(len(backlog), bytes(size), 0.0)
    count = len(backlog)
    assert fit < count <= fit + 4, "what a batch takes beside its payload counts too"
    assert backlog.drop() == count - 1
    assert (backlog.full, backlog.pop().seq, len(backlog)) == (False, count - 1, 0)
    assert backlog.drop() == 0

from __future__ import annotations

from pathlib import Path

import pytest

from pointsman.core.model.errors import ConfigError
from pointsman.core.placement.queues.amounts import Allowance
from pointsman.core.placement.queues.tree import Queue, QueueTree
from pointsman.edge.manifests.queue_file import queues_of, read_queues

WHOLE = """\
queues:
  - {name: org, limit: {gpus: 100}}
  - name: chat
    parent: org
    quota: {gpus: 64, cpu: 500, memory: 4Ti}
    over_quota_weight: 3
    priority: 2
    preempt_min_runtime: 10m
    reclaim_min_runtime: 1h
"""


def test_all_of_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "q.yaml"
    file.write_text(WHOLE)
    quota = Allowance(64_000, 500_000, 4 * 2**40)
    assert read_queues(file) == QueueTree(
        (Queue("org", limit=Allowance(100_000)), Queue("chat", "org", quota, Allowance(), 3.0, 2, 600.0, 3600.0))
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "q: expected one list of queues"),
        ("queues: []", "q:1: queues: is empty"),
        ("queues:\n  - {name: a, quotas: {}}", "q:2: queues[0].quotas: unknown key; did you mean quota?"),
        ("queues:\n  - {name: a, quota: {gpus: 1.5}}", "q:2: queues[0].quota.gpus: expected an integer from 0 to"),
        ("queues: [{name: a}, {name: a}]", "q: queue a is there twice"),
        ("queues: [{name: a, parent: b}]", "its parent 'b' is not there"),
        ("queues: [{name: a, parent: b}, {name: b, parent: a}]", "go in a circle"),
    ],
)
def test_bad_files(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        queues_of(text, "q")
    assert message in str(caught.value)

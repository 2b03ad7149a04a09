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

DEEP = "queues:\n" + "".join(f"  - {{name: q{at}{f', parent: q{at - 1}' if at else ''}}}\n" for at in range(34))


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
        ("queues:\n  - {name: a}\n  - {name: a}", "q:3: queues[1].name: there is a queue a already; rename one"),
        ("queues:\n  - {name: a, parent: b}", "q:2: queues[0].parent: there is no queue 'b'; add it"),
        (
            "queues:\n  - {name: a, parent: b}\n  - {name: b, parent: a}",
            "q:2: queues[0].parent: its parents go in a circle (a is one of them twice); leave one out",
        ),
        ("queues:\n  - {name: a, parent: a}", "q:2: queues[0].parent: its parents go in a circle (a is"),
        (DEEP, "q:35: queues[33].parent: there are more than 32 queues above it; make the tree flatter"),
        ("queues:\n  - {name: a, over_quota_weight: .inf}", "q:2: queues[0].over_quota_weight: expected a number"),
        ("queues:\n  - {name: a, over_quota_weight: .nan}", "q:2: queues[0].over_quota_weight: expected"),
        ("queues:\n  - {name: a, over_quota_weight: -1}", "q:2: queues[0].over_quota_weight: expected a number"),
        ("queues:\n  - {name: a, over_quota_weight: 1e-9}", "queues[0].over_quota_weight: expected"),
        ("queues:\n  - {name: a, over_quota_weight: 0.0001}", "queues[0].over_quota_weight: expected 0, or 0.001"),
        (
            "queues:\n  - {name: a, priority: 99999999999}",
            "q:2: queues[0].priority: expected an integer from -2",
        ),
        ("queues:\n  - {name: a, limit: {gpus: .inf}}", "q:2: queues[0].limit.gpus: expected an integer"),
        ("queues:\n  - {name: a, limit: {gpus: -1}}", "q:2: queues[0].limit.gpus: expected an integer from 0"),
        ("queues:\n  - {name: a, limit: {memory: 1e999}}", "q:2: queues[0].limit.memory: expected an amount"),
        ("queues:\n  - {name: a, limit: {cpu: .nan}}", "q:2: queues[0].limit.cpu: expected CPUs"),
        ("queues:\n  - {name: a, preempt_min_runtime: 10}", "q:2: queues[0].preempt_min_runtime: expected a duration"),
        ("queues:\n  - {name: a, preempt_min_runtime: -5s}", "q:2: queues[0].preempt_min_runtime: expected a duration"),
    ],
)
def test_bad_files(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        queues_of(text, "q")
    assert message in str(caught.value)

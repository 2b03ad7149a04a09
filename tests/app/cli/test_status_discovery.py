"""What `status` says of the places where engines are found."""

from __future__ import annotations

from pointsman.app.cli.status_discovery import discovery_lines
from pointsman.edge.serving.workers.report import DiscoveryReport, IgnoredReport, PlaceReport, RefusedReport


def place(origin: str = "etcd", state: str = "connected", kept: int = 0, ignored: int = 0) -> PlaceReport:
    reason = "" if state == "connected" else "connection refused"
    records = [IgnoredReport(f"k{n}", f"etcd k{n}: it has no address yet") for n in range(ignored)]
    return PlaceReport(origin, "/w/", state, reason, 12.3, 4, kept, records)


def test_nothing_to_say() -> None:
    assert list(discovery_lines(DiscoveryReport([place("configuration"), place()], []))) == []
    assert list(discovery_lines(None)) == []


def test_everything_at_once() -> None:
    refused = [RefusedReport("api", "x", "http://x", "a of configuration has this URL too")]
    report = DiscoveryReport([place(state="lost", kept=2, ignored=7)], refused)
    assert list(discovery_lines(report)) == [
        "engines of etcd /w/: lost for 12 s, 4 stay as they were: connection refused",
        "engines of etcd /w/: 2 of 4 are not named there any more and kept for a while",
        *[f"etcd: ignored: etcd k{n}: it has no address yet" for n in range(5)],
        "etcd: ignored: 2 more; `GET /v1/workers` names them",
        "x (http://x) of api: not used: a of configuration has this URL too",
    ]

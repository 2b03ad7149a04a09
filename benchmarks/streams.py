"""Thousands of open streams: errors, inter-token latency that the front end adds, memory over time.

usage: scripts/bench streams [--quick] [--streams 2000] [--seconds 60] [--only NAME …]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from harness import report
from harness.command import carry_out
from harness.load_spec import LoadReport, LoadSpec
from harness.loading import run_load, set_pace
from harness.processes import Processes, processes, raise_file_limit
from harness.subjects import Running, direct, installed, start_mock_engines

DEFAULT_SUBJECTS = (
    "pointsman prefix",
    "vllm-router round_robin",
    "sglang-router round_robin",
    "bare relay",
)
_SETTLE_S = 2.0


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded with the results."""

    streams: int = 2_000
    seconds: float = 60.0
    tokens_per_s: int = 20
    opened_per_s: int = 500
    engines: int = 4


def run(options: Options, only: Sequence[str]) -> dict[str, Any]:
    """Each front end in turn, alone on its core; the engine asked directly first and last."""
    raise_file_limit(4 * options.streams + 1_000)
    subjects = installed(only)
    reports: dict[str, LoadReport] = {}
    with processes() as group:
        engines = start_mock_engines(group, options.engines)
        set_pace(engines[0], 1_000 // options.tokens_per_s)
        reports["direct"] = _measure(options, direct(engines), group)
        for name, (subject, _) in subjects.items():
            running = subject.start(group, engines)
            reports[name] = _measure(options, running, group)
            if running.pid is not None:
                group.stop(running.pid)
        reports["direct, again"] = _measure(options, direct(engines), group)
    return {"versions": {name: version for name, (_, version) in subjects.items()}, "reports": reports}


def _measure(options: Options, target: Running, group: Processes) -> LoadReport:
    """Opens all streams, lets them settle, watches them for the given time, then leaves all at once."""
    opening_s = options.streams / options.opened_per_s
    print(f"{target.name}: {options.streams} streams for {options.seconds:.0f} s", flush=True)
    lifetime_s = opening_s + _SETTLE_S + options.seconds
    return run_load(
        LoadSpec(
            port=target.port,
            model=target.model,
            connections=options.streams,
            max_tokens=int(lifetime_s * options.tokens_per_s * 2),
            warmup_s=_SETTLE_S,
            measure_s=options.seconds,
            ramp_per_s=options.opened_per_s,
            gaps=True,
            cut=True,
            watch=(target.pid,) if target.pid else (),
            harness=tuple(pid for pid in group.pids() if pid != target.pid),
        )
    )


def summary(results: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    """Per front end; what is added is the difference to the mean of the two runs against the engine itself."""
    reports: Mapping[str, LoadReport] = results["reports"]
    base = _mean([reports[name].itl_ms.p99 for name in ("direct", "direct, again")])
    return {name: _row(one, base, name.startswith("direct")) for name, one in reports.items()}


def _row(one: LoadReport, base_ms: float | None, is_base: bool) -> dict[str, float | None]:
    p99 = one.itl_ms.p99
    return {
        "open_streams": one.open_streams,
        "events_per_s": one.events_per_s,
        "errors": one.errors,
        "itl_p50_ms": one.itl_ms.p50,
        "itl_p99_ms": p99,
        "itl_max_ms": one.itl_ms.max,
        "added_itl_p99_ms": None if is_base or p99 is None or base_ms is None else p99 - base_ms,
        "foreign_cores": one.foreign_cores,
        "core_busy": one.watched_cpu_share or None,
        "rss_start_mb": one.rss_bytes[0] / 1e6 or None,
        "rss_end_mb": one.rss_bytes[-1] / 1e6 or None,
        "rss_max_mb": max(one.rss_bytes) / 1e6 or None,
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def markdown(results: Mapping[str, Any]) -> str:
    """The table of the page."""
    header = [
        "front end",
        "open streams",
        "errors",
        "tokens/s",
        "its core busy",
        "ITL p50 ms",
        "ITL p99 ms",
        "added ITL p99 ms",
        "ITL max ms",
        "RSS start → end (max) MB",
    ]
    rows = summary(results)
    lines = [_line(name, row) for name, row in rows.items()]
    noise = max(row["foreign_cores"] or 0.0 for row in rows.values())
    return f"{report.table(header, lines)}\n\n{report.noise_line(noise)}"


def _line(name: str, row: Mapping[str, float | None]) -> list[str]:
    number = report.number
    rss = f"{number(row['rss_start_mb'])} → {number(row['rss_end_mb'])} ({number(row['rss_max_mb'])})"
    return [
        name,
        number(row["open_streams"]),
        number(row["errors"]),
        number(row["events_per_s"]),
        f"{number(row['core_busy'] * 100)} %" if row["core_busy"] else "–",
        number(row["itl_p50_ms"], 1),
        number(row["itl_p99_ms"], 1),
        number(row["added_itl_p99_ms"], 1),
        number(row["itl_max_ms"], 1),
        rss if row["rss_start_mb"] else "–",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="200 streams for 5 s, nothing written")
    parser.add_argument("--streams", type=int, default=Options().streams)
    parser.add_argument("--seconds", type=float, default=Options().seconds)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these front ends")
    arguments = parser.parse_args()
    options = Options(streams=arguments.streams, seconds=arguments.seconds)
    if arguments.quick:
        options = Options(streams=200, seconds=5)
    subjects = arguments.only or DEFAULT_SUBJECTS
    keep = not arguments.quick and not arguments.only
    return carry_out("streams", options, lambda: run(options, subjects), markdown, summary=summary, keep=keep)


if __name__ == "__main__":
    sys.exit(main())

"""What a front end costs per streamed request: CPU time, added TTFT, memory; ours beside its peers in one run.

usage: scripts/bench relay [--quick] [--rounds N] [--only NAME …]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from harness import kv_status, process_stats, report
from harness.command import carry_out
from harness.histogram import median, ratio
from harness.load_spec import LoadReport, LoadSpec
from harness.loading import run_load, set_pace
from harness.processes import Processes, processes
from harness.subjects import EXACT_SUBJECT, HELD_AT_START, Running, Subject, direct, installed, start_mock_engines

ENGINES = 4
SCENARIOS = ("saturated", "paced", "single")
LONG = "long"
LONG_SUBJECTS = ("pointsman prefix", EXACT_SUBJECT, "vllm-router cache_aware", "dynamo kv")
_SHORT_PROMPTS, _LONG_PROMPTS = HELD_AT_START
PACED_ITL_MS = 5
PACED_RATE_PER_S = 200.0

Reports = dict[str, dict[str, list[LoadReport]]]
"""Scenario → subject → one report a round."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded with the results."""

    rounds: int = 4
    measure_s: float = 1.5
    clients: int = 64
    rate_per_s: float = PACED_RATE_PER_S
    itl_ms: int = PACED_ITL_MS
    max_tokens: int = 50
    long_max_tokens: int = 16
    long_clients: int = 16
    engines: int = ENGINES


def run(options: Options, only: Sequence[str] | None) -> dict[str, Any]:
    """Start all subjects, measure them in turns, return the raw results."""
    with processes() as group:
        engines = start_mock_engines(group, options.engines)
        subjects = installed(only)
        running = [direct(engines), *_start_all(group, engines, subjects)]
        idle_rss = {each.name: _rss_bytes(each) for each in running}
        reports: Reports = {scenario: {each.name: [] for each in running} for scenario in SCENARIOS}
        reports[LONG] = {each.name: [] for each in running if each.name in LONG_SUBJECTS}
        for turn in range(options.rounds):
            _measure_round(options, turn, _rotated(running, turn), reports, group.pids())
            print(f"round {turn + 1} of {options.rounds} done", flush=True)
        predicted = [_predicted(each, options) for each in running if each.name == EXACT_SUBJECT]
        return {
            "versions": {name: version for name, (_, version) in subjects.items()},
            "predicted_cached_tokens": sum(predicted),
            "own_engine": [each.name for each in running if each.own_engine],
            "idle_rss_bytes": idle_rss,
            "end_rss_bytes": {each.name: _rss_bytes(each) for each in running},
            "reports": reports,
        }


def _start_all(group: Processes, engines: Sequence[int], subjects: Mapping[str, tuple[Subject, str]]) -> list[Running]:
    started = []
    for name, (subject, _) in subjects.items():
        print(f"starting {name}", flush=True)
        started.append(subject.start(group, engines))
    return started


def _rotated(running: Sequence[Running], turn: int) -> list[Running]:
    """Another first one each round, so that no subject always follows the same neighbour's load."""
    shift = turn % len(running)
    return [*running[shift:], *running[:shift]]


def _measure_round(
    options: Options, turn: int, running: Sequence[Running], reports: Reports, pids: tuple[int, ...]
) -> None:
    for number, scenario in enumerate((*SCENARIOS, LONG)):
        pace_ports = {each.pace_port for each in running if each.pace_port is not None}
        for port in pace_ports:
            set_pace(port, options.itl_ms if scenario in ("paced", "single") else 0)
        # tails of its own for each run, or later ones would find all of their prompts in a cache
        tail_seed = turn * (len(SCENARIOS) + 1) + number
        for each in running:
            if each.name in reports[scenario]:
                reports[scenario][each.name].append(run_load(_spec(scenario, options, each, pids, tail_seed)))


def _spec(scenario: str, options: Options, target: Running, pids: tuple[int, ...], tail_seed: int) -> LoadSpec:
    spec = LoadSpec(
        port=target.port,
        model=target.model,
        connections=options.clients,
        max_tokens=options.max_tokens,
        measure_s=options.measure_s,
        watch=(target.pid,) if target.pid else (),
        harness=tuple(pid for pid in pids if pid != target.pid),
        tail_seed=tail_seed,
        **msgspec.structs.asdict(_LONG_PROMPTS if scenario == LONG else _SHORT_PROMPTS),
    )
    change = msgspec.structs.replace
    if scenario == "paced":
        return change(spec, connections=256, rate_per_s=options.rate_per_s, gaps=True)
    if scenario == "single":
        return change(spec, connections=1, max_tokens=8, warmup_s=0.15, measure_s=options.measure_s / 3)
    if scenario == LONG:
        return change(spec, connections=options.long_clients, max_tokens=options.long_max_tokens)
    return spec


def _predicted(kv: Running, options: Options) -> int:
    """Raises BenchmarkError where what was measured was not exact routing."""
    return kv_status.check_used(kv.admin_port, options.engines)


def _rss_bytes(running: Running) -> int | None:
    return process_stats.rss_bytes(process_stats.tree(running.pid)) if running.pid else None


def summary(results: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    """Per subject: medians over rounds; what is added is the difference to the median of the engine asked directly."""
    reports: Reports = results["reports"]
    base = _medians(reports, "direct")
    rows = {}
    for name in reports["saturated"]:
        row = _medians(reports, name)
        if name not in results["own_engine"] and name != "direct":
            for key in ("ttft_p50_ms", "ttft_p99_ms", "single_ttft_p50_ms"):
                row[f"added_{key}"] = _difference(row[key], base[key])
        row["long_cpu_us"], row["long_requests_per_s"] = _long(reports, name)
        row["errors"] = float(sum(one.errors for runs in reports.values() for one in runs.get(name, ())))
        row["idle_rss_mb"] = _megabytes(results["idle_rss_bytes"][name])
        row["end_rss_mb"] = _megabytes(results["end_rss_bytes"][name])
        rows[name] = row
    return rows


def _medians(reports: Reports, name: str) -> dict[str, float | None]:
    saturated, paced, single = (reports[scenario][name] for scenario in SCENARIOS)
    return {
        "cpu_us": median([one.cpu_us_per_request for one in saturated]) or None,
        "requests_per_s": median([one.requests_per_s for one in saturated]),
        "core_busy": median([one.watched_cpu_share for one in saturated]) or None,
        "paced_cpu_us": median([one.cpu_us_per_request for one in paced]) or None,
        "ttft_p50_ms": median([one.ttft_ms.p50 for one in paced]),
        "ttft_p99_ms": median([one.ttft_ms.p99 for one in paced]),
        "single_ttft_p50_ms": median([one.ttft_ms.p50 for one in single]),
        "foreign_cores": median([one.foreign_cores for one in saturated + paced]),
    }


def _long(reports: Reports, name: str) -> tuple[float | None, float | None]:
    runs = reports.get(LONG, {}).get(name, [])
    return median([one.cpu_us_per_request for one in runs]) or None, median([one.requests_per_s for one in runs])


def _difference(value: float | None, base: float | None) -> float | None:
    return value - base if value is not None and base is not None else None


def _megabytes(size: int | None) -> float | None:
    return size / 1e6 if size else None


def markdown(results: Mapping[str, Any]) -> str:
    """The table of the page."""
    rows = summary(results)
    versions = results["versions"]
    header = [
        "front end", "version", "CPU µs / request", "requests/s", "its core busy", "CPU µs / request at 200/s",
        "added TTFT p50 ms", "added TTFT p99 ms", "added TTFT p50, one client", "RSS idle → end MB", "errors",
    ]  # fmt: skip
    lines = [
        [
            name,
            versions.get(name, ""),
            report.number(row["cpu_us"]),
            report.number(row["requests_per_s"]),
            report.number(row["core_busy"] and row["core_busy"] * 100) + (" %" if row["core_busy"] else ""),
            report.number(row["paced_cpu_us"]),
            _added(row, "ttft_p50_ms"),
            _added(row, "ttft_p99_ms"),
            _added(row, "single_ttft_p50_ms"),
            f"{report.number(row['idle_rss_mb'])} → {report.number(row['end_rss_mb'])}" if row["idle_rss_mb"] else "–",
            report.number(row["errors"]),
        ]
        for name, row in rows.items()
    ]
    noise = max(row["foreign_cores"] or 0.0 for row in rows.values())
    parts = [report.table(header, lines), report.noise_line(noise), _ratios(rows), _long_table(rows)]
    return "\n\n".join(part for part in parts if part)


def _added(row: Mapping[str, float | None], key: str) -> str:
    if f"added_{key}" in row:
        return report.number(row[f"added_{key}"], 2)
    return f"({report.number(row[key], 2)} in all)"


def _ratios(rows: Mapping[str, Mapping[str, float | None]]) -> str:
    ours = [name for name in rows if name.startswith("pointsman")]
    others = [name for name in rows if name not in ours and name != "direct"]
    if not ours or not others:
        return ""
    header = ["CPU µs / request, ratio of medians", *(f"÷ {name}" for name in others)]
    lines = [
        [name, *(report.number(ratio(rows[name]["cpu_us"], rows[other]["cpu_us"]), 2) for other in others)]
        for name in ours
    ]
    return report.table(header, lines)


def _long_table(rows: Mapping[str, Mapping[str, float | None]]) -> str:
    """2,000 words, of which nine tenths are a history that was sent before."""
    measured = {name: row for name, row in rows.items() if row["long_cpu_us"]}
    if not measured:
        return ""
    base = measured.get("dynamo kv", {}).get("long_cpu_us")
    header = ["2,000-word prompts, 90 % seen before, 16 tokens", "CPU µs / request", "÷ dynamo kv", "requests/s"]
    lines = [
        [
            name,
            report.number(row["long_cpu_us"]),
            report.number(ratio(row["long_cpu_us"], base), 2),
            report.number(row["long_requests_per_s"]),
        ]
        for name, row in measured.items()
    ]
    return report.table(header, lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round, nothing written")
    parser.add_argument("--rounds", type=int, default=Options().rounds)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these front ends")
    arguments = parser.parse_args()
    options = Options(rounds=1, measure_s=1.0) if arguments.quick else Options(rounds=arguments.rounds)
    keep = not arguments.quick and not arguments.only
    return carry_out("relay", options, lambda: run(options, arguments.only), markdown, summary=summary, keep=keep)


if __name__ == "__main__":
    sys.exit(main())

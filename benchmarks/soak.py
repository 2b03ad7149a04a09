"""Thousands of streams for many minutes while a worker is killed each minute: what is lost, what memory does.

usage: scripts/bench soak [--minutes 20] [--streams 2000] [--engines 4] [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from harness import mock_answers, process_stats, report
from harness.command import carry_out
from harness.processes import BenchmarkError, Processes, free_ports, processes, raise_file_limit
from harness.soak_client import SoakCounts, SoakSpec
from harness.subjects import FRONT_END_CORE, HARNESS_CORE, ROOT, harness_command, harness_env

PAGE = ROOT / "docs" / "reliability.md"
PARTIAL = report.RESULTS / "soak.partial.json"
_COUNTERS = ("pointsman_retries_total", "pointsman_migrations_total", "pointsman_migrations_refused_total",
             "pointsman_stream_errors_total", "pointsman_requests_total", "pointsman_turned_away_total")  # fmt: skip
_MB = 1e6


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded with the results."""

    minutes: float = 20.0
    streams: int = 2_000
    tokens_per_s: int = 20
    engines: int = 4
    kill_every_s: float = 60.0
    back_after_s: float = 5.0
    """How long a killed engine stays away."""
    shortest_tokens: int = 400
    opened_per_s: float = 400.0


class Fleet:
    """Numbered engines on fixed ports; one after the other is killed, and comes back."""

    def __init__(self, group: Processes, options: Options) -> None:
        self.ports = free_ports(options.engines)
        self.killed = 0
        command = harness_command("numbered_engine", "--ports", ",".join(map(str, self.ports)))
        command += ["--itl-ms", str(1000 // options.tokens_per_s), "--back-after-s", str(options.back_after_s)]
        self.pid = group.start("engines", command, core=HARNESS_CORE, env=harness_env())
        for port in self.ports:
            group.await_http("engines", port, "/health")

    def kill_next(self) -> None:
        """kill −9, without a word."""
        os.kill(self.pid, signal.SIGUSR1)
        self.killed += 1


def run(options: Options) -> dict[str, Any]:
    """The front end alone on its core; engines and clients on the other."""
    raise_file_limit(4 * options.streams + 1_000)
    with processes() as group:
        fleet = Fleet(group, options)
        front_end, port, admin_port = _serve(group, fleet.ports)
        spec = SoakSpec(
            port=port,
            model=mock_answers.MODEL,
            streams=options.streams,
            seconds=60 * options.minutes,
            shortest=options.shortest_tokens,
            opened_per_s=options.opened_per_s,
        )
        rows = _watch(spec, fleet, front_end, options)
        counters, status = _scrape(admin_port)
        return {"rows": rows, "counters": counters, "killed": fleet.killed, "in_flight_after": status}


def _serve(group: Processes, engines: list[int]) -> tuple[int, int, int]:
    port, admin_port = free_ports(2)
    command = [sys.executable, "-m", "pointsman.app.cli.main", "serve", "--log-level", "warning"]
    for engine in engines:
        command += ["--engine", f"http://127.0.0.1:{engine}"]
    pid = group.start(
        "pointsman", [*command, "--port", str(port), "--admin-port", str(admin_port)], core=FRONT_END_CORE
    )
    group.await_http("pointsman", port, "/v1/models", contains=mock_answers.MODEL)
    return pid, port, admin_port


def _watch(spec: SoakSpec, fleet: Fleet, front_end: int, options: Options) -> list[dict[str, Any]]:
    """Run the client, kill engines meanwhile; a row an interval, each kept at once in case the run is broken off."""
    command = ["taskset", "-c", str(HARNESS_CORE), *harness_command("soak_client", msgspec.json.encode(spec).decode())]
    rows: list[dict[str, Any]] = []
    start_s, cpu_s = time.monotonic(), process_stats.cpu_s(process_stats.tree(front_end))
    engines = _Cpu(fleet.pid)
    due_s = start_s + options.kill_every_s
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, **harness_env()}) as client:
        assert client.stdout is not None
        try:
            for line in client.stdout:
                now_s = time.monotonic()
                if now_s >= due_s and now_s < start_s + spec.seconds - 2 * options.back_after_s:
                    due_s += options.kill_every_s
                    fleet.kill_next()
                pids = process_stats.tree(front_end)
                row = msgspec.to_builtins(msgspec.json.decode(line, type=SoakCounts))
                row |= {
                    "rss_mb": process_stats.rss_bytes(pids) / _MB,
                    "cpu_s": process_stats.cpu_s(pids) - cpu_s,
                    "harness_cpu_s": engines.used_s() + process_stats.cpu_s([client.pid]),
                    "killed": fleet.killed,
                }
                rows.append(row)
                _keep(rows, options)
                print(_progress(row), flush=True)
        finally:
            client.terminate()
    if not rows or not rows[-1]["finished"]:
        raise BenchmarkError(f"no stream came to its end; last: {rows[-1] if rows else 'nothing'}")
    if rows[-1]["at_s"] < spec.seconds - 1:
        raise BenchmarkError(f"the client ended after {rows[-1]['at_s']:.0f} of {spec.seconds:.0f} s")
    if not process_stats.rss_bytes([front_end]):
        raise BenchmarkError("the front end is gone")
    return rows


class _Cpu:
    """CPU time of processes that come and go under one parent."""

    def __init__(self, parent: int) -> None:
        self._parent = parent
        self._seen_s: dict[int, float] = {}
        self._start_s = self._sum_s()

    def used_s(self) -> float:
        """Since this was made, up to what one that was killed used last."""
        return self._sum_s() - self._start_s

    def _sum_s(self) -> float:
        for pid in process_stats.tree(self._parent):
            self._seen_s[pid] = max(self._seen_s.get(pid, 0.0), process_stats.cpu_s([pid]))
        return sum(self._seen_s.values())


def _keep(rows: list[dict[str, Any]], options: Options) -> None:
    PARTIAL.write_bytes(msgspec.json.encode({"options": msgspec.to_builtins(options), "rows": rows}) + b"\n")


def _progress(row: Mapping[str, Any]) -> str:
    failed = sum(row["failed"].values())
    return (
        f"{row['at_s']:7.1f} s: {row['open']} open, {row['finished']} finished, {failed} failed, "
        f"{row['missing_tokens']} missing, {row['repeated_tokens']} repeated tokens, {row['killed']} kills, "
        f"{row['rss_mb']:.0f} MB, ITL p99 {row['itl_ms']['p99']} ms, longest pause {row['longest_gap_ms']:.0f} ms"
    )


def _scrape(admin_port: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Counters at the end, and what the status says once the clients have left."""
    url = f"http://127.0.0.1:{admin_port}"
    deadline = time.monotonic() + 20
    while True:
        with urllib.request.urlopen(f"{url}/v1/status", timeout=10) as answer:
            requests = json.load(answer)["requests"]
        if not requests["running"] + requests["waiting"] or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    counters = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)
                if name.startswith(_COUNTERS)}  # fmt: skip
    return counters, {"running": requests["running"], "waiting": requests["waiting"]}


def summary(results: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of the whole run; memory from when what is kept for a while, decisions above all, has filled up."""
    rows = results["rows"]
    last = rows[-1]
    settled = [row for row in rows if row["at_s"] >= min(60.0, last["at_s"] / 2)]
    full = [row for row in rows if row["at_s"] >= min(300.0, last["at_s"] / 2)]
    counters = results["counters"].items()
    moved = [(name, n) for name, n in counters if name.startswith("pointsman_migrations_total")]
    return {
        "minutes": last["at_s"] / 60,
        "kills": results["killed"],
        "streams_begun": last["begun"],
        "streams_finished": last["finished"],
        "streams_failed": sum(last["failed"].values()),
        "failed_by_reason": last["failed"],
        "migrations_begun": sum(n for name, n in moved if 'outcome="begun"' in name),
        "migrations": dict(moved),
        "missing_tokens": last["missing_tokens"],
        "repeated_tokens": last["repeated_tokens"],
        "tokens": last["tokens"],
        "itl_p99_ms": max(row["itl_ms"]["p99"] or 0.0 for row in settled),
        "longest_pause_ms": max(row["longest_gap_ms"] for row in settled),
        "rss_settled_mb": full[0]["rss_mb"],
        "rss_end_mb": last["rss_mb"],
        "rss_max_mb": max(row["rss_mb"] for row in rows),
        "rss_slope_mb_per_min": _slope(full),
        "core_busy": last["cpu_s"] / last["at_s"],
        "harness_core_busy": last["harness_cpu_s"] / last["at_s"],
        "in_flight_after": results["in_flight_after"],
    }


def _slope(rows: list[dict[str, Any]]) -> float:
    """Least squares, in MB a minute."""
    times = [row["at_s"] / 60 for row in rows]
    sizes = [row["rss_mb"] for row in rows]
    middle, size = sum(times) / len(times), sum(sizes) / len(sizes)
    spread = sum((one - middle) ** 2 for one in times)
    if not spread:
        return 0.0
    return sum((one - middle) * (mb - size) for one, mb in zip(times, sizes, strict=True)) / spread


def markdown(results: Mapping[str, Any]) -> str:
    """The table of the page."""
    facts = summary(results)
    number = report.number
    rows = [
        ["minutes, kills of an engine", f"{number(facts['minutes'], 1)}, {facts['kills']}"],
        ["streams begun, finished, failed",
         f"{number(facts['streams_begun'])}, {number(facts['streams_finished'])}, {number(facts['streams_failed'])}"],
        ["went on at another engine", number(facts["migrations_begun"])],
        ["tokens, missing, repeated",
         f"{number(facts['tokens'])}, {facts['missing_tokens']}, {facts['repeated_tokens']}"],
        ["time between tokens, worst p99 of 5 s", f"{number(facts['itl_p99_ms'], 1)} ms"],
        ["longest pause of a stream", f"{number(facts['longest_pause_ms'])} ms"],
        ["memory: after 5 min → end (most)",
         f"{number(facts['rss_settled_mb'])} → {number(facts['rss_end_mb'])} ({number(facts['rss_max_mb'])}) MB"],
        ["memory a minute", f"{facts['rss_slope_mb_per_min']:+.2f} MB"],
        ["its core busy; that of engines and clients",
         f"{number(facts['core_busy'] * 100)} %; {number(facts['harness_core_busy'] * 100)} %"],
        ["requests counted in flight after the end", str(sum(facts["in_flight_after"].values()))],
    ]  # fmt: skip
    return report.table(["what", "figure"], rows)


def has_place(page: Path) -> bool:
    """Whether the table could be put into the page."""
    try:
        report.replace_section(page.read_text(), "soak", "", page.name)
    except (OSError, BenchmarkError):
        return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="200 streams for 1 minute with 3 kills, nothing written")
    parser.add_argument("--minutes", type=float, default=Options().minutes)
    parser.add_argument("--streams", type=int, default=Options().streams)
    parser.add_argument("--engines", type=int, default=Options().engines)
    arguments = parser.parse_args()
    options = Options(minutes=arguments.minutes, streams=arguments.streams, engines=arguments.engines)
    if arguments.quick:
        options = Options(minutes=1, streams=200, kill_every_s=15, shortest_tokens=100)
    keep = not arguments.quick and arguments.minutes >= Options().minutes
    if keep and not has_place(PAGE):  # to be said before, not after twenty minutes
        print(f"soak: {PAGE} lacks the markers <!-- begin soak --> and <!-- end soak -->", file=sys.stderr)
        return 1
    return carry_out("soak", options, lambda: run(options), markdown, summary=summary, keep=keep, page=PAGE)


if __name__ == "__main__":
    sys.exit(main())

"""CPU time and resident memory of process trees, from /proc (Linux)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def tree(pid: int) -> list[int]:
    """A process and all its descendants that live now; empty if it is gone."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        current = waiting.pop()
        if not Path(f"/proc/{current}").exists():
            continue
        found.append(current)
        waiting.extend(child for child in _children(current) if child not in found)
    return found


def cpu_s(pids: Iterable[int]) -> float:
    """User and system time of the processes so far, in steps of 1/TICKS_PER_S s; threads that ended included."""
    return sum(_ticks(pid) for pid in pids) / TICKS_PER_S


def rss_bytes(pids: Iterable[int]) -> int:
    """Resident memory of the processes; shared pages count in each."""
    return sum(_rss_pages(pid) for pid in pids) * _PAGE_BYTES


def machine_busy_s() -> float:
    """Time that all cores together were not idle since the machine started; what a hypervisor took counts as busy."""
    return parse_busy_ticks(_read(Path("/proc/stat"))) / TICKS_PER_S


def parse_busy_ticks(stat: str) -> int:
    """Of the first line of /proc/stat: all but idle and iowait. Guest time is part of user time there already."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, stat.splitlines()[0].split()[1:9])
    return user + nice + system + irq + softirq + steal


def parse_ticks(stat: str) -> int:
    """utime + stime of a /proc/PID/stat line. The command's name, in parentheses, may itself hold spaces and `)`."""
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _children(pid: int) -> list[int]:
    children: list[int] = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        children.extend(int(child) for child in _read(tasks).split())
    return children


def _ticks(pid: int) -> int:
    stat = _read(Path(f"/proc/{pid}/stat"))
    return parse_ticks(stat) if stat else 0


def _rss_pages(pid: int) -> int:
    statm = _read(Path(f"/proc/{pid}/statm"))
    return int(statm.split()[1]) if statm else 0


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the process has ended
        return ""

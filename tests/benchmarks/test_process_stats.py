from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from types import SimpleNamespace

import pytest

from harness import noise, process_stats
from harness.noise import NoiseMeter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the harness reads /proc and pins with taskset")


def test_ticks_of_a_command_with_spaces_and_parentheses() -> None:
    fields = ["S", "1", "1", "1", "0", "-1", "0", "0", "0", "0", "0", "250", "30", "7", "7", "20"]
    assert process_stats.parse_ticks(f"42 (a (b) c) {' '.join(fields)}\n") == 280


def test_busy_ticks_leave_out_idle_and_waiting_for_disks() -> None:
    assert process_stats.parse_busy_ticks("cpu  1 2 4 1000 2000 8 16 32 64 128\ncpu0 5 5 5\n") == 63


def test_a_tree_has_the_children_and_is_empty_once_gone() -> None:
    code = "import subprocess, sys; subprocess.run(['cat'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdin.write(b"x")
        parent.stdin.flush()
        assert parent.stdout.read(1) == b"x"  # cat runs
        found = process_stats.tree(parent.pid)
        assert found[0] == parent.pid
        assert len(found) == 2
        assert process_stats.rss_bytes(found) > process_stats.rss_bytes(found[1:]) > 0
        parent.stdin.close()
        parent.wait(10)
    assert process_stats.tree(parent.pid) == []
    assert process_stats.cpu_s(found) == 0.0


def test_our_own_time_and_that_of_the_machine_grow() -> None:
    own, machine = process_stats.cpu_s([os.getpid()]), process_stats.machine_busy_s()
    while process_stats.cpu_s([os.getpid()]) - own < 0.03:
        sum(range(10_000))
    assert process_stats.machine_busy_s() > machine


def test_what_we_do_ourselves_is_no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    named: list[list[int]] = []
    machine_s, own_s, now_s = iter([1_000.0, 1_009.0]), iter([40.0, 41.0]), iter([7.0, 9.0])

    def own(pids: Iterable[int]) -> float:
        named.append(list(pids))
        return next(own_s)

    monkeypatch.setattr(process_stats, "tree", lambda root: [root, 12_345])
    monkeypatch.setattr(process_stats, "cpu_s", own)
    monkeypatch.setattr(process_stats, "machine_busy_s", lambda: next(machine_s))
    monkeypatch.setattr(noise, "time", SimpleNamespace(monotonic=lambda: next(now_s)))
    monkeypatch.setattr(
        noise,
        "os",
        SimpleNamespace(getpid=os.getpid, times=lambda: SimpleNamespace(children_user=1.0, children_system=2.0)),
    )
    meter = NoiseMeter((os.getpid(),))
    assert meter.foreign_cores() == 4.0  # (9 − 1) s of 2
    assert [sorted(pids) for pids in named] == 2 * [sorted([os.getpid(), 12_345])]  # we count once, however named


def test_processes_that_ended_were_no_noise() -> None:
    meter = NoiseMeter()
    work = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", work], check=True)
    assert meter._own_cpu_s() - meter._own_s > 0.25

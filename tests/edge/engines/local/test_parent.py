"""A child ends with its parent."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil

CHILD = (
    "import os, signal; from pointsman.edge.engines.local.parent import die_with_parent;"
    "die_with_parent({parent}); print(os.getpid(), flush=True); signal.pause()"
)
PARENT = (
    "import os, subprocess, sys\n"
    "child = subprocess.Popen([sys.executable, '-c', {child!r}.replace('PARENT', str(os.getpid()))])\n"
    "child.wait()\n"
)


def test_another_parent_ends_it_at_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD.format(parent=os.getppid())], capture_output=True, check=False, timeout=30
    )
    assert (done.returncode, done.stdout) == (1, b"")


def test_a_killed_parent_takes_it_along() -> None:
    script = PARENT.format(child=CHILD.format(parent="PARENT"))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        parent.wait(30)
    gone, alive = psutil.wait_procs([child], timeout=30)
    assert (len(gone), alive) == (1, [])

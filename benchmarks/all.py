"""All benchmarks one after another, as the page's numbers were made: less than 14 minutes on a quiet machine.

usage: scripts/bench all [--quick | --bars]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from harness import bars, report
from harness.subjects import BENCHMARKS

SCRIPTS: tuple[tuple[str, ...], ...] = (
    ("decision",),
    ("index",),
    ("relay",),
    ("streams", "--seconds", "20"),
    ("local_fleet",),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--quick", action="store_true", help="each in its short form, nothing written")
    group.add_argument("--bars", action="store_true", help="only judge the results that there are, measure nothing")
    arguments = parser.parse_args()
    failed = [] if arguments.bars else _measure(arguments.quick)
    if not arguments.quick:
        text = bars.markdown(bars.read_results())
        report.write_section("bars", text)
        print(text)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _measure(quick: bool) -> list[str]:
    """Run all; returns the names of those that failed."""
    failed = []
    began = time.monotonic()
    for name, *options in SCRIPTS:
        print(f"== {name}", flush=True)
        started = time.monotonic()
        flags = ["--quick"] if quick else options
        if subprocess.run([sys.executable, str(BENCHMARKS / f"{name}.py"), *flags], check=False).returncode:
            failed.append(name)
        print(f"== {name}: {time.monotonic() - started:.0f} s\n", flush=True)
    print(f"== all: {time.monotonic() - began:.0f} s", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())

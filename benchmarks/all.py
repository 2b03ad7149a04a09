"""All benchmarks one after another, as the page's numbers were made: about twelve minutes on a quiet machine.

usage: scripts/bench all [--quick]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

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
    parser.add_argument("--quick", action="store_true", help="each in its short form, nothing written")
    arguments = parser.parse_args()
    failed = []
    for name, *options in SCRIPTS:
        print(f"== {name}", flush=True)
        started = time.monotonic()
        flags = ["--quick"] if arguments.quick else options
        if subprocess.run([sys.executable, str(BENCHMARKS / f"{name}.py"), *flags], check=False).returncode:
            failed.append(name)
        print(f"== {name}: {time.monotonic() - started:.0f} s\n", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""What every benchmark's command does with what it measured: print it, and keep it if the run was a full one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from harness import report
from harness.processes import BenchmarkError

Results = dict[str, Any]


def carry_out(
    name: str,
    options: msgspec.Struct,
    measure: Callable[[], Results],
    markdown: Callable[[Results], str],
    *,
    keep: bool,
    summary: Callable[[Results], Mapping[str, Any]] | None = None,
    refusals: tuple[type[Exception], ...] = (BenchmarkError,),
    page: Path = report.PAGE,
) -> int:
    """Measure and print the tables; `keep` writes results/NAME.json and the section of `page`. The exit status.

    One of `refusals` is a line on stderr and status 1.
    """
    facts = report.machine()
    try:
        results = measure()
        text = markdown(results)
        if keep:
            found = results if summary is None else {"summary": summary(results), **results}
            report.write_json(name, msgspec.to_builtins(options), facts, found)
            report.write_section(name, text, page)
    except refusals as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    print(text)
    return 0

"""Raw results as JSON, and tables in pages of docs/ between markers."""

from __future__ import annotations

import datetime
import os
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from harness.processes import BenchmarkError
from harness.subjects import ROOT

RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
PROOFS_PAGE = ROOT / "docs" / "simulator-proofs.md"
PLACEMENT_PAGE = ROOT / "docs" / "placement.md"
"""What the simulator and the time model were held against."""


def machine() -> dict[str, Any]:
    """What the numbers depend on; no names of hosts."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "cpu": model.group(1) if model else platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "clock_ticks_per_s": os.sysconf("SC_CLK_TCK"),
        "load_average_at_start": round(os.getloadavg()[0], 2),
    }


def write_json(
    name: str, options: Mapping[str, Any], machine_facts: Mapping[str, Any], results: Mapping[str, Any]
) -> Path:
    """Write results/NAME.json."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    document = {
        "benchmark": name,
        "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine_facts,
        "options": options,
        **results,
    }
    path.write_bytes(msgspec.json.encode(document) + b"\n")
    return path


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others are numbers."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(value: float | None, digits: int = 0) -> str:
    """A number for a table, a dash where there is none."""
    return "–" if value is None else f"{value:,.{digits}f}"


def noise_line(foreign_cores: float) -> str:
    """What else the machine did meanwhile, and what that means for the numbers."""
    verdict = "" if foreign_cores < 0.1 else " **The machine was not quiet: times are worse than they should be.**"
    return f"Processes outside the measurement kept {foreign_cores:.2f} cores busy.{verdict}"


def replace_section(page: str, name: str, text: str, page_name: str = PAGE.name) -> str:
    """The page with new text between the markers of `name`. Raises BenchmarkError if a marker is missing."""
    start, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    before, opened, rest = page.partition(start)
    _, closed, after = rest.partition(end)
    if not opened or not closed:
        raise BenchmarkError(f"docs/{page_name} lacks the markers {start} and {end}: put them where the table belongs")
    return f"{before}{start}\n{text.strip()}\n{end}{after}"


def write_section(name: str, text: str, page: Path = PAGE) -> None:
    """Put a table into a page of docs/."""
    page.write_text(replace_section(page.read_text(), name, text, page.name))

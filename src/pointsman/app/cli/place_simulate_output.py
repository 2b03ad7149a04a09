"""What `pointsman place simulate` prints, and writes with `--json`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from pointsman.app.placements.simulation.outcome import MEASURES, Measure, Outcome


class SeedDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One run; None: there was nothing to measure."""

    seed: int
    gangs: int
    placed: int
    finished: int
    measures: dict[str, float | None]


class SimulateDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` writes."""

    nodes: int
    gpus: int
    hours: float
    load: float
    notes: list[str]
    """What was told beside the numbers: deployments that never fit, and that too little was seen."""
    runs: list[SeedDocument]


def seed_document(seed: int, outcome: Outcome) -> SeedDocument:
    """Of one run."""
    measures = {key: None if np.isnan(value) else value for key, value in outcome.metrics.items()}
    return SeedDocument(
        seed=seed, gangs=outcome.gangs, placed=outcome.placed, finished=outcome.finished, measures=measures
    )


def print_outcomes(outcomes: Sequence[Outcome], seed: int) -> None:
    """A table, a column for each run; `seed` is the first one's."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    for number in range(len(outcomes)):
        table.add_column(f"seed {seed + number}", justify="right", no_wrap=True)
    table.add_row("gangs", *(f"{outcome.gangs:,}" for outcome in outcomes))
    for key, measure in MEASURES.items():
        table.add_row(measure.title, *(_shown(measure, outcome.metrics[key]) for outcome in outcomes))
    console = Console(highlight=False)
    console.width = max(console.width, 24 + 12 * len(outcomes))
    console.print(table)


def _shown(measure: Measure, value: float) -> str:
    if np.isnan(value):
        return "-"
    if measure.unit == "share":
        return f"{value:.1%}"
    if measure.unit == "seconds":
        return f"{value:,.0f} s"
    return f"{value:,.1f} h" if measure.unit == "hours" else f"{value:,.3g}"

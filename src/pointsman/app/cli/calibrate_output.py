"""What `pointsman calibrate` prints."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from pointsman.app.calibration.quality import Coefficient, Distribution, Errors, Quality

_PIPE_WIDTH = 120


class Status:
    """One line on stderr that says what is done now, where that is a terminal. Use it as a context."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._status = self._console.status("")

    def show(self, text: str) -> None:
        """Replace the line."""
        self._status.update(text)

    def __enter__(self) -> Status:
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._status.stop()


def print_quality(quality: Quality, source: str, *, to_stderr: bool) -> None:
    """Tables, then what not to use it for."""
    console = Console(stderr=to_stderr)
    if not console.is_terminal:
        console = Console(stderr=to_stderr, width=_PIPE_WIDTH)
    console.print(f"fitted to {source}", highlight=False)
    console.print(_coefficients(quality.coefficients))
    console.print(_errors(quality))
    if quality.distributions:
        console.print(_distributions(quality.distributions))
    mode = "a step ahead, while the one before it is computed" if quality.ahead else "between steps"
    console.print(f"the engine schedules {mode}", highlight=False)
    for warning in quality.warnings:
        console.print(f"- {warning}", highlight=False, markup=False)


def document(quality: Quality, source: str) -> dict[str, Any]:
    """The same for programs."""
    found = msgspec.to_builtins(quality)
    assert isinstance(found, dict)
    return {"source": source, **found}


def _coefficients(coefficients: tuple[Coefficient, ...]) -> Table:
    table = Table(title="coefficients", title_justify="left")
    table.add_column("")
    for name in ("value", "95 % between", "and"):
        table.add_column(name, justify="right")
    table.add_column("unit")
    for one in coefficients:
        table.add_row(
            one.name, f"{one.value:.4g}", f"{one.value / one.factor:.3g}", f"{one.value * one.factor:.3g}", one.unit
        )
    return table


def _errors(quality: Quality) -> Table:
    table = Table(title="absolute errors, request by request, %", title_justify="left")
    table.add_column("")
    for name in ("requests", "P50", "P90", "mean"):
        table.add_column(name, justify="right")
    rows = (
        ("first token after the one before", quality.ttft),
        ("the same, held out", quality.held_out_ttft),
        ("time per token", quality.tpot),
        ("the same, held out", quality.held_out_tpot),
    )
    for name, errors in rows:
        table.add_row(name, *_cells(errors))
    return table


def _cells(errors: Errors | None) -> tuple[str, ...]:
    if errors is None:
        return ("0", "-", "-", "-")
    return (str(errors.count), f"{errors.p50:.1f}", f"{errors.p90:.1f}", f"{errors.mape:.1f}")


def _distributions(distributions: dict[str, Distribution]) -> Table:
    table = Table(title="the same requests simulated, ms", title_justify="left")
    table.add_column("")
    for figure in ("mean", "P50", "P90"):
        table.add_column(figure, justify="right")
        table.add_column("simulated", justify="right")
        table.add_column("error %", justify="right")
    for name, one in distributions.items():
        cells: list[str] = []
        for measured, simulated, error in zip(one.measured, one.simulated, one.error_percent, strict=True):
            cells += [f"{measured:,.1f}", f"{simulated:,.1f}", f"{error:+.1f}"]
        table.add_row(name, *cells)
    return table

"""The bar of `pointsman simulate`: on stderr, and only where that is a terminal."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from pointsman.app.experiments.conduct import Progress

_SCALE = 1_000


class RunsBar:
    """Use it as a context; it goes when that ends."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[runs]}"),
            TimeElapsedColumn(),
            TextColumn("left:"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("simulating", total=_SCALE, runs="")

    def __enter__(self) -> RunsBar:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def show(self, progress: Progress) -> None:
        """How far it is."""
        runs = f"{progress.done} of {progress.runs} runs"
        self._bar.update(self._task, completed=progress.share * _SCALE, runs=runs)

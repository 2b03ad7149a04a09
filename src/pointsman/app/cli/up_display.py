"""What `up` shows while it works: lines, and a bar for downloads where there is a terminal."""

from __future__ import annotations

import time
from types import TracebackType

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TransferSpeedColumn
from rich.progress import Progress as Bar

from pointsman.edge.engines.local.progress import Progress


class Display:
    """Lines on stderr with the seconds since the start."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._console = Console(stderr=True, highlight=False)
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._text = ""
        self._said_tenth = 0

    def __enter__(self) -> Display:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_bar()

    @property
    def elapsed_s(self) -> float:
        """Seconds since this object was made."""
        return time.monotonic() - self._began

    def say(self, text: str) -> None:
        """One line."""
        self._end_bar()
        click.echo(f"{self.elapsed_s:5.1f} s  {text}", err=True)

    def progress(self, progress: Progress) -> None:
        """A step of work that takes time."""
        if progress.done_bytes is None or not progress.total_bytes:
            self.say(progress.text)
        elif self._console.is_terminal:
            self._draw(progress)
        else:
            self._say_tenth(progress.text, 10 * progress.done_bytes // progress.total_bytes)

    def _draw(self, progress: Progress) -> None:
        if self._bar is None:
            columns = (TextColumn("         {task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
            self._bar = Bar(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task(progress.text, total=progress.total_bytes)
            self._bar.start()
        if self._task is not None:
            self._bar.update(self._task, completed=progress.done_bytes)

    def _say_tenth(self, text: str, tenth: int) -> None:
        """Without a terminal a download says something each tenth."""
        if text != self._text:
            self._text, self._said_tenth = text, 0
        if tenth > self._said_tenth:
            self._said_tenth = tenth
            self.say(f"{text}: {10 * tenth} %")

    def _end_bar(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar, self._task = None, None

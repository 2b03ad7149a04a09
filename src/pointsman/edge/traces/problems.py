"""Rows of a file that can't be used as they are: counted, the first of them named, none dropped in silence."""

from __future__ import annotations

from dataclasses import dataclass, field

from pointsman.core.model.errors import TraceError

MOST_NAMED = 20
"""Rows of each kind that are named; the others are counted."""


class RowError(Exception):
    """One row can't be used; says which field and why. Never leaves this room."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One row. `line` counts from 1; in a file that is one JSON document it is the position of the entry, from 1."""

    line: int
    text: str


@dataclass(slots=True)
class Problems:
    """What was wrong with one file."""

    file: str
    strict: bool = False
    """A row that would be left out ends the reading instead."""
    unit: str = "line"
    """What `Problem.line` counts."""
    rows: int = 0
    """Rows that should have been requests."""
    left_out: int = 0
    moved: int = 0
    """Rows that arrive before the row before them; they are kept, in the order of time."""
    largest_step_back_ms: float = 0.0
    named: list[Problem] = field(default_factory=list)
    """The first rows that were left out."""
    named_moved: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What had to be assumed of the whole file."""

    def leave_out(self, line: int, text: str) -> None:
        """The row can't be a request. Raises TraceError if that must not be."""
        if self.strict:
            raise TraceError(f"{self.file}, {self.unit} {line}: {text}")
        self.left_out += 1
        if len(self.named) < MOST_NAMED:
            self.named.append(Problem(line, text))

    def move(self, line: int, step_back_ms: float) -> None:
        """The row arrives that much before the row before it. Raises TraceError if that must not be."""
        text = f"arrives {step_back_ms:g} ms before the {self.unit} before it"
        if self.strict:
            raise TraceError(f"{self.file}, {self.unit} {line}: {text}; without --strict rows are put in order of time")
        self.moved += 1
        self.largest_step_back_ms = max(self.largest_step_back_ms, step_back_ms)
        if len(self.named_moved) < MOST_NAMED:
            self.named_moved.append(Problem(line, text))

    def describe(self) -> list[str]:
        """Lines for people; empty when all is well."""
        lines = list(self.notes)
        if self.left_out:
            lines.append(f"{self.left_out} of {self.rows} rows are left out")
            lines += [f"  {self.unit} {problem.line}: {problem.text}" for problem in self.named]
            lines += _more(self.left_out - len(self.named))
        if self.moved:
            lines.append(
                f"{self.moved} rows are out of order and were sorted, by up to {self.largest_step_back_ms:g} ms"
            )
            lines += [f"  {self.unit} {problem.line}: {problem.text}" for problem in self.named_moved]
            lines += _more(self.moved - len(self.named_moved))
        return lines


def _more(count: int) -> list[str]:
    return [f"  and {count} more"] if count > 0 else []

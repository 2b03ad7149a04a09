"""The files of tests/edge/wire/corpus: named messages, and what has to come of each."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parents[1] / "edge" / "wire" / "corpus"


@dataclass(frozen=True)
class Case:
    name: str
    verdict: str
    text: bytes


def corpus(name: str) -> list[Case]:
    """All cases of a file."""
    cases: list[Case] = []
    for line in (_FOLDER / f"{name}.txt").read_text("ascii").splitlines():
        if line.startswith("== "):
            title, arrow, verdict = line[3:].partition(" => ")
            assert arrow, line
            cases.append(Case(title, verdict, b""))
        elif line and not line.startswith("#"):
            last = cases[-1]
            cases[-1] = Case(last.name, last.verdict, last.text + unescaped(line))
    assert len({case.name for case in cases}) == len(cases)
    return cases


def unescaped(line: str) -> bytes:
    r"""A line of a corpus: \r \n \t \0 \xHH are escapes."""
    return codecs.escape_decode(line.encode("ascii"))[0]  # type: ignore[attr-defined, no-any-return]

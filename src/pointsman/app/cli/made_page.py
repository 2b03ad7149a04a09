"""Pages of docs/ that are made from types: written, or held against what they should be."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path


def write_or_check(arguments: list[str], module: str, document: Callable[[], str]) -> int:
    """Write the page to the one file that `arguments` name, or with `--check` compare it; the exit status.

    `module` is what makes the page, as `python -m` takes it.
    """
    check = "--check" in arguments
    files = [argument for argument in arguments if argument != "--check"]
    if len(files) != 1:
        print(f"usage: python -m {module} [--check] FILE", file=sys.stderr)
        return 2
    file, text = Path(files[0]), document()
    if not check:
        file.write_text(text, encoding="utf-8")
        return 0
    if file.exists() and file.read_text(encoding="utf-8") == text:
        return 0
    print(f"{file} is out of date: run `python -m {module} {file}`", file=sys.stderr)
    return 1

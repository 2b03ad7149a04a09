"""Simulations side by side, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def in_parallel(work: Callable[[T], Any], items: Sequence[T], jobs: int | None, label: Callable[[T], str]) -> list[Any]:
    """Results in the order of `items`; a line on stderr for each that is done. `jobs` None = all cores."""
    count = min(jobs or os.cpu_count() or 1, len(items))
    results = []
    if count <= 1:
        for item in items:
            results.append(work(item))
            _say(len(results), len(items), label(item))
        return results
    with multiprocessing.get_context("spawn").Pool(count) as pool:
        for item, result in zip(items, pool.imap(work, items), strict=True):
            results.append(result)
            _say(len(results), len(items), label(item))
    return results


def _say(done: int, of: int, text: str) -> None:
    print(f"  {done}/{of} {text}", file=sys.stderr, flush=True)

"""Blame: a prompt that fails wherever it goes is the prompt's fault, and must not open the breakers of all workers."""

from __future__ import annotations

from collections import OrderedDict

from pointsman.core.model.request import Request
from pointsman.core.model.worker import WorkerId

_MOST_KEPT = 512


class Blame:
    """Which worker a prompt failed at first. Prompts are known by their keys, so one that is sent again is the same."""

    def __init__(self) -> None:
        self._first: OrderedDict[object, WorkerId] = OrderedDict()

    def counts(self, request: Request, worker: WorkerId) -> bool:
        """True if this failure speaks against this worker: the prompt did not fail at another one before."""
        key = _content(request)
        first = self._first.setdefault(key, worker)
        if len(self._first) > _MOST_KEPT:
            self._first.popitem(last=False)
        return first == worker

    def answered(self, request: Request) -> None:
        """It was answered somewhere: the prompt is all right."""
        if self._first:
            self._first.pop(_content(request), None)

    def __len__(self) -> int:
        return len(self._first)


def _content(request: Request) -> object:
    """Keys are of whole blocks, so short prompts are known by their request only."""
    keys = request.blocks.keys
    return (request.model, keys[-1], request.blocks.length) if keys else request.id

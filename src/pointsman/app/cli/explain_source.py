"""Where decisions to be explained come from: the rings of running front ends."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from pointsman.app.cli.admin_client import NoFrontEndError, RefusedError, call, front_ends
from pointsman.core.model.errors import PointsmanError
from pointsman.edge.decisions.facts import WorkerFacts
from pointsman.edge.decisions.row_search import search_rows
from pointsman.edge.decisions.search import MOST_LIMIT, Query
from pointsman.edge.decisions.transfers import TransferReport, merged
from pointsman.edge.serving.status import Status, WorkerStatus
from pointsman.edge.telemetry.decision_row import DecisionRow

AROUND = 300
"""Decisions before and after one, by which it is explained."""
_AFTER_MS = 10_000.0
_NOT_FOUND = 404

T = TypeVar("T")

FactsByModel = Mapping[str, Mapping[str, WorkerFacts]]


class NothingFoundError(PointsmanError):
    """Asked, and there is no such decision."""


class Source(Protocol):
    """Decisions, wherever they are kept."""

    @property
    def notes(self) -> list[str]:
        """What those who read the answer should know of it."""
        ...

    def one(self, name: str) -> tuple[DecisionRow, str]:
        """By id, and where it was found. Raises NothingFoundError that says whether it was there once."""
        ...

    def search(self, query: Query) -> list[tuple[DecisionRow, str]]:
        """With all candidates and packed states, where there are any."""
        ...

    def plain(self, query: Query) -> list[DecisionRow]:
        """Without states."""
        ...

    def around(self, rows: Sequence[DecisionRow]) -> dict[str, list[DecisionRow]]:
        """By id: decisions of about the same time."""
        ...

    def facts(self) -> FactsByModel:
        """Of workers, by model."""
        ...

    def transfers(self, query: Query) -> TransferReport:
        """What moving KV saved and lost."""
        ...


class _Found(msgspec.Struct):
    """What is needed of the answer of `GET /v1/decisions`."""

    decisions: list[DecisionRow]
    matched: int = 0
    dropped: int = 0


class FrontEnds:
    """All front ends of one `serve`. The first one has to answer; what others don't tell is noted."""

    def __init__(self, admin_url: str) -> None:
        self._urls = front_ends(admin_url)
        self.notes: list[str] = []

    def one(self, name: str) -> tuple[DecisionRow, str]:
        """From whichever has it."""
        missing: list[str] = []
        for number, url in enumerate(self._urls):
            try:
                return call("GET", url, f"/v1/decisions/{quote(name, safe='')}?state=1", DecisionRow), url
            except RefusedError as error:
                if error.status != _NOT_FOUND:
                    raise
                missing.append(error.message)
            except NoFrontEndError as error:
                if number == 0:
                    raise
                self._note(str(error))
        once = [text for text in missing if "no longer" in text]
        if len(missing) == 1:
            raise NothingFoundError(missing[0])
        if once:
            raise NothingFoundError(f"{once[0]} ({len(missing)} front ends were asked)")
        raise NothingFoundError(
            f"{name} is no id that one of {len(missing)} front ends gave out, nor what a client calls one of the "
            "requests that run or of the last ones that are kept there (decision-log.ring)"
        )

    def search(self, query: Query) -> list[tuple[DecisionRow, str]]:
        """The best of what each finds."""
        return self._search(query, {"state": "1", "candidates": "all"})

    def plain(self, query: Query) -> list[DecisionRow]:
        """The same."""
        return [row for row, _ in self._search(query, {"candidates": "all"})]

    def around(self, rows: Sequence[DecisionRow]) -> dict[str, list[DecisionRow]]:
        """Those before each, and some after."""
        return {
            row.id: self.plain(Query(last=AROUND, limit=AROUND, model=row.model, until_ms=row.at_ms + _AFTER_MS))
            for row in rows
        }

    def facts(self) -> FactsByModel:
        """What all front ends know together."""
        answers = [answer for _, answer in self._ask("/v1/status", Status)]
        seen: dict[str, list[WorkerStatus]] = {}
        for answer in answers:
            for worker in answer.workers:
                seen.setdefault(worker.id, []).append(worker)
        facts = {worker: _facts(worker, views) for worker, views in seen.items()}
        models: dict[str, dict[str, WorkerFacts]] = {}
        for answer in answers:
            for model, workers in answer.models.items():
                models.setdefault(model, {}).update({one: facts[one] for one in workers if one in facts})
        return models

    def transfers(self, query: Query) -> TransferReport:
        """Of all of them together."""
        params = {
            "last": query.last,
            "worker": query.worker,
            "prefill_worker": query.prefill_worker,
            "policy": query.policy,
            "model": query.model,
            "tenant": query.tenant,
            "since": query.since_ms,
            "until": query.until_ms,
        }
        text = urlencode({name: f"{value}" for name, value in params.items() if value is not None})
        return merged(report for _, report in self._ask(f"/v1/transfers?{text}", TransferReport))

    def _search(self, query: Query, extra: dict[str, str]) -> list[tuple[DecisionRow, str]]:
        params = {
            "last": query.last,
            "worst": query.worst,
            "limit": min(query.limit, MOST_LIMIT),
            "worker": query.worker,
            "prefill_worker": query.prefill_worker,
            "policy": query.policy,
            "status": query.status,
            "model": query.model,
            "tenant": query.tenant,
            "arm": query.arm,
            "since": query.since_ms,
            "until": query.until_ms,
        }
        text = urlencode({name: f"{value}" for name, value in params.items() if value is not None} | extra)
        found = [(row, url) for url, answer in self._ask(f"/v1/decisions?{text}", _Found) for row in answer.decisions]
        where = {row.id: url for row, url in found}
        rows = sorted((row for row, _ in found), key=lambda row: row.at_ms)
        return [(row, where[row.id]) for row in search_rows(rows, query)]

    def _ask(self, path: str, answer: type[T]) -> list[tuple[str, T]]:
        answers = [(self._urls[0], call("GET", self._urls[0], path, answer))]
        for url in self._urls[1:]:
            try:
                answers.append((url, call("GET", url, path, answer)))
            except NoFrontEndError as error:
                self._note(str(error))
        return answers

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)


def _facts(worker: str, views: list[WorkerStatus]) -> WorkerFacts:
    """Each front end takes the requests of the others for somebody else's: what is left of them all is."""
    own = sum(view.running for view in views)
    there = statistics.median_low([view.running + view.foreign for view in views])
    first = views[0]
    return WorkerFacts(
        worker=worker,
        factor=None if first.times is None else first.times.factor,
        kv_state=first.kv.state,
        kv_reason=first.kv.reason,
        running=own,
        foreign=max(0, there - own),
        queued=max(view.queued for view in views),
        kv_capacity_tokens=first.kv_capacity_tokens,
        weight=first.weight,
    )

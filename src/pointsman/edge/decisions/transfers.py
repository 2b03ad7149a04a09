"""What moving KV saved and lost: first tokens as observed beside what was predicted without it, summed up.

Observed are times to the first token, transfers, bytes and what went wrong. What would have been without moving KV
nobody can observe: it is what was predicted of the best worker alone when it was decided. So a sum of *saved* ms is a
prediction less an observation, and as good as the predictions are: `predicted_off_ms` says by how much those of the
same requests, with the KV moved, were off.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from pointsman.core.model.worker import WorkerId, engine_of
from pointsman.edge.decisions.legs_of_row import best_alone, best_plan, chosen_plan, kind_of, plan_kind
from pointsman.edge.decisions.plans import ALONE, APART, PULL
from pointsman.edge.decisions.words import count, ms
from pointsman.edge.telemetry.decision_row import DecisionRow, LoggedPlan

HOUR_MS = 3_600_000.0
_MOST_GROUPS = 200
"""Links or pairs that are told one by one; the rest is one of them."""
OTHERS = "others"
_NUMBER = re.compile(r"\d[\d,.]*")
_URL = re.compile(r"https?://[^\s/:]+(:\d+)?")


class Moved(msgspec.Struct, omit_defaults=True):
    """Sums over requests for which KV was to be moved."""

    requests: int = 0
    """That ended well, and of which both the observation and the prediction are known."""
    saved_ms: float = 0.0
    """Of those whose first token came sooner than predicted without it."""
    lost_ms: float = 0.0
    """Of those whose first token came later."""
    sooner: int = 0
    """Requests of `saved_ms`."""
    alone_ms: float = 0.0
    """Predicted times to the first token without it."""
    predicted_ms: float = 0.0
    """Predicted times to the first token with it."""
    observed_ms: float = 0.0
    """Observed times to the first token."""
    predicted_off_ms: float = 0.0
    """Sum of |observed − predicted with it|."""
    transfer_ms: float = 0.0
    """Observed times of transfers, as engines told or until the first token. This and what follows: of all."""
    transfers: int = 0
    """Requests of `transfer_ms`."""
    bytes: int = 0
    """As engines told, else as reckoned."""
    fallbacks: int = 0
    """Nothing came, and the worker that answers computed it."""
    unknown: int = 0
    """Beside `requests`: that ended otherwise, or of which nothing was predicted: their first tokens do not count."""

    def add(self, other: Moved) -> None:
        """Both together."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Group(msgspec.Struct):
    """The sums of some of them."""

    name: str
    moved: Moved


class Hour(msgspec.Struct):
    """Those that arrived within one hour."""

    at_ms: float
    """Its beginning, ms since 1970."""
    moved: Moved


class NotMoved(msgspec.Struct, omit_defaults=True):
    """Requests of which a plan that moves KV was predicted to be cheaper, and was not chosen."""

    requests: int = 0
    cheaper_ms: float = 0.0
    """By that much, in the policy's score."""
    reasons: dict[str, int] = {}
    """Why not, by reason."""


class TransferReport(msgspec.Struct, omit_defaults=True):
    """Answer of `GET /v1/transfers`, and the document of `explain --transfers` as JSON."""

    decisions: int = 0
    """Requests that were looked at."""
    with_plans: int = 0
    """Of these: those that had a plan that moves KV."""
    since_ms: float | None = None
    """The earliest arrival among them, ms since 1970."""
    sentence: str = ""
    total: Moved = msgspec.field(default_factory=Moved)
    kinds: dict[str, Moved] = {}
    """apart, pull."""
    hours: list[Hour] = []
    """The last one first."""
    links: list[Group] = []
    """By machines, source and target; most requests first."""
    pairs: list[Group] = []
    """By workers, the same."""
    fallbacks: dict[str, int] = {}
    """Requests where nothing came, by reason."""
    not_moved: NotMoved = msgspec.field(default_factory=NotMoved)
    in_spite: int = 0
    """Moved because the operator wants it, although one worker alone was predicted to be cheaper."""
    notes: list[str] = []


class TransferSums:
    """Takes rows in, a report comes out. `machines`: of workers; else the name of their engine stands for theirs."""

    def __init__(self, machines: Mapping[str, str] | None = None) -> None:
        self._machines = machines or {}
        self._report = TransferReport()
        self._hours: dict[float, Moved] = {}
        self._links: dict[str, Moved] = {}
        self._pairs: dict[str, Moved] = {}

    def looked_at(self, at_ms: float) -> None:
        """One request that ended, for which nothing could have been moved."""
        report = self._report
        report.decisions += 1
        report.since_ms = at_ms if report.since_ms is None else min(report.since_ms, at_ms)

    def add(self, row: DecisionRow) -> None:
        """One request that ended."""
        report = self._report
        self.looked_at(row.at_ms)
        kind = kind_of(row)
        report.with_plans += bool(row.plans or kind != ALONE)
        if kind == ALONE:
            self._not_moved(row)
            return
        moved = _moved(row)
        plan, alone = chosen_plan(row), best_alone(row)
        if plan is not None and alone is not None and row.plans_comparable:
            report.in_spite += (alone.score or 0.0) < (plan.score or 0.0)
        giver = row.prefill_worker or row.pull_source or ""
        taker = row.worker or ""
        report.total.add(moved)
        report.kinds.setdefault(kind, Moved()).add(moved)
        self._hours.setdefault(row.at_ms // HOUR_MS * HOUR_MS, Moved()).add(moved)
        self._links.setdefault(f"{self._machine(giver)} → {self._machine(taker)}", Moved()).add(moved)
        self._pairs.setdefault(f"{giver} → {taker}", Moved()).add(moved)
        if row.legs is not None and row.legs.fallback is not None:
            _count(report.fallbacks, _why_nothing_came(row.legs.fallback))

    def report(self) -> TransferReport:
        """Of all that was taken in."""
        report = self._report
        report.hours = [Hour(at_ms, self._hours[at_ms]) for at_ms in sorted(self._hours, reverse=True)]
        report.links, report.pairs = _groups(self._links), _groups(self._pairs)
        report.sentence = sentence(report)
        return report

    def _machine(self, worker: str) -> str:
        return self._machines.get(worker) or engine_of(WorkerId(worker))

    def _not_moved(self, row: DecisionRow) -> None:
        alone = best_alone(row)
        if alone is None or not row.plans_comparable or row.unit != "ms":
            return
        plans = (best_plan(row, kind) for kind in (APART, PULL))
        cheaper = [plan for plan in plans if plan is not None and (plan.score or 0.0) < (alone.score or 0.0)]
        if not cheaper:
            return
        best = min(cheaper, key=lambda plan: plan.score or 0.0)
        told = self._report.not_moved
        told.requests += 1
        told.cheaper_ms = round(told.cheaper_ms + (alone.score or 0.0) - (best.score or 0.0), 3)
        _count(told.reasons, _why_not(best))


def merged(reports: Iterable[TransferReport]) -> TransferReport:
    """Of several front ends, as if they were one."""
    whole = TransferReport()
    hours: dict[float, Moved] = {}
    links: dict[str, Moved] = {}
    pairs: dict[str, Moved] = {}
    for one in reports:
        whole.decisions += one.decisions
        whole.with_plans += one.with_plans
        whole.in_spite += one.in_spite
        if one.since_ms is not None:
            whole.since_ms = one.since_ms if whole.since_ms is None else min(whole.since_ms, one.since_ms)
        whole.total.add(one.total)
        for kind, moved in one.kinds.items():
            whole.kinds.setdefault(kind, Moved()).add(moved)
        for hour in one.hours:
            hours.setdefault(hour.at_ms, Moved()).add(hour.moved)
        for into, groups in ((links, one.links), (pairs, one.pairs)):
            for group in groups:
                into.setdefault(group.name, Moved()).add(group.moved)
        for reason, number in one.fallbacks.items():
            _count(whole.fallbacks, reason, number)
        whole.not_moved.requests += one.not_moved.requests
        whole.not_moved.cheaper_ms += one.not_moved.cheaper_ms
        for reason, number in one.not_moved.reasons.items():
            _count(whole.not_moved.reasons, reason, number)
        whole.notes += [note for note in one.notes if note not in whole.notes]
    whole.hours = [Hour(at_ms, hours[at_ms]) for at_ms in sorted(hours, reverse=True)]
    whole.links, whole.pairs = _groups(links), _groups(pairs)
    whole.sentence = sentence(whole)
    return whole


def sentence(report: TransferReport) -> str:
    """What it comes to, and what of that is a prediction."""
    total = report.total
    if not total.requests and not total.unknown:
        found = f"no KV was moved for any of {count(report.decisions, 'requests')}"
        if report.with_plans:
            return f"{found}, though it could have been for {report.with_plans:,}{_cheaper(report.not_moved)}"
        return f"{found}, and no plan could have"
    told = f"KV was to be moved for {total.requests + total.unknown:,} of {count(report.decisions, 'requests')}"
    if total.requests:
        net = total.saved_ms - total.lost_ms
        word = "sooner" if net >= 0 else "later"
        told += (
            f": their first tokens came {ms(abs(net) / total.requests)} {word} on average than was predicted without it"
            f" ({ms(total.saved_ms)} saved in {total.sooner:,}, {ms(total.lost_ms)} lost in "
            f"{total.requests - total.sooner:,})"
        )
    if total.fallbacks:
        told += f"; for {total.fallbacks:,} nothing came, and the worker that answered computed it"
    return told + _cheaper(report.not_moved)


def _cheaper(told: NotMoved) -> str:
    return f"; for {told.requests:,} others it was predicted to be cheaper and was not done" if told.requests else ""


def _moved(row: DecisionRow) -> Moved:
    legs, plan = row.legs, chosen_plan(row)
    alone, predicted, observed = row.predicted_alone_ms, row.predicted_ttft_ms, row.ttft_ms
    if row.status != "finished" or alone is None or observed is None or legs is None or row.migrations:
        told = Moved(unknown=1)
    else:
        told = Moved(requests=1, alone_ms=alone, observed_ms=observed)
        saved = alone - observed
        told.sooner = int(saved >= 0)
        told.saved_ms, told.lost_ms = max(0.0, saved), max(0.0, -saved)
        if predicted is not None:
            told.predicted_ms, told.predicted_off_ms = predicted, abs(observed - predicted)
    if legs is None:
        return told
    if legs.fallback is not None:
        told.fallbacks = 1
        return told
    if legs.transfer_ms is not None:
        told.transfer_ms, told.transfers = legs.transfer_ms, 1
    if row.ttft_ms is not None or legs.transfer_ms is not None:
        told.bytes = _bytes(legs.moved_bytes, legs.moved_tokens, plan)
    return told


def _bytes(told: int | None, tokens: int | None, plan: LoggedPlan | None) -> int:
    if told is not None or plan is None:
        return told or 0
    if tokens is None or not plan.moved_tokens:
        return plan.moved_bytes
    return round(plan.moved_bytes * tokens / plan.moved_tokens)


def _why_nothing_came(reason: str) -> str:
    """What such reasons have in common: an engine's address is in the pairs."""
    return _URL.sub("an engine", reason).partition(": ")[0]


def _why_not(plan: LoggedPlan) -> str:
    if plan.excluded is None:
        return f"{plan_kind(plan)}: not chosen"
    # Its numbers are those of one request.
    return _NUMBER.sub("N", plan.excluded.partition(":")[0])


def _groups(found: Mapping[str, Moved]) -> list[Group]:
    ordered = sorted(found.items(), key=lambda item: (-item[1].requests - item[1].unknown, item[0]))
    groups = [Group(name, moved) for name, moved in ordered[:_MOST_GROUPS]]
    if len(ordered) > _MOST_GROUPS:
        rest = Moved()
        for _, moved in ordered[_MOST_GROUPS:]:
            rest.add(moved)
        groups.append(Group(OTHERS, rest))
    return groups


def _count(counts: dict[str, int], reason: str, number: int = 1) -> None:
    if reason not in counts and len(counts) >= _MOST_GROUPS:
        reason = OTHERS
    counts[reason] = counts.get(reason, 0) + number

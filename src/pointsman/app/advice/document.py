"""The answer as one document, for JSON and for the text that people read."""

from __future__ import annotations

import msgspec

from pointsman.app.experiments.document import Summary

SCHEMA = 1


class LimitAnswer(msgspec.Struct, frozen=True):
    """How far a policy goes: median over the seeds, null where the SLO was kept nowhere."""

    value: float | None
    low: float | None
    high: float | None
    beyond: bool
    """The hardest that was tried still held: the limit lies beyond."""


class FleetAnswer(msgspec.Struct, frozen=True):
    """Whether the GPUs are enough, with the recommended policy and workers for both stages."""

    fleet: str
    workers: int
    gpus: int
    enough: bool | None
    """null: not simulated."""
    goodput_share: float | None
    load: dict[str, LimitAnswer]
    """By policy: times the trace's load that these workers take."""
    workers_needed: dict[str, LimitAnswer]
    """By policy: the fewest workers for the trace's load."""
    hopeless_share: float
    """Requests that miss the SLO even on an idle worker."""


class SplitAnswer(msgspec.Struct, frozen=True):
    """Prefill and decode apart, or together."""

    apart: str
    """`yes`, `no` or `tie`."""
    best_ratio: str
    """Workers for prefill and for decode."""
    load: LimitAnswer | None
    by_request: str | None = None
    """Whether `cost` does better where it may move KV between workers for both stages: `yes`, `no` or `tie`; null: not
    simulated."""
    moved_share: float | None = None
    """Requests whose prompt it had computed elsewhere then, or fetched in part."""


class CacheAnswer(msgspec.Struct, frozen=True):
    """KV memory; shares are of prompt tokens."""

    reusable_share: float
    working_set_tokens: int
    working_set_bytes: float
    """A cache that finds nine tenths of what can be found."""
    fleet_tokens: int
    fleet_bytes: int
    found_share: dict[str, float]
    """Measured, by policy."""


class Section(msgspec.Struct, frozen=True):
    """One part of the text."""

    title: str
    sentences: list[str]


class Advice(msgspec.Struct, frozen=True):
    """The whole answer. Nothing in it depends on when or in how many processes it was made."""

    schema: int
    version: str
    trace: str
    requests: int
    simulated_requests: int
    slo: str
    slo_assumed: bool
    target: float
    seeds: int
    worth: str
    """A coordination layer: `yes`, `some`, `no` or `unknown`."""
    headline: str
    policy: str | None
    """The one to take; null: too little was simulated, or too few seeds can't tell."""
    layer_policy: str | None
    """The one that should decide where pointsman runs, be it worth it or not: the default, `cost`, unless another is
    surely better, or pays where it does not; null as `policy`."""
    fleet: FleetAnswer
    split: SplitAnswer | None
    cache: CacheAnswer | None
    sections: list[Section]
    assumed: list[str]
    unknown: list[str]
    interrupted: bool
    comparison: Summary | None
    """All measures of all policies on the fleet as it is."""

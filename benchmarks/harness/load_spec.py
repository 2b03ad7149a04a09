"""What a load run does and what it reports: the border between a benchmark and its load client process."""

from __future__ import annotations

import msgspec

from harness.histogram import Percentiles


class LoadSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run. Closed loop: a connection sends its next request when an answer ends. Open loop: `rate_per_s` is set."""

    port: int
    model: str
    connections: int
    """Closed loop: clients. Open loop: at most that many connections; an arrival that finds none free waits."""
    rate_per_s: float | None = None
    """Poisson arrivals; TTFT then counts from the moment a request should have been sent."""
    warmup_s: float = 0.5
    measure_s: float = 3.0
    max_tokens: int = 50
    groups: int = 64
    prefix_words: int = 52
    tail_words: int = 8
    distinct: int = 4096
    history_messages: int = 0
    """The shared beginning as so many messages before the last one; 0 = it is the start of the only message."""
    seed: int = 1
    tail_seed: int | None = None
    """Other tails for the same beginnings; None = always the same."""
    ramp_per_s: float | None = None
    """Connections opened a second; None = all at once."""
    gaps: bool = False
    """Whether to measure inter-token latency; costs the client a little for each event."""
    cut: bool = False
    """At the end: cut the open streams instead of waiting for their ends."""
    watch: tuple[int, ...] = ()
    """Roots of the process trees whose CPU time and memory are the front end's."""
    harness: tuple[int, ...] = ()
    """Roots of the process trees that belong to the measurement besides the front end and this client."""
    path: str = "/v1/chat/completions"


class LoadReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured from the end of the warm-up to the end of the run; `errors` are those of the whole run."""

    duration_s: float
    requests: int
    errors: int
    last_error: str | None
    open_streams: int
    waiting_arrivals: int
    """Open loop: arrivals that found no free connection at the end; more than a few means overload."""
    requests_per_s: float
    events_per_s: float
    events_per_request: float
    reads_per_request: float
    """Socket reads a request at the client: far below the number of events where events come merged."""
    ttft_ms: Percentiles
    itl_ms: Percentiles
    e2e_ms: Percentiles
    client_cpu_share: float
    foreign_cores: float
    """Cores that everything outside the measurement kept busy: the machine's noise."""
    watched_cpu_s: float
    watched_cpu_share: float
    rss_bytes: tuple[int, ...]
    """Of the watched trees: at the start of the window, each second, at its end."""

    @property
    def cpu_us_per_request(self) -> float | None:
        """CPU time of the watched trees per answered request."""
        return self.watched_cpu_s / self.requests * 1e6 if self.requests else None

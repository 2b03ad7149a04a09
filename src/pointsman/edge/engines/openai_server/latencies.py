"""Times of one sequence, as a client sees them."""

from __future__ import annotations

from pointsman.edge.engines.openai_server.metrics import ServerMetrics
from pointsman.edge.engines.openai_server.served_engine import TokenSink


class Live:
    """A sequence in the engine: who takes its tokens, and when the last one came. Times are seconds of one clock."""

    __slots__ = ("_arrived_s", "_last_s", "_metrics", "sink")

    def __init__(self, sink: TokenSink, metrics: ServerMetrics, now_s: float) -> None:
        self.sink = sink
        self._metrics = metrics
        self._arrived_s = now_s
        self._last_s: float | None = None

    def token(self, now_s: float, scheduled_s: float | None) -> None:
        """It got a token; `scheduled_s`: when it was first scheduled."""
        metrics = self._metrics
        if self._last_s is None:
            metrics.ttft_s.observe(now_s - self._arrived_s)
            if scheduled_s is not None:
                metrics.queue_s.observe(max(0.0, scheduled_s - self._arrived_s))
        else:
            metrics.itl_s.observe(now_s - self._last_s)
        self._last_s = now_s

    def ended(self, now_s: float) -> None:
        """It has left the engine."""
        self._metrics.e2e_s.observe(now_s - self._arrived_s)

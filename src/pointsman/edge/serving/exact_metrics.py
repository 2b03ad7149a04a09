"""Prometheus metrics of exact routing: tokenizing, and the feeds of KV events."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector

from pointsman.edge.cluster.kv_status import KvFeedStatus
from pointsman.edge.serving.exact_routing import ExactRouting
from pointsman.edge.serving.metric_families import counter, gauge
from pointsman.edge.telemetry import names
from pointsman.edge.telemetry.names import Metric

_FEED_COUNTERS: tuple[tuple[Metric, Callable[[KvFeedStatus], int]], ...] = (
    (names.FEED_BATCHES, lambda feed: feed.batches),
    (names.FEED_EVENTS, lambda feed: feed.events),
    (names.FEED_GAPS, lambda feed: feed.gaps),
    (names.FEED_LOSSES, lambda feed: feed.losses),
    (names.FEED_REPLAYS, lambda feed: feed.replays),
    (names.FEED_RESTARTS, lambda feed: feed.restarts),
    (names.FEED_UNUSABLE, lambda feed: feed.unusable),
)


class ExactRoutingCollector(Collector):
    """Reads the state at every scrape. Workers without a feed have no series."""

    def __init__(self, exact: ExactRouting) -> None:
        self._exact = exact

    def collect(self) -> Iterator[MetricFamily]:
        """All families."""
        counts = self._exact.encoder.counts
        by_place = (("loop", counts.inline), ("thread", counts.pooled), ("engine", counts.by_engine))
        yield counter(names.TOKENIZED, ("where",), (((place,), count) for place, count in by_place))
        failed = ((str(reason), count) for reason, count in counts.failed.items())
        yield counter(names.NOT_TOKENIZED, ("reason",), (((reason,), count) for reason, count in failed))
        yield counter(names.PARTLY_TOKENIZED, (), [((), counts.partial)])
        feeds = [feed for feed in self._exact.feeds.statuses() if feed.endpoint is not None]
        for metric, value in _FEED_COUNTERS:
            yield counter(metric, ("worker",), (((feed.worker,), value(feed)) for feed in feeds))
        lags = ((feed.worker, feed.lag_s) for feed in feeds)
        yield gauge(names.FEED_LAG, ("worker",), (((worker,), lag) for worker, lag in lags if lag is not None))

"""Metrics of a rollout, by arm, and of shadow policies. Labels are bounded: two arms, the configured shadows."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector

from pointsman.core.trials.arms import Arm
from pointsman.edge.serving.metric_families import counter, gauge
from pointsman.edge.serving.policies import ActivePolicy
from pointsman.edge.serving.rollout import LiveRollout
from pointsman.edge.telemetry import names


class RolloutCollector(Collector):
    """Reads the state at every scrape. A rollout's counts begin anew when it is changed."""

    def __init__(self, policy: ActivePolicy) -> None:
        self._policy = policy

    def collect(self) -> Iterator[MetricFamily]:
        """Families of what there is: none without a rollout and shadows."""
        if self._policy.rollout is not None:
            yield from _rollout(self._policy.rollout)
        shadows = self._policy.shadows.all
        if shadows:
            tallies = [(shadow.policy.name, shadow.total) for shadow in shadows]
            yield counter(
                names.SHADOW_DECISIONS,
                ("policy", "outcome"),
                [
                    ((name, outcome), count)
                    for name, tally in tallies
                    for outcome, count in (
                        ("agreed", tally.agreed),
                        ("differed", tally.decisions - tally.agreed),
                        ("failed", tally.failed),
                    )
                ],
            )
            spent = [((name,), tally.spent_ms / 1000) for name, tally in tallies]
            yield counter(names.SHADOW_TIME, ("policy",), spent)


def _rollout(rollout: LiveRollout) -> Iterator[MetricFamily]:
    order = rollout.order
    yield gauge(names.ROLLOUT_SHARE, ("policy",), [((order.policy,), order.share if rollout.running else 0.0)])
    yield gauge(names.ROLLED_BACK, ("policy",), [((order.policy,), 0.0 if rollout.running else 1.0)])
    yield gauge(names.ROLLOUT_ERRORS, ("policy",), [((order.policy,), rollout.errors)])
    yield gauge(
        names.ARM_REQUESTS,
        ("arm", "status"),
        [((str(arm), str(end)), count) for arm in Arm for end, count in rollout.requests(arm).items()],
    )
    for metric, by_arm in ((names.ARM_TTFT, rollout.ttft_s), (names.ARM_ITL, rollout.itl_s)):
        family = HistogramMetricFamily(metric.name, metric.help, labels=["arm"])
        for arm, histogram in by_arm.items():
            family.add_metric([str(arm)], histogram.cumulative(), histogram.sum)
        yield family

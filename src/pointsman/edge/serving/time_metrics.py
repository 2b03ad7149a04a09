"""Prometheus metrics of the learned step times; a worker of which nothing is known has none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.metrics_core import Metric as MetricFamily

from pointsman.core.ledger.snapshot import WorkerSnapshot
from pointsman.edge.serving.metric_families import gauge
from pointsman.edge.telemetry import names


def time_model_families(workers: Iterable[WorkerSnapshot]) -> Iterator[MetricFamily]:
    """All families."""
    known = [(worker.id, worker.times) for worker in workers if worker.times is not None]
    predicted = [
        (worker, what, error)
        for worker, times in known
        for what, error in (("step", times.step_error), ("ttft", times.ttft_error))
    ]
    errors = [((worker, what), error.mape / 100) for worker, what, error in predicted if error.mape is not None]
    yield gauge(names.TIME_ERROR, ("worker", "predicted"), errors)
    samples = [((worker, what), error.samples) for worker, what, error in predicted]
    yield gauge(names.TIME_SAMPLES, ("worker", "predicted"), samples)
    yield gauge(names.TIME_FACTOR, ("worker",), [((worker,), times.factor) for worker, times in known])
    coefficients = [
        ((worker, name), value)
        for worker, times in known
        for name, value in (
            ("a", times.step.a_ms),
            ("b", times.step.b_ms_per_sequence),
            ("c", times.step.c_ms_per_1000_context_tokens),
            ("d", times.step.d_ms_per_prefill_token),
        )
    ]
    yield gauge(names.TIME_COEFFICIENT, ("worker", "coefficient"), coefficients)

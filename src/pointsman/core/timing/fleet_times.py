"""FleetTimes: step times of many workers, by worker and as arrays for those of one view."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pointsman.core.timing.link_rows import LinkRows
from pointsman.core.timing.link_times import NO_LINKS, LinkTimes
from pointsman.core.timing.spread import mean_excess
from pointsman.core.timing.step import StepCoefficients
from pointsman.core.timing.worker_times import WorkerTimes

_MOST_GROUPS = 64
"""Of workers whose arrays are kept; a fleet has one a model."""


@dataclass(frozen=True, slots=True)
class TimeRows:
    """One entry a worker, in the order asked for; those of whom nothing is known have the usual of the others.

    Coefficients as in StepCoefficients; `c` is for one token of context, not for a thousand.
    """

    a: NDArray[np.float64]
    b: NDArray[np.float64]
    c: NDArray[np.float64]
    d: NDArray[np.float64]
    q: NDArray[np.float64]
    overhead_ms: NDArray[np.float64]
    ttft_p50: NDArray[np.float64]
    """Actual over predicted times to the first token: median."""
    ttft_p90: NDArray[np.float64]
    step_p50: NDArray[np.float64]
    step_p90: NDArray[np.float64]
    known: NDArray[np.bool_]
    """Something was learned of the worker, or its profile is known."""


class FleetTimes(Mapping[str, WorkerTimes]):
    """Never changed once made, but for arrays that it keeps for those who ask again.

    Args:
        times: by worker id.
        otherwise: for workers that are not among them; None: the median of those that are, or a small model's times.
        links: how long KV takes from one machine to another one.
    """

    def __init__(
        self,
        times: Mapping[str, WorkerTimes],
        otherwise: StepCoefficients | None = None,
        links: LinkTimes = NO_LINKS,
    ) -> None:
        self.links = links
        self._times = dict(times)
        self._otherwise = otherwise
        self._link_rows: LinkRows | None = None
        self._rows: dict[tuple[str, ...], TimeRows] = {}
        self._excess: tuple[TimeRows, NDArray[np.float64]] | None = None
        self._last: tuple[tuple[str, ...], TimeRows] | None = None
        """Of the workers asked for last: views of one model share the tuple, so they need not be compared."""

    @classmethod
    def of_rows(cls, workers: tuple[str, ...], rows: TimeRows, links: LinkTimes = NO_LINKS) -> FleetTimes:
        """From recorded arrays, which are those of these workers again; by worker only where something is known."""
        arrays = (rows.a, rows.b, rows.c, rows.d, rows.q, rows.overhead_ms)
        ratios = (rows.step_p50, rows.step_p90, rows.ttft_p50, rows.ttft_p90)
        numbers = np.array([*arrays, *ratios], dtype=np.float64).T.tolist()
        times = {
            worker: WorkerTimes(StepCoefficients(a, b, 1000 * c, d, q), overhead, (s50, s90), (t50, t90))
            for worker, known, (a, b, c, d, q, overhead, s50, s90, t50, t90) in zip(
                workers, rows.known.tolist(), numbers, strict=True
            )
            if known
        }
        made = cls(times, links=links)
        made._rows[workers] = rows
        return made

    def linked(self, links: LinkTimes) -> FleetTimes:
        """The same step times, with these links."""
        made = FleetTimes({}, self._otherwise, links)
        made._times, made._rows = self._times, self._rows  # neither depends on links
        return made

    def __getitem__(self, worker: str) -> WorkerTimes:
        return self._times[worker]

    def __iter__(self) -> Iterator[str]:
        return iter(self._times)

    def __len__(self) -> int:
        return len(self._times)

    def rows(self, workers: tuple[str, ...]) -> TimeRows:
        """The arrays of these workers."""
        last = self._last
        if last is not None and last[0] is workers:
            return last[1]
        rows = self._rows.get(workers)
        if rows is None:
            if len(self._rows) >= _MOST_GROUPS:
                self._rows.clear()
            rows = self._rows[workers] = self._made(workers)
        self._last = (workers, rows)
        return rows

    @property
    def link_rows(self) -> LinkRows:
        """`links` for many pairs at once."""
        rows = self._link_rows
        if rows is None:
            rows = self._link_rows = LinkRows(self.links)
        return rows

    def ttft_excess(self, workers: tuple[str, ...]) -> NDArray[np.float64]:
        """By how much times to the first token exceed the median on the average, as a share of it, of these workers."""
        rows, excess = self.rows(workers), self._excess
        if excess is None or excess[0] is not rows:
            # By way of a name of its own: other threads may ask for other workers meanwhile.
            excess = self._excess = rows, mean_excess(rows.ttft_p90 / rows.ttft_p50)
        return excess[1]

    def _made(self, workers: tuple[str, ...]) -> TimeRows:
        known = [self._times.get(worker) for worker in workers]
        usual = self._usual() if None in known else _SMALL_MODEL_TIMES
        table = np.array([_numbers(times or usual) for times in known], dtype=np.float64).reshape(len(workers), 10)
        a, b, c, d, q, overhead_ms, ttft_p50, ttft_p90, step_p50, step_p90 = np.ascontiguousarray(table.T)
        is_known = np.array([times is not None for times in known], dtype=np.bool_)
        return TimeRows(a, b, c, d, q, overhead_ms, ttft_p50, ttft_p90, step_p50, step_p90, is_known)

    def _usual(self) -> WorkerTimes:
        if self._otherwise is not None or not self._times:
            return WorkerTimes(self._otherwise or SMALL_MODEL)
        a, b, c, d, q, overhead_ms, *_ = np.median([_numbers(times) for times in self._times.values()], axis=0).tolist()
        return WorkerTimes(StepCoefficients(a, b, 1000 * c, d, q), overhead_ms)


SMALL_MODEL = StepCoefficients(6.42, 0.01, 0.0499, 0.0196, 0.0)
"""Llama-3.1-8B on one H100: only the proportions matter where nothing is known of anybody."""
_SMALL_MODEL_TIMES = WorkerTimes(SMALL_MODEL)


def fleet_times(times: Mapping[str, WorkerTimes]) -> FleetTimes:
    """The same times, ready for arrays."""
    return times if isinstance(times, FleetTimes) else FleetTimes(times)


def _numbers(times: WorkerTimes) -> tuple[float, ...]:
    step = times.step
    return (
        step.a_ms,
        step.b_ms_per_sequence,
        step.c_ms_per_1000_context_tokens / 1000,
        step.d_ms_per_prefill_token,
        step.q_ms_per_square_token,
        times.overhead_ms,
        *times.ttft_ratios,
        *times.step_ratios,
    )

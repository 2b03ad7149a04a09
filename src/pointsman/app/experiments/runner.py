"""Runner: carries out the runs of an experiment, in this process or in several."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import signal
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType

from pointsman.app.experiments.curves import curves_of
from pointsman.app.experiments.metrics import metrics_of
from pointsman.app.experiments.plan import Experiment, Point, Result, Run
from pointsman.app.experiments.workload import TraceMemo
from pointsman.app.simulate.run import simulate
from pointsman.core.model.errors import ConfigError, PointsmanError, PolicyError

OnProgress = Callable[[float], None]
"""Hears what share of the run in progress is done, 0 to 1."""


class _Worker:
    """Makes runs one after the other."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._traces = TraceMemo(experiment.workload)

    def carry_out(self, run: Run, point: Point, on_progress: OnProgress | None = None) -> Result:
        entry = self._experiment.entries[run.entry]
        trace = self._traces.trace(run.seed, point.rate)
        try:
            outcome = simulate(
                trace,
                point.setup,
                copy.deepcopy(entry.policy),
                seed=run.seed,
                policy_seed=zlib.crc32(f"{entry.label} {run.seed}".encode()),
                clients=point.clients,
                on_progress=None if on_progress is None else lambda ended, total: on_progress(ended / total),
            )
        except PointsmanError:
            raise
        except Exception as error:
            raise PolicyError(
                f"policy {entry.label!r}, seed {run.seed}{f', {point.name}' if point.name else ''}: "
                f"the simulation failed: {error!r}"
            ) from error
        return Result(run, metrics_of(outcome, self._experiment.slo), curves_of(outcome))


class Runner:
    """Use it as a context. `jobs` processes; with 1 everything happens in this one.

    Leaving the context ends the processes at once, whatever they do: nothing of a run that was not finished is kept.
    """

    def __init__(self, experiment: Experiment, jobs: int = 1) -> None:
        if jobs < 1:
            raise ConfigError(f"--jobs must be at least 1, not {jobs}")
        self._experiment = experiment
        self._jobs = jobs
        self._here = _Worker(experiment)
        self._pool: ProcessPoolExecutor | None = None
        self._strangers = set(multiprocessing.active_children())

    def __enter__(self) -> Runner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is None:
            return
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - self._strangers:
            process.terminate()
            process.join()

    def results(self, runs: Iterable[tuple[Run, Point]], on_progress: OnProgress | None = None) -> Iterator[Result]:
        """Carry out runs, each at its point; the results as they come.

        `on_progress` is called only where runs happen in this process.

        Raises what a simulation raises, and ConfigError when a process died.
        """
        wanted = list(runs)
        if min(self._jobs, len(wanted)) <= 1:
            for run, point in wanted:
                yield self._here.carry_out(run, point, on_progress)
            return
        pool = self._started_pool(len(wanted))
        try:
            for future in as_completed([pool.submit(_carry_out, run, point) for run, point in wanted]):
                yield future.result()
        except BrokenProcessPool as error:
            raise ConfigError(
                "a process of the simulation died, perhaps for want of memory; take fewer (--jobs) or a shorter trace"
            ) from error

    def _started_pool(self, most: int) -> ProcessPoolExecutor:
        if self._pool is None:
            # Spawned, not forked: a fork copies locks that threads of the parent hold.
            self._pool = ProcessPoolExecutor(
                min(self._jobs, most),
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_begin,
                initargs=(_pickled(self._experiment),),
            )
        return self._pool


_worker: _Worker | None = None


def _begin(pickled: bytes) -> None:
    """In a process of the pool: takes the experiment, once."""
    global _worker  # noqa: PLW0603
    # Ctrl-C goes to the whole group; the parent decides what happens.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _worker = _Worker(pickle.loads(pickled))


def _carry_out(run: Run, point: Point) -> Result:
    assert _worker is not None
    return _worker.carry_out(run, point)


def _pickled(experiment: Experiment) -> bytes:
    try:
        return pickle.dumps(experiment, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise ConfigError(
            f"a policy or workload of this experiment can't be handed to other processes ({error}); run with --jobs 1"
        ) from error

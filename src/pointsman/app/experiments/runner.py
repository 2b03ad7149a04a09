"""Runner: carries out the runs of an experiment, in this process or in several."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import signal
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from types import TracebackType

from pointsman.app.experiments.curves import curves_of
from pointsman.app.experiments.metrics import metrics_of
from pointsman.app.experiments.plan import Entry, Experiment, Point, Result, Run
from pointsman.app.experiments.workload import TraceMemo
from pointsman.app.simulate.run import simulate
from pointsman.core.model.errors import ConfigError, PointsmanError, PolicyError
from pointsman.core.policies.policy import Policy

OnProgress = Callable[[float], None]
"""Hears what share of the run in progress is done, 0 to 1."""


class ProcessDiedError(ConfigError):
    """A process was killed with the run that it made."""


class _Worker:
    """Makes runs one after the other."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._traces = TraceMemo(experiment.workload)

    def carry_out(self, run: Run, point: Point, on_progress: OnProgress | None = None) -> Result:
        entry = self._experiment.entries[run.entry]
        policy = _copied(entry)
        trace = self._traces.trace(run.seed, point.rate)
        try:
            outcome = simulate(
                trace,
                point.setup,
                policy,
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

        Raises what a simulation raises, and ProcessDiedError.
        """
        wanted = list(runs)
        if min(self._jobs, len(wanted)) <= 1:
            for run, point in wanted:
                yield self._here.carry_out(run, point, on_progress)
            return
        pool = self._started_pool(len(wanted))
        broken: BrokenProcessPool | None = None
        futures = []
        try:
            with _ctrl_c_waits():
                for run, point in wanted:
                    futures.append(pool.submit(_carry_out, run, point))
        except BrokenProcessPool as error:
            broken = error
        for future in as_completed(futures):
            try:
                result = future.result()
            except BrokenProcessPool as error:
                broken = error
            else:
                yield result
        if broken is not None:
            raise ProcessDiedError(
                "a process of the simulation died, perhaps for want of memory; take fewer (--jobs) or a shorter trace"
            ) from broken

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
    threading.Thread(target=_follow_parent, daemon=True).start()
    _worker = _Worker(pickle.loads(pickled))


def _follow_parent() -> None:
    """Ends this process when the parent is gone, however: nobody would ever take the results or give the next run."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@contextmanager
def _ctrl_c_waits() -> Iterator[None]:
    """Processes that start meanwhile never hear of Ctrl-C, not even before they can ignore it; this one does after."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _carry_out(run: Run, point: Point) -> Result:
    assert _worker is not None
    return _worker.carry_out(run, point)


def _copied(entry: Entry) -> Policy:
    """A policy for one run. Raises PolicyError."""
    try:
        return copy.deepcopy(entry.policy)
    except Exception as error:
        raise PolicyError(
            f"policy {entry.label!r} can't be copied, and each run needs one of its own: {error}; "
            "keep locks, files and connections out of it"
        ) from error


def _pickled(experiment: Experiment) -> bytes:
    for entry in experiment.entries:
        _copied(entry)
    try:
        return pickle.dumps(experiment, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise ConfigError(
            f"a policy or workload of this experiment can't be handed to other processes ({error}); run with --jobs 1"
        ) from error

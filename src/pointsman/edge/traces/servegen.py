"""ServeGen's clients (alibaba/ServeGen): models of production traffic, from which requests are drawn by a seed.

A folder holds for each client `chunk-N-trace.csv` (no header: window start in s, requests/s, CV of the times between
arrivals, their distribution, its two parameters) and `chunk-N-dataset.json` (`{window start in s: {"input_tokens":
"{length: probability}", "output_tokens": …}}`).
"""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np

from pointsman.core.model.errors import TraceError
from pointsman.core.workload.generators.arrivals import MOST_ARRIVALS
from pointsman.core.workload.generators.distributions import Histogram
from pointsman.core.workload.trace import TraceRequest
from pointsman.edge.traces.csv_rows import cells_of, to_number
from pointsman.edge.traces.lines import decode, read_all, read_lines
from pointsman.edge.traces.loaded import LoadedTrace, TraceBuilder
from pointsman.edge.traces.problems import RowError
from pointsman.edge.traces.source import Format, Head, Source

_MS = 1000.0
_TRACE = re.compile(r"chunk-(\d+)-trace\.csv(?:\.gz)?")
_KEY = re.compile(r"(\d+)\s*:")
_PATTERNS = ("Gamma", "Weibull")
_USUAL_WINDOW_S = 600.0
_LENGTHS = ("input_tokens", "output_tokens")
_DATASET = msgspec.json.Decoder(dict[str, dict[str, str]])
_HISTOGRAM = msgspec.json.Decoder(dict[float, float])


@dataclass(frozen=True, slots=True)
class _Window:
    start_s: float
    per_s: float
    pattern: str
    shape: float


class _Client:
    """One client: windows of arrivals and, found by time, distributions of lengths."""

    def __init__(self, number: int, windows: list[_Window], dataset: dict[float, dict[str, str]]) -> None:
        self.number = number
        self.windows = windows
        starts = [window.start_s for window in windows]
        self.window_s = min((b - a for a, b in pairwise(starts)), default=_USUAL_WINDOW_S)
        self._dataset = dataset
        self._starts = sorted(dataset)
        self._made: dict[float, tuple[Histogram, Histogram]] = {}

    def within(self, start_s: float, end_s: float) -> Iterator[tuple[int, _Window]]:
        """The windows with requests that reach into a time, numbered from 1."""
        for line, window in enumerate(self.windows, 1):
            if window.start_s < end_s and window.start_s + self.window_s > start_s and window.per_s:
                yield line, window

    def lengths(self, at_s: float) -> tuple[Histogram, Histogram]:
        """Of prompts and outputs at a time. Raises RowError when the dataset does not say."""
        place = bisect.bisect_right(self._starts, at_s) - 1
        if place < 0:
            raise RowError(f"its dataset says nothing of {at_s:g} s")
        start_s = self._starts[place]
        if start_s not in self._made:
            prompt, output = (_histogram(self._dataset[start_s], name, start_s) for name in _LENGTHS)
            self._made[start_s] = prompt, output
        return self._made[start_s]


def read_servegen(source: Source) -> LoadedTrace:
    """Draw the requests of all clients of a folder, or of one `chunk-N-trace.csv`, in the time that options ask for.

    Each window gets as many arrivals as its rate says, the times between which have its distribution and are scaled
    to fill it, as ServeGen does; lengths are drawn independently. Windows that nothing is wrong with give the same
    requests whatever else is asked for.
    """
    options = source.options
    end_s = math.inf if options.duration_s is None else options.start_s + options.duration_s
    builder = TraceBuilder(source.problems, keep_times=True, any_order=True)
    files = _trace_files(source.path)
    clients = [(number, path, _client(source, number, path)) for number, path in files]
    _check_number(source, [client for _, _, client in clients], options.start_s, end_s)
    for done, (number, path, client) in enumerate(clients):
        for at_s, prompt, output in _drawn(source, number, path, client, options.start_s, end_s):
            builder.add(0, TraceRequest((at_s - options.start_s) * _MS, prompt, output, tenant=f"client-{number}"))
        if options.on_bytes is not None:
            options.on_bytes(done + 1, len(files))
    name = source.path.name if source.path.is_dir() else source.name
    return builder.build(
        name,
        f"drawn from {len(files)} client models of ServeGen, seed {options.seed}; lengths independent, no prefixes",
    )


def _trace_files(path: Path) -> list[tuple[int, Path]]:
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    found = [(int(match.group(1)), file) for file in files if (match := _TRACE.fullmatch(file.name))]
    if not found:
        raise TraceError(f"{path}: holds no chunk-N-trace.csv")
    return sorted(found)


def _check_number(source: Source, clients: list[_Client], start_s: float, end_s: float) -> None:
    """Raises TraceError when there would be more requests than fit into memory: some clients are of 14 days."""
    expected = sum(window.per_s * client.window_s for client in clients for _, window in client.within(start_s, end_s))
    if expected > MOST_ARRIVALS:
        first_s = min((window.start_s for client in clients for window in client.windows if window.per_s), default=0.0)
        raise TraceError(
            f"{source.path}: describes {expected:,.0f} requests, more than {MOST_ARRIVALS:,}; take a part, for example "
            f"--start-s {max(start_s, first_s):g} --duration-s 600"
        )


def _drawn(
    source: Source, number: int, path: Path, client: _Client, start_s: float, end_s: float
) -> Iterator[tuple[float, int, int]]:
    for line, window in client.within(start_s, end_s):
        rng = np.random.default_rng([source.options.seed, number, int(window.start_s)])
        times = _times_s(window, client.window_s, rng)
        try:
            prompts, outputs = (lengths.draw_many(rng, len(times)) for lengths in client.lengths(window.start_s))
        except RowError as error:
            source.problems.rows += len(times)
            source.problems.leave_out(line, f"{path.name}: {error}; {len(times)} requests are missing")
            continue
        for at_s, prompt, output in zip(times.tolist(), prompts.tolist(), outputs.tolist(), strict=True):
            if start_s <= at_s < end_s:
                yield at_s, int(prompt), int(output)


def _times_s(window: _Window, window_s: float, rng: np.random.Generator) -> np.ndarray:
    expected = window.per_s * window_s
    number = int(expected) + int(rng.random() < expected % 1)
    if window.pattern == "Gamma":
        gaps = rng.gamma(window.shape, size=number + 1)
    else:
        gaps = rng.weibull(window.shape, size=number + 1)
    times = np.cumsum(gaps)
    # Very bursty ones can underflow to nothing but zeros: then all come at the window's start.
    return np.asarray(window.start_s + window_s * (times[:-1] / times[-1] if times[-1] > 0 else times[:-1]))


def _client(source: Source, number: int, path: Path) -> _Client:
    windows = []
    for line, raw in read_lines(path):
        try:
            window = _window(raw)
        except RowError as error:
            source.problems.rows += 1
            source.problems.leave_out(line, f"{path.name}: {error}")
            continue
        windows.append(window)
    windows.sort(key=lambda window: window.start_s)
    dataset_path = path.with_name(path.name.removesuffix(".gz").replace("-trace.csv", "-dataset.json"))
    if not dataset_path.exists():
        dataset_path = dataset_path.with_name(dataset_path.name + ".gz")
    try:
        dataset = decode(read_all(dataset_path), _DATASET)
        return _Client(number, windows, {float(start): fields for start, fields in dataset.items()})
    except (RowError, ValueError) as error:
        raise TraceError(f"{dataset_path}: {error}") from None


def _window(raw: bytes) -> _Window:
    cells = cells_of(raw)
    if len(cells) != 6:
        raise RowError(f"has {len(cells)} cells, not 6")
    start_s, per_s = to_number(cells[0], "window start"), to_number(cells[1], "rate")
    if not (math.isfinite(per_s) and per_s >= 0):
        raise RowError(f"rate: {per_s} is no rate")
    if not per_s:
        return _Window(start_s, 0.0, "", 0.0)
    if cells[3] not in _PATTERNS:
        raise RowError(f"distribution: expected {' or '.join(_PATTERNS)}, not {cells[3]!r}")
    shape = to_number(cells[4], "first parameter")
    if not 0 < shape < math.inf:
        raise RowError(f"first parameter: {shape} is no shape")
    return _Window(start_s, per_s, cells[3], shape)


def _histogram(fields: dict[str, str], name: str, start_s: float) -> Histogram:
    text = fields.get(name)
    if text is None:
        raise RowError(f"its dataset has no {name} at {start_s:g} s")
    try:
        # A Python dict of numbers as text: JSON but for its keys.
        weights: dict[float, float] = decode(_KEY.sub(r'"\1":', text).encode(), _HISTOGRAM)
        return Histogram(weights)
    except (RowError, TraceError) as error:
        raise RowError(f"its dataset, {name} at {start_s:g} s: {error}") from None


def _recognise(head: Head) -> bool:
    if head.path.is_dir():
        return any(_TRACE.fullmatch(file.name) for file in head.path.iterdir())
    return _TRACE.fullmatch(head.path.name) is not None


FORMAT = Format(
    "servegen",
    "ServeGen client models: a folder of chunk-N-trace.csv and chunk-N-dataset.json",
    _recognise,
    read_servegen,
    ("start_s", "duration_s"),
)

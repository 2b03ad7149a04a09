"""Arrivals and lengths as CSV: `timestamp_ms, prompt_len, output_len`, as AIBrix's load ramps have them."""

from __future__ import annotations

from pointsman.core.workload.trace import TraceRequest
from pointsman.edge.traces.csv_rows import csv_rows, to_number, to_whole_number
from pointsman.edge.traces.loaded import LoadedTrace, TraceBuilder
from pointsman.edge.traces.problems import RowError
from pointsman.edge.traces.source import Format, Source

_COLUMNS = ("timestamp_ms", "prompt_len", "output_len")


def read_ramp_csv(source: Source) -> LoadedTrace:
    """Read it. Times count from the file's own start, which need not be the first arrival."""
    builder = TraceBuilder(source.problems, keep_times=True)
    for line, row in csv_rows(source, _COLUMNS):
        try:
            if isinstance(row, RowError):
                raise row
            at_ms = to_number(row["timestamp_ms"], "timestamp_ms")
            prompt, output = (to_whole_number(row[column], column) for column in _COLUMNS[1:])
        except RowError as error:
            builder.leave_out(line, str(error))
            continue
        builder.add(line, TraceRequest(at_ms, prompt, output))
    return builder.build(source.name, "arrivals and lengths; no prefixes")


FORMAT = Format(
    "ramp-csv",
    "arrivals and lengths, for example AIBrix's ramps: timestamp_ms, prompt_len, output_len",
    lambda head: set(_COLUMNS) <= set(head.columns),
    read_ramp_csv,
)

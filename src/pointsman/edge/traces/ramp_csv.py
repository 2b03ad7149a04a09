"""Arrivals and lengths as CSV: `timestamp_ms, prompt_len, output_len`, as AIBrix's load ramps have them."""

from __future__ import annotations

from pointsman.edge.traces.csv_rows import add_lengths, to_number
from pointsman.edge.traces.loaded import LoadedTrace, TraceBuilder
from pointsman.edge.traces.source import Format, Source

_COLUMNS = ("timestamp_ms", "prompt_len", "output_len")


def read_ramp_csv(source: Source) -> LoadedTrace:
    """Read it. Times count from the file's own start, which need not be the first arrival."""
    builder = TraceBuilder(source.problems, keep_times=True)
    add_lengths(builder, source, _COLUMNS, to_number)
    return builder.build(source.name, "arrivals and lengths; no prefixes")


FORMAT = Format(
    "ramp-csv",
    "arrivals and lengths, for example AIBrix's ramps: timestamp_ms, prompt_len, output_len",
    lambda head: set(_COLUMNS) <= set(head.columns),
    read_ramp_csv,
)

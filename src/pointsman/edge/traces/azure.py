"""Azure's public LLM inference traces (Azure/AzurePublicDataset, 2023 and 2024): CSV, lengths only.

`TIMESTAMP` (UTC, down to 100 ns), `ContextTokens`, `GeneratedTokens`.
"""

from __future__ import annotations

from pointsman.core.workload.trace import TraceRequest
from pointsman.edge.traces.csv_rows import csv_rows, to_whole_number
from pointsman.edge.traces.loaded import LoadedTrace, TraceBuilder
from pointsman.edge.traces.problems import RowError
from pointsman.edge.traces.source import Format, Source
from pointsman.edge.traces.times import epoch_ms

_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read_azure(source: Source) -> LoadedTrace:
    """Read it. Nothing is known of prefixes or conversations."""
    builder = TraceBuilder(source.problems)
    for line, row in csv_rows(source, _COLUMNS):
        try:
            if isinstance(row, RowError):
                raise row
            at_ms = epoch_ms(row["TIMESTAMP"], "TIMESTAMP")
            prompt, output = (to_whole_number(row[column], column) for column in _COLUMNS[1:])
        except RowError as error:
            builder.leave_out(line, str(error))
            continue
        builder.add(line, TraceRequest(at_ms, prompt, output))
    return builder.build(source.name, "Azure LLM inference trace; no prefixes")


FORMAT = Format(
    "azure",
    "Azure LLM inference traces: TIMESTAMP, ContextTokens, GeneratedTokens",
    lambda head: set(_COLUMNS) <= set(head.columns),
    read_azure,
)

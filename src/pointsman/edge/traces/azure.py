"""Azure's public LLM inference traces (Azure/AzurePublicDataset, 2023 and 2024): CSV, lengths only.

`TIMESTAMP` (UTC, down to 100 ns), `ContextTokens`, `GeneratedTokens`.
"""

from __future__ import annotations

from pointsman.edge.traces.csv_rows import add_lengths
from pointsman.edge.traces.loaded import LoadedTrace, TraceBuilder
from pointsman.edge.traces.source import Format, Source
from pointsman.edge.traces.times import epoch_ms

_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read_azure(source: Source) -> LoadedTrace:
    """Read it. Nothing is known of prefixes or conversations."""
    builder = TraceBuilder(source.problems)
    add_lengths(builder, source, _COLUMNS, epoch_ms)
    return builder.build(source.name, "Azure LLM inference trace; no prefixes")


FORMAT = Format(
    "azure",
    "Azure LLM inference traces: TIMESTAMP, ContextTokens, GeneratedTokens",
    lambda head: set(_COLUMNS) <= set(head.columns),
    read_azure,
)

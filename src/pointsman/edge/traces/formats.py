"""All formats, and which one a file has."""

from __future__ import annotations

from pathlib import Path

from pointsman.core.model.errors import TraceError
from pointsman.edge.traces import (
    access_log,
    agentic,
    aiperf,
    azure,
    canonical,
    decision_log,
    guidellm,
    mooncake,
    ramp_csv,
    servegen,
    vllm_bench,
    vllm_requests,
    vllm_workload,
)
from pointsman.edge.traces.loaded import LoadedTrace
from pointsman.edge.traces.problems import Problems
from pointsman.edge.traces.source import Format, Head, ReadOptions, Source, head_of

FORMATS: dict[str, Format] = {
    module.FORMAT.name: module.FORMAT
    for module in (
        canonical,
        decision_log,
        mooncake,
        azure,
        agentic,
        servegen,
        access_log,
        vllm_bench,
        vllm_requests,
        vllm_workload,
        guidellm,
        aiperf,
        ramp_csv,
    )
}
_MOST_KEYS = 12


def read_trace(path: Path, format_name: str | None = None, options: ReadOptions | None = None) -> LoadedTrace:
    """Read a trace of any format, plain or gzipped, recognised by what is in it unless `format_name` says which.

    Raises TraceError that names the file, and for one of no known format what was tried.
    """
    options = options or ReadOptions()
    if not path.exists():
        raise TraceError(f"{path}: no such file")
    if format_name is not None and format_name not in FORMATS:
        raise TraceError(f"--format {format_name}: unknown; there are {', '.join(FORMATS)}")
    chosen = FORMATS[format_name] if format_name is not None else recognise(path)
    unused = chosen.refused(options)
    if unused:
        others = [name for name, known in FORMATS.items() if unused[0] in known.takes]
        part = "; `pointsman trace cut` keeps a part of any trace" if unused[0] in ("start_s", "duration_s") else ""
        raise TraceError(
            f"{path}: is read as {chosen.name}, which has no use for --{unused[0].replace('_', '-')}; it belongs to "
            f"{', '.join(others)}{part}"
        )
    problems = Problems(str(path), options.strict)
    loaded = chosen.read(Source(path, options, problems))
    return LoadedTrace(loaded.trace, loaded.problems, loaded.observed, chosen.name)


def recognise(path: Path) -> Format:
    """The one format that a file has. Raises TraceError when there is none or more than one."""
    head = head_of(path)
    found = [candidate for candidate in FORMATS.values() if candidate.recognise(head)]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(candidate.name for candidate in found)
        raise TraceError(f"{path}: could be {names}; say which with --format")
    raise TraceError(f"{path}: of no known format: {_seen(head)}. Tried {', '.join(FORMATS)}; force one with --format")


def _seen(head: Head) -> str:
    if head.path.is_dir():
        return "a folder without files of a known kind"
    if not head.text:
        return "it is empty"
    if head.rows:
        keys = list(head.rows[0])
        return "JSON with the fields " + ", ".join(keys[:_MOST_KEYS]) + ("…" if len(keys) > _MOST_KEYS else "")
    line = head.text.partition("\n")[0].strip()
    return f"its first line is {line[:80]!r}"

"""Access logs of OpenAI-style front ends, one JSON object a line: when, how many tokens, which model.

Everybody names fields differently: LiteLLM's StandardLoggingPayload (`startTime, endTime, completionStartTime,
prompt_tokens, …`), answers of the OpenAI API as they are (`created`, `usage`), what nginx writes with a JSON
`log_format` (`time_iso8601` or `msec` at the end of a request, `request_time`). Known names are tried; `--fields` tells
others.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from pointsman.core.model.errors import TraceError
from pointsman.core.workload.trace import TraceRequest
from pointsman.edge.traces.fields import Json, first_of, number, whole_number
from pointsman.edge.traces.lines import decode
from pointsman.edge.traces.loaded import LoadedTrace, TraceBuilder
from pointsman.edge.traces.observed import Observed
from pointsman.edge.traces.problems import RowError
from pointsman.edge.traces.source import Format, Head, Source
from pointsman.edge.traces.times import epoch_ms

_INSIDE = ("", "standard_logging_object.", "response.", "response_body.", "body.", "payload.", "data.", "message.")
"""Where logs keep the interesting part."""
_NAMES: dict[str, tuple[str, ...]] = {
    "time": (
        *("startTime", "start_time", "arrival_time", "request_time_start", "request_start_time", "request_timestamp"),
        *("time", "timestamp", "ts", "@timestamp", "created_at", "created", "time_iso8601", "msec", "time_local"),
    ),
    "end": ("endTime", "end_time"),
    "prompt": (
        *("usage.prompt_tokens", "usage.input_tokens", "prompt_tokens", "input_tokens", "num_prompt_tokens"),
        *("usage_prompt_tokens", "token_usage.prompt_tokens", "tokens.prompt", "prompt_token_count"),
    ),
    "output": (
        *("usage.completion_tokens", "usage.output_tokens", "completion_tokens", "output_tokens"),
        *("usage_completion_tokens", "token_usage.completion_tokens", "tokens.completion", "num_output_tokens"),
        "completion_token_count",
    ),
    "cached": (
        *("usage.prompt_tokens_details.cached_tokens", "prompt_tokens_details.cached_tokens", "cached_tokens"),
        "usage.input_tokens_details.cached_tokens",
    ),
    "first_token": ("completionStartTime", "completion_start_time", "first_token_time"),
    "ttft_ms": ("ttft_ms", "time_to_first_token_ms", "metrics.ttft_ms"),
    "ttft_s": ("ttft_s", "ttft", "time_to_first_token"),
    "e2e_ms": ("e2e_ms", "latency_ms", "duration_ms", "elapsed_ms", "response_time_ms", "metrics.e2e_ms"),
    "e2e_s": ("request_time", "latency_s", "duration_s", "e2e_latency"),
    "session": ("session_id", "conversation_id", "chat_id", "metadata.session_id", "trace_id"),
    "tenant": ("tenant", "team_id", "team", "metadata.user_api_key_team_id", "organization", "user", "end_user"),
    "model": ("model", "model_name", "request.model"),
    "worker": ("worker", "upstream_addr", "api_base", "backend"),
    "priority": ("priority",),
    "status": ("status", "status_code", "response_status", "http_status"),
}
_AT_THE_END = ("time_iso8601", "time_local", "msec")
"""nginx writes its time when the answer is done."""
_MS = 1000.0
_DECODER = msgspec.json.Decoder(dict[str, object])


class _Fields:
    """Where a log keeps what; the place that a field was found at last is tried first."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.without_duration = 0
        """Rows that say when the answer was done and not how long it took."""
        unknown = [role for role in given if role not in _NAMES]
        if unknown:
            raise TraceError(f"--fields {unknown[0]}: unknown; fields are {', '.join(_NAMES)}")
        self._paths = {
            role: [given[role]] if role in given else [part + name for name in names for part in _INSIDE]
            for role, names in _NAMES.items()
        }

    def find(self, row: Json, role: str) -> tuple[str, object]:
        """Path and value; `("", None)` if there is none."""
        paths = self._paths[role]
        path, value = first_of(row, paths)
        if path and path != paths[0]:
            paths.remove(path)
            paths.insert(0, path)
        return path, value

    def needed(self, row: Json, role: str) -> tuple[str, object]:
        """The same, but it must be there. Raises RowError."""
        path, value = self.find(row, role)
        if not path:
            _, status = self.find(row, "status")
            paths = self._paths[role]
            shown = paths[0] if len(paths) == 1 else f"{paths[0]} or a like name (tell it with --fields {role}=NAME)"
            raise RowError(f"no {shown}" + ("" if status is None else f"; its status is {status}"))
        return path, value

    def text(self, row: Json, role: str) -> str | None:
        """As text, if there is any."""
        _, value = self.find(row, role)
        return None if value is None or isinstance(value, (dict, list)) else str(value)


def read_access_log(source: Source) -> LoadedTrace:
    """Read it. Rows may be in any order, for logs are written when answers end."""
    fields = _Fields(source.options.fields)
    builder = TraceBuilder(source.problems, any_order=True)
    for line, raw in source.lines():
        try:
            row = decode(raw, _DECODER)
            observed = _observed(fields, row)
            priority = fields.find(row, "priority")
            request = TraceRequest(
                at_ms=observed.arrival_ms,
                prompt_tokens=observed.prompt_tokens,
                output_tokens=observed.output_tokens,
                session=fields.text(row, "session"),
                tenant=fields.text(row, "tenant"),
                model=fields.text(row, "model"),
                priority=whole_number(priority[1], priority[0]) if priority[0] else 0,
            )
        except RowError as error:
            builder.leave_out(line, str(error))
            continue
        timed = observed.first_token_ms is not None or observed.last_token_ms is not None
        builder.add(line, request, observed if timed or observed.cached_tokens is not None else None)
    if fields.without_duration:
        source.problems.notes.append(
            f"{fields.without_duration} rows say when the answer was done and not how long it took: they are taken to "
            "come when it was done"
        )
    return builder.build(source.name, "access log; no prefixes")


def _observed(fields: _Fields, row: Json) -> Observed:
    time_path, time_value = fields.needed(row, "time")
    prompt_path, prompt = fields.needed(row, "prompt")
    output_path, output = fields.needed(row, "output")
    at_ms = epoch_ms(time_value, time_path)
    e2e_ms = _duration_ms(fields, row, "e2e")
    end_path, end = fields.find(row, "end")
    if e2e_ms is None and end_path:
        e2e_ms = epoch_ms(end, end_path) - at_ms
    if time_path.rpartition(".")[2] in _AT_THE_END:
        fields.without_duration += e2e_ms is None
        at_ms -= e2e_ms or 0.0
    ttft_ms = _duration_ms(fields, row, "ttft")
    first_path, first = fields.find(row, "first_token")
    if ttft_ms is None and first_path:
        ttft_ms = epoch_ms(first, first_path) - at_ms
    for name, value in (("time to first token", ttft_ms), ("time to the end", e2e_ms)):
        if value is not None and value < 0:
            raise RowError(f"its {name} is {value:g} ms")
    cached_path, cached = fields.find(row, "cached")
    return Observed(
        arrival_ms=at_ms,
        first_token_ms=None if ttft_ms is None else at_ms + ttft_ms,
        last_token_ms=None if e2e_ms is None else at_ms + e2e_ms,
        prompt_tokens=whole_number(prompt, prompt_path),
        output_tokens=whole_number(output, output_path),
        cached_tokens=whole_number(cached, cached_path) if cached_path else None,
        worker=fields.text(row, "worker"),
    )


def _duration_ms(fields: _Fields, row: Json, name: str) -> float | None:
    for unit, factor in (("ms", 1.0), ("s", _MS)):
        path, value = fields.find(row, f"{name}_{unit}")
        if path:
            return number(value, path) * factor
    return None


def parse_fields(texts: tuple[str, ...]) -> dict[str, str]:
    """`time=ts,prompt=usage.prompt_tokens` as a map. Raises TraceError."""
    fields: dict[str, str] = {}
    for pair in (pair.strip() for text in texts for pair in text.split(",")):
        role, _, path = pair.partition("=")
        if role not in _NAMES or not path:
            raise TraceError(f"--fields {pair}: expected FIELD=NAME; fields are {', '.join(_NAMES)}")
        fields[role] = path
    return fields


def _recognise(head: Head) -> bool:
    found = _Fields({})
    return any(all(found.find(row, role)[0] for role in ("time", "prompt", "output")) for row in head.rows)


FORMAT = Format(
    "access-log",
    "JSON access logs of OpenAI-style front ends: time, prompt and output tokens",
    _recognise,
    read_access_log,
    ("fields",),
)

"""docs/configuration.md, made from the configuration's types.

`python -m pointsman.app.cli.configuration_doc FILE` writes it; with `--check` it says whether FILE is up to date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import msgspec

from pointsman.app.cli.made_page import write_or_check
from pointsman.edge.configuration.describe import expected, item_of, struct_of, value_of, without_annotation
from pointsman.edge.configuration.tree import ConfigTree
from pointsman.edge.serving.reload.keys import LIVE

EXAMPLE = """\
control-plane:
  listen_host: 0.0.0.0
  listen_port: 8080
  heartbeat_interval: 5s
  timeouts: {connect: 2s, first_byte: 5m}
execution-group:
  nodes:
    - {url: http://10.0.0.1:8000, gpu_count: 2, max_batch_size: 32, queue_depth_threshold: 24}
    - {url: http://10.0.0.2:8000, name: big, kind: vllm, api_key_env: BIG_ENGINE_KEY}
routing:
  policy: prefix
  route_key: header:x-session-id
  prefix_ttl: 30m
metrics:
  collect_kv_cache_miss: true
"""

_HEAD = """\
# Configuration

<!-- Made by `python -m pointsman.app.cli.configuration_doc docs/configuration.md`; change the types instead. -->

One YAML file, given with `--config FILE`. Every key has a default, except an engine's `url`. The file is checked as a
whole at start: an unknown key, a wrong type or a value out of range ends the start with the file, the line, the key
and what was expected. A key or value whose feature isn't built yet is refused by name, also where ignoring it would do
no harm: a file that is accepted does all that it says.

Flags override the file and are checked in the same way: `--engine` (all nodes), `--host`, `--port`, `--admin-port`,
`--policy`.

```yaml
{example}```
"""


_LIVE = """\
## What changes without a restart

SIGHUP to `pointsman serve`, `pointsman reload` and `POST /v1/reload` on the admin port read the file again, check all
of it and put in force what changed in these keys and all under them ([operating.md](operating.md#reload)). All other
keys are read at the start; their names are in the answer where they changed.

{keys}
"""


def document() -> str:
    """The whole page."""
    parts = [_HEAD.format(example=EXAMPLE)]
    for field in msgspec.structs.fields(ConfigTree):
        parts.extend(_section(field.encode_name, field.type))
    parts.append(_LIVE.format(keys="\n".join(f"- `{key}`" for key in sorted(LIVE))))
    return "\n".join(parts)


def _section(path: str, kind: Any) -> Iterator[str]:
    section = struct_of(kind)
    assert section is not None
    yield f"## `{path}`\n\n{_description(kind)}\n"
    yield from tables(section, path)


def tables(section: type[msgspec.Struct], path: str) -> Iterator[str]:
    """Lines of the table of a section's keys, then of the sections in it; `path` is empty for a whole file."""
    yield "| Key | Takes | Default | Means |\n|---|---|---|---|"
    inner = []
    for field in msgspec.structs.fields(section):
        child = struct_of(_item(field.type))
        is_list = item_of(field.type) is not None
        is_map = value_of(field.type) is not None
        if child is not None:
            suffix = "[]" if is_list else ".NAME" if is_map else ""
            inner.append((f"{path}.{field.encode_name}{suffix}".lstrip("."), _item(field.type)))
        yield _row(field, section)
    yield from _not_built(section)
    yield ""
    for inner_path, inner_kind in inner:
        yield from _section(inner_path, inner_kind)


def _item(kind: Any) -> Any:
    """The type of a list's items or a mapping's values; else the type itself."""
    inside = item_of(kind) or value_of(kind)
    return kind if inside is None else inside


def _row(field: msgspec.structs.FieldInfo, section: type[msgspec.Struct]) -> str:
    if struct_of(_item(field.type)) is None:
        takes = expected(field.type)
    else:
        takes = "a list, see below" if item_of(field.type) is not None else "keys, see below"
        if value_of(field.type) is not None:
            takes = "names, each with keys, see below"
    refused = getattr(section, "not_built_values", {}).get(field.encode_name, {})
    means = _description(field.type)
    if refused:
        means += " Not built yet: " + ", ".join(f"`{_shown(value)}`" for value in refused) + "."
    return "| " + " | ".join((f"`{field.encode_name}`", _cell(takes), _default(field), _cell(means))) + " |"


def _not_built(section: type[msgspec.Struct]) -> Iterator[str]:
    keys: dict[str, str] = getattr(section, "not_built", {})
    if keys:
        yield "\nNot built yet, refused by name: " + ", ".join(f"`{key}` ({why})" for key, why in keys.items()) + "."


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "**required**"
    if struct_of(field.type) is not None or value_of(field.type) is not None or field.default in ((), ""):
        return "–"
    return f"`{_shown(field.default)}`"


def _shown(value: object) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _description(kind: Any) -> str:
    text = without_annotation(kind)[1].description
    if text is None:
        section = struct_of(kind)
        text = (section.__doc__ or "").strip().splitlines()[0] if section is not None else ""
    return text


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def main(arguments: list[str]) -> int:
    """Write the page, or check it; the exit status."""
    return write_or_check(arguments, "pointsman.app.cli.configuration_doc", document)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

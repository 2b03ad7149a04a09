"""`pointsman engine`: one engine as a server."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import click
import msgspec

from pointsman.app.cli.descriptors import raise_descriptor_limit
from pointsman.app.cli.engine_embedded import serve_embedded
from pointsman.app.cli.engine_join import JoinFlags, join_options, serve_joined
from pointsman.app.cli.engine_transfers import TRANSFER_OPTIONS, transfer_options
from pointsman.app.cli.model_places import model_places
from pointsman.app.cli.run_loop import run_until_stopped
from pointsman.app.cli.signals import Signals
from pointsman.app.cli.up_display import Display
from pointsman.core.model.errors import ConfigError
from pointsman.edge.configuration.engine_url import EngineUrl
from pointsman.edge.engines.gate import Gate
from pointsman.edge.engines.local.cores import usable_cores
from pointsman.edge.engines.local.llama_server import llama_running
from pointsman.edge.engines.local.llama_server import serve as serve_llama
from pointsman.edge.engines.local.model_file import resolve
from pointsman.edge.engines.local.model_spec import DEFAULT_MODEL, ModelFile, ModelSpec
from pointsman.edge.engines.local.settings import LocalEngineSettings
from pointsman.edge.telemetry.logs import LEVELS, set_up_logs
from pointsman.edge.wire.kv_events import EventForm
from pointsman.edge.wire.listening import listen_error

_SCHEDULED = frozenset(
    ("block_size", "num_blocks", "max_num_seqs", "max_batched_tokens", "max_model_len", "prefix_caching", "seed")
)
_EVENTS = frozenset(("kv_events", "replay", "topic", "dp_rank", "replay_batches", "event_form"))
_OPTIONS_OF = {
    "local": {"threads", "slots", "context_tokens", "slot_save_path"},
    "sim": {"profile", "speedup", "loras", "default_output_tokens", *_SCHEDULED, *_EVENTS},
    "embedded": {"threads", "served_name", *_SCHEDULED, *_EVENTS, *TRANSFER_OPTIONS},
}
"""Options that not every kind takes."""


@click.command()
@click.option("--kind", type=click.Choice(["local", "sim", "embedded"]), required=True, help="Which engine to run.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes a free one.")
@click.option(
    "--model",
    help="local: PATH, NAME=PATH or a known name; sim: the name to serve; embedded: seed:N, a Hugging Face directory, "
    "a GGUF file or a known name (seed:0).",
)
@click.option("--served-name", help="embedded: the name that requests use; default: the model's.")
@click.option(
    "--threads", type=click.IntRange(1), help="local: threads that compute; default: all cores. embedded: (1)."
)
@click.option("--slots", type=click.IntRange(1, 256), help="local: sequences computed at once (4).")
@click.option(
    "--slot-save-path",
    metavar="DIRECTORY",
    help="local: save slots here for other engines that see the directory; files are removed after 10 minutes.",
)
@click.option("--context-tokens", type=click.IntRange(256), help="local: KV cache shared by all sequences (16384).")
@click.option("--profile", help="sim: step times to imitate (instant).")
@click.option("--speedup", type=float, help="sim: modelled milliseconds in a real one (1).")
@click.option("--block-size", type=click.IntRange(1), help="sim, embedded: tokens a KV block (16).")
@click.option(
    "--num-blocks",
    type=click.IntRange(1),
    help="sim, embedded: KV blocks; default: the profile's; embedded: what 512 MiB hold, at most 4096.",
)
@click.option(
    "--max-num-seqs", type=click.IntRange(1), help="sim, embedded: sequences computed at once (256; embedded: 64)."
)
@click.option(
    "--max-batched-tokens", type=click.IntRange(1), help="sim, embedded: token budget of a step (8192; embedded: 256)."
)
@click.option(
    "--max-model-len",
    type=click.IntRange(1),
    help="sim, embedded: longest prompt and answer together (32768; embedded: what the model knows).",
)
@click.option("--default-output-tokens", type=click.IntRange(1), help="sim: answers of requests without limit (128).")
@click.option("--prefix-caching/--no-prefix-caching", default=None, help="sim, embedded: reuse KV blocks (on).")
@click.option("--lora", "loras", multiple=True, help="sim: name of an adapter; repeatable.")
@click.option(
    "--kv-events", metavar="ENDPOINT", help="sim, embedded: publish KV events there, e.g. tcp://127.0.0.1:5557."
)
@click.option("--replay", metavar="ENDPOINT", help="sim, embedded: answer replay requests there.")
@click.option("--replay-batches", type=click.IntRange(1), help="sim, embedded: batches kept for replay (10000).")
@click.option(
    "--event-form",
    type=click.Choice([str(form) for form in EventForm]),
    help="sim, embedded: how events are written (map).",
)
@click.option("--topic", help="sim, embedded: topic of its KV events.")
@click.option(
    "--dp-rank", type=click.IntRange(0), help="sim, embedded: data-parallel rank in its events and metrics (0)."
)
@click.option(
    "--seed",
    type=int,
    help="sim: for what faults draw at random (0). embedded: for requests without a seed; default: chance.",
)
@transfer_options
@join_options
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True, help="What is logged.")
def engine(kind: str, host: str, port: int, model: str | None, log_level: str, **options: Any) -> int:
    """Run one engine as a server.

    local: llama.cpp. sim: a simulation with vLLM's interface. embedded: a small real model, computed in numpy, with
    vLLM's interface.
    """
    set_up_logs(log_level)
    joining = JoinFlags.take(options)
    if joining is not None:
        joining.check_host(host)
    given = {name: value for name, value in options.items() if value not in (None, ())}
    _refuse_foreign(kind, given)
    if kind == "sim":
        signals = Signals()
        return run_until_stopped(_simulate(host, port, model, given, joining, signals), signals)
    if kind == "embedded":
        signals = Signals()
        return run_until_stopped(serve_embedded(host, port, model, given, joining, signals), signals)
    return _serve_local(host, port, model, given, joining)


def _refuse_foreign(kind: str, given: dict[str, Any]) -> None:
    for name in given:
        if name not in _OPTIONS_OF[kind]:
            raise ConfigError(f"--{name.replace('_', '-')}: engines of kind {kind} don't take it; remove it")


def _serve_local(host: str, port: int, model: str | None, given: dict[str, Any], joining: JoinFlags | None) -> int:
    file: ModelFile | None = None

    async def find() -> int:
        nonlocal file
        with Display() as display:
            spec = DEFAULT_MODEL if model is None else ModelSpec.parse(model)
            file = await resolve(spec, model_places(os.environ), display.progress)
        return 0

    status = run_until_stopped(find())
    if file is None:
        return status
    given.setdefault("threads", usable_cores())
    settings = LocalEngineSettings(model_path=str(file.path), model_name=file.name, host=host, port=port, **given)
    if joining is not None:
        return _serve_local_joined(settings, joining)
    serve_llama(settings, lambda url: click.echo(f"engine local serves {file.name} at {url}  (Ctrl-C stops)"))
    return 0


def _serve_local_joined(settings: LocalEngineSettings, joining: JoinFlags) -> int:
    """llama.cpp can't be told that it drains: it listens on a port of its own, behind one that can."""
    signals = Signals()

    async def serve(inner: str) -> int:
        gate = Gate(inner)
        try:
            await gate.start(settings.host, settings.port)
        except OSError as error:
            raise listen_error(settings.host, settings.port, "--port", error) from error
        try:
            url = EngineUrl.at(settings.host, gate.port)
            click.echo(f"engine local serves {settings.model_name} at {url}  (Ctrl-C drains and stops)")
            more = {"kind": "llamacpp", "gpu_count": 0, "kv_capacity_tokens": settings.context_tokens}
            await serve_joined(gate, url, more, joining, signals)
        finally:
            await gate.close()
        return 0

    with llama_running(msgspec.structs.replace(settings, host="127.0.0.1", port=0)) as inner:
        return run_until_stopped(serve(inner), signals)


async def _simulate(
    host: str, port: int, model: str | None, given: dict[str, Any], joining: JoinFlags | None, signals: Signals
) -> int:
    from pointsman.edge.engines.sim.server import SimServer
    from pointsman.edge.engines.sim.settings import SimSettings

    if model is not None:
        given["model"] = model
    if "event_form" in given:
        given["event_form"] = EventForm(given["event_form"])
    server = SimServer(SimSettings(host=host, port=port, **given))
    raise_descriptor_limit()
    try:
        await server.start()
    except OSError as error:
        raise listen_error(host, port, "--port", error) from error
    try:
        how = "stops" if joining is None else "drains and stops"
        click.echo(f"engine sim serves {server.settings.model} at {server.url}  (Ctrl-C {how})")
        if joining is not None:
            await serve_joined(server, server.url, {"kind": "vllm"}, joining, signals)
        await asyncio.Event().wait()
    finally:
        await server.close()
    return 0

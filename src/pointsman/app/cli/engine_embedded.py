"""`pointsman engine --kind embedded`: a small real model, computed in this process."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import click

from pointsman.app.cli.descriptors import raise_descriptor_limit
from pointsman.app.cli.engine_join import JoinFlags, serve_joined
from pointsman.app.cli.engine_transfers import take_transfer_settings
from pointsman.app.cli.model_places import model_places
from pointsman.app.cli.signals import Signals
from pointsman.app.cli.up_display import Display
from pointsman.edge.engines.local.model_file import resolve
from pointsman.edge.engines.local.model_spec import KNOWN_MODELS, ModelSpec
from pointsman.edge.wire.kv_events import EventForm
from pointsman.edge.wire.listening import listen_error


async def serve_embedded(
    host: str, port: int, model: str | None, given: dict[str, Any], joining: JoinFlags | None, signals: Signals
) -> int:
    """Serves until cancelled. Raises ConfigError, ModelFileError and EngineError with what to do about it."""
    # numpy and the tokenizers are slow to import: other kinds do without.
    from pointsman.edge.engines.embedded.server import EmbeddedServer
    from pointsman.edge.engines.embedded.settings import EmbeddedSettings

    if "event_form" in given:
        given["event_form"] = EventForm(given["event_form"])
    if model is not None:
        given["model"] = await _place_of(model)
    transfer = take_transfer_settings(given)
    server = EmbeddedServer(EmbeddedSettings(host=host, port=port, transfer=transfer, **given))
    raise_descriptor_limit()
    try:
        await server.start()
    except OSError as error:
        raise listen_error(host, port, "--port", error) from error
    try:
        await server.load()
        how = "stops" if joining is None else "drains and stops"
        click.echo(f"engine embedded serves {server.state.names.model} at {server.url}  (Ctrl-C {how})")
        if joining is not None:
            await serve_joined(server, server.url, {"kind": "vllm", "gpu_count": 0}, joining, signals)
        await asyncio.Event().wait()
    finally:
        await server.close()
    return 0


async def _place_of(model: str) -> str:
    """A known name's file, fetched if need be; anything else is left to the engine."""
    known = KNOWN_MODELS.get(model)
    if known is None:
        return model
    with Display() as display:
        file = await resolve(ModelSpec(known.name, None, known), model_places(os.environ), display.progress)
    return str(file.path)

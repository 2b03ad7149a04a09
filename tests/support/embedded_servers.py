"""Embedded engines that listen, in the process of the test."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import cache

from pointsman.edge.engines.embedded.loaded_model import LoadedModel, load_model
from pointsman.edge.engines.embedded.server import EmbeddedServer
from pointsman.edge.engines.embedded.settings import EmbeddedSettings


@cache
def tiny(model: str = "seed:0") -> LoadedModel:
    return load_model(model)


async def start_embedded(stack: AsyncExitStack, **settings: object) -> EmbeddedServer:
    """A listening engine of the tiny model `m`, closed with the stack."""
    values = {"served_name": "m", "num_blocks": 256, "max_model_len": 512, "block_size": 4, **settings}
    server = EmbeddedServer(EmbeddedSettings(**values))  # type: ignore[arg-type]
    await server.start()
    stack.push_async_callback(server.close)
    await server.load(tiny())
    return server

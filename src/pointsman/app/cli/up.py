"""`pointsman up`: a whole fleet on this computer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from pointsman.app.cli.configured import FrontendFlags, frontend_options, load_tree
from pointsman.app.cli.first_token import FirstToken, first_token
from pointsman.app.cli.front_end import front_end_settings, keep_for_good
from pointsman.app.cli.model_places import model_places
from pointsman.app.cli.run_loop import run_until_stopped
from pointsman.app.cli.up_display import Display
from pointsman.app.cli.up_text import how_to_call, own_command
from pointsman.core.model.errors import ConfigError, EngineError
from pointsman.edge.configuration.conflict import KeyConflictError
from pointsman.edge.configuration.engine_url import EngineUrl
from pointsman.edge.configuration.execution_group import Node
from pointsman.edge.configuration.tree import ConfigTree
from pointsman.edge.engines.local.cores import usable_cores
from pointsman.edge.engines.local.fleet import LocalEngine, LocalFleet, plan_engines
from pointsman.edge.engines.local.model_file import resolve
from pointsman.edge.engines.local.model_spec import DEFAULT_MODEL, ModelFile, ModelSpec
from pointsman.edge.serving.frontend import Frontend
from pointsman.edge.telemetry.logs import set_up_logs
from pointsman.edge.wire.listening import refuse_taken

_GRACE_S = 1.0
"""What requests in flight get on Ctrl-C: a fleet on one's own computer must end when told to."""
_FOUND_LIMIT_S = 60.0
_POLL_S = 0.05
_STATE = Path(".pointsman")


@click.command()
@click.option("--model", "models", multiple=True, help="PATH of a .gguf file, NAME=PATH or a known name; repeatable.")
@click.option("--engines-per-model", type=click.IntRange(1, 64), default=2, show_default=True)
@frontend_options
def up(
    models: tuple[str, ...],
    engines_per_model: int,
    config: Path | None,
    host: str | None,
    port: int | None,
    admin_port: int | None,
    policy: str | None,
    log_level: str | None,
) -> int:
    """Start llama.cpp engines on this computer and the front end before them; Ctrl-C stops everything."""
    set_up_logs(log_level or "warning")
    tree = load_tree(FrontendFlags(config, host, port, admin_port, policy))
    specs = [ModelSpec.parse(model) for model in models] or [DEFAULT_MODEL]
    return run_until_stopped(_up(tree, specs, engines_per_model))


async def _up(tree: ConfigTree, specs: Sequence[ModelSpec], engines_per_model: int) -> int:
    plane = tree.control_plane
    refuse_taken(plane.listen_host, plane.listen_port, "--port")
    refuse_taken(plane.admin_host, plane.admin_port, "--admin-port")
    with Display() as display:
        files = await _models(specs, display)
        fleet = LocalFleet(
            plan_engines(files, engines_per_model, usable_cores()),
            _STATE / "logs" / str(plane.listen_port),
            on_ready=lambda name, url: display.say(f"engine {name} is ready at {url}"),
        )
        try:
            display.say(f"starting {len(fleet.engines)} engines")
            await fleet.start()
            await _serve(_with_engines(tree, fleet), fleet, [file.name for file in files], display)
        finally:
            await fleet.close()
    return 0


async def _models(specs: Sequence[ModelSpec], display: Display) -> list[ModelFile]:
    places = model_places(os.environ)
    files: list[ModelFile] = []
    for spec in specs:
        file = await resolve(spec, places, display.progress)
        if any(file.name == other.name for other in files):
            raise ConfigError(f"--model: two models are called {file.name}; give one another name: NAME={file.path}")
        display.say(f"model {file.name}: {file.path} ({file.origin})")
        files.append(file)
    return files


def _with_engines(tree: ConfigTree, fleet: LocalFleet) -> ConfigTree:
    """The configuration with the engines that were just started, beside those that it names."""
    ours = tuple(_node(engine) for engine in fleet.engines)
    try:
        group = msgspec.structs.replace(tree.execution_group, nodes=tree.execution_group.nodes + ours)
    except KeyConflictError as error:
        raise ConfigError(f"--config: an engine of the file and one of ours clash: {error.message}") from None
    return msgspec.structs.replace(tree, execution_group=group)


def _node(engine: LocalEngine) -> Node:
    return Node(
        url=EngineUrl.parse(engine.url),
        name=engine.name,
        kind="llamacpp",
        gpu_count=0,
        kv_capacity_tokens=engine.kv_tokens,
    )


async def _serve(tree: ConfigTree, fleet: LocalFleet, models: Sequence[str], display: Display) -> None:
    frontend = Frontend(front_end_settings(tree))
    await frontend.start()
    keep_for_good()
    try:
        display.say(f"front end listens at {frontend.url}, admin at {frontend.admin_url}")
        await _wait_for_workers(frontend, {engine.name for engine in fleet.engines})
        for model in models:
            display.say(_said(model, await first_token(frontend.url, model)))
        click.echo(how_to_call(frontend.url, frontend.admin_url, models[0], own_command()))
        await asyncio.Event().wait()
    finally:
        await frontend.close(_GRACE_S)


async def _wait_for_workers(frontend: Frontend, engines: set[str]) -> None:
    """Until the front end has found all engines that were just started."""
    try:
        async with asyncio.timeout(_FOUND_LIMIT_S):
            while True:
                workers = frontend.status().workers
                if engines <= {worker.id.rpartition("/")[0] for worker in workers if worker.state == "ready"}:
                    return
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        found = "; ".join(f"{worker.id}: {worker.state}: {worker.reason}" for worker in frontend.status().workers)
        raise EngineError(
            f"the engines run, but the front end did not find them all in {_FOUND_LIMIT_S:.0f} s ({found or 'none'})"
        ) from None


def _said(model: str, first: FirstToken) -> str:
    return f"first routed token of {model} after {first.ttft_ms:.0f} ms, from {first.worker}"

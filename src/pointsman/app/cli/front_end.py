"""One front end in this process, for `serve` and its processes."""

from __future__ import annotations

import asyncio
import os

import click

from pointsman.edge.configuration.tree import ConfigTree
from pointsman.edge.serving.frontend import Frontend
from pointsman.edge.serving.settings import FrontendSettings


async def serve_here(tree: ConfigTree, *, reuse_port: bool) -> int:
    """Serve until cancelled; then requests in flight get `shutdown_grace`. Never returns by itself."""
    frontend = Frontend(FrontendSettings.of(tree, os.environ, reuse_port=reuse_port))
    await frontend.start()
    try:
        if not reuse_port:
            click.echo(f"pointsman serves {frontend.url}/v1  (admin: {frontend.admin_url}; Ctrl-C stops)")
        await asyncio.Event().wait()
    finally:
        await frontend.close(tree.control_plane.shutdown_grace.s)
    return 0

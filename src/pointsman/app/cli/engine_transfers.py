"""Options of `pointsman engine --kind embedded` about KV that moves to and from other engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from pointsman.core.model.errors import ConfigError
from pointsman.edge.engines.embedded.transfer_settings import CODECS, TransferSettings, transfer_address
from pointsman.edge.transfer.negotiation import AUTO, TRANSPORTS

TRANSFER_OPTIONS = frozenset(("kv_transfer", "kv_transport", "kv_codec", "kv_lease_s", "kv_load_failure"))
_OFF = "off"
Command = TypeVar("Command", bound=Callable[..., Any])


def transfer_options(command: Command) -> Command:
    """Adds them."""
    for option in (
        click.option(
            "--kv-load-failure",
            type=click.Choice(["recompute", "fail"]),
            help="embedded: what becomes of a request whose KV does not come (recompute).",
        ),
        click.option(
            "--kv-lease-s", type=float, help="embedded: how long KV is held for others that don't ask for it (30)."
        ),
        click.option(
            "--kv-codec",
            type=click.Choice(CODECS),
            help="embedded: how KV that is fetched over TCP is compressed; f16 and int8 lose precision, auto takes f16 "
            "or zstd where that pays (none).",
        ),
        click.option(
            "--kv-transport",
            type=click.Choice([AUTO, *TRANSPORTS]),
            help="embedded: how KV moves; auto: the best that both sides have (auto).",
        ),
        click.option(
            "--kv-transfer",
            metavar="HOST:PORT",
            help="embedded: where others read its KV, and are told to; off: KV stays (127.0.0.1, any free port).",
        ),
    ):
        command = option(command)
    return command


def take_transfer_settings(given: dict[str, Any]) -> TransferSettings | None:
    """Takes them out of what was given; None: KV stays. Raises ConfigError."""
    said = {name: given.pop(name) for name in TRANSFER_OPTIONS & given.keys()}
    where = said.pop("kv_transfer", None)
    if where == _OFF:
        if said:
            flag = "--" + min(said).replace("_", "-")
            raise ConfigError(f"{flag}: is for KV that moves, and --kv-transfer is off; remove one of them")
        return None
    if where is not None:
        said["kv_host"], said["kv_port"] = transfer_address(where)
    return TransferSettings(**{name.removeprefix("kv_"): value for name, value in said.items()})

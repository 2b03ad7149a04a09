"""`pointsman doctor links`: how fast KV can go between each two machines, and what is wrong with it."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
import msgspec

from pointsman.app.cli.doctor_links_members import named, wanted_nodes
from pointsman.app.cli.doctor_links_output import links_document, links_file, pair_line, print_links
from pointsman.app.cli.everywhere import tell_all
from pointsman.app.cli.main import EXIT_INTERRUPTED
from pointsman.app.cli.node_token import node_token, token_option
from pointsman.app.cli.number import Number
from pointsman.app.cli.output import check_files, json_option, write_json
from pointsman.app.cli.run_loop import run_until_stopped
from pointsman.core.model.errors import ConfigError, EngineError
from pointsman.edge.configuration.links_file import LinksFile, save_links
from pointsman.edge.configuration.secret import Secret
from pointsman.edge.configuration.size import Size
from pointsman.edge.node.client import NodeClient
from pointsman.edge.node.documents import DEFAULT_PORT, MOST_SIZES, ProbeOrder
from pointsman.edge.node.survey import Member, Pair, Survey, ask_all, survey
from pointsman.edge.node.verdicts import verdicts
from pointsman.edge.serving.link_feed import few
from pointsman.edge.serving.link_routes import LinksTaken
from pointsman.edge.transfer.negotiation import TRANSPORTS
from pointsman.edge.transfer.probe.messages import MOST_PROBE_BYTES

_SIZES = "64KiB,1MiB,16MiB,256MiB"


@click.command()
@click.option("--node", "nodes", multiple=True, metavar="[NAME=]URL", help="A `pointsman node`; repeat for more.")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="Configuration of a front end: a node on each machine of its execution-group.nodes.",
)
@click.option(
    "--node-port",
    type=click.IntRange(1, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="With --config: where nodes listen.",
)
@token_option
@click.option("--sizes", default=_SIZES, show_default=True, help="Bytes of transfers, with commas between.")
@click.option(
    "--seconds", type=Number(0.05, 10, "seconds"), default=1.0, show_default=True, help="For a size, each direction."
)
@click.option(
    "--transport",
    type=click.Choice(["auto", *TRANSPORTS]),
    default="auto",
    show_default=True,
    help="auto: the best that both sides have, as KV goes.",
)
@click.option(
    "--at-once",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="Pairs probed at a time; 1 disturbs none.",
)
@json_option
@click.option(
    "--save", type=click.Path(path_type=Path), help="File for `links: {file: …}` of front ends (YAML or .json)."
)
@click.option(
    "--admin-url",
    "--admin",
    "admins",
    multiple=True,
    metavar="URL",
    help="Admin port of a running front end that is to know it, too; repeat for more.",
)
def links(
    nodes: tuple[str, ...],
    config: Path | None,
    node_port: int,
    token_env: str | None,
    sizes: str,
    seconds: float,
    transport: str,
    at_once: int,
    json_file: str | None,
    save: Path | None,
    admins: tuple[str, ...],
) -> int:
    """Measure the links between machines on which `pointsman node` runs, each pair in both directions.

    Prints what was measured, and which links are far slower than their ports say, than the others, or than their way
    back. Ends with 1 where something is wrong or could not be measured. Ctrl-C shows what was measured until then.
    """
    wanted = wanted_nodes(nodes, config, node_port)
    check_files({"--json": json_file, "--save": save}, {"--config": config})
    try:
        template = ProbeOrder("", () if transport == "auto" else (transport,), _sizes(sizes), seconds)
    except ValueError as error:
        raise ConfigError(f"--sizes, --seconds: {error}") from None
    found = _Found()
    run_until_stopped(_measured(wanted, template, node_token(token_env), at_once, found))
    if found.survey is not None:
        return _told(found.survey, json_file, save, admins)
    if found.pairs:
        click.echo("pointsman: stopped before all was measured; nothing is saved or told", err=True)
        _told(Survey(found.members, found.unreachable, tuple(found.pairs)), json_file, None, ())
    return EXIT_INTERRUPTED


@dataclass
class _Found:
    members: tuple[Member, ...] = ()
    unreachable: dict[str, str] = field(default_factory=dict)
    pairs: list[Pair] = field(default_factory=list)
    survey: Survey | None = None
    """All of it; None: it was stopped before."""


async def _measured(
    wanted: Sequence[tuple[str, str]], template: ProbeOrder, token: Secret | None, at_once: int, found: _Found
) -> int:
    async with NodeClient(token) as client:
        facts = await ask_all(client, [url for _, url in wanted])
        members, unreachable = named(wanted, facts)
        found.members, found.unreachable = tuple(members), unreachable
        for reason in unreachable.values():
            click.echo(f"pointsman: {reason}", err=True)

        def order(target: str) -> ProbeOrder:
            return msgspec.structs.replace(template, target=target)

        def told(pair: Pair) -> None:
            found.pairs.append(pair)
            click.echo(pair_line(pair), err=True)

        found.survey = await survey(client, members, unreachable, order, at_once=at_once, told=told)
    return 0


def _told(found: Survey, json_file: str | None, save: Path | None, admins: Sequence[str]) -> int:
    findings = verdicts(tuple(found.directions()))
    if json_file is not None:
        write_json(links_document(found, findings), json_file)
    else:
        print_links(found, findings)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    file = links_file(found, now)
    troubles: list[str] = []
    if save is not None or admins:
        troubles += _kept(file, save, admins)
    for trouble in troubles:
        click.echo(f"pointsman: {trouble}", err=True)
    return 1 if findings or found.failures or found.unreachable or troubles or not file.links else 0


def _kept(file: LinksFile, save: Path | None, admins: Sequence[str]) -> list[str]:
    """What could not be done of it."""
    if not file.links:
        return ["nothing was measured, so nothing is saved or told"]
    troubles = []
    if save is not None:
        try:
            save_links(save, file)
            click.echo(f"{save}: {len(file.links)} directions; name it in `links: {{file: {save}}}`", err=True)
        except ConfigError as error:
            troubles.append(f"--save {error}")
    for admin in admins:
        try:
            taken, where = tell_all("POST", admin, "/v1/links", LinksTaken, file, "links told")
            click.echo(f"{admin}: {taken.measurements} measurements told{where}", err=True)
            if taken.without_engines:
                troubles.append(_unused(admin, taken))
        except EngineError as error:
            troubles.append(f"--admin-url {error}")
    return troubles


def _unused(admin: str, taken: LinksTaken) -> str:
    there = f"are on {few(taken.machines)}" if taken.machines else "are on no machine yet"
    return (
        f"{admin} has no engines on {few(taken.without_engines)}, so nobody uses what was measured there; its engines "
        f"{there}. If that is the same machine by another name, give it: --node NAME=URL"
    )


def _sizes(text: str) -> tuple[int, ...]:
    sizes: list[int] = []
    for part in text.split(","):
        try:
            size = Size.parse(part)
        except ValueError as error:
            raise ConfigError(f"--sizes {text}: {part.strip()!r}: expected {error}") from None
        if size.bytes > MOST_PROBE_BYTES:
            raise ConfigError(f"--sizes {text}: {size} is more than {Size(MOST_PROBE_BYTES)}")
        sizes.append(size.bytes)
    if len(sizes) > MOST_SIZES:
        raise ConfigError(f"--sizes: {len(sizes)} sizes; give at most {MOST_SIZES}")
    return tuple(sorted(set(sizes)))
